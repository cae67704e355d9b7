//! `bufwise serve`: its output, its users, its end. The protocol itself is tested in `transfer`.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use bufwise_ftp::server::users::hash_password;
use nix::sys::signal::{Signal, kill};
use nix::sys::stat::Mode;
use nix::unistd::{Pid, mkfifo};
use serde_json::Value;
use socket2::{Domain, Socket, Type};

use crate::run::{PROGRAM, command, eventually, only_error, patience, run};

const PATIENCE: Duration = Duration::from_secs(60);

/// A running server, and the lines of its log.
pub(crate) struct Running {
    child: Child,
    lines: Receiver<String>,
    pub(crate) address: SocketAddr,
}

impl Running {
    pub(crate) fn start(arguments: &[&str], environment: &[(&str, &str)]) -> Self {
        let mut command = command(&[&["serve", "--listen", "127.0.0.1:0"], arguments].concat());
        command.envs(environment.iter().copied());
        Self::started(command)
    }

    /// Starts this command, which becomes a server.
    fn started(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let log = BufReader::new(child.stderr.take().unwrap());
        let (sender, lines) = channel();
        thread::spawn(move || {
            for line in log.lines().map_while(Result::ok) {
                // Fails if the test no longer reads the log.
                let _unheard = sender.send(line);
            }
        });
        let mut running = Self { child, lines, address: ([127, 0, 0, 1], 0).into() };
        let line = running.says("listening on ");
        let address = line.split_once("listening on ").unwrap().1.split_once(',').unwrap().0;
        running.address = address.parse().unwrap();
        running
    }

    /// Waits for a line of the log that contains `what`, and returns it.
    pub(crate) fn says(&self, what: &str) -> String {
        loop {
            let line = self.lines.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("it does not say {what}"));
            if line.contains(what) {
                return line;
            }
        }
    }

    pub(crate) fn client(&self) -> Client {
        self.client_from(Ipv4Addr::LOCALHOST)
    }

    /// Connects a client from this address of the loopback interface.
    pub(crate) fn client_from(&self, address: Ipv4Addr) -> Client {
        let mut client = self.connect_from(address);
        client.expect("220");
        client
    }

    /// The same, without waiting for the greeting.
    pub(crate) fn connect_from(&self, address: Ipv4Addr) -> Client {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.bind(&SocketAddr::from((address, 0)).into()).unwrap();
        socket.connect(&self.address.into()).unwrap();
        socket.set_read_timeout(Some(patience(PATIENCE))).unwrap();
        Client(BufReader::new(socket.into()))
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("ftp://{}/{path}", self.address)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns the contents of this file of `/proc/PID`.
    pub(crate) fn proc(&self, file: &str) -> String {
        fs::read_to_string(format!("/proc/{}/{file}", self.child.id())).unwrap()
    }

    pub(crate) fn reload(&self) {
        kill(Pid::from_raw(self.child.id().cast_signed()), Signal::SIGHUP).unwrap();
    }

    /// Stops the server by `signal`; it must end with status 0.
    pub(crate) fn stop(mut self, signal: Signal) {
        kill(Pid::from_raw(self.child.id().cast_signed()), signal).unwrap();
        self.says("stopped");
        assert_eq!(self.child.wait().unwrap().code(), Some(0));
    }

    /// Stops the server by a signal that comes again and again; it must end with status 0.
    pub(crate) fn stop_at_once(mut self) {
        let id = Pid::from_raw(self.child.id().cast_signed());
        eventually("it ends", || {
            kill(id, Signal::SIGTERM).unwrap();
            self.child.try_wait().unwrap().is_some()
        });
        assert_eq!(self.child.wait().unwrap().code(), Some(0));
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Needed only after a failed test; otherwise the server has already ended.
        let _ended = self.child.kill();
        let _reaped = self.child.wait();
    }
}

pub(crate) struct Client(BufReader<TcpStream>);

