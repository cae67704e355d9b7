//! Parses commands from bytes, for the server.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use bufwise_units::Bytes;

use super::{AuthKind, Command, EpsvArgument, Opts, Protection, Secret, Structure, TransferType};
use crate::wire::dialect::ProbeOffer;
use crate::wire::error::CommandError;
use crate::wire::listing::Facts;
use crate::wire::{address, timestamp};

/// Longest unknown verb or name that is kept, in bytes.
const MAX_NAME: usize = 16;

const NOT_A_COMMAND: CommandError = CommandError { code: 500, text: "Not a command." };
const NEEDS_ARGUMENT: CommandError = CommandError { code: 501, text: "This command needs an argument." };

const fn wrong(text: &'static str) -> CommandError {
    CommandError { code: 501, text }
}

const fn unsupported(text: &'static str) -> CommandError {
    CommandError { code: 504, text }
}

impl Command {
    /// Reads one line, given without its line break.
    ///
    /// # Errors
    /// The reply to send instead: 500 if there is no verb, 501, 504 or 522 if the argument is wrong.
    pub fn parse(line: &[u8]) -> Result<Self, CommandError> {
        if line.iter().any(|byte| matches!(byte, 0 | b'\r' | b'\n')) {
            return Err(NOT_A_COMMAND);
        }
        // Clients send telnet's "interrupt process" and "data mark" before ABOR, part of it out of band.
        let begin = line.iter().position(|byte| *byte < 0xf0).ok_or(NOT_A_COMMAND)?;
        let line = &line[begin..];
        let end = line.iter().position(|byte| *byte == b' ').unwrap_or(line.len());
        let (verb, rest) = line.split_at(end);
        let argument = rest.strip_prefix(b" ").unwrap_or_default();
        if !verb.first().is_some_and(u8::is_ascii_alphabetic) || !verb.iter().all(u8::is_ascii_alphanumeric) {
            return Err(NOT_A_COMMAND);
        }
        let verb = verb.to_ascii_uppercase();
        session(&verb, argument)
            .or_else(|| transfer(&verb, argument))
            .or_else(|| files(&verb, argument))
            .unwrap_or_else(|| Ok(Self::Unknown(name(&verb))))
    }
}

type Parsed = Result<Command, CommandError>;

/// Commands about the session itself.
fn session(verb: &[u8], argument: &[u8]) -> Option<Parsed> {
    Some(match verb {
        b"USER" => text(argument).map(Command::User),
        b"PASS" => Ok(Command::Pass(Secret::new(argument))),
        b"ACCT" => Ok(Command::Acct),
        b"REIN" => Ok(Command::Rein),
        b"QUIT" => Ok(Command::Quit),
        b"AUTH" => auth(argument),
        b"PBSZ" => number(argument).and_then(|size| {
            u32::try_from(size).map(Command::Pbsz).map_err(|_| wrong("The size is a number of 32 bits."))
        }),
        b"PROT" => protection(argument),
        b"CCC" => Ok(Command::Ccc),
        b"FEAT" => Ok(Command::Feat),
        b"OPTS" => opts(argument).map(Command::Opts),
        b"SYST" => Ok(Command::Syst),
        b"HELP" => optional(argument).map(text).transpose().map(Command::Help),
        b"NOOP" => Ok(Command::Noop),
        b"SITE" => text(argument).map(Command::Site),
        _ => return None,
    })
}

