//! Parses `--policy P[,P]`: one rule for each side of a connection.
//!
//! A single policy of both sides (`kernel`, `fixed`, `fit`) applies to both. Of two names each takes its own side; if
//! both fit either side, the first is the sender's: `fit,kernel` is fit at the sender only.

use std::fmt;
use std::iter;
use std::str::FromStr;

use bufwise_bpf::{ReceiveRule, SendRule};
use bufwise_policy::{PolicyKind, PolicyNameError, Side};
use bufwise_units::Bytes;

use super::sizes;

/// A policy for each side; a side without a named policy stays the kernel's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Policy of senders.
    pub send: PolicyKind,
    /// Policy of receivers.
    pub receive: PolicyKind,
}

/// `auto` of the daemon and of its groups.
impl Default for Choice {
    fn default() -> Self {
        Self { send: PolicyKind::Abt, receive: PolicyKind::Sobas }
    }
}

impl FromStr for Choice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "auto" {
            return Ok(Self::default());
        }
        if text.split(',').any(|name| name == "auto") {
            return Err(format!("`{text}`: `auto` stands alone, because it chooses both sides"));
        }
        let named = text.split(',').map(named).collect::<Result<Vec<_>, _>>()?;
        let (send, receive) = match *named.as_slice() {
            [one] => (one, one),
            // The order matters only for policies of both sides.
            [first, second] if first.side() == Side::Receive || second.side() == Side::Send => {
                (second, first)
            }
            [first, second] => (first, second),
            _ => return Err(format!("`{text}` names more than one policy for each side")),
        };
        let is_for = |kind: PolicyKind, side| kind.side() == side || kind.side() == Side::Both;
        if named.len() == 2 && !(is_for(send, Side::Send) && is_for(receive, Side::Receive)) {
            return Err(format!("`{text}` names two policies for the same side"));
        }
        if let [PolicyKind::Fixed(_), PolicyKind::Fixed(_)] = *named.as_slice() {
            return Err(format!("`{text}`: `fixed` takes one size for both sides, as `fixed:64KiB`"));
        }
        let or_kernel = |kind, side| if is_for(kind, side) { kind } else { PolicyKind::Kernel };
        Ok(Self { send: or_kernel(send, Side::Send), receive: or_kernel(receive, Side::Receive) })
    }
}

/// Returns the names of the policies that the engine runs, as `--policy` takes them.
fn names() -> Vec<&'static str> {
    let of_ftp = [PolicyKind::DrsFtp.name(), PolicyKind::SobasPublished.name()];
    let of_the_engine = PolicyKind::NAMES.into_iter().filter(|name| !of_ftp.contains(name));
    iter::once("auto").chain(of_the_engine).collect()
}

fn named(name: &str) -> Result<PolicyKind, String> {
    if let Some(size) = name.strip_prefix("fixed:") {
        sizes::check_fixed(size).map_err(|error| format!("policy `fixed`: {error}"))?;
    }
    match name.parse() {
        Ok(kind @ (PolicyKind::DrsFtp | PolicyKind::SobasPublished)) => {
            Err(format!("policy `{kind}` works inside an FTP program: bufwise get, put, serve"))
        }
        Ok(kind) => Ok(kind),
        Err(PolicyNameError::Unknown(name)) => {
            Err(format!("unknown policy `{name}`: the policies here are {}", names().join(", ")))
        }
        Err(error) => Err(error.to_string()),
    }
}

impl Choice {
    /// `auto` of `bufwise run`. The daemon keeps [`Choice::default`], whose records of short connections cost less.
    pub const OF_RUN: Self = Self { send: PolicyKind::Fit, receive: PolicyKind::Fit };

    /// Parses a `--policy` of `bufwise run`.
    ///
    /// # Errors
    /// Says what is wrong with `text`, as parsing does elsewhere.
    pub fn parse_for_run(text: &str) -> Result<Self, String> {
        if text == "auto" { Ok(Self::OF_RUN) } else { text.parse() }
    }

