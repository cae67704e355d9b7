//! The plan for connections: their policies, and the memory they may use.

use std::fs;
use std::str::FromStr;

use bufwise_bpf::{Config, ReceiveRule, SendRule};
use bufwise_policy::sabt;
use bufwise_socket::memory::HostMemory;
use bufwise_units::Bytes;

use super::choice::Choice;
use super::sizes::{AtOnce, LEAST_BUDGET, MaxConnections};
use crate::caps::{Caps, Setting, Wanted};
use crate::error::{Error, Result};

/// Largest receive window that is ever offered, payload bytes.
pub(super) const MAX_WINDOW: Bytes = Bytes(64 << 20);
/// Largest payload of a send buffer, bytes: its memory, twice as much, fits into the kernel's `int` with room to spare.
const MAX_SEND: Bytes = Bytes(512 << 20);
/// Highest value to which the host's own bounds are raised, bytes. It is limited because these bounds also apply to
/// programs that size their own buffers.
const MAX_CAP: Bytes = Bytes(64 << 20);
/// The kernel's built-in `net.core.wmem_max` and `rmem_max`, bytes.
const BUILT_IN_CAP: Bytes = Bytes(212_992);
/// A memory that the user has set must suffice for the first buffers and initial windows of this many writers.
pub(super) const WRITERS: u64 = 256;
/// Memory (bytes) that a new connection may hold before the shares include it, where records are made late: the kernel's
/// first buffer of 87 KB, with its growth in the round trips until the next sample.
const UNKNOWN: u64 = 256 << 10;

/// The policies and their bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The policies.
    pub choice: Choice,
    /// Memory that all send queues together may hold.
    pub budget: Bytes,
    /// Memory that all receive queues together may hold.
    pub receive_budget: Bytes,
    /// Largest receive window, payload bytes.
    pub max_window: Bytes,
    /// Whether buffers that programs have set are sized as well.
    pub take_over: bool,
    /// Most connections that are tuned at a time; the kernel sizes further ones.
    pub max_connections: u32,
    /// Largest document that is sent in one round trip and takes no part in the shares; zero: none.
    pub small_document: Bytes,
    /// Bound of the devices; `None`: they are left as they are.
    pub devices: Option<Wanted>,
    /// First size that writers fill at once, in bytes, if bufwise chooses it from the shares; [`u64::MAX`]: as much
    /// as the devices take; `None`: bufwise does not choose it.
    pub at_once: Option<u64>,
    /// Whether to decide without changing anything.
    pub observe_only: bool,
    /// Whether the programs return at once when they are called, to measure the cost of an empty call.
    pub only_called: bool,
}

/// The user's options besides the policies; `None`: the default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    /// Memory that all send queues together may hold.
    pub memory: Option<Bytes>,
    /// Memory that all receive queues together may hold.
    pub receive_memory: Option<Bytes>,
    /// Memory that the programs may use altogether, TCP's included; a default is at most an eighth of it.
    pub memory_limit: Option<Bytes>,
    /// Documents up to this size are sent in one round trip.
    pub small_documents: Option<Bytes>,
    /// Size of the packet that a sender fills at once.
    pub at_once: AtOnce,
    /// Whether all connections of the host are tuned, so that its devices carry no others.
    pub whole_host: bool,
    /// Whether buffers that programs have set are sized as well.
    pub take_over: bool,
    /// Most connections that are tuned at a time.
    pub max_connections: MaxConnections,
}

impl Plan {
    /// Makes a plan. Each budget defaults to half of the memory that the kernel gives TCP, but at most an eighth of the
    /// memory limit, so that both budgets leave three quarters of that limit to the programs. The size of a small document
    /// defaults to 8 KB under SABT, the only policy with such a rule (Matsuo, section 2.2.2), and to zero under the others.
    ///
    /// # Errors
    /// [`Error::Memory`] if a default budget is needed and the host's memory cannot be read.
    pub fn new(choice: Choice, asked: Asked) -> Result<Self> {
        let default = || half_of_tcps_memory().map(|half| within_limit(half, asked.memory_limit));
        let budget = asked.memory.map_or_else(default, Ok)?;
        let receive_budget = asked.receive_memory.map_or_else(default, Ok)?;
        let max_window = MAX_WINDOW.min(receive_budget);
        let usual = if choice.send_rule() == SendRule::Sabt { sabt::SMALL_DOCUMENT } else { Bytes::ZERO };
        let chosen = at_once(choice, &asked);
        Ok(Self {
            choice,
            budget,
            receive_budget,
            max_window,
            take_over: asked.take_over,
            max_connections: asked.max_connections.into(),
            small_document: asked.small_documents.unwrap_or(usual),
            devices: devices(chosen, &asked),
            at_once: chosen,
            observe_only: false,
            only_called: false,
        })
    }

