//! The daemon's configuration: flags, and a file for the options that the flags leave open.
//!
//! An error in the file is one line: file, line, key, what is wrong, and what is allowed.

use std::fmt;
use std::fs;
use std::io;
use std::marker::PhantomData;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use bufwise_bpf::Group;
use bufwise_units::Bytes;
use nix::fcntl::OFlag;
use serde::Deserialize;
use serde::de::{self, Deserializer, Visitor};

use super::groups::{self, GroupOptions, GroupSettings};
use crate::control;
use crate::error::ConfigError;
use crate::log::Format;
use crate::metrics::{Address, Endpoint, Interval};
use crate::tuner::choice::Choice;
use crate::tuner::plan::Asked;
use crate::tuner::sizes::{AtOnce, Budget, MaxConnections, SmallDocuments};

/// The default file, which need not exist.
const DEFAULT_FILE: &str = "/etc/bufwise/bufwise.toml";
/// Largest file that is read, in bytes.
const LARGEST_FILE: u64 = 1 << 20;

/// Options that may be given as a flag or in the file. `None`: left open.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
pub struct Options {
    /// The policies.
    #[serde(deserialize_with = "written")]
    pub policy: Option<Choice>,
    /// Memory that all send queues together may hold.
    #[serde(deserialize_with = "written")]
    pub memory: Option<Budget>,
    /// Memory that all receive queues together may hold.
    #[serde(deserialize_with = "written")]
    pub receive_memory: Option<Budget>,
    /// Documents up to this size are sent in one round trip.
    #[serde(deserialize_with = "written")]
    pub small_documents: Option<SmallDocuments>,
    /// Largest packet that a network device takes at once.
    #[serde(deserialize_with = "written")]
    pub gso_max_size: Option<AtOnce>,
    /// Most connections that are tuned at a time.
    pub max_connections: Option<MaxConnections>,
    /// Cgroups whose connections are tuned; none: the whole host.
    #[serde(deserialize_with = "not_empty")]
    pub cgroups: Option<Vec<PathBuf>>,
    /// Whether buffers that programs have set are sized as well.
    #[serde(rename = "override")]
    pub take_over: Option<bool>,
    /// Whether the host's maxima are raised while the daemon runs.
    pub raise_caps: Option<bool>,
    /// The control socket's path.
    #[serde(deserialize_with = "file_path")]
    pub socket: Option<PathBuf>,
    /// Format of the log's lines.
    #[serde(alias = "log_format", deserialize_with = "written")]
    pub log_format: Option<Format>,
    /// Address at which metrics are served; `None`: not served.
    #[serde(deserialize_with = "written")]
    pub metrics: Option<Address>,
    /// Receiver to which metrics are sent; `None`: not sent.
    #[serde(deserialize_with = "written")]
    pub otlp: Option<Endpoint>,
    /// Time between two requests to the receiver.
    #[serde(deserialize_with = "written")]
    pub otlp_interval: Option<Interval>,
    /// File of the history on disk; `None`: not kept.
    #[serde(deserialize_with = "file_path")]
    pub history: Option<PathBuf>,
    /// Groups of connections with settings of their own; only in the file.
    #[serde(rename = "group")]
    pub groups: Vec<GroupOptions>,
}

/// The whole configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Settings {
    pub(super) policy: Choice,
    pub(super) asked: Asked,
    /// Cgroups whose connections are tuned; none: the whole host.
    pub(super) cgroups: Vec<PathBuf>,
    pub(super) raise_caps: bool,
    pub(super) socket: PathBuf,
    pub(super) log_format: Format,
    /// Address at which metrics are served, if any.
    pub(super) metrics: Option<Address>,
    /// Receiver to which metrics are sent, if any.
    pub(super) otlp: Option<Endpoint>,
    /// Time between two requests to the receiver.
    pub(super) otlp_interval: Interval,
    /// File of the history on disk, if any.
    pub(super) history: Option<PathBuf>,
    /// Groups of connections with settings of their own.
    pub(super) groups: Vec<GroupSettings>,
}

