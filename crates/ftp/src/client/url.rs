//! `ftp://` and `ftps://` addresses.
//!
//! Source: RFC 1738, section 3.2 (the path is relative to the login directory, `%2F` in front makes it
//! absolute; `;type=` at the end), RFC 3986 for the percent-encoding and the brackets of IPv6.
//! Choices: `//` in front is absolute, too, as in curl; only `;type=i` is accepted, because this program moves bytes
//! unchanged; an address with a password is refused, because command lines are public on a host and stay in shell
//! histories.
//! Properties kept: an accepted address has no control character, so no part of it can end a command on the control
//! connection; the text of `Display` parses to the same address and never has a password.

use std::ffi::OsStr;
use std::fmt;
use std::net::Ipv6Addr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::str::FromStr;

use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, percent_encode};

/// Longest address; longer ones have no use in a command of 4 KiB.
const MAX_LEN: usize = 4_096;
/// Characters that are percent-encoded in a path.
const IN_PATH: &AsciiSet =
    &CONTROLS.add(b' ').add(b'%').add(b'?').add(b'#').add(b';').add(b'"').add(b'<').add(b'>');
/// Characters that are percent-encoded in a user's name.
const IN_USER: &AsciiSet = &IN_PATH.add(b'/').add(b':').add(b'@').add(b'[').add(b']');

/// When the connection becomes a TLS connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// `ftp://`: plain, or TLS after `AUTH TLS` (RFC 4217).
    Ftp,
    /// `ftps://`: TLS from the first byte.
    Ftps,
}

impl Scheme {
    /// Returns the port without one in the address: 21, and 990 for TLS from the first byte.
    #[must_use]
    pub const fn default_port(self) -> u16 {
        match self {
            Self::Ftp => 21,
            Self::Ftps => 990,
        }
    }

    const fn prefix(self) -> &'static str {
        match self {
            Self::Ftp => "ftp://",
            Self::Ftps => "ftps://",
        }
    }
}

/// Where a file or directory is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Url {
    /// Plain or TLS from the first byte.
    pub scheme: Scheme,
    /// The user named in the address.
    pub user: Option<String>,
    /// Host name, or address without brackets.
    pub host: String,
    /// Port of the control connection.
    pub port: u16,
    /// Path on the server: relative to the login directory unless it begins with `/`; empty: that directory.
    pub path: PathBuf,
    /// The address ended in `/`, or had no path: a directory is meant.
    pub directory: bool,
}

/// Why a text is refused as an address. One line: what is wrong, and what to write instead.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UrlError {
    /// Another scheme, or none.
    #[error("`{0}` is no FTP address: write ftp://[USER@]HOST[:PORT]/PATH or ftps://...")]
    Scheme(String),
    /// A password in it.
    #[error(
        "a password in the address can be seen by every user of this host: put it into ~/.netrc or BUFWISE_PASSWORD"
    )]
    Password,
    /// No host, or characters that no host name has.
    #[error("`{0}` is no host: write a name, an IPv4 address, or an IPv6 address in brackets")]
    Host(String),
    /// The port is not a number from 1 to 65535.
    #[error("`{0}` is no port: write a number from 1 to 65535")]
    Port(String),
    /// A percent sign without two hexadecimal digits.
    #[error("`{0}` has a % that is not followed by two hexadecimal digits: write %25 for a percent sign")]
    Percent(String),
    /// A user's name that is not text.
    #[error("the user's name in the address is not UTF-8")]
    User,
    /// Line ends and other control characters, which could contain commands.
    #[error("the address has a control character (plain or as %00 to %1F, %7F): no FTP command can carry it")]
    Control,
    /// `?`, `#`, `;type=a` and other parts without a meaning here.
    #[error("`{0}` means nothing in an FTP address: write %3F for a question mark, %23 for #, %3B for ;")]
    Extra(String),
    /// Longer than a command can be.
    #[error("the address has more than {MAX_LEN} characters")]
    TooLong,
}

impl FromStr for Url {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<Self, UrlError> {
        if text.len() > MAX_LEN {
            return Err(UrlError::TooLong);
        }
        let (scheme, rest) = split_scheme(text)?;
        let (authority, path) = rest.split_once('/').map_or((rest, None), |(host, path)| (host, Some(path)));
        let (user, host) = match authority.rsplit_once('@') {
            Some((user, host)) => (Some(read_user(user)?), host),
            None => (None, authority),
        };
        let (host, port) = split_port(host)?;
        let port = port.map_or(Ok(scheme.default_port()), read_port)?;
        let path = read_path(path.unwrap_or_default())?;
        let directory = path.is_empty() || path.ends_with(b"/");
        let path = PathBuf::from(OsStr::from_bytes(&path));
        Ok(Self { scheme, user, host: read_host(host)?, port, path, directory })
    }
}

