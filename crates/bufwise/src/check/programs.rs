//! Checks what the engine needs: cgroup v2, the programs, socket diagnostics, descriptors of other processes.

use std::fs;
use std::net::UdpSocket;
use std::os::fd::{AsFd, OwnedFd};

use bufwise_bpf::{Cgroup, Engine, EngineError, kernel_version, reach, sweeps_switch_callbacks_on};
use bufwise_host::container;
use bufwise_host::in_words;
use bufwise_socket::diag::{Connection, Diag};
use bufwise_socket::options::{self, OptionError};
use bufwise_units::counted;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};

use super::{Point, Status};
use crate::run;

pub(super) fn points() -> Vec<Point> {
    let (cgroup, group) = cgroup();
    let (programs, mut engine) = programs();
    let mut points = vec![cgroup, programs];
    let adoption = engine.as_mut().map(existing_connections);
    points.push(attached(group, engine));
    points.extend(adoption);
    let descriptors = descriptors();
    let user = user_space(&descriptors, buffer_lock().is_ok());
    points.extend([clamps(), giving_back(), namespaces(), diagnostics(), descriptors, user]);
    points
}

fn cgroup() -> (Point, Option<Cgroup>) {
    let name = "cgroup v2";
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let place = mounts.lines().find(|line| line.split(' ').nth(2) == Some("cgroup2"));
    let place = place.and_then(|line| line.split(' ').nth(1)).map_or_else(
        || "not mounted; bufwise mounts it for itself".to_owned(),
        |place| format!("mounted at {place}"),
    );
    match Cgroup::create() {
        Ok(group) if container::has_cgroups_of_its_own() => {
            let found = format!("{place}; only this container's cgroups");
            let advice =
                format!("for the daemon, {}: it cannot reach the cgroups of the host", container::ADVICE);
            (Point::limited(name, found, &advice).needed(), Some(group))
        }
        Ok(group) => (Point::ok(name, format!("{place}; a cgroup can be made")).needed(), Some(group)),
        Err(error) => {
            let advice =
                "run as root on a kernel with cgroup v2; in a container, let it have a cgroup of its own";
            (Point::missing(name, error, advice).needed(), None)
        }
    }
}

fn programs() -> (Point, Option<Engine>) {
    let name = "programs load";
    let config = match run::default_engine_config() {
        Ok(config) => config,
        Err(error) => return (Point::missing(name, in_words(&error), "mount /proc").needed(), None),
    };
    match Engine::load(&config) {
        Ok(engine) => {
            let found = "the kernel accepts bufwise's eBPF programs";
            (Point::ok(name, found).needed(), Some(engine))
        }
        Err(error) => {
            let found = match error {
                EngineError::Refused { step, reason } => format!("refused ({step}): {reason}"),
                other => other.to_string(),
            };
            let advice = "run as root on Linux 5.10 or newer with BTF; see the lines above";
            (Point::missing(name, found, advice).needed(), None)
        }
    }
}

fn attached(group: Option<Cgroup>, engine: Option<Engine>) -> Point {
    let name = "programs attach";
    let (Some(group), Some(mut engine)) = (group, engine) else {
        return Point::missing(name, "not tried", "first do what the two lines above say").needed();
    };
    let point = match engine.attach(group.as_fd()) {
        Ok(()) => Point::ok(name, "attached to a cgroup made for this test, and detached").needed(),
        Err(error) => Point::missing(
            name,
            error,
            "a program on a cgroup above allows no other program: bpftool cgroup tree shows it",
        )
        .needed(),
    };
    // The programs must be detached before the group is removed.
    drop(engine);
    drop(group);
    point
}

/// First kernel on which a program can set a window clamp.
const SETS_CLAMPS: (u32, u32) = (5, 11);

/// Reports how the daemon reaches connections that existed before it.
fn existing_connections(engine: &mut Engine) -> Point {
    let name = "existing connections";
    if let Err(error) = engine.load_sweep() {
        return Point::limited(name, error, "new connections are tuned nevertheless");
    }
    let limit = match engine.adoption_limit() {
        Some(limit) => limit.to_owned(),
        None if !sweeps_switch_callbacks_on() => {
            "sized from user space, five times a second: an iterator cannot switch their callbacks on"
                .to_owned()
        }
        None => return Point::ok(name, "adopted by an iterator, sized once per round trip"),
    };
    Point::limited(name, limit, "use Linux 6.12 or newer to have them sized once per round trip")
}

/// Reports how receive windows are limited.
fn clamps() -> Point {
    let name = "receive windows";
    match kernel_version() {
        Some(version) if version < SETS_CLAMPS => Point::limited(
            name,
            "a program cannot limit them (TCP_WINDOW_CLAMP): user space does, some milliseconds later",
            "use Linux 5.11 or newer",
        ),
        _ => Point::ok(name, "limited by the programs (TCP_WINDOW_CLAMP)"),
    }
}