impl Default for Settings {
    fn default() -> Self {
        Self::from(Options::default())
    }
}

/// Converts all but the groups, which are checked together with the result.
impl From<Options> for Settings {
    fn from(options: Options) -> Self {
        Self {
            policy: options.policy.unwrap_or_default(),
            asked: Asked {
                memory: options.memory.map(Bytes::from),
                receive_memory: options.receive_memory.map(Bytes::from),
                // The daemon's own limit, as that of its unit, says nothing of the programs whose connections it tunes.
                memory_limit: None,
                small_documents: options.small_documents.map(Bytes::from),
                at_once: options.gso_max_size.unwrap_or_default(),
                whole_host: options.cgroups.as_ref().is_none_or(Vec::is_empty),
                take_over: options.take_over.unwrap_or(false),
                max_connections: options.max_connections.unwrap_or_default(),
            },
            cgroups: options.cgroups.unwrap_or_default(),
            raise_caps: options.raise_caps.unwrap_or(true),
            socket: options.socket.unwrap_or_else(|| control::DEFAULT_PATH.into()),
            log_format: options.log_format.unwrap_or_default(),
            metrics: options.metrics,
            otlp: options.otlp,
            otlp_interval: options.otlp_interval.unwrap_or_default(),
            history: options.history,
            groups: Vec::new(),
        }
    }
}

impl Options {
    /// Returns these options, completed by `others` where these are `None`.
    fn or(self, others: Self) -> Self {
        Self {
            policy: self.policy.or(others.policy),
            memory: self.memory.or(others.memory),
            receive_memory: self.receive_memory.or(others.receive_memory),
            small_documents: self.small_documents.or(others.small_documents),
            gso_max_size: self.gso_max_size.or(others.gso_max_size),
            max_connections: self.max_connections.or(others.max_connections),
            cgroups: self.cgroups.or(others.cgroups),
            take_over: self.take_over.or(others.take_over),
            raise_caps: self.raise_caps.or(others.raise_caps),
            socket: self.socket.or(others.socket),
            log_format: self.log_format.or(others.log_format),
            metrics: self.metrics.or(others.metrics),
            otlp: self.otlp.or(others.otlp),
            otlp_interval: self.otlp_interval.or(others.otlp_interval),
            history: self.history.or(others.history),
            groups: if self.groups.is_empty() { others.groups } else { self.groups },
        }
    }

    /// Reads a file's text; the error is one line.
    fn parse(text: &str) -> Result<Self, String> {
        toml::from_str(text).map_err(|error| {
            let message = error.message().lines().collect::<Vec<_>>().join(" ");
            match error.span() {
                Some(span) => format!("{}: {message}", line_of(text, span.start)),
                None => message,
            }
        })
    }
}

/// Returns the line number of a byte offset, and the key on that line.
pub(super) fn line_of(text: &str, at: usize) -> String {
    let before = text.get(..at).unwrap_or(text);
    let number = before.matches('\n').count() + 1;
    let line = text.lines().nth(number - 1).unwrap_or_default();
    match line.split_once('=') {
        Some((key, _)) => format!("line {number}: {}", key.trim()),
        None => format!("line {number}"),
    }
}

/// Merges flags, file and defaults, in this order of precedence.
pub(super) fn settings(file: Option<&Path>, flags: &Options) -> Result<Settings, ConfigError> {
    let path = path(file);
    let text = match read(path) {
        Ok(text) => text,
        Err(error) if file.is_none() && error.kind() == io::ErrorKind::NotFound => String::new(),
        Err(source) => return Err(ConfigError::Read { path: path.into(), source }),
    };
    let wrong = |what| ConfigError::Content { path: path.into(), what };
    let mut options = flags.clone().or(Options::parse(&text).map_err(wrong)?);
    let groups = std::mem::take(&mut options.groups);
    let mut settings = Settings::from(options);
    for path in &mut settings.cgroups {
        *path = Group::path_in_hierarchy(path);
    }
    settings.groups = groups::checked(groups, &settings, &text).map_err(wrong)?;
    Ok(settings)
}