    /// Returns the plan with a part of the memory.
    pub fn within(self, budget: Bytes, receive_budget: Bytes) -> Self {
        Self { budget, receive_budget, max_window: MAX_WINDOW.min(receive_budget), ..self }
    }

    /// Returns the engine's configuration; the host's bounds are read now.
    pub fn engine_config(&self) -> Config {
        let autotuning_send_max = Caps::of_host().original_maximum(Setting::TcpWmem);
        Config {
            autotuning_send_max: autotuning_send_max.map_or(Config::AUTOTUNING_SEND_MAX, Bytes),
            default_notsent_lowat: number("ipv4/tcp_notsent_lowat").unwrap_or(u32::MAX),
            send: self.choice.send_rule(),
            published: self.choice.send.is_published(),
            receive: self.choice.receive_rule(),
            fixed: self.choice.fixed(),
            max_send: self.max_send(),
            max_window: self.max_window,
            send_cap: host_bound("core/wmem_max"),
            receive_cap: host_bound("core/rmem_max"),
            take_over: self.take_over,
            observe_only: self.observe_only,
            only_called: self.only_called,
            small_document: self.small_document,
            max_flows: self.max_connections,
            ..Config::default()
        }
    }

    /// Returns the engine's configuration for hosts on which most connections may be short. Records are made late, except
    /// in these cases: SABT and the rule for small documents need the first flight; a dry run and the published rules cover
    /// every connection; with a small memory, a share must limit a connection before its second flight.
    pub fn late_config(&self) -> Config {
        let config = self.engine_config();
        let is_early = !matches!(config.send, SendRule::Kernel | SendRule::Abt | SendRule::Fit)
            || config.receive == ReceiveRule::Fixed
            || config.published
            || config.observe_only
            || self.budget.min(self.receive_budget) < Bytes(WRITERS * UNKNOWN)
            || config.small_document > Bytes::ZERO;
        if is_early {
            return config;
        }
        let times_first_flight = config.receive == ReceiveRule::Fit;
        let record_at_segment = if times_first_flight { Config::FULL_SEGMENT } else { Bytes::ZERO };
        Config { record_after: Config::SHORT_CONNECTION, record_at_segment, ..config }
    }

    /// Returns the engine's configuration for a command, whose report covers all data that it moves. Records are made late
    /// as in [`Self::late_config`], unless the kernel sizes the windows: a connection that only receives then has no
    /// callback that could make its record later.
    pub fn run_config(&self) -> Config {
        let receives = self.choice.receive_rule() != ReceiveRule::Kernel;
        if receives { self.late_config() } else { self.engine_config() }
    }

    /// Returns the bounds of a network namespace that must be raised, or lowered for devices.
    pub fn caps(&self) -> Vec<Wanted> {
        let receives = self.choice.receive_rule() != ReceiveRule::Kernel;
        let sends = self.choice.send_rule() != SendRule::Kernel;
        let window = self.max_window.min(MAX_CAP).0;
        let payload = self.max_send().min(MAX_CAP).0;
        let of_receivers =
            [Setting::TcpRmem, Setting::RmemMax].map(|setting| Wanted::Maximum(setting, window));
        let of_senders =
            [Setting::TcpWmem, Setting::WmemMax].map(|setting| Wanted::Maximum(setting, payload));
        let of_receivers = of_receivers.into_iter().filter(|_| receives);
        of_receivers.chain(of_senders.into_iter().filter(|_| sends)).collect()
    }

    /// Returns the maximum of `tcp_rmem`, the only bound that no socket option can replace: windows beyond 8 MiB need a
    /// larger window scale, which the SYN fixes.
    pub fn window_scale(&self) -> Option<Wanted> {
        let asks = matches!(self.choice.receive_rule(), ReceiveRule::Drs | ReceiveRule::Sobas);
        asks.then_some(Wanted::Maximum(Setting::TcpRmem, self.max_window.0))
    }

    fn max_send(&self) -> Bytes {
        Bytes(self.budget.0 / 2).min(MAX_SEND)
    }
}