impl Client {
    pub(crate) fn expect(&mut self, code: &str) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        assert!(line.starts_with(code), "{line}");
        line
    }

    pub(crate) fn say(&mut self, line: &str) {
        self.0.get_mut().write_all(format!("{line}\r\n").as_bytes()).unwrap();
    }

    pub(crate) fn ask(&mut self, line: &str, code: &str) -> String {
        self.say(line);
        self.expect(code)
    }

    pub(crate) fn login(&mut self, name: &str, password: &str, code: &str) {
        self.ask(&format!("USER {name}"), "331");
        self.ask(&format!("PASS {password}"), code);
    }

    pub(crate) fn data(&mut self) -> TcpStream {
        let reply = self.ask("EPSV", "229");
        let port: u16 = reply.split('|').nth(3).unwrap().parse().unwrap();
        TcpStream::connect(("127.0.0.1", port)).unwrap()
    }

    pub(crate) fn get(&mut self, name: &str) -> Vec<u8> {
        let mut data = self.data();
        self.ask(&format!("RETR {name}"), "150");
        let mut bytes = Vec::new();
        data.read_to_end(&mut bytes).unwrap();
        drop(data);
        self.expect("226");
        bytes
    }
}

pub(crate) fn directory() -> (tempfile::TempDir, String) {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("file"), b"some bytes").unwrap();
    let path = directory.path().to_str().unwrap().to_owned();
    (directory, path)
}

#[test]
fn anybody_may_read_and_each_transfer_is_a_line_and_a_record() {
    let (_directory, path) = directory();
    let records = tempfile::NamedTempFile::new().unwrap();
    let running =
        Running::start(&[&path, "--json", records.path().to_str().unwrap(), "--policy", "drs"], &[]);
    let mut client = running.client();
    client.login("anonymous", "x", "230");
    assert_eq!(client.get("file"), b"some bytes");
    client.ask("MKD new", "550");
    running.says("logged in as anonymous");
    running.says("anonymous sent /file: 10 B");
    running.stop(Signal::SIGTERM);
    let text = fs::read_to_string(records.path()).unwrap();
    assert_eq!(text.lines().count(), 1);
    let record: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((record["bytes"].as_u64(), record["complete"].as_bool()), (Some(10), Some(true)));
    assert_eq!((record["direction"].as_str(), record["path"].as_str()), (Some("sent"), Some("/file")));
    assert!(record["window_peak_bytes"].as_u64().unwrap() > 0 && record["failure"].is_null());
    client.expect("421");
}

#[test]
fn named_users_have_passwords_and_may_write_where_told() {
    let (directory, path) = directory();
    let running = Running::start(
        &[&path, "--user", "jo", "--user", "anonymous", "--writable=jo"],
        &[("BUFWISE_PASSWORD", "secret")],
    );
    let mut client = running.client();
    client.login("jo", "wrong", "530");
    client.login("jo", "secret", "230");
    client.ask("MKD new", "257");
    let mut client = running.client();
    client.login("anonymous", "x", "230");
    client.ask("MKD other", "550");
    assert!(directory.path().join("new").exists());
    running.says("failed to log in as jo");
    running.stop(Signal::SIGINT);
}

#[test]
fn in_the_background_of_a_script_it_goes_on_at_ctrl_c() {
    let (_directory, path) = directory();
    let mut command = Command::new("env");
    command.args(["--ignore-signal=INT", PROGRAM, "serve", "--listen", "127.0.0.1:0", &path]);
    command.stdin(Stdio::null());
    let running = Running::started(command);
    kill(Pid::from_raw(running.pid().cast_signed()), Signal::SIGINT).unwrap();
    running.reload();
    running.says("reloaded");
    running.client();
    running.stop(Signal::SIGTERM);
}

#[test]
fn a_users_file_is_made_from_hashes_and_kept_from_others() {
    let (_directory, path) = directory();
    let mut hashing = command(&["serve", "--hash-password", "jo"]);
    let mut child = hashing.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"secret\n").unwrap();
    let line = String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap();
    assert!(line.starts_with("jo:$argon2id$") && line.ends_with(":ro\n"), "{line}");
    let users = tempfile::NamedTempFile::new().unwrap();
    fs::write(users.path(), &line).unwrap();
    let file = users.path().to_str().unwrap();
    let running = Running::start(&[&path, "--users", file], &[]);
    let mut client = running.client();
    client.login("jo", "secret", "230");
    client.ask("DELE file", "550");
    let mut client = running.client();
    client.login("anonymous", "x", "530");
    running.stop(Signal::SIGTERM);
    fs::set_permissions(users.path(), fs::Permissions::from_mode(0o644)).unwrap();
    let error = only_error(&run(&["serve", &path, "--users", file]), 1);
    assert!(error.contains("chmod 600"), "{error}");
    fs::set_permissions(users.path(), fs::Permissions::from_mode(0o600)).unwrap();
    fs::write(users.path(), "jo:secret:ro\n").unwrap();
    let error = only_error(&run(&["serve", &path, "--users", file]), 1);
    assert!(error.contains("line 1") && error.contains("no argon2 hash"), "{error}");
}