/// Returns the file to read: the named one, or the default.
pub(super) fn path(named: Option<&Path>) -> &Path {
    named.unwrap_or(Path::new(DEFAULT_FILE))
}

/// Returns the control socket that the default configuration file names, or the default socket.
pub fn configured_socket() -> PathBuf {
    let named = read(path(None)).ok().and_then(|text| socket_in(&text));
    named.unwrap_or_else(|| control::DEFAULT_PATH.into())
}

/// Returns the control socket that a file's text names. An error in another key does not matter: a daemon that runs keeps its
/// socket when it refuses the file.
fn socket_in(text: &str) -> Option<PathBuf> {
    #[derive(Deserialize)]
    struct Place {
        socket: Option<PathBuf>,
    }

    toml::from_str::<Place>(text).ok()?.socket
}

fn read(path: &Path) -> io::Result<String> {
    use io::Read;
    // Opening a FIFO would block until it has a writer, at every reload.
    let file = fs::File::options().read(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(path)?;
    if file.metadata()?.file_type().is_fifo() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is a FIFO, which cannot be read again"));
    }
    let mut text = String::new();
    if file.take(LARGEST_FILE + 1).read_to_string(&mut text)? as u64 > LARGEST_FILE {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "it is larger than 1 MiB, the most that is read",
        ));
    }
    Ok(text)
}

/// Deserialises paths of cgroups. An empty one would be the root, which is the whole host.
fn not_empty<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Vec<PathBuf>>, D::Error> {
    let paths = Vec::<PathBuf>::deserialize(deserializer)?;
    if paths.iter().any(|path| path.as_os_str().is_empty()) {
        return Err(de::Error::custom("a path is empty: write one as /system.slice/nginx.service"));
    }
    Ok(Some(paths))
}

/// Deserialises the path of a file that the daemon makes.
fn file_path<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<PathBuf>, D::Error> {
    let path = PathBuf::deserialize(deserializer)?;
    if path.as_os_str().is_empty() {
        return Err(de::Error::custom("the path is empty: write a whole one, or leave the key out"));
    }
    Ok(Some(path))
}

