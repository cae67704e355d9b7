//! The options of `get` and `put`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;
use bufwise_ftp::client::{Scheme, Security, Settings, Url};
use bufwise_host::tuner::sizes;
use bufwise_mover::tls::{ClientTls, Fingerprint, Trust};
use bufwise_policy::{PolicyKind, PolicyNameError};
use bufwise_units::{Micros, ParseError, Rate};
use clap::Args;

use crate::exit::Failure;
use crate::output;

/// How to move files.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Policy that sizes the buffers: kernel, drs, drs-ftp, sobas, sobas:published, fit or fixed:SIZE
    ///
    /// kernel changes nothing and only measures. drs lets the window follow what arrives in a round trip; drs-ftp is drsFTP as
    /// published. sobas lets the window grow to what the path carries, and no further; sobas:published is the rule as its paper
    /// has it, for comparisons. drs, drs-ftp and both forms of sobas are rules of the end that receives: put only does what a
    /// bufwise server with such a policy requests, and needs --policy sobas if that server is to probe the path.
    ///
    /// fit uses the whole rate of the path and fills no queue, with any server: get bounds the window, and put bounds the rate.
    /// It acts only on paths with a round trip of 2 ms or more, and for put only on CUBIC and Reno; elsewhere it sizes buffers
    /// as abt (put) and drs (get) do. fixed:SIZE sets one size.
    #[arg(long, value_name = "POLICY", default_value = "kernel", value_parser = policy)]
    pub(super) policy: PolicyKind,
    /// Continue what an earlier attempt left, if its last 64 KiB are the same at both ends
    #[arg(long)]
    resume: bool,
    /// Write the report into this file; - for standard output
    #[arg(long, value_name = "FILE")]
    pub(super) json: Option<PathBuf>,
    /// Move at most this rate, as 20mbit, with -r all files together; it also bounds the receive window
    #[arg(long, value_name = "RATE", value_parser = some_rate)]
    limit_rate: Option<Rate>,
    /// At the end compare the strongest checksum that the server has (HASH: SHA-256 to MD5); fail if it has none
    #[arg(long)]
    checksum: bool,
    /// Number of further attempts after a broken or silent connection, or a temporary refusal (4yz); each continues where the
    /// last one ended
    #[arg(long, value_name = "N", default_value_t = 3)]
    retries: u32,
    /// With -r: number of files at a time, each over a session of its own; fewer where the server allows fewer sessions
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(super) jobs: u16,
    /// End an attempt in which no byte moves, or the server does not answer, for this time
    #[arg(long, value_name = "TIME", default_value = "60s")]
    timeout: Micros,
    /// End an attempt that is slower than this rate, as 10kbit, on average over the time of --timeout; with -r each of the files
    /// at a time has its part of it
    #[arg(long, value_name = "RATE")]
    lowest_rate: Option<Rate>,
    /// Encrypt if the server offers it
    #[arg(long)]
    tls: bool,
    /// Encrypt, or fail before anything is sent
    #[arg(long)]
    tls_required: bool,
    /// Trust servers whose certificates come from the authorities in this PEM file (means --tls-required)
    #[arg(long, value_name = "FILE", conflicts_with_all = ["insecure", "pin"])]
    cacert: Option<PathBuf>,
    /// Encrypt, and trust any server (means --tls-required unless --tls is given)
    #[arg(long, conflicts_with = "pin")]
    insecure: bool,
    /// Trust only the server whose certificate has this SHA-256 fingerprint (means --tls-required)
    #[arg(long, value_name = "FINGERPRINT")]
    pin: Option<Fingerprint>,
    /// Look for the password in this file instead of ~/.netrc
    #[arg(long, value_name = "FILE")]
    pub(super) netrc: Option<PathBuf>,
    /// No progress and no summary
    #[arg(short, long)]
    pub(super) quiet: bool,
}

/// Parses the policy of a client; refuses policies that share memory among connections.
pub(crate) fn policy(text: &str) -> Result<PolicyKind, String> {
    match named(text, ", fit")? {
        kind @ (PolicyKind::Eq
        | PolicyKind::Abt
        | PolicyKind::AbtPublished
        | PolicyKind::Sabt
        | PolicyKind::SabtPublished) => Err(format!(
            "policy `{kind}` shares memory among all connections of a host: use bufwise run or bufwise daemon"
        )),
        other => Ok(other),
    }
}

