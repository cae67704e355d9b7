//! `bufwise restore`: restores everything that bufwise changed on this host.

use std::fs;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use bufwise_host::control::{self, Reply, Request};
use bufwise_host::daemon;
use bufwise_host::leftovers::{self, Cleared};
use clap::Args;

use crate::exit::{Failure, Outcome};
use crate::output;

/// Put back everything that bufwise has changed on this host
///
/// A running daemon gives everything back, and tunes no more until SIGHUP or systemctl reload. Without a daemon, what a killed
/// daemon or run has left is cleared. Settings of a running bufwise run stay.
#[derive(Debug, Args)]
pub(crate) struct RestoreArgs {
    /// Control socket of the daemon, which has to exist; default the one that /etc/bufwise/bufwise.toml names, or
    /// /run/bufwise/control, which need not exist
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
}

impl RestoreArgs {
    pub(crate) fn run(self) -> Outcome {
        if let Some(named) = &self.socket {
            check_socket(named)?;
        }
        let socket = self.socket.unwrap_or_else(daemon::configured_socket);
        // If a daemon refuses or fails, that is the result: nothing is changed without it.
        let restored = match control::ask(&socket, &Request::Restore)? {
            None => None,
            Some(Reply::Restored(restored)) => Some(restored),
            Some(Reply::Error(error)) => return Err(Failure::new(crate::exit::FAILED, error)),
            Some(other) => {
                let answer = format!("the daemon's answer belongs to another request: {other:?}");
                return Err(Failure::new(crate::exit::FAILED, answer));
            }
        };
        let Cleared { mut done, mut failed } = leftovers::clear()?;
        if let Some(restored) = restored {
            done.insert(0, format!("{} connections given back to the kernel", restored.connections));
            done.extend(restored.settings);
            done.extend(restored.notes);
            if restored.failed_connections > 0 {
                failed.push(format!(
                    "{} connections keep what was set: no process holds them",
                    restored.failed_connections
                ));
            }
        }
        if done.is_empty() && failed.is_empty() {
            done.push("nothing to put back".to_owned());
        }
        output::line(&done.iter().map(|line| format!("{line}\n")).collect::<String>())?;
        if failed.is_empty() { Ok(0) } else { Err(Failure::new(crate::exit::FAILED, failed.join("; "))) }
    }
}

/// Fails if a named socket does not exist or is no socket. If it exists, a daemon listens there, or did until it was
/// killed.
fn check_socket(path: &Path) -> Result<(), Failure> {
    let error = match fs::metadata(path) {
        Ok(metadata) if !metadata.file_type().is_socket() => "it is no socket".to_owned(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => error.to_string(),
        // Asking the daemon reports any other error.
        _ => return Ok(()),
    };
    let advice = "without --socket, what killed daemons have left is put back";
    Err(Failure::new(
        crate::exit::FAILED,
        format!("there is no daemon at {}: {error}; {advice}", path.display()),
    ))
}
