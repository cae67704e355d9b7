//! Information about the server and the session: FEAT, OPTS, SYST, HELP, NOOP, STAT, SITE.

use std::io;

use bufwise_mover::hash::HashKind;

use super::ServerSession;
use crate::server::running::Running;
use crate::wire::dialect::DrsFeature;
use crate::wire::listing::Facts;
use crate::wire::{Command, Features, Opts, Reply};

/// All commands that the server understands.
const VERBS: &str = "USER PASS QUIT AUTH PBSZ PROT FEAT OPTS SYST HELP NOOP STAT SITE TYPE MODE STRU ALLO \
                     PASV EPSV PORT EPRT REST RETR STOR APPE ABOR LIST NLST MLSD MLST SIZE MDTM MFMT HASH CWD \
                     CDUP PWD MKD RMD DELE RNFR RNTO SBUF PROB";

impl ServerSession {
    pub(super) fn info(&mut self, command: Command) -> io::Result<()> {
        match command {
            Command::Feat => self.control.reply(&self.features().to_reply()),
            Command::Opts(opts) => self.options(&opts),
            Command::Syst => self.reply(215, "UNIX Type: L8"),
            Command::Help(_) => self.help(),
            Command::Stat(_) => self.status(),
            _ => self.reply(200, "OK."),
        }
    }

    fn features(&self) -> Features {
        let hashes: Vec<String> = HashKind::ALL
            .iter()
            .map(|kind| format!("{kind}{}", if *kind == self.client.hash { "*" } else { "" }))
            .collect();
        let drs = DrsFeature { sbuf: true, notify: true, probe: self.server.config.tuning.probes };
        let mut features = Features::new()
            .with("UTF8", "")
            .with("EPSV", "")
            .with("REST", "STREAM")
            .with("SIZE", "")
            .with("MDTM", "")
            .with("MFMT", "")
            .with("MLST", self.client.facts.feature())
            .with("TVFS", "")
            .with("HASH", hashes.join(";"))
            .with("SBUF", "")
            .with(DrsFeature::NAME, drs.to_string());
        if self.server.config.data.active {
            features = features.with("EPRT", "");
        }
        if self.server.admission.now().tls.is_some() {
            features = features.with("AUTH", "TLS").with("PBSZ", "").with("PROT", "");
        }
        features
    }

    fn options(&mut self, opts: &Opts) -> io::Result<()> {
        match opts {
            Opts::Utf8(true) => self.reply(200, "Names are UTF-8."),
            Opts::Utf8(false) => self.reply(504, "Names are always UTF-8."),
            Opts::Mlst(facts) => {
                self.client.facts = *facts;
                let shown = if *facts == none() { String::new() } else { format!(" {facts}") };
                self.reply(200, &format!("MLST OPTS{shown}"))
            }
            Opts::Hash(None) => self.reply(200, self.client.hash.name()),
            Opts::Hash(Some(name)) => match name.parse() {
                Ok(kind) => {
                    self.client.hash = kind;
                    self.reply(200, kind.name())
                }
                Err(_) => self.reply(501, "This checksum algorithm is not supported."),
            },
            Opts::Drs { notify } => {
                self.client.notify = *notify;
                self.reply(200, if *notify { "DRS NOTIFY=1;" } else { "DRS NOTIFY=0;" })
            }
            Opts::Other(_) => self.reply(501, "No such option."),
        }
    }

    fn help(&mut self) -> io::Result<()> {
        let words: Vec<&str> = VERBS.split_ascii_whitespace().collect();
        let lines = words.chunks(10).map(|words| words.join(" ").into_bytes());
        self.control.reply(&Reply::multi(214, "The commands:", lines, "End"))
    }

    fn status(&mut self) -> io::Result<()> {
        let who =
            self.client.user.as_ref().map_or("not logged in".to_owned(), |user| format!("as {}", user.name));
        let age = self.age().as_secs();
        let lines = [
            format!("Connected for {age} s, {who}"),
            format!("Control connection: {}", if self.control.is_tls() { "TLS" } else { "clear text" }),
            format!("Data connections: {}", if self.client.private { "TLS" } else { "clear text" }),
        ];
        let lines = lines.into_iter().map(String::into_bytes);
        self.control.reply(&Reply::multi(211, "Status of the session:", lines, "End"))
    }

    /// Answers STAT during a transfer.
    pub(super) fn status_of_transfer(&mut self) -> io::Result<()> {
        if let Some(progress) = self.running.as_ref().and_then(Running::progress) {
            // A request in it is delivered once.
            self.look_at_progress(&progress)?;
        }
        let mut lines = Vec::new();
        if let Some(progress) = self.tuned.last {
            lines.push(format!("{} bytes, {}", progress.bytes, progress.rate));
            if let Some(limit) = progress.limited_by {
                lines.push(format!("Limited by {limit}"));
            }
        }
        let lines = lines.into_iter().map(String::into_bytes);
        self.control.reply(&Reply::multi(211, "A transfer is running:", lines, "End"))
    }

    pub(super) fn site(&mut self, argument: &str) -> io::Result<()> {
        let verb = argument.split_ascii_whitespace().next().unwrap_or_default();
        if verb.eq_ignore_ascii_case("HELP") {
            self.reply(214, "SITE has no other command than HELP here.")
        } else {
            self.reply(504, "SITE has no other command than HELP here.")
        }
    }
}

fn none() -> Facts {
    Facts { kind: false, size: false, modify: false, perm: false, mode: false }
}