#[test]
fn tls_is_offered_with_a_fingerprint() {
    let (_directory, path) = directory();
    let running = Running::start(&[&path, "--tls-self-signed", "--tls-required"], &[]);
    let mut client = running.client();
    client.ask("USER anonymous", "530");
    client.ask("AUTH TLS", "234");
    running.stop(Signal::SIGTERM);
    let error = only_error(&run(&["serve", &path, "--tls-required"]), 2);
    assert!(error.contains("--tls-self-signed"), "{error}");
    let error = only_error(&run(&["serve", &path, "--tls-cert", "/none", "--tls-key", "/none"]), 1);
    assert!(error.contains("/none"), "{error}");
}

pub(crate) fn users_file(line: impl AsRef<[u8]>) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), line).unwrap();
    file
}

pub(crate) fn line_of(name: &str) -> String {
    format!("{name}:{}:ro\n", hash_password(b"secret").unwrap())
}

#[test]
fn sighup_lets_in_those_of_the_new_file_and_a_broken_one_changes_nothing() {
    let (_directory, path) = directory();
    let users = users_file(line_of("jo"));
    let file = users.path().to_str().unwrap();
    // `--writable=jo` stays valid after jo is removed from the file.
    let running = Running::start(&[&path, "--users", file, "--writable=jo"], &[]);
    let mut inside = running.client();
    inside.login("jo", "secret", "230");

    fs::write(users.path(), line_of("ann")).unwrap();
    running.reload();
    let line = running.says("reloaded: ");
    assert!(line.contains("reloaded: ann may read; no TLS"), "{line}");
    assert_eq!(inside.get("file"), b"some bytes");
    running.client().login("jo", "secret", "530");
    running.client().login("ann", "secret", "230");

    for (text, mode, why) in [
        (&b"ann:secret:ro\n"[..], 0o600, "line 1"),
        (b"", 0o600, "no user could log in"),
        (line_of("jo").as_bytes(), 0o644, "chmod 600"),
    ] {
        fs::write(users.path(), text).unwrap();
        fs::set_permissions(users.path(), fs::Permissions::from_mode(mode)).unwrap();
        running.reload();
        let line = running.says("not reloaded");
        assert!(line.contains("stay as they were") && line.contains(why), "{line}");
        running.client().login("ann", "secret", "230");
    }
    inside.ask("NOOP", "200");
    running.stop(Signal::SIGTERM);
}

#[test]
fn sighup_at_the_end_of_a_reload_is_not_lost() {
    let (_directory, path) = directory();
    let lines = ["jo", "ann"].map(line_of);
    let users = users_file(&lines[0]);
    let running = Running::start(&[&path, "--users", users.path().to_str().unwrap()], &[]);
    for (line, name) in lines.iter().zip(["jo", "ann"]).cycle().take(40) {
        fs::write(users.path(), line).unwrap();
        running.reload();
        running.says(&format!("reloaded: {name} may read"));
    }
    running.stop(Signal::SIGTERM);
}

#[test]
fn sighup_asks_for_no_password_again() {
    let (_directory, path) = directory();
    let users = users_file(line_of("jo") + &line_of("ann"));
    let arguments = [
        &path,
        "--users",
        users.path().to_str().unwrap(),
        "--user",
        "jo",
        "--user",
        "eve",
        "--user",
        "anonymous",
    ];
    let running = Running::start(&arguments, &[("BUFWISE_PASSWORD", "eve's")]);
    fs::write(users.path(), line_of("ann")).unwrap();
    running.reload();
    let line = running.says("reloaded: ");
    assert!(line.contains("reloaded: eve may read, anybody may read;"), "{line}");
    running.client().login("eve", "eve's", "230");
    running.stop(Signal::SIGTERM);
}