/// Parses a policy that the file mover runs without an engine; `serve` checks further which side the policy sets.
pub(crate) fn without_engine(text: &str) -> Result<PolicyKind, String> {
    let kind = named(text, "")?;
    if kind.needs_engine() {
        return Err(format!(
            "policy `{kind}` needs an engine: bufwise run --policy {kind} -- CMD, or bufwise daemon --policy {kind}"
        ));
    }
    Ok(kind)
}

/// Parses a limit of a rate.
pub(crate) fn some_rate(text: &str) -> Result<Rate, String> {
    let rate: Rate = text.parse().map_err(|error: ParseError| error.to_string())?;
    if rate == Rate(0) {
        Err("nothing moves at a rate of 0: leave --limit-rate out for no limit".to_owned())
    } else {
        Ok(rate)
    }
}

/// Parses a policy's name. The error for an unknown name lists the policies that move files, and `more`.
fn named(text: &str, more: &str) -> Result<PolicyKind, String> {
    if let Some(size) = text.strip_prefix("fixed:") {
        sizes::check_fixed(size).map_err(|error| format!("policy `fixed`: {error}"))?;
    }
    text.parse().map_err(|error| match error {
        PolicyNameError::Unknown(name) => format!(
            "unknown policy `{name}`: those that move files are kernel, fixed:SIZE, drs, drs-ftp, sobas, sobas:published{more}"
        ),
        error => error.to_string(),
    })
}

impl Options {
    pub(super) fn settings(&self) -> Result<Settings, Failure> {
        if self.timeout == Micros::ZERO {
            return Err(Failure::usage("--timeout 0 leaves no time for a transfer"));
        }
        let from_outside = self.policy.needs_engine();
        if from_outside && self.limit_rate.is_some() {
            return Err(Failure::usage(format!(
                "--policy {} finds the path's own rate, and --limit-rate sets one: leave one of them out",
                self.policy
            )));
        }
        if self.lowest_rate.zip(self.limit_rate).is_some_and(|(lowest, limit)| lowest >= limit) {
            return Err(Failure::usage(
                "--lowest-rate must be below --limit-rate: no transfer would be as fast as it demands",
            ));
        }
        Ok(Settings {
            policy: if from_outside { PolicyKind::Kernel } else { self.policy },
            resume: self.resume,
            checksum: self.checksum,
            idle: self.patience(),
            lowest: self.lowest_rate,
            limit: self.limit_rate,
            retries: self.retries,
            ..Settings::default()
        })
    }

    /// Whether to continue the part that an earlier attempt left.
    pub(crate) fn resumes(&self) -> bool {
        self.resume
    }

    /// Fails if the report would replace the file that is moved.
    pub(crate) fn keep_apart(&self, moved: &Path) -> Result<(), Failure> {
        self.json.as_deref().map_or(Ok(()), |json| output::check_apart(json, moved))
    }

    /// Whether standard output gets the report.
    pub(crate) fn reports_to_stdout(&self) -> bool {
        self.json.as_deref().is_some_and(output::is_stdout)
    }

    pub(super) fn patience(&self) -> Duration {
        Duration::from_micros(self.timeout.0)
    }

    /// Returns whether to encrypt, and which certificates to trust.
    pub(super) fn security(&self, url: &Url) -> Result<Security, Failure> {
        let required = self.tls_required || self.cacert.is_some() || self.pin.is_some();
        let required = required || url.scheme == Scheme::Ftps || (self.insecure && !self.tls);
        if !required && !self.tls {
            return Ok(Security::Plain);
        }
        let trust = match (&self.cacert, self.pin) {
            (Some(file), _) => Trust::Authorities(file.clone()),
            (None, Some(pin)) => Trust::Pinned(pin),
            (None, None) if self.insecure => Trust::Anyone,
            (None, None) => Trust::System,
        };
        let tls = ClientTls::new(&trust)?;
        Ok(if required { Security::Required(tls) } else { Security::Offered(tls) })
    }
}
