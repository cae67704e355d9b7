//! A server under faults, clients that upload meanwhile, and the state of the disk afterwards.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::Duration;

use nix::sys::signal::{self, Signal};
use nix::unistd::Pid;

use crate::run::{patience, within};
use crate::seeded::Random;

/// Longest time for a reply.
const PATIENCE: Duration = Duration::from_secs(60);
/// Size of the largest upload, bytes: some calls of write, and a noticeable fsync.
const LARGEST: u64 = 400_000;

/// `bufwise serve`, writable for all users.
pub(crate) struct Server {
    child: Child,
    /// The server's process, if `child` is a tracer.
    program: Pid,
    address: SocketAddr,
    log: tempfile::NamedTempFile,
}

impl Server {
    pub(crate) fn start(directory: &Path) -> Self {
        Self::launch(Command::new(env!("CARGO_BIN_EXE_bufwise")), directory).expect("the server starts")
    }

    /// Starts the server by a command that runs the program; returns its output if it ends before it listens.
    pub(crate) fn launch(mut command: Command, directory: &Path) -> Result<Self, Output> {
        let log = tempfile::NamedTempFile::new().unwrap();
        command.arg("serve").arg(directory).args(["--listen", "127.0.0.1:0", "--writable"]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log.reopen().unwrap());
        let mut child = command.spawn().unwrap();
        let mut address = None;
        within(patience(PATIENCE), "the server listens or ends", || {
            let text = fs::read_to_string(log.path()).unwrap();
            let line = text.lines().find_map(|line| line.split_once("listening on ")?.1.split_once(','));
            address = line.and_then(|(address, _)| address.parse().ok());
            address.is_some() || child.try_wait().unwrap().is_some()
        });
        let traced =
            fs::read_to_string(format!("/proc/{0}/task/{0}/children", child.id())).unwrap_or_default();
        let program = traced.split_whitespace().next().and_then(|pid| pid.parse().ok());
        let program = Pid::from_raw(program.unwrap_or(child.id().cast_signed()));
        match address {
            Some(address) => Ok(Self { child, program, address, log }),
            None => {
                let ended = child.wait_with_output().unwrap();
                Err(Output { stderr: fs::read(log.path()).unwrap(), ..ended })
            }
        }
    }

    /// Kills the server.
    pub(crate) fn kill(&self) {
        let _gone = signal::kill(self.program, Signal::SIGKILL);
    }

    /// Waits for the end of the server and of its tracer.
    pub(crate) fn wait(&mut self) -> ExitStatus {
        self.child.wait().unwrap()
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.log.path()).unwrap()
    }

    pub(crate) fn client(&self) -> io::Result<Client> {
        Client::connect(self.address)
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Needed only if the experiment has not ended the server.
        if self.is_running() {
            self.kill();
            self.wait();
        }
    }
}

/// A client's session; every step may fail, because the server may.
pub(crate) struct Client(BufReader<TcpStream>);

impl Client {
    pub(crate) fn connect(address: SocketAddr) -> io::Result<Self> {
        let socket = TcpStream::connect(address)?;
        socket.set_read_timeout(Some(patience(PATIENCE)))?;
        let mut client = Self(BufReader::new(socket));
        client.expect("220")?;
        client.ask("USER anonymous", "331")?;
        client.ask("PASS x", "230")?;
        client.ask("TYPE I", "200")?;
        Ok(client)
    }

    fn reply(&mut self) -> io::Result<String> {
        let mut line = String::new();
        match self.0.read_line(&mut line) {
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) => Ok(line),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => panic!("the server says nothing"),
            Err(error) => Err(error),
        }
    }

    fn expect(&mut self, code: &str) -> io::Result<String> {
        let line = self.reply()?;
        if line.starts_with(code) { Ok(line) } else { Err(io::Error::other(line)) }
    }

    pub(crate) fn ask(&mut self, line: &str, code: &str) -> io::Result<String> {
        self.0.get_mut().write_all(format!("{line}\r\n").as_bytes())?;
        self.expect(code)
    }

    /// Uploads a file. `Ok`: the server answered 226. An error: it refused, or ended.
    pub(crate) fn store(&mut self, name: &str, bytes: &[u8]) -> io::Result<()> {
        self.send(&format!("STOR {name}"), bytes)
    }

    /// Uploads bytes by this command, as [`Client::store`].
    pub(crate) fn send(&mut self, command: &str, bytes: &[u8]) -> io::Result<()> {
        let reply = self.ask("EPSV", "229")?;
        let port = reply.split('|').nth(3).and_then(|port| port.parse().ok());
        let port: u16 = port.ok_or_else(|| io::Error::other(reply))?;
        let address = SocketAddr::new(self.0.get_ref().peer_addr()?.ip(), port);
        let mut data = TcpStream::connect(address)?;
        self.ask(command, "150")?;
        // If the server fails, its reply says so.
        let sent = data.write_all(bytes);
        drop(data);
        self.expect("226")?;
        sent
    }
}

/// Uploads of one client, by name: the content last acknowledged, and the content being uploaded.
#[derive(Default)]
pub(crate) struct Uploads {
    files: BTreeMap<String, [Option<Vec<u8>>; 2]>,
    /// Number of uploads acknowledged.
    pub(crate) answered: usize,
}

impl Uploads {
    /// Uploads up to `count` files, some over earlier ones, until one fails.
    pub(crate) fn go_on(
        &mut self,
        server: SocketAddr,
        prefix: &str,
        random: &mut Random,
        count: usize,
    ) -> io::Result<()> {
        let mut client = Client::connect(server)?;
        for _ in 0..count {
            let name = format!("{prefix}{}", random.below(6));
            let bytes = content(random);
            let file = self.files.entry(name.clone()).or_default();
            file[1] = Some(bytes);
            client.store(&name, file[1].as_deref().unwrap_or_default())?;
            file[0] = file[1].take();
            self.answered += 1;
        }
        Ok(())
    }

    /// Asserts that acknowledged uploads are there, and that every final name belongs to a whole file.
    pub(crate) fn check(&self, directory: &Path) {
        for (name, [answered, begun]) in &self.files {
            let there = fs::read(directory.join(name)).ok();
            let fits = there == *answered || (begun.is_some() && there == *begun);
            let len = |bytes: &Option<Vec<u8>>| bytes.as_ref().map(Vec::len);
            assert!(
                fits,
                "{name}: {:?} bytes there, {:?} answered, {:?} begun",
                len(&there),
                len(answered),
                len(begun)
            );
        }
    }

    /// Names of all uploads ever begun.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.files.keys().map(String::as_str)
    }
}

fn content(random: &mut Random) -> Vec<u8> {
    let (len, first) = (random.below(LARGEST), random.below(u64::MAX));
    (0..len).map(|at| (first.wrapping_add(at).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect()
}

/// Names in a directory that are not hidden.
pub(crate) fn visible(directory: &Path) -> Vec<String> {
    let names =
        fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| !name.starts_with('.')).collect()
}
