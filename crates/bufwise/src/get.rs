//! `bufwise get`: a file, or a directory with all below it, from any FTP server.

use std::path::PathBuf;

use bufwise_transfer::client::{Target, Url};
use clap::Args;

use crate::exit::{Failure, Outcome};
use crate::transfer::{Command, Options, address};

/// Gets a file from an FTP server. The file has its name when all of it is there, its size has been compared, and it
/// is on the disk; until then, and after a failure, it is .NAME.bufwise-part beside it.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  bufwise get ftp://ftp.example.org/pub/file.iso
  bufwise get --policy drs --resume -o disk.img ftp://jo@example.org:2121/images/disk.img
  bufwise get --tls-required --json - --quiet ftp://example.org/data.tar

The path is relative to the login directory; ftp://HOST//PATH is absolute. Passwords come from BUFWISE_PASSWORD, from
~/.netrc (or --netrc), or from a prompt, never from the command line. BUFWISE_USER names the user if the address does
not; without any it is anonymous.")]
pub(crate) struct GetArgs {
    /// ftp://[USER@]HOST[:PORT]/PATH, or ftps:// for TLS from the first byte (port 990)
    url: String,
    /// Where to put it; a directory: under its own name in there
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    #[command(flatten)]
    options: Options,
}

impl GetArgs {
    pub(crate) fn run(self) -> Outcome {
        let url = address(&self.url)?;
        let target = self.target(&url)?;
        let mut command = Command::prepare("get", &url, self.options)?;
        command.one(&url.path, &target.path(), |worker, watch| worker.get(&url.path, &target, watch));
        command.finish()
    }

    fn target(&self, url: &Url) -> Result<Target, Failure> {
        let name = url.file_name().filter(|_| !url.directory);
        let name = name.ok_or_else(|| Failure::usage(format!("{url} names a directory: add -r")))?;
        let path = match &self.output {
            Some(directory) if directory.is_dir() => directory.join(name),
            Some(path) => path.clone(),
            None => PathBuf::from(name),
        };
        Ok(Target::new(&path)?)
    }
}
