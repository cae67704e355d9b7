//! A stock program, a place for its files, and a server for it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use bufwise_ftp::server::{Config, TlsConfig};
use bufwise_mover::tls::ServerTls;

use crate::support::{Served, eventually, pattern, serve};

/// Programs whose data connections continue the control connection's TLS session.
const REUSING: [&str; 2] = ["curl", "lftp"];

/// A program and what it is tried with.
pub(crate) struct Stock {
    program: PathBuf,
    /// Its home and working directory.
    home: tempfile::TempDir,
    pub(crate) served: Served,
    /// The bytes served as `file`.
    pub(crate) bytes: Vec<u8>,
}

/// Sets a trial up; `None`, with the reason printed, where the program is not installed.
pub(crate) fn stock(program: &str) -> Option<Stock> {
    with(program, false, |_| {})
}

/// The same with a server that waits long for a killed client's control connection to end.
pub(crate) fn stock_with_patience(program: &str) -> Option<Stock> {
    with(program, false, |config| config.times.hangup = Duration::from_secs(3_600))
}

/// The same with a server that insists on TLS.
pub(crate) fn stock_with_tls(program: &str) -> Option<Stock> {
    with(program, true, |_| {})
}

fn with(name: &str, tls: bool, change: impl FnOnce(&mut Config)) -> Option<Stock> {
    let program = bufwise_trial::program(name)?;
    let served = serve(|config| {
        if tls {
            let names = ["localhost".to_owned(), "127.0.0.1".to_owned()];
            let server = ServerTls::self_signed(&names).unwrap();
            config.tls = Some(TlsConfig { server, required: true, require_reuse: REUSING.contains(&name) });
        }
        change(config);
    });
    let bytes = pattern(2_345_678);
    served.put("file", &bytes);
    fs::create_dir_all(served.path("tree/below")).unwrap();
    served.put("tree/one", b"one");
    served.put("tree/below/two words", b"two");
    let stock = Stock { program, home: tempfile::tempdir().unwrap(), served, bytes };
    fs::write(stock.local("upload"), &stock.bytes).unwrap();
    Some(stock)
}

impl Stock {
    /// A file in the program's directory.
    pub(crate) fn local(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    /// `ftp://127.0.0.1:PORT/PATH`.
    pub(crate) fn url(&self, path: &str) -> String {
        format!("ftp://{}/{path}", self.served.address)
    }

    pub(crate) fn port(&self) -> String {
        self.served.address.port().to_string()
    }

    /// Runs the program; it must end well.
    pub(crate) fn run(&self, arguments: &[&str]) -> String {
        self.run_with(&self.program.clone(), arguments, "")
    }

    /// Runs another program of the same package, in the same way.
    pub(crate) fn run_other(&self, name: &str, arguments: &[&str]) -> String {
        self.run_with(&self.program.with_file_name(name), arguments, "")
    }

    /// Runs the program with this text on its standard input.
    pub(crate) fn feed(&self, arguments: &[&str], text: &str) -> String {
        self.run_with(&self.program.clone(), arguments, text)
    }

    /// Starts the program and leaves it running; its standard input is a pipe.
    pub(crate) fn start(&self, arguments: &[&str]) -> Child {
        let mut command = self.command(&self.program);
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        command.spawn().unwrap()
    }

    fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command.current_dir(self.home.path()).env("HOME", self.home.path());
        command.env("LC_ALL", "C.UTF-8");
        // A proxy of the machine cannot reach its loopback interface.
        for name in ["ftp_proxy", "FTP_PROXY", "all_proxy", "ALL_PROXY"] {
            command.env_remove(name);
        }
        command
    }

    fn run_with(&self, program: &Path, arguments: &[&str], text: &str) -> String {
        fs::write(self.local("standard-input"), text).unwrap();
        let output: Output = self
            .command(Path::new("timeout"))
            .arg("60")
            .arg(program)
            .args(arguments)
            .stdin(Stdio::from(fs::File::open(self.local("standard-input")).unwrap()))
            .output()
            .unwrap();
        let shown = format!(
            "{} {arguments:?}: {}\n{}{}\nserver: {}",
            program.display(),
            output.status,
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr),
            self.served.log()
        );
        assert!(output.status.success(), "{shown}");
        shown
    }

    /// The local file must be the served one.
    pub(crate) fn has_got(&self, name: &str) {
        let got = fs::read(self.local(name)).unwrap();
        assert!(got == self.bytes, "{} bytes instead of {}", got.len(), self.bytes.len());
    }

    /// The first part of the file, as after an interrupted transfer.
    pub(crate) fn half_got(&self, name: &str) {
        fs::write(self.local(name), &self.bytes[..1_000_000]).unwrap();
    }

    /// The server must have it, whole.
    pub(crate) fn has_put(&self, name: &str) {
        let put = fs::read(self.served.path(name)).unwrap();
        assert!(
            put == self.bytes,
            "{} bytes instead of {}\n{}",
            put.len(),
            self.bytes.len(),
            self.served.log()
        );
    }

    /// The first part of an upload, as the server keeps it after an interruption.
    pub(crate) fn half_put(&self, name: &str) {
        self.served.put(&format!(".{name}.bufwise-upload"), &self.bytes[..1_000_000]);
    }

    /// The last transfer must have begun at this byte.
    pub(crate) fn resumed_at(&self, offset: u64) {
        let log = self.served.log();
        assert!(log.contains(&format!("from byte {offset}:")), "{log}");
    }

    /// No transfer may have failed, and nothing have gone wrong.
    pub(crate) fn all_went_well(&self) {
        // The last line may be written after the client has its reply.
        eventually("all transfers are told of", || !self.served.transfers().is_empty());
        let log = self.served.log();
        assert!(self.served.transfers().iter().all(|transfer| transfer.failure.is_none()), "{log}");
        assert!(!log.contains("session ended") && !log.contains("turned away"), "{log}");
    }
}
