//! `bufwise get` and `bufwise put`, with a server and without one.

use std::fs;
use std::io::Read;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::process::{Command, Output};
use std::thread;

use bufwise_ftp::server::users::hash_password;
use bufwise_ftp::server::{Config, Rights, Server, Stop, TlsConfig, Users};
use bufwise_mover::tls::ServerTls;
use bufwise_units::Rate;
use tempfile::TempDir;

use crate::run::{PROGRAM, command, eventually, only_error, run, silent_port};

/// A server inside the test, so that the tests do not depend on `bufwise serve`.
struct Served {
    port: u16,
    root: TempDir,
    home: TempDir,
    stop: Stop,
}

impl Drop for Served {
    fn drop(&mut self) {
        self.stop.stop();
    }
}

impl Served {
    fn start() -> Self {
        Self::with(|_| ())
    }

    fn with(change: impl FnOnce(&mut Config)) -> Self {
        let (root, home) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let mut config = Config::new("127.0.0.1:0".parse().unwrap(), root.path());
        config.users = Users::anonymous(Rights::Read);
        config.users.add("jo", &hash_password(b"secret").unwrap(), Rights::Write).unwrap();
        change(&mut config);
        let server = Server::bind(config, Box::new(|_| ())).unwrap();
        let (port, stop) = (server.address().port(), server.stop());
        thread::spawn(move || server.run());
        Self { port, root, home, stop }
    }

    fn url(&self, rest: &str) -> String {
        format!("ftp://127.0.0.1:{}/{rest}", self.port)
    }

    fn url_of_jo(&self, rest: &str) -> String {
        format!("ftp://jo@127.0.0.1:{}/{rest}", self.port)
    }

    /// Runs bufwise with a home directory that holds the netrc file.
    fn bufwise(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = command(arguments);
        command.current_dir(self.home.path()).env("HOME", self.home.path());
        command
    }

    fn netrc(&self, mode: u32) {
        let path = self.home.path().join(".netrc");
        fs::write(&path, "machine 127.0.0.1 login jo password secret\n").unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }
}

fn content() -> Vec<u8> {
    (0..700_000_u32).flat_map(u32::to_le_bytes).collect()
}