/// Deserialises a value in its command-line form.
pub(super) fn written<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: FromStr<Err: fmt::Display>,
{
    struct Written<T>(PhantomData<T>);

    impl<T: FromStr<Err: fmt::Display>> Visitor<'_> for Written<T> {
        type Value = T;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("text in quotes, as \"64MiB\" or \"abt,sobas\"")
        }

        fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
            text.parse().map_err(E::custom)
        }
    }

    deserializer.deserialize_any(Written(PhantomData)).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLE: &str = include_str!("../../../../etc/bufwise.toml");

    #[test]
    fn the_sample_is_the_defaults() {
        let sample = Options::parse(SAMPLE).unwrap();
        assert_eq!(Settings::from(sample.clone()), Settings::default());
        assert!(sample.policy.is_some() && sample.raise_caps.is_some(), "defaults are written out");
    }

    #[test]
    fn every_key_of_the_sample_can_be_used() {
        let uncommented: Vec<&str> = SAMPLE
            .lines()
            .map(|line| {
                let uncommented = line.strip_prefix("#");
                uncommented.filter(|rest| rest.contains(" = ") || rest.starts_with("[[")).unwrap_or(line)
            })
            .collect();
        let options = Options::parse(&uncommented.join("\n")).unwrap();
        let Options {
            policy,
            memory,
            receive_memory,
            small_documents,
            gso_max_size,
            max_connections,
            cgroups,
            take_over,
            raise_caps,
            socket,
            log_format,
            metrics,
            otlp,
            otlp_interval,
            history,
            groups,
        } = options;
        assert!(policy.is_some() && memory.is_some() && receive_memory.is_some() && socket.is_some());
        assert!(
            small_documents.is_some() && cgroups.is_some() && take_over.is_some() && raise_caps.is_some()
        );
        assert!(gso_max_size.is_some() && log_format.is_some() && metrics.is_some());
        assert!(otlp.is_some() && otlp_interval.is_some() && history.is_some() && max_connections.is_some());
        assert_eq!(groups.len(), 1);
    }

    #[test]
    fn flags_win_over_the_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("bufwise.toml");
        fs::write(&path, "policy = \"drs\"\nmemory = \"1MB\"\noverride = true\n").unwrap();
        let flags = Options { memory: Some("5MB".parse().unwrap()), ..Options::default() };
        let settings = settings(Some(&path), &flags).unwrap();
        assert_eq!(settings.policy, "drs".parse().unwrap());
        assert_eq!((settings.asked.memory, settings.asked.take_over), (Some(Bytes(5_000_000)), true));
    }

    #[test]
    fn the_socket_is_found_beside_errors_in_other_keys() {
        assert_eq!(socket_in("polcy = 1\nsocket = \"/run/a/control\"\n"), Some("/run/a/control".into()));
        assert!(["memory = \"1MB\"", "socket = 5", "socket"].map(socket_in).iter().all(Option::is_none));
    }

    #[test]
    fn errors_name_line_key_and_what_is_allowed() {
        for (text, words) in [
            ("\npolcy = \"abt\"", &["line 2", "polcy", "`receive-memory`"][..]),
            ("policy = \"tahoe\"", &["line 1: policy", "tahoe", "abt"]),
            ("# x\n\nmemory = \"lots\"", &["line 3: memory", "lots", "64KiB"]),
            ("memory = -1", &["line 1: memory", "-1"]),
            ("memory = 5", &["line 1: memory", "`5`", "text in quotes", "64MiB"]),
            ("memory = \"0\"", &["line 1: memory", "`0` has no unit", "64KiB"]),
            ("receive-memory = \"1KiB\"", &["line 1: receive-memory", "at least 64KiB"]),
            ("small-documents = \"9GiB\"", &["line 1: small-documents", "at most 4MiB"]),
            ("gso-max-size = \"1500B\"", &["line 1: gso-max-size", "at least"]),
            ("max-connections = 0", &["line 1: max-connections", "from 1 to 1000000"]),
            ("memory = true", &["line 1: memory", "64MiB"]),
            ("cgroups = \"/a\"", &["line 1: cgroups", "sequence"]),
            ("cgroups = [\"/a\", \"\"]", &["line 1: cgroups", "empty", "/system.slice/"]),
            ("socket = \"\"", &["line 1: socket", "empty", "leave the key out"]),
            ("history = \"\"", &["line 1: history", "empty", "leave the key out"]),
            ("override = \"yes\"", &["line 1: override", "boolean"]),
            ("policy", &["line 1"]),
            ("socket = \"\u{1}", &["line 1"]),
            ("metrics = \"9847\"", &["line 1: metrics", "9847", "unix:/PATH"]),
            ("otlp = \"https://a:4318\"", &["line 1: otlp", "https://a:4318", "http://127.0.0.1:4318"]),
            ("otlp-interval = 60", &["line 1: otlp-interval", "`60`", "text in quotes"]),
            ("otlp-interval = \"2h\"", &["line 1: otlp-interval", "`2h`", "1.5s"]),
            ("log-format = \"xml\"", &["line 1: log-format", "xml", "text or json"]),
        ] {
            let error = Options::parse(text).unwrap_err();
            assert!(words.iter().all(|word| error.contains(word)), "{text:?}: {error}");
            assert_eq!(error.lines().count(), 1, "{error}");
        }
    }
}
