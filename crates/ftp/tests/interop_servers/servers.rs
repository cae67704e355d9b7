//! Stock servers, started on loopback for one test each.
//!
//! Programs are looked for in `$BUFWISE_FTP_SERVERS` (by default `/opt/ftp-servers`), where
//! `scripts/install-ftp-servers` unpacks what cannot be installed side by side, then where programs usually are.

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::ops::Range;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use bufwise_mover::hash::HashKind;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use tempfile::TempDir;

/// The password of the user `jo`, where there are users: `secret`, as SHA-256 crypt(5).
const CRYPTED: &str = "$5$abcdefgh$gruCpC7VkOTspMQTTSAR8mtlO9Upms.fwqE5y16JVM.";

/// Where servers listen.
const PORTS: Range<u16> = 20_000..30_000;

/// A running server.
pub(crate) struct Server {
    child: Child,
    pub(crate) port: u16,
    /// The directory that it serves.
    pub(crate) root: PathBuf,
    /// The path of that directory on the server, from the login directory.
    pub(crate) path: PathBuf,
    /// User and password; anonymous otherwise.
    pub(crate) user: Option<(&'static str, &'static str)>,
    /// The certificate, where it speaks TLS.
    pub(crate) certificate: Option<PathBuf>,
    /// The server accepts names with non-ASCII characters.
    pub(crate) utf8: bool,
    /// The server removes spaces at the end of names.
    pub(crate) trims: bool,
    /// The best sum that it makes.
    pub(crate) sum: Option<HashKind>,
    _files: TempDir,
}

impl Drop for Server {
    fn drop(&mut self) {
        // The group is the server and its sessions, started here.
        let _gone = killpg(Pid::from_raw(self.child.id().cast_signed()), Signal::SIGKILL);
        let _gone = self.child.wait();
    }
}

/// Where a server keeps its files during a test.
struct Place {
    files: TempDir,
    port: u16,
}

impl Place {
    fn new() -> Self {
        let files = tempfile::tempdir().unwrap();
        let open = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        open(files.path(), 0o755);
        fs::create_dir(files.path().join("root")).unwrap();
        open(&files.path().join("root"), 0o777);
        Self { files, port: free_port() }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.files.path().join(name)
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.file(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        path
    }

    fn root(&self) -> PathBuf {
        self.file("root")
    }

    /// A certificate for loopback, and its key.
    fn certificate(&self) -> (PathBuf, PathBuf) {
        let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
        let certificate = self.write("cert.pem", &made.cert.pem());
        (certificate, self.write("key.pem", &made.signing_key.serialize_pem()))
    }

    fn start(self, command: &mut Command) -> Server {
        let log = fs::File::create(self.file("log")).unwrap();
        command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log).process_group(0);
        let child = command.spawn().unwrap();
        let (root, port) = (self.root(), self.port);
        let mut server = Server {
            child,
            port,
            root,
            path: PathBuf::new(),
            user: None,
            certificate: None,
            utf8: true,
            trims: false,
            sum: None,
            _files: self.files,
        };
        server.await_port();
        server
    }
}