/// Name of the line on what an ordinary user gets.
pub(super) const USER_SPACE: &str = "run, any user";

/// Reports what `run` does without privilege.
fn user_space(descriptors: &Point, gives_back: bool) -> Point {
    let scope = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    what_users_get(descriptors.status == Status::Ok, scope.trim(), gives_back)
}

fn what_users_get(reaches: bool, scope: &str, gives_back: bool) -> Point {
    let gets = "from user space (no privilege): windows and rates held, four samples per round trip";
    match scope {
        _ if !reaches => Point::missing(
            USER_SPACE,
            "it can reach no sockets: the command runs untuned, and the report has no connection",
            "allow pidfd_open and pidfd_getfd (Linux 5.6, seccomp)",
        ),
        "2" | "3" => Point::missing(
            USER_SPACE,
            format!(
                "kernel.yama.ptrace_scope is {scope}: it can reach no sockets, so the command runs untuned, and the \
                 report has no connection"
            ),
            "run as root, or set kernel.yama.ptrace_scope to 1",
        ),
        _ if !gives_back => Point::limited(
            USER_SPACE,
            format!("{gets}; buffers stay autotuned"),
            "use Linux 5.15 or newer to have buffers sized",
        ),
        _ => Point::ok(USER_SPACE, format!("{gets}; buffers sized within rmem_max and wmem_max")),
    }
}

fn buffer_lock() -> Result<(), OptionError> {
    without_address().map_or(Ok(()), |socket| options::buffer_lock(socket).map(drop))
}

/// Returns a TCP socket that needs no address: the loopback device may be down.
fn without_address() -> Option<OwnedFd> {
    socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None).ok()
}

/// Reports whether buffers can be returned to autotuning.
fn giving_back() -> Point {
    let name = "giving back";
    match buffer_lock() {
        Ok(()) => Point::ok(name, "buffers go back to the kernel's autotuning (SO_BUF_LOCK)"),
        Err(error) => Point::limited(
            name,
            format!("{error}: a buffer that was set stays locked, at the most that autotuning allows"),
            "use Linux 5.15 or newer",
        ),
    }
}

fn namespaces() -> Point {
    let name = "network namespaces";
    let cookie = UdpSocket::bind("127.0.0.1:0").map(options::namespace_cookie);
    match cookie {
        Ok(Err(error)) => Point::limited(
            name,
            format!("{error}: told apart by their inodes"),
            "use Linux 5.14 or newer; or after a crash run bufwise restore before a namespace is deleted",
        ),
        _ => Point::ok(name, "told apart by their cookies (SO_NETNS_COOKIE)"),
    }
}

fn diagnostics() -> Point {
    let name = "socket diagnostics";
    match Diag::open().and_then(|mut diag| diag.listening(None)) {
        Ok(listeners) => Point::ok(name, format!("{} here", counted(listeners.len(), "listener"))),
        Err(error) => Point::limited(
            name,
            error,
            "modprobe tcp_diag; without it ls and explain do not work, and run cannot say what limits a connection",
        ),
    }
}

/// Fetches a socket of this process in the same way as those of other processes.
fn descriptors() -> Point {
    let name = "sockets in reach";
    let own = std::process::id().cast_signed();
    let fetch = || {
        let socket = without_address()?;
        // The socket itself tells its cookie: socket diagnostics may be missing here.
        let cookie = Connection::of(&socket, 0).ok()?.cookie;
        reach::socket(cookie, &[own], None).map(|_| ())
    };
    match fetch() {
        Some(()) => Point::ok(name, "pidfd_getfd works, here on a socket of its own"),
        None => Point::limited(
            name,
            "pidfd_getfd does not work",
            "buffers stay within the host's maxima; allow pidfd_open and pidfd_getfd (Linux 5.6, seccomp)",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_ordinary_user_gets_depends_on_reach_and_giving_back() {
        let point = |reaches, scope, gives_back| what_users_get(reaches, scope, gives_back);
        let best = point(true, "1", true);
        assert!(best.status == Status::Ok && best.found.starts_with("from user space (no privilege)"));
        assert_eq!(point(true, "", true), best, "without Yama");
        let old = point(true, "0", false);
        assert!(old.status == Status::Limited && old.found.ends_with("buffers stay autotuned"));
        let closed = point(true, "2", true);
        assert!(closed.status == Status::Missing && closed.found.contains("ptrace_scope is 2"));
        assert_eq!(point(false, "0", true).status, Status::Missing);
    }
}