/// Returns the first size that senders fill at once, so that a memory set by the user suffices for [`WRITERS`]
/// connections: a writer fills the buffer that it has begun, whatever its limit is (`tcp_sendmsg()`). `None`: bufwise
/// does not choose the size; the papers' rules do not either.
fn at_once(choice: Choice, asked: &Asked) -> Option<u64> {
    let shares = !matches!(choice.send_rule(), SendRule::Kernel | SendRule::Fixed)
        && !choice.send.is_published()
        && asked.at_once == AtOnce::Auto;
    let size = asked.memory.filter(|_| shares)?.0 / WRITERS;
    Some(super::at_once::within(Bytes(size)))
}

/// Returns the bound of the devices. It is set even if the devices' own bound is as low, because the shares may require a
/// lower one later.
fn devices(chosen: Option<u64>, asked: &Asked) -> Option<Wanted> {
    match asked.at_once {
        AtOnce::Device => None,
        AtOnce::Size(size) => Some(Wanted::Devices { size: size.0, also_in_the_first: true }),
        AtOnce::Auto => chosen.map(|size| Wanted::Devices { size, also_in_the_first: asked.whole_host }),
    }
}

/// Returns a default budget within a memory limit, if there is one.
fn within_limit(budget: Bytes, limit: Option<Bytes>) -> Bytes {
    limit.map_or(budget, |limit| budget.min(limit.scaled(1, 8).max(LEAST_BUDGET)))
}

/// Returns half of the memory that TCP may hold below the kernel's pressure mark (Semke 1998, section 2.2: half of
/// all network memory).
fn half_of_tcps_memory() -> Result<Bytes> {
    let tcp_mem = fs::read_to_string("/proc/sys/net/ipv4/tcp_mem").unwrap_or_default();
    if let Some(pages) = tcp_mem.split_whitespace().nth(1).and_then(|pages| pages.parse().ok()) {
        let page = nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE).ok().flatten().unwrap_or(4_096);
        return Ok(Bytes(pages).scaled(page.unsigned_abs(), 2));
    }
    // `tcp_mem` exists only in the first network namespace. Its default is a 16th of the memory (`tcp_init_mem()`).
    Ok(HostMemory::now().ok_or(Error::Memory)?.total.scaled(1, 32))
}

/// Reads a size among the network settings; the kernel's built-in default if it cannot be read.
fn host_bound(name: &str) -> Bytes {
    number(name).map_or(BUILT_IN_CAP, Bytes)
}