fn done(output: &Output) -> String {
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{error}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[test]
fn a_file_comes_with_a_report_of_stable_keys() {
    let served = Served::start();
    fs::write(served.root.path().join("file.bin"), content()).unwrap();
    let options = ["--policy", "drs", "--checksum", "--json", "report.json"];
    let text = done(&served.bufwise(&[&["get", &served.url("file.bin")][..], &options].concat()));
    assert!(text.contains("file.bin: 2.80 MB") && text.contains("bit/s, RTT"), "{text}");
    assert!(fs::read(served.home.path().join("file.bin")).unwrap() == content());
    let report = fs::read(served.home.path().join("report.json")).unwrap();
    let report: serde_json::Value = serde_json::from_slice(&report).unwrap();
    assert_eq!(
        (&report["command"], &report["policy"], &report["done"]),
        (&"get".into(), &"drs".into(), &1.into())
    );
    assert_eq!(report["server"]["drs"], true);
    let file = &report["files"][0];
    assert_eq!((&file["bytes"], &file["resumed_from"]), (&2_800_000.into(), &0.into()));
    let (algorithm, digest) = (&file["checksum"]["algorithm"], file["checksum"]["digest"].as_str().unwrap());
    assert!(algorithm == "SHA-256" && text.contains(&format!("SHA-256 {digest}")), "{text}");
    for key in ["seconds", "rate_bps", "min_rtt_s", "window_peak_bytes", "buffer_peak_bytes"] {
        assert!(file[key].as_f64().is_some_and(|figure| figure > 0.0), "{key}: {file}");
    }
    assert!(file["tuned"].is_null(), "no engine: {file}");
    for key in
        ["retransmissions", "held_peak_bytes", "sbuf_sent", "notices_received", "attempts", "total_seconds"]
    {
        assert!(file[key].is_number(), "{key}: {file}");
    }
    let shares: f64 =
        file["limited_by"].as_object().unwrap().values().filter_map(serde_json::Value::as_f64).sum();
    assert!((shares - 1.0).abs() < 1e-6, "{file}");
}

#[test]
fn a_file_goes_where_a_netrc_lets_it_and_nowhere_without() {
    let served = Served::start();
    fs::write(served.home.path().join("up.bin"), content()).unwrap();
    let line = only_error(&served.bufwise(&["put", "up.bin", &served.url_of_jo("")]), 1);
    assert!(line.contains("refused the login of jo"), "{line}");
    served.netrc(0o644);
    let line = only_error(&served.bufwise(&["put", "up.bin", &served.url_of_jo("")]), 1);
    assert!(line.contains("chmod 600"), "{line}");
    served.netrc(0o600);
    done(&served.bufwise(&["put", "up.bin", &served.url_of_jo(""), "--checksum"]));
    assert!(fs::read(served.root.path().join("up.bin")).unwrap() == content());
    let text = done(&served.bufwise(&["put", "up.bin", &served.url_of_jo(""), "--resume"]));
    assert!(text.contains("was there already"), "{text}");
}

#[test]
fn a_password_in_clear_text_to_a_server_that_offers_tls_is_said_once() {
    let tls = ServerTls::self_signed(&["localhost".to_owned()]).unwrap();
    let tls = TlsConfig { server: tls, required: false, require_reuse: false };
    let server = Served::with(|config| config.tls = Some(tls));
    server.netrc(0o600);
    fs::write(server.root.path().join("file"), "bytes").unwrap();
    fs::write(server.home.path().join("mine"), "bytes").unwrap();
    let warnings = |arguments: &[&str]| {
        let output = server.bufwise(arguments);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {said}");
        said.matches("the password went in clear text").count()
    };
    let file = server.url_of_jo("file");
    assert_eq!(warnings(&["get", &file]), 1);
    assert_eq!(warnings(&["put", "mine", &server.url_of_jo("mine")]), 1);
    assert_eq!(warnings(&["get", "-r", "-o", "all", &server.url_of_jo("")]), 1);
    assert_eq!(warnings(&["get", "--quiet", &file]), 0);
    assert_eq!(warnings(&["get", "--tls", "--insecure", &file]), 0);
    assert_eq!(warnings(&["get", &file.replace("jo@", "anonymous@")]), 0, "it has no password");
}

#[test]
fn standard_output_gets_the_file_and_nothing_else() {
    let served = Served::start();
    fs::write(served.root.path().join("file.bin"), content()).unwrap();
    for to in ["-", "/dev/stdout"] {
        let output = served.bufwise(&["get", &served.url("file.bin"), "-o", to]);
        assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
        assert!(output.stdout == content(), "{to}");
    }
    assert!(fs::read_dir(served.home.path()).unwrap().next().is_none());
}

#[test]
fn standard_output_is_written_where_the_caller_has_it() {
    let served = Served::start();
    fs::write(served.root.path().join("file.bin"), content()).unwrap();
    let all = served.home.path().join("all");
    let get = || served.command(&["get", &served.url("file.bin"), "-o", "-", "--checksum"]);
    fs::write(&all, "before").unwrap();
    let appended = fs::File::options().append(true).open(&all).unwrap();
    done(&get().stdout(appended).output().unwrap());
    assert!(fs::read(&all).unwrap() == [b"before", &content()[..]].concat());
    // Two commands in one redirection, as (get; get) > all.
    let shared = fs::File::create(&all).unwrap();
    for _ in 0..2 {
        done(&get().stdout(shared.try_clone().unwrap()).output().unwrap());
    }
    assert!(fs::read(&all).unwrap() == content().repeat(2));
}

#[test]
fn standard_output_may_be_a_socket_that_does_not_block() {
    let served = Served::start();
    fs::write(served.root.path().join("file.bin"), content()).unwrap();
    let (mut here, there) = UnixStream::pair().unwrap();
    there.set_nonblocking(true).unwrap();
    let mut command = served.command(&["get", &served.url("file.bin"), "-o", "-"]);
    let mut get = command.stdout(OwnedFd::from(there)).spawn().unwrap();
    // `command` has the last copy of the socket's other end.
    drop(command);
    let mut came = Vec::new();
    here.read_to_end(&mut came).unwrap();
    assert_eq!(get.wait().unwrap().code(), Some(0));
    assert!(came == content());
}

#[test]
fn a_file_into_a_pipe_is_compared_with_the_servers_checksum() {
    let served = Served::start();
    fs::write(served.root.path().join("file.bin"), content()).unwrap();
    let url = served.url("file.bin");
    for output in ["-", "/dev/null"] {
        let options = ["-o", output, "--checksum", "--json", "report.json"];
        let output = served.bufwise(&[&["get", &url][..], &options].concat());
        assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
        let report = fs::read(served.home.path().join("report.json")).unwrap();
        let report: serde_json::Value = serde_json::from_slice(&report).unwrap();
        let sum = &report["files"][0]["checksum"];
        assert_eq!((&sum["algorithm"], sum["digest"].as_str().map(str::len)), (&"SHA-256".into(), Some(64)));
    }
}

#[test]
fn a_tree_goes_and_comes_with_several_files_in_flight() {
    let served = Served::start();
    served.netrc(0o600);
    for at in 0..12 {
        let directory = served.home.path().join(format!("data/{}", at % 3));
        fs::create_dir_all(&directory).unwrap();
        fs::write(directory.join(format!("{at}.bin")), &content()[at..]).unwrap();
    }
    std::os::unix::fs::symlink("/etc/passwd", served.home.path().join("data/link")).unwrap();
    let put = served.bufwise(&["put", "-r", "data", &served.url_of_jo("all"), "--jobs", "3"]);
    assert!(done(&put).contains("12 files"));
    assert!(String::from_utf8_lossy(&put.stderr).contains("left out link"));
    let text = done(&served.bufwise(&["get", "-r", &served.url("all"), "-o", "back"]));
    assert!(text.contains("12 files"), "{text}");
    for at in 0..12 {
        let got = fs::read(served.home.path().join(format!("back/{}/{at}.bin", at % 3))).unwrap();
        assert!(got == content()[at..]);
    }
    assert!(!served.home.path().join("back/link").exists());
}

#[test]
fn a_tree_goes_and_comes_by_fit_with_several_files_in_flight() {
    let served = Served::start();
    served.netrc(0o600);
    fs::create_dir(served.home.path().join("data")).unwrap();
    for at in 0..8 {
        fs::write(served.home.path().join(format!("data/{at}.bin")), &content()[at..]).unwrap();
    }
    let fit = ["--policy", "fit", "--jobs", "3", "--json", "report.json"];
    let report = || -> serde_json::Value {
        let report = fs::read(served.home.path().join("report.json")).unwrap();
        serde_json::from_slice(&report).unwrap()
    };
    done(&served.bufwise(&[&["put", "-r", "data", &served.url_of_jo("all")][..], &fit].concat()));
    assert_eq!((&report()["policy"], &report()["done"]), (&"fit".into(), &8.into()));
    done(&served.bufwise(&[&["get", "-r", &served.url("all"), "-o", "back"][..], &fit].concat()));
    let report = report();
    assert_eq!((&report["policy"], &report["done"]), (&"fit".into(), &8.into()));
    for file in report["files"].as_array().unwrap() {
        assert!(file.get("tuned").is_some(), "{file}");
    }
    for at in 0..8 {
        let got = fs::read(served.home.path().join(format!("back/{at}.bin"))).unwrap();
        assert!(got == content()[at..]);
    }
}

#[test]
fn a_file_with_the_name_that_another_has_until_it_is_whole_is_not_lost_in_silence() {
    let served = Served::start();
    for name in ["ok", ".ok.bufwise-part", ".other.bufwise-part"] {
        fs::write(served.root.path().join(name), name).unwrap();
    }
    let line = only_error(&served.bufwise(&["get", "-r", &served.url(""), "-o", "all", "--quiet"]), 1);
    assert!(line.contains("1 of 3") && line.contains("all/.ok.bufwise-part"), "{line}");
    for name in ["ok", ".other.bufwise-part"] {
        assert_eq!(fs::read_to_string(served.home.path().join("all").join(name)).unwrap(), name);
    }
    assert!(!served.home.path().join("all/.ok.bufwise-part").exists());
}

#[test]
fn root_a_link_that_another_user_has_planted_is_not_followed() {
    if !bufwise_trial::root() {
        return;
    }
    let served = Served::start();
    fs::write(served.root.path().join("file"), "new").unwrap();
    let home = |name: &str| served.home.path().join(name);
    fs::write(home("victim"), "precious").unwrap();
    for (link, to) in [("out", "victim"), ("file", "victim"), ("way", "out"), ("device", "/dev/null")] {
        std::os::unix::fs::symlink(to, home(link)).unwrap();
    }
    for link in ["out", "file", "device"] {
        std::os::unix::fs::lchown(home(link), Some(65_534), Some(65_534)).unwrap();
    }
    let url = served.url("file");
    for output in [&["-o", "out"][..], &[], &["-o", "way"], &["-o", "device"], &["-o", "."]] {
        let line = only_error(&served.bufwise(&[&["get", &url][..], output].concat()), 1);
        assert!(line.contains("link of another user"), "{output:?}: {line}");
    }
    assert_eq!(fs::read_to_string(home("victim")).unwrap(), "precious");
    std::os::unix::fs::lchown(home("out"), Some(0), Some(0)).unwrap();
    done(&served.bufwise(&["get", &url, "-o", "way"]));
    assert_eq!(fs::read_to_string(home("victim")).unwrap(), "new");
    assert!(home("way").is_symlink() && home("out").is_symlink());
}

#[test]
fn a_directory_that_cannot_be_made_is_said_and_the_rest_goes() {
    let served = Served::start();
    served.netrc(0o600);
    for name in ["empty", "full"] {
        fs::create_dir_all(served.home.path().join("data").join(name)).unwrap();
    }
    fs::write(served.home.path().join("data/full/file"), content()).unwrap();
    fs::create_dir(served.root.path().join("all")).unwrap();
    fs::write(served.root.path().join("all/empty"), "in the way").unwrap();
    let put = served.bufwise(&["put", "-r", "data", &served.url_of_jo("all"), "--quiet"]);
    let line = only_error(&put, 1);
    assert!(line.contains("1 of 2") && line.contains("refused MKD all/empty"), "{line}");
    assert!(fs::read(served.root.path().join("all/full/file")).unwrap() == content());
}

#[test]
fn a_local_directory_that_cannot_be_made_is_said_and_the_rest_comes() {
    let served = Served::start();
    fs::create_dir(served.root.path().join("inner")).unwrap();
    fs::write(served.root.path().join("inner/file"), "bytes").unwrap();
    fs::write(served.root.path().join("ok"), "bytes").unwrap();
    fs::create_dir(served.home.path().join("all")).unwrap();
    fs::write(served.home.path().join("all/inner"), "in the way").unwrap();
    let line = only_error(&served.bufwise(&["get", "-r", &served.url(""), "-o", "all", "--quiet"]), 1);
    assert!(line.contains("2 of 3") && line.contains("making the directory all/inner failed"), "{line}");
    assert_eq!(fs::read_to_string(served.home.path().join("all/ok")).unwrap(), "bytes");
}

#[test]
fn a_directory_with_a_line_break_in_its_name_fails_and_the_rest_goes() {
    let served = Served::start();
    served.netrc(0o600);
    fs::create_dir_all(served.home.path().join("data/odd\nname")).unwrap();
    fs::write(served.home.path().join("data/odd\nname/file"), "bytes").unwrap();
    fs::write(served.home.path().join("data/ok"), "bytes").unwrap();
    let put = served.bufwise(&["put", "-r", "data", &served.url_of_jo("all"), "--quiet"]);
    let line = only_error(&put, 1);
    assert!(line.contains("2 of 3") && line.contains("has a line break"), "{line}");
    assert_eq!(fs::read_to_string(served.root.path().join("all/ok")).unwrap(), "bytes");
}

#[test]
fn a_pipe_is_refused_at_once() {
    let home = tempfile::tempdir().unwrap();
    let pipe = home.path().join("pipe");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
    // It would wait for a writer for ever.
    let line = only_error(&run(&["put", pipe.to_str().unwrap(), "ftp://h/x"]), 2);
    assert!(line.contains("not a regular file"), "{line}");
}

#[test]
fn what_cannot_be_put_fails_and_the_rest_goes() {
    let served = Served::start();
    served.netrc(0o600);
    fs::create_dir(served.home.path().join("data")).unwrap();
    fs::write(served.home.path().join("data/file"), content()).unwrap();
    nix::unistd::mkfifo(&served.home.path().join("data/pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    std::os::unix::fs::symlink("file", served.home.path().join("data/link")).unwrap();
    let put = served.bufwise(&["put", "-r", "data", &served.url_of_jo("all"), "--quiet"]);
    let line = only_error(&put, 1);
    assert!(line.contains("1 of 2 files failed") && line.contains("data/pipe"), "{line}");
    assert!(fs::read(served.root.path().join("all/file")).unwrap() == content());
}

#[test]
fn a_file_beyond_the_largest_size_is_an_error() {
    let served = Served::start();
    fs::write(served.root.path().join("file.bin"), content()).unwrap();
    let limited = "ulimit -f 64; exec \"$0\" \"$@\"";
    let mut get = Command::new("sh");
    get.args(["-c", limited, PROGRAM, "get", "--quiet", &served.url("file.bin")]);
    let got = get.current_dir(served.home.path()).env("HOME", served.home.path()).output().unwrap();
    let line = only_error(&got, 1);
    assert!(line.contains("writing the local file failed") && line.contains("too large"), "{line}");
}

#[test]
fn a_report_that_cannot_be_written_hides_no_failure() {
    if !fs::exists("/dev/full").unwrap() {
        return bufwise_trial::skip("needs /dev/full");
    }
    let served = Served::start();
    let failed = served.bufwise(&["get", &served.url("none"), "--json", "/dev/full"]);
    assert_eq!(failed.status.code(), Some(1));
    let said = String::from_utf8(failed.stderr).unwrap();
    assert!(said.contains("cannot write /dev/full") && said.contains("the server refused"), "{said}");
    let mut get = served.command(&["get", &served.url("none")]);
    let failed = get.stdout(fs::File::create("/dev/full").unwrap()).output().unwrap();
    let said = String::from_utf8(failed.stderr).unwrap();
    assert!(said.contains("the server refused"), "{said}");
}

#[test]
fn a_report_does_not_replace_the_file_that_is_moved() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("file.bin");
    fs::write(&file, "bytes").unwrap();
    for call in [
        &["put", "file.bin", "ftp://h/x", "--json", "./file.bin"][..],
        &["get", "ftp://h/x", "-o", "file.bin", "--json", "file.bin"],
        &["get", "ftp://h/new.bin", "--json", "new.bin"],
    ] {
        let line = only_error(&command(call).current_dir(&directory).output().unwrap(), 2);
        assert!(line.contains("--json would replace "), "{line}");
    }
    assert_eq!(fs::read(&file).unwrap(), b"bytes");
}

#[test]
fn an_interruption_keeps_what_came_and_resume_goes_on() {
    let served = Served::start();
    fs::write(served.root.path().join("file.bin"), content()).unwrap();
    // The whole transfer takes eleven seconds: it is interrupted long before its end, even if the machine stalls.
    let limits = ["--limit-rate", "2mbit", "--json", "report.json"];
    let mut slow = command(&[&["get", &served.url("file.bin")][..], &limits].concat());
    let mut slow = slow.current_dir(served.home.path()).stderr(std::process::Stdio::piped()).spawn().unwrap();
    let part = served.home.path().join(".file.bin.bufwise-part");
    eventually("a part has come", || fs::metadata(&part).is_ok_and(|part| part.len() >= 100_000));
    let id = nix::unistd::Pid::from_raw(slow.id().cast_signed());
    nix::sys::signal::kill(id, nix::sys::signal::Signal::SIGINT).unwrap();
    let status = slow.wait().unwrap();
    assert_eq!(status.code(), Some(1));
    assert!(!served.home.path().join("file.bin").exists());
    let kept = fs::metadata(&part).unwrap().len();
    assert!((100_000..2_800_000).contains(&kept), "{kept}");
    let report = fs::read(served.home.path().join("report.json")).unwrap();
    let report: serde_json::Value = serde_json::from_slice(&report).unwrap();
    let file = &report["files"][0];
    assert_eq!((&file["size"], &file["resumed_from"]), (&2_800_000.into(), &0.into()));
    assert!((1..=kept).contains(&file["bytes"].as_u64().unwrap()), "{kept}: {file}");
    assert!(file["seconds"].as_f64().unwrap() > 0.0 && report["bytes"] == file["bytes"], "{report}");
    let text = done(&served.bufwise(&["get", &served.url("file.bin"), "--resume"]));
    assert!(text.contains("of them were there"), "{text}");
    assert!(fs::read(served.home.path().join("file.bin")).unwrap() == content());
}

#[test]
fn an_interrupted_file_into_a_pipe_is_not_said_to_be_kept() {
    let served = Served::start();
    fs::write(served.root.path().join("file.bin"), content()).unwrap();
    let mut slow = served.command(&["get", &served.url("file.bin"), "-o", "-", "--limit-rate", "2mbit"]);
    let piped = std::process::Stdio::piped;
    let mut slow = slow.stdout(piped()).stderr(piped()).spawn().unwrap();
    slow.stdout.as_mut().unwrap().read_exact(&mut [0; 1_000]).unwrap();
    let id = nix::unistd::Pid::from_raw(slow.id().cast_signed());
    // As timeout(1) does, which sends its signal to the process and to its group.
    for signal in [nix::sys::signal::Signal::SIGINT, nix::sys::signal::Signal::SIGTERM] {
        nix::sys::signal::kill(id, signal).unwrap();
    }
    assert_eq!(only_error(&slow.wait_with_output().unwrap(), 1), "bufwise: interrupted\n");
}

#[test]
fn a_signal_that_is_ignored_as_in_the_background_of_a_script_interrupts_nothing() {
    let served = Served::start();
    fs::write(served.root.path().join("file.bin"), content()).unwrap();
    let mut get = Command::new("env");
    get.args(["--ignore-signal=INT", PROGRAM, "get", &served.url("file.bin"), "-o", "-"]);
    // The whole transfer takes half a second.
    let mut get = get.args(["--limit-rate", "40mbit"]).stdout(std::process::Stdio::piped()).spawn().unwrap();
    let mut came = vec![0; 1_000];
    let mut stdout = get.stdout.take().unwrap();
    stdout.read_exact(&mut came).unwrap();
    let id = nix::unistd::Pid::from_raw(get.id().cast_signed());
    nix::sys::signal::kill(id, nix::sys::signal::Signal::SIGINT).unwrap();
    stdout.read_to_end(&mut came).unwrap();
    assert_eq!(get.wait().unwrap().code(), Some(0));
    assert!(came == content());
}

#[test]
fn a_server_below_the_lowest_rate_is_given_up() {
    let served = Served::with(|config| config.tuning.rate = Some(Rate(200_000)));
    fs::write(served.root.path().join("file.bin"), content()).unwrap();
    let url = served.url("file.bin");
    // Longer than a machine may stand still, in which time nothing would come.
    let limits = ["--lowest-rate", "80mbit", "--timeout", "5s", "--retries", "0", "--quiet"];
    let line = only_error(&served.bufwise(&[&["get", &url][..], &limits].concat()), 1);
    assert!(line.contains("less than 80mbit for 5 s"), "{line}");
    assert!(fs::metadata(served.home.path().join(".file.bin.bufwise-part")).unwrap().len() > 0);
}

#[test]
fn wrong_usage_is_said_before_any_connection() {
    for (arguments, words) in [
        (&["get", "http://h/x"][..], "ftp://"),
        (&["get", "ftp://jo:hunter2@h/x"], "BUFWISE_PASSWORD"),
        (&["get", "ftp://h/dir/"], "add -r"),
        (&["get", "ftp://h/x", "--policy", "abt"], "bufwise run"),
        (&["get", "ftp://h/x", "--policy", "fit,sobas"], "drs-ftp, sobas, sobas:published, fit"),
        (&["get", "ftp://h/x", "--policy", "fit", "--limit-rate", "8mbit"], "leave one of them out"),
        (&["put", "/etc/hosts", "ftp://h/x", "--policy", "fit", "--limit-rate", "8mbit"], "--limit-rate"),
        (&["get", "ftp://h/x", "--policy", "quick"], "unknown policy"),
        (&["get", "ftp://h/x", "--timeout", "0s"], "--timeout"),
        (&["get", "ftp://h/x", "--limit-rate", "0mbit"], "rate of 0"),
        (&["get", "ftp://h/x", "--limit-rate", "8mbit", "--lowest-rate", "8mbit"], "must be below"),
        (&["get", "ftp://h/x", "--jobs", "0"], "--jobs"),
        (&["get", "ftp://h/x", "--pin", "abc"], "64 hexadecimal digits"),
        (&["put", "/", "ftp://h/x"], "add -r"),
        (&["get", "ftp://h/x", "-o", "no-such-directory/"], "make it first"),
        (&["get", "-r", "ftp://h/x", "-o", "-"], "cannot get a directory"),
        (&["get", "ftp://h/x", "--resume", "-o", "-"], "--resume"),
        (&["get", "ftp://h/x", "--resume", "-o", "/dev/null"], "leave --resume out"),
        (&["get", "ftp://h/x", "-o", "-", "--json", "-"], "both the file and the report"),
    ] {
        let line = only_error(&run(arguments), 2);
        assert!(line.contains(words) && !line.contains("hunter2"), "{arguments:?}: {line}");
    }
    assert!(only_error(&run(&["put", "/no/such/file", "ftp://h/x"]), 1).contains("/no/such/file"));
}

#[test]
fn names_of_local_files_do_nothing_to_the_terminal() {
    let served = Served::start();
    served.netrc(0o600);
    let tree = served.home.path().join("tree");
    fs::create_dir(&tree).unwrap();
    std::os::unix::fs::symlink("nowhere", tree.join("\u{1b}[2Jlink\nline")).unwrap();
    let output = served.bufwise(&["put", "-r", "tree", &served.url_of_jo("tree")]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{said}");
    assert!(said.contains("left out \\u{1b}[2Jlink\\nline: it is a link"), "{said:?}");
    let line = only_error(&served.bufwise(&["put", "\u{1b}[2Jmissing", &served.url_of_jo("")]), 1);
    assert!(line.contains("cannot read \\u{1b}[2Jmissing") && !line.contains('\u{1b}'), "{line:?}");
}

#[test]
fn what_cannot_be_reached_is_named_in_one_line() {
    let (_bound, closed) = silent_port();
    let url = format!("ftp://{closed}/x");
    let line = only_error(&run(&["get", &url, "--retries", "0", "-o", "/dev/null"]), 1);
    assert!(line.contains(&format!("connecting to {closed} failed")), "{line}");
    let served = Served::start();
    let line = only_error(&served.bufwise(&["get", &served.url("x"), "--tls-required"]), 1);
    assert!(line.contains("offers no TLS"), "{line}");
    let line = only_error(&served.bufwise(&["get", &served.url("x")]), 1);
    assert!(line.contains("550"), "{line}");
}

#[test]
fn a_server_that_says_nothing_is_given_up_after_the_time_that_is_given() {
    // The kernel accepts the connection, but no program reads the commands.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("ftp://{}/x", silent.local_addr().unwrap());
    let line = only_error(&run(&["get", &url, "--timeout", "1s", "--retries", "0", "-o", "/dev/null"]), 1);
    assert!(line.contains("within 1 s"), "{line}");
}

#[test]
fn the_password_may_lie_in_another_file_than_the_usual_one() {
    let served = Served::start();
    served.netrc(0o600);
    let home = |name: &str| served.home.path().join(name);
    fs::rename(home(".netrc"), home("other")).unwrap();
    fs::write(home(".netrc"), "machine 127.0.0.1 login jo password wrong\n").unwrap();
    fs::set_permissions(home(".netrc"), fs::Permissions::from_mode(0o600)).unwrap();
    fs::write(home("up.bin"), content()).unwrap();
    let put = ["put", "up.bin", &served.url_of_jo(""), "--quiet"];
    assert!(only_error(&served.bufwise(&put), 1).contains("refused the login of jo"));
    done(&served.bufwise(&[&put[..], &["--netrc", "other"]].concat()));
    assert!(fs::read(served.root.path().join("up.bin")).unwrap() == content());
}

#[test]
fn both_commands_explain_themselves() {
    for (name, words) in [
        ("get", ["--resume", "~/.netrc", "--limit-rate", "--lowest-rate"]),
        ("put", ["--in-place", "~/.netrc", "--pin", "--lowest-rate"]),
    ] {
        let text = done(&run(&[name, "--help"]));
        assert!(words.iter().all(|word| text.contains(word)), "{text}");
    }
}