    /// Returns the engine's rule for senders.
    pub fn send_rule(self) -> SendRule {
        match self.send {
            PolicyKind::Fixed(_) => SendRule::Fixed,
            PolicyKind::Eq => SendRule::Eq,
            PolicyKind::Abt | PolicyKind::AbtPublished => SendRule::Abt,
            PolicyKind::Sabt | PolicyKind::SabtPublished => SendRule::Sabt,
            PolicyKind::Fit => SendRule::Fit,
            PolicyKind::Kernel
            | PolicyKind::Drs
            | PolicyKind::DrsFtp
            | PolicyKind::Sobas
            | PolicyKind::SobasPublished => SendRule::Kernel,
        }
    }

    /// Returns the engine's rule for receivers.
    pub fn receive_rule(self) -> ReceiveRule {
        match self.receive {
            PolicyKind::Fixed(_) => ReceiveRule::Fixed,
            PolicyKind::Drs => ReceiveRule::Drs,
            PolicyKind::Sobas => ReceiveRule::Sobas,
            PolicyKind::Fit => ReceiveRule::Fit,
            PolicyKind::Kernel
            | PolicyKind::Eq
            | PolicyKind::Abt
            | PolicyKind::AbtPublished
            | PolicyKind::Sabt
            | PolicyKind::SabtPublished
            | PolicyKind::DrsFtp
            | PolicyKind::SobasPublished => ReceiveRule::Kernel,
        }
    }

    /// Returns the size of `fixed`; zero for other policies.
    pub fn fixed(self) -> Bytes {
        match (self.send, self.receive) {
            (PolicyKind::Fixed(size), _) | (_, PolicyKind::Fixed(size)) => size,
            _ => Bytes::ZERO,
        }
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.send == self.receive {
            return self.send.fmt(f);
        }
        write!(f, "{} (send), {} (receive)", self.send, self.receive)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_sets_the_side_it_was_made_for() {
        let of = |text: &str| text.parse::<Choice>().unwrap();
        assert_eq!(of("auto"), of("abt,sobas"));
        assert_eq!(Choice::parse_for_run("auto"), Ok(of("fit")));
        assert_eq!(Choice::parse_for_run("abt"), Ok(of("abt")));
        assert_eq!(Choice::parse_for_run("atb"), "atb".parse::<Choice>());
        assert_eq!(of("sobas,abt"), of("abt,sobas"));
        assert_eq!(of("drs"), Choice { send: PolicyKind::Kernel, receive: PolicyKind::Drs });
        assert_eq!(
            (of("sabt").send_rule(), of("sabt").receive_rule()),
            (SendRule::Sabt, ReceiveRule::Kernel)
        );
        let fixed = of("fixed:64KiB");
        assert_eq!((fixed.send_rule(), fixed.receive_rule()), (SendRule::Fixed, ReceiveRule::Fixed));
        assert_eq!(fixed.fixed(), Bytes(65_536));
        assert_eq!(of("kernel").to_string(), "kernel");
        let published = of("abt:published,sobas");
        assert_eq!((published.send_rule(), published.receive_rule()), (SendRule::Abt, ReceiveRule::Sobas));
        assert_eq!(published.to_string(), "abt:published (send), sobas (receive)");
        assert_eq!(of("drs,sabt:published").send, PolicyKind::SabtPublished);
        assert_eq!(of("fit"), Choice { send: PolicyKind::Fit, receive: PolicyKind::Fit });
        assert_eq!(of("kernel,fit"), Choice { send: PolicyKind::Kernel, receive: PolicyKind::Fit });
        assert_eq!((of("fit,kernel").send, of("abt,fit").receive), (PolicyKind::Fit, PolicyKind::Fit));
        assert_eq!((of("fit,sobas"), of("fit,abt")), (of("sobas,fit"), of("abt,fit")));
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for (text, words) in [
            ("abt,sabt", "same side"),
            ("sobas,drs", "same side"),
            ("abt,drs,sobas", "more than one"),
            ("fixed:64KiB,fixed:128KiB", "one size"),
            ("drs-ftp", "FTP"),
            ("abt,sobas:published", "FTP"),
            ("abt,", "unknown policy"),
            ("auto,kernel", "`auto` stands alone"),
            ("fit,auto", "`auto` stands alone"),
            ("reno", "abt, abt:published, sabt, sabt:published, drs, sobas, fit"),
            ("abt:paper", "abt:published"),
            ("abt,abt:published", "same side"),
            ("fixed", "64KiB"),
        ] {
            let error = text.parse::<Choice>().unwrap_err();
            assert!(error.contains(words), "{text}: {error}");
        }
    }
}