#[test]
fn sighup_shows_the_new_certificate_and_keeps_the_old_one_if_it_is_broken() {
    let (directory, path) = directory();
    let files = tempfile::tempdir().unwrap();
    let [chain, key] = ["chain", "key"].map(|name| files.path().join(name));
    let renew = || {
        let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
        fs::write(&chain, made.cert.pem()).unwrap();
        fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    };
    renew();
    let [cert_file, key_file] = [&chain, &key].map(|file| file.to_str().unwrap());
    let arguments = [&path, "--tls-cert", cert_file, "--tls-key", key_file, "--tls-required"];
    let running = Running::start(&arguments, &[]);
    let url = running.url("file");
    let got = directory.path().join("got");
    let get = || run(&["get", &url, "--cacert", cert_file, "--retries", "0", "-o", got.to_str().unwrap()]);
    assert_eq!(get().status.code(), Some(0));
    renew();
    assert!(only_error(&get(), 1).contains("certificate"), "the old one is still shown");
    running.reload();
    let line = running.says("reloaded: ");
    assert!(line.contains("TLS (fingerprint"), "{line}");
    assert_eq!(get().status.code(), Some(0));
    // An incomplete renewal: the new key does not belong to the certificate.
    let certificate = fs::read(&chain).unwrap();
    renew();
    fs::write(&chain, certificate).unwrap();
    running.reload();
    running.says("not reloaded");
    assert_eq!(get().status.code(), Some(0));
    running.stop(Signal::SIGTERM);
}

#[test]
fn what_is_no_regular_file_is_not_read_and_links_are_followed() {
    let (_directory, path) = directory();
    let files = tempfile::tempdir().unwrap();
    let [fifo, users, link] = ["fifo", "users", "link"].map(|name| files.path().join(name));
    mkfifo(&fifo, Mode::S_IRWXU).unwrap();
    fs::write(&users, line_of("jo")).unwrap();
    fs::set_permissions(&users, fs::Permissions::from_mode(0o600)).unwrap();
    let pipe = fifo.to_str().unwrap();
    for options in [&["--users", pipe][..], &["--tls-cert", pipe, "--tls-key", pipe]] {
        let mut serve = Command::new("timeout");
        serve.args(["20", PROGRAM, "serve", &path, "--listen", "127.0.0.1:0"]).args(options);
        let error = only_error(&serve.output().unwrap(), 1);
        assert!(error.contains(pipe) && error.contains("not a regular file"), "{error}");
    }
    symlink(&users, &link).unwrap();
    let running = Running::start(&[&path, "--users", link.to_str().unwrap()], &[]);
    let lead_to = |target: &Path| {
        fs::remove_file(&link).unwrap();
        symlink(target, &link).unwrap();
        running.reload();
    };
    lead_to(&fifo);
    let line = running.says("not reloaded");
    assert!(line.contains("stay as they were") && line.contains("not a regular file"), "{line}");
    running.client().login("jo", "secret", "230");
    lead_to(&users);
    running.says("reloaded: jo may read");
    running.stop(Signal::SIGTERM);
}

#[test]
fn wrong_usage_is_one_line_that_helps() {
    let (_directory, path) = directory();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    let users = users_file(line_of("jo"));
    let users = users.path().to_str().unwrap();
    let records = format!("{path}/records");
    for (arguments, status, help) in [
        (vec!["serve"], 2, "DIR"),
        (vec!["serve", "/nonexistent"], 1, "cannot serve /nonexistent"),
        (vec!["serve", &path, "--listen", &taken, "--json", &records], 1, "another program listens there"),
        (vec!["serve", &path, "--listen", "nowhere"], 2, "[2001:db8::1]:2121"),
        (vec!["serve", &path, "--policy", "abt"], 2, "drs-ftp"),
        (vec!["serve", &path, "--policy", "fit"], 2, "bufwise run --policy fit -- CMD, or bufwise daemon"),
        (vec!["serve", &path, "--passive-ports", "21-30"], 2, "50000-50100"),
        (vec!["serve", &path, "--user", "jo"], 2, "BUFWISE_PASSWORD"),
        (vec!["serve", &path, "--user", "a b"], 2, "letters"),
        (vec!["serve", &path, "--writable=jo"], 2, "no user of that name"),
        (vec!["serve", &path, "--users", users, "--writable=anonymous"], 2, "no user of that name"),
        (vec!["serve", &path, "--run-as", "no-such-user"], 1, "no-such-user"),
        (vec!["serve", "--hash-password", "anonymous"], 2, "without a password"),
    ] {
        let error = only_error(&run(&arguments), status);
        assert!(error.contains(help), "{arguments:?}: {error}");
        assert!(error.matches("os error").count() <= 1, "{arguments:?}: {error}");
    }
    assert!(fs::metadata(records).is_err(), "a server that does not start leaves no file");
}