fn split_scheme(text: &str) -> Result<(Scheme, &str), UrlError> {
    for scheme in [Scheme::Ftp, Scheme::Ftps] {
        let len = scheme.prefix().len();
        if text.get(..len).is_some_and(|start| start.eq_ignore_ascii_case(scheme.prefix())) {
            return Ok((scheme, &text[len..]));
        }
    }
    // Only the scheme is shown: the rest may have a password in it.
    let shown = text.split("://").next().unwrap_or_default();
    Err(UrlError::Scheme(if shown.contains('@') {
        "this".to_owned()
    } else {
        shown.escape_default().to_string()
    }))
}

fn read_user(text: &str) -> Result<String, UrlError> {
    if text.contains(':') {
        return Err(UrlError::Password);
    }
    let user = String::from_utf8(decode(text)?).map_err(|_| UrlError::User)?;
    if user.is_empty() { Err(UrlError::User) } else { Ok(user) }
}

/// Splits `host`, `host:port`, `[v6]` or `[v6]:port` into host and port.
fn split_port(text: &str) -> Result<(&str, Option<&str>), UrlError> {
    let wrong = || UrlError::Host(text.escape_default().to_string());
    if text.starts_with('[') {
        let end = text.find(']').ok_or_else(wrong)?;
        let (host, rest) = text.split_at(end + 1);
        return match rest.strip_prefix(':') {
            Some(port) => Ok((host, Some(port))),
            None if rest.is_empty() => Ok((host, None)),
            None => Err(wrong()),
        };
    }
    Ok(text.split_once(':').map_or((text, None), |(host, port)| (host, Some(port))))
}

fn read_port(text: &str) -> Result<u16, UrlError> {
    let port = text.parse().ok().filter(|port| *port > 0 && !text.starts_with('+'));
    port.ok_or_else(|| UrlError::Port(text.escape_default().to_string()))
}

fn read_host(text: &str) -> Result<String, UrlError> {
    let wrong = || UrlError::Host(text.escape_default().to_string());
    if let Some(address) = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')) {
        let address: Ipv6Addr = address.parse().map_err(|_| wrong())?;
        return Ok(address.to_string());
    }
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    if text.is_empty() || text.len() > 253 || text.starts_with('-') || !text.chars().all(fits) {
        return Err(wrong());
    }
    Ok(text.to_ascii_lowercase())
}

fn read_path(text: &str) -> Result<Vec<u8>, UrlError> {
    let text = match text.rsplit_once(';') {
        Some((path, kind)) if kind.eq_ignore_ascii_case("type=i") => path,
        Some((_, kind)) => return Err(UrlError::Extra(format!(";{}", kind.escape_default()))),
        None => text,
    };
    if let Some(at) = text.find(['?', '#']) {
        return Err(UrlError::Extra(text[at..=at].to_owned()));
    }
    decode(text)
}

/// Decodes percent-encoding; refuses characters that could end or split a command.
fn decode(text: &str) -> Result<Vec<u8>, UrlError> {
    let is_hex = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_hexdigit);
    let bytes = text.as_bytes();
    let broken = bytes
        .iter()
        .enumerate()
        .any(|(at, byte)| *byte == b'%' && !(is_hex(bytes.get(at + 1)) && is_hex(bytes.get(at + 2))));
    if broken {
        return Err(UrlError::Percent(text.escape_default().to_string()));
    }
    let decoded: Vec<u8> = percent_decode_str(text).collect();
    if decoded.iter().any(u8::is_ascii_control) { Err(UrlError::Control) } else { Ok(decoded) }
}

