//! A scripted server on loopback, and the settings of a client under test.

#[path = "../../../mover/src/pattern.rs"]
mod pattern;

use std::collections::HashMap;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use bufwise_ftp::client::{
    Access, ClientError, Event, Folder, Login, Outcome, Scheme, Security, Settings, Target, Worker,
};
use bufwise_mover::Cancel;
use tempfile::TempDir;

pub(crate) use pattern::pattern;

/// The client's timeout, where the awaited event does not come.
pub(crate) const ANSWER_TIMEOUT: Duration = Duration::from_millis(700);
/// The client's timeout, where the awaited event comes; long, for busy machines.
const AMPLE: Duration = Duration::from_secs(20);
/// Bytes of a transfer that the server sends at once.
const CHUNK: usize = 16 << 10;

/// Behaviour of a server. The default one is well-behaved.
#[derive(Clone, Default)]
pub(crate) struct Script {
    /// Bytes of every file.
    pub(crate) content: Vec<u8>,
    /// Answers in place of the usual ones, by verb; raw, with line breaks.
    pub(crate) answers: HashMap<&'static str, Vec<u8>>,
    /// An answer in place of the usual one to the first command with this verb.
    pub(crate) once: Option<(&'static str, &'static [u8])>,
    /// For each transfer, the number of bytes after which it is cut, together with the control connection.
    pub(crate) cuts: Vec<Option<usize>>,
    /// The number of bytes after which a transfer stalls.
    pub(crate) stall: Option<usize>,
    /// Time between the bytes of a transfer.
    pub(crate) drip: Option<Duration>,
    /// Sent before the first byte of data, in place of 150.
    pub(crate) begin: Option<&'static [u8]>,
    /// Sent again and again: after this verb, or in the middle of the data if it is RETR and there is a stall.
    pub(crate) flood: Option<(&'static str, &'static [u8])>,
    /// Sent in the middle of the data.
    pub(crate) middle: &'static [u8],
    /// Sent at the end, in place of 226.
    pub(crate) end: Option<&'static [u8]>,
    /// Sent in place of the greeting.
    pub(crate) greeting: Option<Vec<u8>>,
    /// Lines of FEAT.
    pub(crate) features: &'static [&'static str],
    /// Listings, by directory; of LIST, which is asked without one, by its options.
    pub(crate) listings: HashMap<&'static str, &'static str>,
}

/// A running server; it ends with the process.
pub(crate) struct Server {
    address: SocketAddr,
    heard: Arc<Mutex<Vec<String>>>,
    stored: Arc<Mutex<HashMap<String, Vec<u8>>>>,
}

struct Shared {
    script: Script,
    has_answered_once: AtomicBool,
    transfers: Mutex<usize>,
    heard: Arc<Mutex<Vec<String>>>,
    stored: Arc<Mutex<HashMap<String, Vec<u8>>>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Server {
    pub(crate) fn start(script: Script) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (heard, stored) = (Arc::default(), Arc::default());
        let shared = Shared {
            script,
            has_answered_once: AtomicBool::new(false),
            transfers: Mutex::default(),
            heard: Arc::clone(&heard),
            stored: Arc::clone(&stored),
        };
        let shared = Arc::new(shared);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let shared = Arc::clone(&shared);
                thread::spawn(move || {
                    ScriptedSession { shared: &shared, data: None, offset: 0, from: None }.run(&stream)
                });
            }
        });
        Self { address, heard, stored }
    }

    /// The commands so far.
    pub(crate) fn heard(&self) -> Vec<String> {
        lock(&self.heard).clone()
    }

    /// Number of commands with this verb so far.
    pub(crate) fn count(&self, verb: &str) -> usize {
        self.heard().iter().filter(|line| line.split(' ').next() == Some(verb)).count()
    }

    pub(crate) fn stored(&self, name: &str) -> Option<Vec<u8>> {
        lock(&self.stored).get(name).cloned()
    }

    pub(crate) fn store(&self, name: &str, bytes: &[u8]) {
        lock(&self.stored).insert(name.to_owned(), bytes.to_vec());
    }
}

struct ScriptedSession<'a> {
    shared: &'a Shared,
    data: Option<TcpListener>,
    offset: usize,
    from: Option<String>,
}