impl Server {
    fn await_port(&mut self) {
        let deadline = Instant::now() + Duration::from_secs(20);
        while TcpStream::connect(("127.0.0.1", self.port)).is_err() {
            let log = || fs::read_to_string(self.root.with_file_name("log")).unwrap_or_default();
            assert!(self.child.try_wait().unwrap().is_none(), "the server ended: {}", log());
            assert!(Instant::now() < deadline, "the server does not listen: {}", log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub(crate) fn pyftpdlib() -> Option<Self> {
        let library = unpacked().join("pyftpdlib/usr/lib/python3/dist-packages");
        let fits = |python: &&str| {
            let mut command = Command::new(python);
            command.args(["-W", "ignore", "-c", "import pyftpdlib.servers"]).env("PYTHONPATH", &library);
            command.stderr(Stdio::null()).status().is_ok_and(|status| status.success())
        };
        // The distribution's first: the library is of the same age.
        let Some(python) = ["/usr/bin/python3", "python3"].into_iter().find(fits) else {
            bufwise_trial::skip("pyftpdlib is not installed (make peers)");
            return None;
        };
        let place = Place::new();
        let mut command = Command::new(python);
        command.env("PYTHONPATH", &library).args([
            "-W",
            "ignore",
            "-m",
            "pyftpdlib",
            "-i",
            "127.0.0.1",
            "-w",
        ]);
        command.args(["-p", &place.port.to_string(), "-d"]).arg(place.root());
        Some(place.start(&mut command))
    }

    pub(crate) fn vsftpd() -> Option<Self> {
        let program = program("vsftpd", "vsftpd/usr/sbin/vsftpd")?;
        let place = Place::new();
        fs::create_dir(place.file("empty")).unwrap();
        let (certificate, key) = place.certificate();
        let config = format!(
            "listen=YES\nlisten_address=127.0.0.1\nlisten_port={}\nbackground=NO\nseccomp_sandbox=NO\n\
             anonymous_enable=YES\nlocal_enable=NO\nwrite_enable=YES\nanon_upload_enable=YES\n\
             anon_mkdir_write_enable=YES\nanon_other_write_enable=YES\nanon_world_readable_only=NO\n\
             anon_umask=022\nftp_username=daemon\nallow_writeable_chroot=YES\nno_anon_password=NO\n\
             ssl_enable=YES\nallow_anon_ssl=YES\nssl_ciphers=HIGH\nanon_root={}\nsecure_chroot_dir={}\n\
             rsa_cert_file={}\nrsa_private_key_file={}\n",
            place.port,
            place.files.path().display(),
            place.file("empty").display(),
            certificate.display(),
            key.display(),
        );
        let config = place.write("vsftpd.conf", &config);
        let mut server = place.start(Command::new(program).arg(config));
        server.certificate = Some(certificate);
        // The server refuses a top directory that is writable.
        server.path = PathBuf::from("root");
        Some(server)
    }

    pub(crate) fn proftpd() -> Option<Self> {
        let program = program("proftpd", "proftpd/usr/sbin/proftpd")?;
        let modules = unpacked().join("proftpd/usr/lib/proftpd");
        let modules = if modules.is_dir() { modules } else { PathBuf::from("/usr/lib/proftpd") };
        let extra =
            ["mod_tls", "mod_digest"].iter().all(|name| modules.join(name).with_extension("so").exists());
        let place = Place::new();
        let (certificate, key) = place.certificate();
        let users = format!("jo:{CRYPTED}:65534:65534::{}:/bin/false\n", place.root().display());
        let users = place.write("users", &users);
        let mut config = format!(
            "ServerType standalone\nServerName test\nDefaultAddress 127.0.0.1\nSocketBindTight on\nPort {}\n\
             UseIPv6 off\nUser nobody\nGroup nogroup\nModulePath {}\nPidFile {}\nScoreboardFile {}\n\
             SystemLog {}\nWtmpLog off\nTransferLog none\nAuthOrder mod_auth_file.c\nAuthUserFile {}\n\
             RequireValidShell off\nDefaultRoot ~\nAllowOverwrite on\nAllowStoreRestart on\nDelayEngine off\n",
            place.port,
            modules.display(),
            place.file("pid").display(),
            place.file("scores").display(),
            place.file("system.log").display(),
            users.display(),
        );
        if extra {
            config += &format!(
                "LoadModule mod_tls.c\nLoadModule mod_digest.c\nTLSEngine on\nTLSRequired off\n\
                 TLSRSACertificateFile {}\nTLSRSACertificateKeyFile {}\nDigestEngine on\n",
                certificate.display(),
                key.display(),
            );
        }
        let config = place.write("proftpd.conf", &config);
        let mut server = place.start(Command::new(program).arg("-n").arg("-c").arg(config));
        server.certificate = extra.then_some(certificate);
        server.sum = extra.then_some(HashKind::Sha256);
        server.user = Some(("jo", "secret"));
        Some(server)
    }

    pub(crate) fn pure_ftpd() -> Option<Self> {
        let program = program("pure-ftpd", "pure-ftpd/usr/sbin/pure-ftpd")?;
        let tool = unpacked().join("pure-ftpd/usr/bin/pure-pw");
        let tool = if tool.exists() { tool } else { PathBuf::from("pure-pw") };
        let place = Place::new();
        let (certificate, key) = place.certificate();
        let both = fs::read_to_string(&key).unwrap() + &fs::read_to_string(&certificate).unwrap();
        let both = place.write("both.pem", &both);
        // `pure-pw useradd` is not used, because its hash takes seconds, here and at each login.
        let user = format!("jo:{CRYPTED}:65534:65534::{}/./::::::::::::\n", place.root().display());
        let (users, database) = (place.write("users", &user), place.file("users.pdb"));
        let made = Command::new(&tool).arg("mkdb").arg(&database).arg("-f").arg(&users).status().unwrap();
        assert!(made.success(), "pure-pw mkdb");
        let mut command = Command::new(program);
        command.arg("-S").arg(format!("127.0.0.1,{}", place.port));
        command.arg("-l").arg(format!("puredb:{}", database.display()));
        command.args(["-A", "-H", "-u", "1", "-Y", "1", "-2"]).arg(both).arg("-g").arg(place.file("pid"));
        let mut server = place.start(&mut command);
        (server.certificate, server.user) = (Some(certificate), Some(("jo", "secret")));
        server.trims = true;
        Some(server)
    }

    pub(crate) fn globus() -> Option<Self> {
        let name = "globus-gridftp-server";
        let program = program(name, "globus-gridftp-server/usr/sbin/globus-gridftp-server")?;
        let place = Place::new();
        let mut command = Command::new(program);
        command.args([
            "-aa",
            "-anonymous-user",
            "nobody",
            "-no-detach",
            "-control-interface",
            "127.0.0.1",
            "-p",
        ]);
        command.arg(place.port.to_string());
        let mut server = place.start(&mut command);
        server.path = server.root.clone();
        // It announces UTF8, but drops such bytes.
        server.utf8 = false;
        Some(server)
    }
}

/// A port for a server that needs one in its configuration. It is below the ports that the system gives to connections,
/// one of which could take it before the server does.
fn free_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let first = std::process::id().wrapping_mul(97);
    for _ in 0..PORTS.len() {
        let count = first.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed));
        let port = PORTS.start + (count % PORTS.len() as u32) as u16;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
    panic!("no port is free");
}

fn unpacked() -> PathBuf {
    std::env::var_os("BUFWISE_FTP_SERVERS").map_or_else(|| PathBuf::from("/opt/ftp-servers"), PathBuf::from)
}

/// The program, unpacked or installed; `None`, the test skipped, without it or without root.
fn program(name: &str, below: &str) -> Option<PathBuf> {
    let usual = ["/usr/sbin", "/usr/bin", "/sbin"].map(|place| Path::new(place).join(name));
    bufwise_trial::root()
        .then(|| bufwise_trial::found(name, std::iter::once(unpacked().join(below)).chain(usual)))
        .flatten()
}