/// Commands about data connections and how bytes go over them.
fn transfer(verb: &[u8], argument: &[u8]) -> Option<Parsed> {
    Some(match verb {
        b"ABOR" => Ok(Command::Abor),
        b"TYPE" => transfer_type(argument),
        b"MODE" => letter(argument).map(Command::Mode),
        b"STRU" => letter(argument).map(|letter| {
            Command::Stru(if letter == 'F' { Structure::File } else { Structure::Other(letter) })
        }),
        b"ALLO" => number(argument.split(|byte| *byte == b' ').next().unwrap_or_default()).map(Command::Allo),
        b"PASV" => Ok(Command::Pasv),
        b"EPSV" => epsv(argument),
        b"PORT" => {
            address::decode_port(argument).map(Command::Port).ok_or(wrong("An address is h1,h2,h3,h4,p1,p2."))
        }
        b"EPRT" => address::decode_eprt(argument).map(Command::Eprt),
        b"REST" => number(argument).map(Command::Rest),
        b"SBUF" => number(argument).and_then(|size| match size {
            0 => Err(wrong("A buffer has at least one byte.")),
            _ => Ok(Command::Sbuf(Bytes(size))),
        }),
        b"PROB" => optional(argument)
            .map(|offer| ProbeOffer::decode(offer).ok_or(wrong("An offer is (|||port|token|).")))
            .transpose()
            .map(Command::Prob),
        _ => return None,
    })
}

/// Commands about files and directories.
fn files(verb: &[u8], argument: &[u8]) -> Option<Parsed> {
    Some(match verb {
        b"STAT" => Ok(Command::Stat(options_skipped(argument))),
        b"SIZE" => path(argument).map(Command::Size),
        b"MDTM" => path(argument).map(Command::Mdtm),
        b"MFMT" => mfmt(argument),
        b"MLST" => Ok(Command::Mlst(optional(argument).map(to_path))),
        b"MLSD" => Ok(Command::Mlsd(optional(argument).map(to_path))),
        b"LIST" => Ok(list(argument)),
        b"NLST" => Ok(Command::Nlst(options_skipped(argument))),
        b"RETR" => path(argument).map(Command::Retr),
        b"STOR" => path(argument).map(Command::Stor),
        b"APPE" => path(argument).map(Command::Appe),
        b"DELE" => path(argument).map(Command::Dele),
        b"RMD" | b"XRMD" => path(argument).map(Command::Rmd),
        b"MKD" | b"XMKD" => path(argument).map(Command::Mkd),
        b"RNFR" => path(argument).map(Command::Rnfr),
        b"RNTO" => path(argument).map(Command::Rnto),
        b"CWD" | b"XCWD" => path(argument).map(Command::Cwd),
        b"CDUP" | b"XCUP" => Ok(Command::Cdup),
        b"PWD" | b"XPWD" => Ok(Command::Pwd),
        b"HASH" => path(argument).map(Command::Hash),
        _ => return None,
    })
}

fn optional(argument: &[u8]) -> Option<&[u8]> {
    (!argument.is_empty()).then_some(argument)
}

fn required(argument: &[u8]) -> Result<&[u8], CommandError> {
    optional(argument).ok_or(NEEDS_ARGUMENT)
}

fn to_path(bytes: &[u8]) -> PathBuf {
    PathBuf::from(OsStr::from_bytes(bytes))
}

fn path(argument: &[u8]) -> Result<PathBuf, CommandError> {
    required(argument).map(to_path)
}

/// Returns the path of `LIST -la path`: words that begin with a dash are options that some clients pass to `ls`.
fn options_skipped(argument: &[u8]) -> Option<PathBuf> {
    let mut rest = argument;
    while rest.starts_with(b"-") {
        let end = rest.iter().position(|byte| *byte == b' ').unwrap_or(rest.len());
        rest = rest[end..].trim_ascii_start();
    }
    optional(rest).map(to_path)
}

fn list(argument: &[u8]) -> Command {
    match options_skipped(argument) {
        None if argument.contains(&b'a') => Command::ListAll,
        path => Command::List(path),
    }
}

fn text(argument: &[u8]) -> Result<String, CommandError> {
    let text = String::from_utf8(required(argument)?.to_vec());
    text.map_err(|_| wrong("The argument is not UTF-8."))
}

/// Parses a number of decimal digits only: no sign, no separators.
fn number(argument: &[u8]) -> Result<u64, CommandError> {
    let digits = required(argument)?.trim_ascii();
    let number =
        str::from_utf8(digits).ok().filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()));
    number.and_then(|digits| digits.parse().ok()).ok_or(wrong("The argument is a number of 64 bits."))
}