/// Reads a setting of the network stack, if it is a number.
fn number<T: FromStr>(name: &str) -> Option<T> {
    fs::read_to_string(format!("/proc/sys/net/{name}")).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(policy: &str, memory: &str) -> Plan {
        let memory = Some(memory.parse().unwrap());
        Plan::new(policy.parse().unwrap(), Asked { memory, receive_memory: memory, ..Asked::default() })
            .unwrap()
    }

    #[test]
    fn maxima_are_raised_for_the_sides_that_are_sized_alone() {
        let concerned = |policy: &str| -> Vec<Setting> {
            let maximum = |wanted| match wanted {
                Wanted::Maximum(setting, _) => setting,
                Wanted::Devices { .. } => panic!("{policy} asks for no device"),
            };
            plan(policy, "64MiB").caps().into_iter().map(maximum).collect()
        };
        assert_eq!(concerned("abt"), [Setting::TcpWmem, Setting::WmemMax]);
        assert_eq!(concerned("drs"), [Setting::TcpRmem, Setting::RmemMax]);
        assert_eq!(concerned("fixed:64KiB").len(), 4);
        assert_eq!(concerned("kernel"), []);
    }

    #[test]
    fn no_bound_is_larger_than_the_budget_allows() {
        let small = plan("abt,sobas", "1MiB");
        assert_eq!(small.max_window, Bytes(1 << 20));
        assert_eq!(small.window_scale(), Some(Wanted::Maximum(Setting::TcpRmem, 1 << 20)));
        assert!(small.caps().contains(&Wanted::Maximum(Setting::WmemMax, 1 << 19)));
        let large = plan("abt,sobas", "100GiB");
        assert_eq!(large.max_window, MAX_WINDOW);
        assert!(large.caps().iter().all(|one| matches!(one, Wanted::Maximum(_, size) if *size <= MAX_CAP.0)));
        assert_eq!(plan("fixed:64KiB", "1MiB").window_scale(), None, "its window is no moving one");
    }

    #[test]
    fn default_budgets_are_a_part_of_a_memory_limit() {
        let budgets = |limit: u64, memory: Option<Bytes>| {
            let asked = Asked { memory, memory_limit: Some(Bytes(limit)), ..Asked::default() };
            let plan = Plan::new(Choice::OF_RUN, asked).unwrap();
            (plan.budget, plan.receive_budget, plan.max_window)
        };
        let mebi = |count: u64| Bytes(count << 20);
        // The kernel gives TCP a 16th of the host's memory by default; a host that tests run on has more than 512 MiB.
        assert_eq!(budgets(64 << 20, None), (mebi(8), mebi(8), mebi(8)));
        assert_eq!(
            budgets(64 << 20, Some(mebi(20))),
            (mebi(20), mebi(8), mebi(8)),
            "the user's own size counts"
        );
        assert_eq!(budgets(1_000, None).0, LEAST_BUDGET);
        let unlimited = Plan::new(Choice::OF_RUN, Asked::default()).unwrap();
        assert_eq!(budgets(u64::MAX, None).0, unlimited.budget);
    }

    #[test]
    fn documents_are_small_by_default_under_sabt_alone() {
        assert_eq!(plan("sabt", "1MiB").small_document, sabt::SMALL_DOCUMENT);
        assert_eq!(plan("sabt:published", "1MiB").small_document, sabt::SMALL_DOCUMENT);
        assert_eq!(plan("abt", "1MiB").small_document, Bytes::ZERO);
    }

    #[test]
    fn records_are_late_where_no_rule_needs_the_first_flight() {
        let after = |plan: Plan| plan.late_config().record_after;
        for policy in ["auto", "abt", "drs", "abt,sobas", "kernel", "fit", "abt,fit"] {
            assert_eq!(after(plan(policy, "1GiB")), Config::SHORT_CONNECTION, "{policy}");
        }
        for policy in ["sabt", "eq", "fixed:64KiB", "kernel,fixed:64KiB", "abt:published"] {
            assert_eq!(after(plan(policy, "1GiB")), Bytes::ZERO, "{policy}");
        }
        assert_eq!(after(plan("auto", "64MiB")), Config::SHORT_CONNECTION);
        assert_eq!(after(plan("auto", "63MiB")), Bytes::ZERO);
        assert_eq!(after(Plan { observe_only: true, ..plan("auto", "1GiB") }), Bytes::ZERO);
        assert_eq!(after(Plan { small_document: Bytes(1), ..plan("auto", "1GiB") }), Bytes::ZERO);
        let at_segment = |policy: &str| plan(policy, "1GiB").late_config().record_at_segment;
        assert_eq!(at_segment("abt,sobas"), Bytes::ZERO);
        assert_eq!(at_segment("abt,fit"), Config::FULL_SEGMENT, "it times the first flight");
        let of_run = |policy: &str| plan(policy, "1GiB").run_config().record_after;
        assert_eq!((of_run("fit"), of_run("fit,kernel")), (Config::SHORT_CONNECTION, Bytes::ZERO));
    }

    #[test]
    fn devices_are_bounded_where_that_is_asked_for_or_the_memory_wants_it() {
        let of = |policy: &str, memory: Option<&str>, at_once: &str, whole_host: bool| {
            let memory = memory.map(|memory| memory.parse().unwrap());
            let asked = Asked {
                memory,
                receive_memory: Some(Bytes(1 << 20)),
                at_once: at_once.parse().unwrap(),
                whole_host,
                ..Asked::default()
            };
            Plan::new(policy.parse().unwrap(), asked).unwrap().devices
        };
        let bound = |size, also_in_the_first| Some(Wanted::Devices { size, also_in_the_first });
        assert_eq!(of("abt", Some("1GiB"), "8KiB", false), bound(8_192, true));
        assert_eq!(of("abt", Some("64KiB"), "auto", false), bound(4_096, false));
        assert_eq!(of("eq", Some("15MiB"), "auto", true), bound(32_768, true));
        let as_they_are = bound(u64::MAX, true);
        assert_eq!(of("sabt", Some("16MiB"), "auto", true), as_they_are, "until the shares ask for less");
        assert_eq!(of("abt", Some("2MiB"), "device", true), None);
        assert_eq!(of("abt:published", Some("2MiB"), "auto", true), None, "the paper bounds no device");
        assert_eq!(of("abt", None, "auto", true), None, "no promise was asked for");
        assert_eq!(
            (of("kernel", Some("2MiB"), "auto", true), of("fixed:64KiB", Some("2MiB"), "auto", true)),
            (None, None)
        );
    }
}
