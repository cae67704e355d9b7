//! A scripted server, and our client of it.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use bufwise_ftp::client::{
    Access, ClientError, Folder, Login, Outcome, Scheme, Security, Settings, Target, Worker,
};
use bufwise_mover::Cancel;
use bufwise_mover::stream::Stream;

pub(crate) use crate::served::{TEST_TIMEOUT, patiently, pattern, write_all};

/// The client's timeout where a test waits for its end.
pub(crate) const SHORT: Duration = Duration::from_millis(300);
/// Time within which a client with that timeout must have given up: some of its waits, on a busy machine.
pub(crate) const SOON: Duration = Duration::from_secs(8);

/// The server's side of one control connection.
pub(crate) struct Talk {
    pub(crate) control: Stream,
    pub(crate) content: Arc<Vec<u8>>,
    /// Lines of FEAT.
    pub(crate) features: &'static str,
    /// Bytes that came by STOR.
    pub(crate) stored: Vec<u8>,
    unread: Vec<u8>,
    listener: Option<TcpListener>,
    offset: usize,
    /// Bytes that may still be sent before the connection is cut; `None`: any number.
    pub(crate) budget: Option<usize>,
}

/// Whether the connection goes on; an error is its end as well.
pub(crate) type Going = io::Result<bool>;
/// Called with an empty line for the greeting, then with each line.
type Script = dyn Fn(&mut Talk, &str) -> Going + Send + Sync;

impl Talk {
    fn on(tcp: TcpStream, content: Arc<Vec<u8>>) -> Self {
        tcp.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
        tcp.set_write_timeout(Some(TEST_TIMEOUT)).unwrap();
        tcp.set_nodelay(true).unwrap();
        let features = "";
        let (unread, stored) = (Vec::new(), Vec::new());
        Self {
            control: tcp.into(),
            content,
            features,
            stored,
            unread,
            listener: None,
            offset: 0,
            budget: None,
        }
    }

    /// Sends bytes as they are, as far as the budget goes.
    pub(crate) fn send(&mut self, bytes: &[u8]) -> Going {
        let most = self.budget.unwrap_or(usize::MAX).min(bytes.len());
        write_all(&mut self.control, &bytes[..most])?;
        self.budget = self.budget.map(|budget| budget - most);
        Ok(self.budget != Some(0))
    }

    pub(crate) fn say(&mut self, line: &str) -> Going {
        self.send(format!("{line}\r\n").as_bytes())
    }

    /// The next line; `None` at the end.
    fn line(&mut self) -> io::Result<Option<String>> {
        loop {
            if let Some(end) = self.unread.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.unread.drain(..=end).collect();
                return Ok(Some(String::from_utf8_lossy(&line).trim_end().to_owned()));
            }
            let mut chunk = [0; 1_000];
            match patiently(|| self.control.read(&mut chunk))? {
                0 => return Ok(None),
                len => self.unread.extend(&chunk[..len]),
            }
        }
    }

    /// Waits for a data connection on a new port.
    fn listen(&mut self) -> u16 {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        self.listener = Some(listener);
        port
    }

    /// The data connection; an error if the client has gone instead.
    pub(crate) fn data(&mut self) -> io::Result<TcpStream> {
        let listener = self.listener.take().ok_or(io::ErrorKind::NotConnected)?;
        listener.set_nonblocking(true)?;
        let (data, _) = patiently(|| listener.accept())?;
        data.set_nonblocking(false)?;
        data.set_read_timeout(Some(TEST_TIMEOUT))?;
        data.set_write_timeout(Some(TEST_TIMEOUT))?;
        Ok(data)
    }

    /// The rest of the file, after a REST.
    pub(crate) fn rest(&mut self) -> Vec<u8> {
        let offset = std::mem::take(&mut self.offset).min(self.content.len());
        self.content[offset..].to_vec()
    }

    /// The answer of an honest server.
    pub(crate) fn usual(&mut self, line: &str) -> Going {
        let (verb, argument) = line.split_once(' ').unwrap_or((line, ""));
        match verb {
            "" => self.say("220 ready"),
            "USER" => self.say("331 password?"),
            "PASS" => self.say("230 in"),
            "FEAT" if self.features.is_empty() => self.say("500 what?"),
            "FEAT" => {
                let lines = format!("211-Features:\r\n{}\r\n211 End", self.features);
                self.say(&lines)
            }
            "TYPE" | "NOOP" | "PBSZ" | "PROT" | "OPTS" => self.say("200 ok"),
            "PWD" => self.say("257 \"/\""),
            "SIZE" => {
                let size = format!("213 {}", self.content.len());
                self.say(&size)
            }
            "EPSV" => {
                let port = self.listen();
                self.say(&format!("229 ok (|||{port}|)"))
            }
            "REST" => {
                self.offset = argument.parse().unwrap();
                self.say("350 go on")
            }
            "RETR" => {
                let mut data = self.data()?;
                let going = self.say("150 here it comes")?;
                data.write_all(&self.rest())?;
                drop(data);
                Ok(going && self.say("226 done")?)
            }
            "STOR" => {
                let mut data = self.data()?;
                let going = self.say("150 give it to me")?;
                self.stored.clear();
                data.read_to_end(&mut self.stored)?;
                Ok(going && self.say("226 done")?)
            }
            "QUIT" => self.say("221 bye").map(|_| false),
            _ => self.say("502 no"),
        }
    }
}

