//! Users and certificate: read at the start, and again after SIGHUP.
//!
//! Properties: an error in one of the files changes nothing; a self-made certificate stays the same, because clients
//! may have stored its fingerprint; passwords are asked for only at the start.

use std::fs;
use std::path::{Path, PathBuf};

use bufwise_ftp::server::{Admission, Rights, TlsConfig};
use bufwise_mover::tls::ServerTls;
use clap::Args;

use super::people::People;
use crate::exit::{FAILED, Failure};

#[derive(Debug, Args)]
#[command(next_help_heading = "Encryption")]
pub(super) struct TlsArgs {
    /// Offer TLS with this certificate (and those it is signed with), PEM
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// The certificate's private key, PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Offer TLS with a certificate made at the start; clients compare its fingerprint, which is logged
    #[arg(long, conflicts_with = "tls_cert")]
    tls_self_signed: bool,
    /// Allow no login and no transfer without TLS
    #[arg(long)]
    tls_required: bool,
    /// Accept only data connections that continue the TLS session; some programs (Python's, for example) cannot do so
    #[arg(long)]
    tls_reuse: bool,
}

impl TlsArgs {
    /// Reads the certificate; a self-signed one that was `made` already is used again.
    fn config(&self, made: Option<&ServerTls>) -> Result<Option<TlsConfig>, Failure> {
        let server = match (&self.tls_cert, &self.tls_key, made) {
            (Some(chain), Some(key), _) => Some(ServerTls::from_files(chain, key)?),
            (.., Some(made)) => Some(made.clone()),
            _ if self.tls_self_signed => Some(ServerTls::self_signed(&own_names())?),
            _ => None,
        };
        match server {
            Some(server) => {
                Ok(Some(TlsConfig { server, required: self.tls_required, require_reuse: self.tls_reuse }))
            }
            None if self.tls_required || self.tls_reuse => Err(Failure::usage(
                "TLS needs a certificate: add --tls-cert FILE --tls-key FILE, or --tls-self-signed",
            )),
            None => Ok(None),
        }
    }
}

/// Returns the names and addresses for which a self-made certificate is valid.
fn own_names() -> Vec<String> {
    let host = nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok());
    let named = host.filter(|name| !name.is_empty() && name.is_ascii());
    named.into_iter().chain(["localhost".to_owned(), "127.0.0.1".to_owned(), "::1".to_owned()]).collect()
}

/// The sources of the users and of the certificate.
#[derive(Debug)]
pub(super) struct Sources {
    people: People,
    tls: TlsArgs,
    /// The self-made certificate of the start, if any.
    made: Option<ServerTls>,
}

impl Sources {
    /// Reads everything, and asks for the passwords that are in no file.
    pub(super) fn read(people: People, tls: TlsArgs) -> Result<(Self, Admission), Failure> {
        let mut sources = Self { people, tls, made: None };
        sources.check_files()?;
        let users = sources.people.users()?;
        let tls = sources.tls.config(None)?;
        let is_made = sources.tls.tls_self_signed;
        sources.made = tls.as_ref().filter(|_| is_made).map(|config| config.server.clone());
        Ok((sources, Admission { users, tls }))
    }

    /// Returns the files that [`Sources::again`] reads.
    pub(super) fn files(&self) -> Vec<PathBuf> {
        let tls = [&self.tls.tls_cert, &self.tls.tls_key].into_iter().flatten();
        self.people.file().map(Path::to_owned).into_iter().chain(tls.cloned()).collect()
    }

    /// Fails if one of the files is no regular file, nor a link to one: opening a FIFO would block until it has a writer.
    fn check_files(&self) -> Result<(), Failure> {
        let is_other = |file: &PathBuf| fs::metadata(file).is_ok_and(|found| !found.is_file());
        match self.files().into_iter().find(is_other) {
            Some(file) => {
                let message = format!("cannot read {}: it is not a regular file", file.display());
                Err(Failure::new(FAILED, message))
            }
            None => Ok(()),
        }
    }

    /// Whether any user may write, now or after [`Sources::again`].
    pub(super) fn may_let_write(&self) -> bool {
        self.people.may_let_write()
    }

    /// Reads the files again.
    pub(super) fn again(&self) -> Result<Admission, Failure> {
        self.check_files()?;
        Ok(Admission { users: self.people.users_again()?, tls: self.tls.config(self.made.as_ref())? })
    }
}

/// Describes the users' rights and the certificate in words.
pub(super) fn about(admission: &Admission) -> String {
    let rights = |rights| if rights == Rights::Write { "read and write" } else { "read" };
    let users = &admission.users;
    let mut people: Vec<String> =
        users.names().map(|(name, may)| format!("{name} may {}", rights(may))).collect();
    if people.len() > 3 {
        people = vec![format!("{} users", people.len())];
    }
    people.extend(users.anonymous_rights().map(|may| format!("anybody may {}", rights(may))));
    let tls = match &admission.tls {
        Some(tls) => {
            let required = if tls.required { ", required" } else { "" };
            format!("TLS (fingerprint {}{required})", tls.server.fingerprint())
        }
        None => "no TLS".to_owned(),
    };
    format!("{}; {tls}", people.join(", "))
}