#[test]
fn a_file_beyond_the_largest_size_fails_its_upload_and_not_the_server() {
    let (directory, path) = directory();
    // 64 blocks, of 512 or 1,024 bytes.
    let limited = "ulimit -f 64; exec \"$0\" \"$@\"";
    let mut shell = Command::new("/bin/sh");
    shell.args(["-c", limited, PROGRAM, "serve", "--listen", "127.0.0.1:0", "--writable", &path]);
    let running = Running::started(shell);
    let mut client = running.client();
    client.login("anonymous", "me", "230");
    let mut data = client.data();
    client.ask("STOR big", "150");
    // The server hangs up before it has all of it.
    let _cut = data.write_all(&vec![0; 1 << 20]);
    drop(data);
    client.expect("452");
    client.ask("NOOP", "200");
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1, "nothing is left of it");
    running.stop(Signal::SIGTERM);
}

#[test]
fn bounds_that_let_nobody_in_or_nothing_move_are_wrong_usage() {
    let (_directory, path) = directory();
    for (option, value, help) in [
        ("--buffer-memory", "1", "at least 512KiB"),
        ("--receive-memory", "511KiB", "at least 512KiB"),
        ("--max-buffer", "0", "at least 4KiB"),
        ("--max-sessions", "0", "at least 1"),
        ("--max-sessions-per-address", "0", "at least 1"),
        ("--max-sessions", "many", "not a number of sessions"),
        ("--limit-rate", "0mbit", "rate of 0"),
        ("--idle", "0s", "60s"),
        ("--stall", "0s", "60s"),
    ] {
        let error = only_error(&run(&["serve", &path, option, value]), 2);
        assert!(error.contains(option) && error.contains(help), "{option} {value}: {error}");
    }
}

#[test]
fn root_privilege_is_given_up_once_the_port_is_open() {
    if !bufwise_trial::root() {
        return;
    }
    let (directory, path) = directory();
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
    fs::write(directory.path().join("hidden"), b"root's own").unwrap();
    fs::set_permissions(directory.path().join("hidden"), fs::Permissions::from_mode(0o600)).unwrap();
    let running = Running::start(&[&path, "--run-as", "nobody"], &[]);
    let status = running.proc("status");
    for kind in ["Uid:", "Gid:", "Groups:"] {
        let line = status.lines().find(|line| line.starts_with(kind)).expect("the kernel tells it");
        assert!(line.split_ascii_whitespace().skip(1).all(|id| id != "0"), "{line}");
    }
    let mut client = running.client();
    client.login("anonymous", "x", "230");
    assert_eq!(client.get("file"), b"some bytes");
    client.ask("EPSV", "229");
    client.ask("RETR hidden", "550");
    running.stop(Signal::SIGTERM);
}

#[test]
fn root_a_directory_that_the_servers_user_may_not_open_is_said_and_the_rest_comes() {
    if !bufwise_trial::root() {
        return;
    }
    let (directory, path) = directory();
    let closed = directory.path().join("closed");
    fs::create_dir(&closed).unwrap();
    for (path, mode) in [(directory.path(), 0o755), (&closed, 0o700)] {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }
    let running = Running::start(&[&path, "--run-as", "nobody"], &[]);
    let there = tempfile::tempdir().unwrap();
    let got = there.path().join("got");
    let url = running.url("");
    let line = only_error(&run(&["get", "-r", &url, "--quiet", "-o", got.to_str().unwrap()]), 1);
    assert!(line.contains("1 of 2") && line.contains("refused MLSD closed"), "{line}");
    assert_eq!(fs::read(got.join("file")).unwrap(), b"some bytes");
    running.stop(Signal::SIGTERM);
}