impl Url {
    /// Returns the last component of the path: the file's name; `None` for `/`, `..` and the login directory.
    #[must_use]
    pub fn file_name(&self) -> Option<&OsStr> {
        self.path.file_name()
    }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.scheme.prefix())?;
        if let Some(user) = &self.user {
            write!(f, "{}@", percent_encode(user.as_bytes(), IN_USER))?;
        }
        let brackets = self.host.contains(':');
        let (open, close) = if brackets { ("[", "]") } else { ("", "") };
        write!(f, "{open}{}{close}", self.host)?;
        if self.port != self.scheme.default_port() {
            write!(f, ":{}", self.port)?;
        }
        write!(f, "/{}", percent_encode(self.path.as_os_str().as_bytes(), IN_PATH))
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use proptest::prelude::*;

    use super::*;

    fn url(text: &str) -> Url {
        text.parse().unwrap()
    }

    fn error(text: &str) -> String {
        text.parse::<Url>().unwrap_err().to_string()
    }

    #[test]
    fn the_parts_are_found() {
        let all = url("FTP://jo%40home@Files.Example.org:2121/dir/a%20b.txt;type=i");
        assert_eq!(all.user.as_deref(), Some("jo@home"));
        assert_eq!((all.host.as_str(), all.port), ("files.example.org", 2_121));
        assert_eq!((all.path.to_str(), all.directory), (Some("dir/a b.txt"), false));
        assert_eq!(all.to_string(), "ftp://jo%40home@files.example.org:2121/dir/a%20b.txt");
        assert_eq!((url("ftps://h/x").port, url("ftp://h/x").port), (990, 21));
    }

    #[test]
    fn a_path_is_relative_to_the_login_directory_unless_it_says_otherwise() {
        assert_eq!(url("ftp://h/a/b").path, Path::new("a/b"));
        assert_eq!(url("ftp://h//a/b").path, Path::new("/a/b"));
        assert_eq!(url("ftp://h/%2Fa/b").path, Path::new("/a/b"));
        for directory in ["ftp://h", "ftp://h/", "ftp://h/a/"] {
            assert!(url(directory).directory, "{directory}");
        }
    }

    #[test]
    fn addresses_of_version_six_stand_in_brackets() {
        let six = url("ftp://[::1]:2121/x");
        assert_eq!((six.host.as_str(), six.port), ("::1", 2_121));
        assert_eq!(six.to_string(), "ftp://[::1]:2121/x");
        for wrong in ["ftp://[::1/x", "ftp://[nonsense]/x", "ftp://[::1]2121/x", "ftp://::1/x"] {
            assert!(error(wrong).contains("no host") || error(wrong).contains("no port"), "{wrong}");
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, words) in [
            ("http://h/x", "ftp://[USER@]HOST"),
            ("h/x", "ftp://[USER@]HOST"),
            ("ftp:///x", "no host"),
            ("ftp://-oProxy/x", "no host"),
            ("ftp://h:0/x", "no port"),
            ("ftp://h:65536/x", "no port"),
            ("ftp://h:+21/x", "no port"),
            ("ftp://h/a%2", "%25"),
            ("ftp://h/a%0d%0aDELE b", "control character"),
            ("ftp://h/a\nb", "control character"),
            ("ftp://a%0Ab@h/x", "control character"),
            ("ftp://h/x;type=a", ";type=a"),
            ("ftp://h/x?y", "%3F"),
            ("ftp://@h/x", "user"),
        ] {
            assert!(error(text).contains(words), "{text}: {}", error(text));
        }
        assert_eq!("ftp://h/".to_owned().parse::<Url>().map(|url| url.path), Ok(PathBuf::new()));
        assert_eq!(format!("ftp://h/{}", "a".repeat(MAX_LEN)).parse::<Url>(), Err(UrlError::TooLong));
    }

    #[test]
    fn a_password_is_refused_and_not_repeated() {
        for text in ["ftp://jo:secret@h/x", "ftp://jo:@h/x", "fpt:jo:secret@h/x", "jo:secret@h://x"] {
            assert!(!error(text).contains("secret"), "{text}: {}", error(text));
        }
        assert_eq!("ftp://jo:secret@h/x".parse::<Url>(), Err(UrlError::Password));
    }

    proptest! {
        #[test]
        fn no_text_panics_and_what_is_accepted_has_no_control_character(text in "\\PC*|ftps?://\\PC*|ftp://[ -~]*") {
            if let Ok(url) = text.parse::<Url>() {
                prop_assert!(!url.path.as_os_str().as_bytes().iter().any(u8::is_ascii_control));
                prop_assert_eq!(url.to_string().parse::<Url>(), Ok(url));
            }
        }

        #[test]
        fn what_is_written_reads_back(
            user in proptest::option::of("[ -~äß]{1,12}"),
            path in proptest::collection::vec(0x20_u8.., 0..40),
            port in 1_u16..,
        ) {
            let path: Vec<u8> = path.into_iter().filter(|byte| !byte.is_ascii_control()).collect();
            let directory = path.is_empty() || path.ends_with(b"/");
            let path = PathBuf::from(OsStr::from_bytes(&path));
            let url = Url { scheme: Scheme::Ftp, user, host: "h".to_owned(), port, path, directory };
            prop_assert_eq!(url.to_string().parse::<Url>(), Ok(url));
        }
    }
}