impl ScriptedSession<'_> {
    fn run(mut self, control: &TcpStream) -> Option<()> {
        let mut out = control;
        let greeting = self.shared.script.greeting.as_deref().unwrap_or(b"220 ready\r\n");
        out.write_all(greeting).ok()?;
        let mut lines = BufReader::new(control);
        let mut line = String::new();
        while lines.read_line(&mut line).ok()? > 0 {
            let command = line.trim_end().to_owned();
            line.clear();
            lock(&self.shared.heard).push(command.clone());
            let (verb, argument) = command.split_once(' ').unwrap_or((&command, ""));
            if let Some((after, said)) = self.shared.script.flood
                && after == verb
                && self.shared.script.stall.is_none()
            {
                flood(out, said)?;
            }
            if let Some((first, said)) = self.shared.script.once
                && first == verb
                && !self.shared.has_answered_once.swap(true, Ordering::Relaxed)
            {
                out.write_all(said).ok()?;
                continue;
            }
            match self.shared.script.answers.get(verb) {
                Some(answer) => {
                    out.write_all(answer).ok()?;
                    // REST holds for the next command alone (RFC 3659, section 5.3).
                    self.offset = if verb == "REST" { self.offset } else { 0 };
                }
                None => self.answer(control, verb, argument)?,
            }
            if verb == "QUIT" {
                return Some(());
            }
        }
        Some(())
    }

    /// `None` ends the session.
    fn answer(&mut self, control: &TcpStream, verb: &str, argument: &str) -> Option<()> {
        let mut out = control;
        let reply = match verb {
            "USER" => "331 password".to_owned(),
            "PASS" => "230 welcome".to_owned(),
            "FEAT" => self.features(),
            "TYPE" | "OPTS" => "200 fine".to_owned(),
            "CWD" => "250 there".to_owned(),
            "PWD" => "257 \"/\" is here".to_owned(),
            "SIZE" => match self.file(argument) {
                Some(file) => format!("213 {}", file.len()),
                None => "550 no such file".to_owned(),
            },
            "EPSV" => self.listen(),
            "REST" => {
                self.offset = argument.parse().unwrap();
                "350 go on".to_owned()
            }
            "RETR" | "MLSD" | "LIST" => return self.send(control, verb, argument),
            "STOR" | "APPE" => return self.take(control, verb, argument),
            "RNFR" => {
                self.from = Some(argument.to_owned());
                "350 to".to_owned()
            }
            "RNTO" => {
                let mut stored = lock(&self.shared.stored);
                let file = stored.remove(self.from.as_deref().unwrap()).unwrap();
                stored.insert(argument.to_owned(), file);
                "250 renamed".to_owned()
            }
            "QUIT" => "221 bye".to_owned(),
            _ => "502 unknown".to_owned(),
        };
        out.write_all(format!("{reply}\r\n").as_bytes()).ok()
    }

    fn features(&self) -> String {
        let lines: String = self.shared.script.features.iter().map(|line| format!(" {line}\r\n")).collect();
        format!("211-Features:\r\n{lines}211 End")
    }

    fn file(&self, name: &str) -> Option<Vec<u8>> {
        let stored = lock(&self.shared.stored).get(name).cloned();
        let served = (!self.shared.script.content.is_empty()).then(|| self.shared.script.content.clone());
        stored.or(served)
    }

    fn listen(&mut self) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        self.data = Some(listener);
        format!("229 here (|||{port}|)")
    }

    /// Where this transfer is cut.
    fn cut(&self) -> Option<usize> {
        let mut transfers = lock(&self.shared.transfers);
        *transfers += 1;
        self.shared.script.cuts.get(*transfers - 1).copied().flatten()
    }

    fn send(&mut self, control: &TcpStream, verb: &str, argument: &str) -> Option<()> {
        let script = &self.shared.script;
        let mut out = control;
        let bytes = match verb {
            "MLSD" | "LIST" => script.listings.get(argument).map(|text| text.as_bytes().to_vec()),
            _ => self.file(argument).map(|file| file[self.offset.min(file.len())..].to_vec()),
        };
        self.offset = 0;
        let Some(bytes) = bytes else { return out.write_all(b"550 no such file\r\n").ok() };
        let (mut data, _) = self.data.take()?.accept().ok()?;
        out.write_all(script.begin.unwrap_or(b"150 coming\r\n")).ok()?;
        let cut = if verb == "RETR" { self.cut() } else { None };
        let end = cut.unwrap_or(bytes.len()).min(bytes.len());
        let end = script.stall.unwrap_or(end).min(end);
        if let Some(wait) = script.drip {
            for byte in &bytes[..end] {
                data.write_all(&[*byte]).ok()?;
                thread::sleep(wait);
            }
            return None;
        }
        let (first, second) = bytes[..end].split_at(end / 2);
        for chunk in first.chunks(CHUNK) {
            data.write_all(chunk).ok()?;
        }
        out.write_all(script.middle).ok()?;
        for chunk in second.chunks(CHUNK) {
            data.write_all(chunk).ok()?;
        }
        if let (Some(_), Some((_, said))) = (script.stall, script.flood) {
            flood(out, said)?;
        }
        if script.stall.is_some() {
            // Until the client goes.
            let _gone = data.read(&mut [0]);
            return None;
        }
        drop(data);
        if cut.is_some() {
            let _gone = control.shutdown(Shutdown::Both);
            return None;
        }
        out.write_all(script.end.unwrap_or(b"226 done\r\n")).ok()
    }

    fn take(&mut self, control: &TcpStream, verb: &str, argument: &str) -> Option<()> {
        let script = &self.shared.script;
        let mut out = control;
        let (mut data, _) = self.data.take()?.accept().ok()?;
        out.write_all(script.begin.unwrap_or(b"150 go\r\n")).ok()?;
        let mut bytes = Vec::new();
        let cut = self.cut();
        let read = match cut {
            Some(cut) => (&mut data).take(cut as u64).read_to_end(&mut bytes),
            None => {
                let half = (&mut data).take(CHUNK as u64).read_to_end(&mut bytes);
                out.write_all(script.middle).ok()?;
                half.and_then(|_| data.read_to_end(&mut bytes))
            }
        };
        {
            let mut stored = lock(&self.shared.stored);
            let file = stored.entry(argument.to_owned()).or_default();
            let keep = if verb == "APPE" { file.len() } else { self.offset };
            file.truncate(keep);
            file.extend(bytes);
        }
        self.offset = 0;
        read.ok()?;
        if cut.is_some() {
            let _gone = control.shutdown(Shutdown::Both);
            return None;
        }
        drop(data);
        out.write_all(script.end.unwrap_or(b"226 done\r\n")).ok()
    }
}