fn letter(argument: &[u8]) -> Result<char, CommandError> {
    match required(argument)?.trim_ascii() {
        [letter] if letter.is_ascii_alphabetic() => Ok(char::from(letter.to_ascii_uppercase())),
        _ => Err(wrong("The argument is one letter.")),
    }
}

/// Returns a name from the peer, cut to the length that may be kept and logged.
fn name(bytes: &[u8]) -> String {
    let printable = |byte: &u8| if byte.is_ascii_graphic() { char::from(*byte) } else { '?' };
    bytes.iter().take(MAX_NAME).map(printable).collect()
}

fn auth(argument: &[u8]) -> Parsed {
    let kind = required(argument.trim_ascii())?.to_ascii_uppercase();
    Ok(Command::Auth(match kind.as_slice() {
        b"TLS" | b"TLS-C" => AuthKind::Tls,
        other => AuthKind::Other(name(other)),
    }))
}

fn protection(argument: &[u8]) -> Parsed {
    match letter(argument)? {
        'C' => Ok(Command::Prot(Protection::Clear)),
        'S' => Ok(Command::Prot(Protection::Safe)),
        'E' => Ok(Command::Prot(Protection::Confidential)),
        'P' => Ok(Command::Prot(Protection::Private)),
        _ => Err(unsupported("The level is C or P.")),
    }
}

fn transfer_type(argument: &[u8]) -> Parsed {
    let argument = required(argument.trim_ascii())?.to_ascii_uppercase();
    match argument.as_slice() {
        b"A" | b"A N" => Ok(Command::Type(TransferType::Ascii)),
        b"I" | b"L 8" | b"L8" => Ok(Command::Type(TransferType::Image)),
        _ => Err(unsupported("The type is A or I.")),
    }
}

fn epsv(argument: &[u8]) -> Parsed {
    let argument = argument.trim_ascii().to_ascii_uppercase();
    match argument.as_slice() {
        b"" => Ok(Command::Epsv(EpsvArgument::Any)),
        b"1" => Ok(Command::Epsv(EpsvArgument::V4)),
        b"2" => Ok(Command::Epsv(EpsvArgument::V6)),
        b"ALL" => Ok(Command::Epsv(EpsvArgument::All)),
        _ => Err(address::UNKNOWN_PROTOCOL),
    }
}

fn mfmt(argument: &[u8]) -> Parsed {
    let error = wrong("The argument is YYYYMMDDHHMMSS and a path.");
    let end = argument.iter().position(|byte| *byte == b' ').ok_or_else(|| error.clone())?;
    let modified = timestamp::parse(&argument[..end]).ok_or(error)?;
    Ok(Command::Mfmt { modified, path: path(&argument[end + 1..])? })
}

fn opts(argument: &[u8]) -> Result<Opts, CommandError> {
    let argument = required(argument.trim_ascii())?;
    let end = argument.iter().position(|byte| *byte == b' ').unwrap_or(argument.len());
    let (option, value) = argument.split_at(end);
    let (option, value) = (option.to_ascii_uppercase(), value.trim_ascii());
    match option.as_slice() {
        b"UTF8" | b"UTF-8" => match value.to_ascii_uppercase().as_slice() {
            b"" | b"ON" => Ok(Opts::Utf8(true)),
            b"OFF" => Ok(Opts::Utf8(false)),
            _ => Err(wrong("The value is ON or OFF.")),
        },
        b"MLST" => Ok(Opts::Mlst(Facts::decode(value))),
        b"HASH" => Ok(Opts::Hash(optional(value).map(|value| name(&value.to_ascii_uppercase())))),
        b"DRS" => match value.to_ascii_uppercase().trim_ascii_end() {
            b"NOTIFY=1;" | b"NOTIFY=1" => Ok(Opts::Drs { notify: true }),
            b"NOTIFY=0;" | b"NOTIFY=0" => Ok(Opts::Drs { notify: false }),
            _ => Err(wrong("The value is NOTIFY=1; or NOTIFY=0;.")),
        },
        other => Ok(Opts::Other(name(other))),
    }
}