/// A server at 127.0.0.1 with one file.
pub(crate) struct Scripted {
    pub(crate) address: SocketAddr,
    pub(crate) content: Arc<Vec<u8>>,
    /// All lines of all control connections.
    said: Arc<Mutex<Vec<String>>>,
    thread: Option<JoinHandle<()>>,
    closing: Arc<Mutex<bool>>,
}

impl Scripted {
    pub(crate) fn new(
        content: Vec<u8>,
        script: impl Fn(&mut Talk, &str) -> Going + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (said, closing, content) =
            (Arc::<Mutex<_>>::default(), Arc::new(Mutex::new(false)), Arc::new(content));
        let script: Arc<Script> = Arc::new(script);
        let (heard, served, close) = (Arc::clone(&said), Arc::clone(&content), Arc::clone(&closing));
        let thread = thread::spawn(move || {
            for tcp in listener.incoming() {
                if *close.lock().unwrap() {
                    return;
                }
                let (script, heard, served) = (Arc::clone(&script), Arc::clone(&heard), Arc::clone(&served));
                thread::spawn(move || {
                    let mut talk = Talk::on(tcp.unwrap(), served);
                    // The client's going away is an end like any other.
                    let _ended = converse(&mut talk, &*script, &heard);
                });
            }
        });
        Self { address, content, said, thread: Some(thread), closing }
    }

    /// All commands so far.
    pub(crate) fn said(&self) -> Vec<String> {
        self.said.lock().unwrap().clone()
    }
}

fn converse(talk: &mut Talk, script: &Script, heard: &Mutex<Vec<String>>) -> io::Result<()> {
    let mut going = script(talk, "")?;
    while going {
        let Some(line) = talk.line()? else { return Ok(()) };
        heard.lock().unwrap().push(line.clone());
        going = script(talk, &line)?;
    }
    Ok(())
}

impl Drop for Scripted {
    fn drop(&mut self) {
        *self.closing.lock().unwrap() = true;
        // Wakes the listening thread, unless it is gone already.
        let _gone = TcpStream::connect(self.address);
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

/// Our client, connected to such a server.
pub(crate) struct Client {
    pub(crate) access: Access,
    pub(crate) settings: Settings,
    directory: tempfile::TempDir,
}

impl Client {
    pub(crate) fn of(server: &Scripted) -> Self {
        Self::at(server.address.port())
    }

    /// Our client of any server at this port of 127.0.0.1.
    pub(crate) fn at(port: u16) -> Self {
        let access = Access {
            scheme: Scheme::Ftp,
            host: IpAddr::from(Ipv4Addr::LOCALHOST).to_string(),
            port,
            login: Login::anonymous(),
            security: Security::Plain,
            timeout: Duration::from_secs(10),
            cancel: Cancel::new().unwrap(),
        };
        let settings = Settings { retries: 0, ..Settings::default() };
        Self { access, settings, directory: tempfile::tempdir().unwrap() }
    }

    /// The same without much timeout.
    pub(crate) fn hasty(server: &Scripted) -> Self {
        let mut client = Self::of(server);
        client.access.timeout = SHORT;
        client.settings.idle = SHORT;
        client
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.directory.path().join("file")
    }

    pub(crate) fn target(&self) -> Target {
        Folder::open(self.directory.path()).unwrap().target(Path::new("file")).unwrap()
    }

    /// Gets the server's file, over a session of its own.
    pub(crate) fn get(&self) -> Result<Outcome, ClientError> {
        Worker::new(&self.access, &self.settings).get(Path::new("file"), &self.target(), |_| ())
    }

    /// Puts these bytes, over a session of its own.
    pub(crate) fn put(&self, bytes: &[u8]) -> Result<Outcome, ClientError> {
        let path = self.directory.path().join("source");
        fs::write(&path, bytes).unwrap();
        Worker::new(&self.access, &self.settings).put(
            &fs::File::open(path).unwrap(),
            Path::new("file"),
            |_| (),
        )
    }

    /// Gets the file, which must fail: soon, with one printable line, and without a file under the final name.
    pub(crate) fn fails(&self) -> ClientError {
        let start = Instant::now();
        let error = self.get().expect_err("the server was believed");
        assert!(start.elapsed() < SOON, "{error} took {:?}", start.elapsed());
        let text = error.to_string();
        assert!(!text.is_empty() && text.len() < 600 && !text.chars().any(char::is_control), "{text:?}");
        assert!(!self.path().exists(), "{text}: half a file has the final name");
        error
    }

    /// Content under the final name.
    pub(crate) fn got(&self) -> Vec<u8> {
        fs::read(self.path()).unwrap()
    }
}