/// Sends the same bytes again and again, until the client closes the connection.
fn flood(mut control: &TcpStream, said: &[u8]) -> Option<()> {
    let many = said.repeat(CHUNK / said.len());
    loop {
        control.write_all(&many).ok()?;
    }
}

/// A client of that server, and the directory it works in.
pub(crate) struct Client {
    pub(crate) access: Access,
    pub(crate) settings: Settings,
    files: TempDir,
}

impl Client {
    pub(crate) fn of(server: &Server) -> Self {
        let access = Access {
            scheme: Scheme::Ftp,
            host: "127.0.0.1".to_owned(),
            port: server.address.port(),
            login: Login { user: "jo".to_owned(), ..Login::anonymous() },
            security: Security::Plain,
            timeout: AMPLE,
            cancel: Cancel::new().unwrap(),
        };
        let retry_wait = Duration::from_millis(1);
        let settings = Settings { retries: 0, idle: AMPLE, retry_wait, ..Settings::default() };
        Self { access, settings, files: tempfile::tempdir().unwrap() }
    }

    /// Waits no longer than [`ANSWER_TIMEOUT`].
    pub(crate) fn impatient(mut self) -> Self {
        self.access.timeout = ANSWER_TIMEOUT;
        self.settings.idle = ANSWER_TIMEOUT;
        self
    }

    pub(crate) fn worker(&self) -> Worker {
        Worker::new(&self.access, &self.settings)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.files.path().join(name)
    }

    pub(crate) fn target(&self, name: &str) -> Target {
        Folder::open(self.files.path()).unwrap().target(Path::new(name)).unwrap()
    }

    /// Gets `name` over a new session.
    pub(crate) fn get(&self, name: &str) -> Result<Outcome, ClientError> {
        self.get_with(&mut self.worker(), name)
    }

    pub(crate) fn get_with(&self, worker: &mut Worker, name: &str) -> Result<Outcome, ClientError> {
        worker.get(Path::new(name), &self.target(name), |_: Event<'_>| ())
    }

    pub(crate) fn put_with(
        &self,
        worker: &mut Worker,
        name: &str,
        bytes: &[u8],
    ) -> Result<Outcome, ClientError> {
        fs::write(self.path("source"), bytes).unwrap();
        let file = fs::File::open(self.path("source")).unwrap();
        worker.put(&file, Path::new(name), |_: Event<'_>| ())
    }

    /// Content under the final name.
    pub(crate) fn got(&self, name: &str) -> Option<Vec<u8>> {
        fs::read(self.path(name)).ok()
    }

    /// Content under the temporary name.
    pub(crate) fn kept(&self, name: &str) -> Option<Vec<u8>> {
        fs::read(self.path(&format!(".{name}.bufwise-part"))).ok()
    }

    /// Getting `name` fails, in one line with these words, and leaves nothing under its name.
    pub(crate) fn fails(&self, name: &str, words: &str) {
        let message = self.get(name).unwrap_err().to_string();
        assert!(message.contains(words), "{message}");
        assert!(!message.contains(char::is_control), "one line: {message:?}");
        assert_eq!(self.got(name), None, "nothing has the final name");
    }
}
