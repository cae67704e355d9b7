//! `bufwise put`: a file, or a directory with all below it, to any FTP server that takes it.

use std::fs::File;
use std::path::PathBuf;

use anyhow::Context;
use bufwise_transfer::client::Url;
use clap::Args;

use crate::exit::{Failure, Outcome};
use crate::transfer::{Command, Options, address};

/// Puts a file to an FTP server. It goes to .NAME.bufwise-part there and gets its name when its size has been compared;
/// anonymous uploads, which servers let nobody rename, go to their name at once.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  bufwise put file.iso ftp://jo@example.org/incoming/
  bufwise put --resume --policy sobas disk.img ftp://jo@example.org:2121/images/disk.img

An address that ends in / is a directory: the file keeps its name in there. Passwords come from BUFWISE_PASSWORD, from
~/.netrc (or --netrc), or from a prompt, never from the command line.")]
pub(crate) struct PutArgs {
    /// The file to put
    file: PathBuf,
    /// ftp://[USER@]HOST[:PORT]/PATH, or ftps:// for TLS from the first byte (port 990)
    url: String,
    /// Upload under the final name at once, for servers that let nobody rename a file
    #[arg(long)]
    in_place: bool,
    #[command(flatten)]
    options: Options,
}

impl PutArgs {
    pub(crate) fn run(self) -> Outcome {
        let url = address(&self.url)?;
        let file = File::open(&self.file).with_context(|| format!("cannot read {}", self.file.display()))?;
        let metadata = file.metadata().with_context(|| format!("cannot read {}", self.file.display()))?;
        if !metadata.is_file() {
            let what = if metadata.is_dir() { "a directory: add -r" } else { "not a regular file" };
            return Err(Failure::usage(format!("{} is {what}", self.file.display())));
        }
        let remote = self.remote(&url)?;
        let mut command = Command::prepare("put", &url, self.options)?;
        command.settings.in_place = self.in_place;
        command.one(&remote, &self.file, |worker, watch| worker.put(&file, &remote, watch));
        command.finish()
    }

    fn remote(&self, url: &Url) -> Result<PathBuf, Failure> {
        if !url.directory {
            return Ok(url.path.clone());
        }
        let name = self.file.file_name();
        let name = name.ok_or_else(|| Failure::usage(format!("{} has no name", self.file.display())))?;
        Ok(url.path.join(name))
    }
}
