//! Errors of the served directory. Their texts are fixed, hold no bytes of the client, and can be sent in a reply.

use std::io::{self, ErrorKind};

use nix::errno::Errno;

/// Why something could not be done with a file or directory; the text is fit for a reply.
#[derive(Debug, thiserror::Error)]
pub(super) enum StoreError {
    /// No file or directory has that name.
    #[error("No such file or directory.")]
    NotFound,
    /// The system forbids it, or a link leads out of the served directory.
    #[error("Permission denied.")]
    Denied,
    /// A regular file is needed.
    #[error("Not a regular file.")]
    NotAFile,
    /// A directory is needed.
    #[error("Not a directory.")]
    NotADirectory,
    /// It must be empty.
    #[error("The directory is not empty.")]
    NotEmpty,
    /// The name exists already.
    #[error("It exists already.")]
    Exists,
    /// The path or name is invalid.
    #[error("The name is too long or not allowed.")]
    Name,
    /// The name of an unfinished upload.
    #[error("This name is reserved for unfinished uploads.")]
    Reserved,
    /// Another session is uploading it.
    #[error("The file is being uploaded already.")]
    Busy,
    /// Another program has taken an upload's file away, or put another one in its place.
    #[error("Another program has removed or replaced the unfinished file.")]
    Lost,
    /// The restart point lies beyond the end of the file.
    #[error("The restart offset is beyond the end of the file.")]
    Beyond,
    /// No space on the disk, or beyond a quota.
    #[error("No space left.")]
    Full,
    /// The memory for names of listed directories is used up.
    #[error("Too many names to list now: list a part of them by a pattern, or try again later.")]
    TooMany,
    /// Something else; the cause is for the log.
    #[error("The file system reports an error.")]
    Other(#[source] io::Error),
}

impl StoreError {
    /// Returns the reply code that RFC 959 and RFC 3659 have for it.
    #[must_use]
    pub(super) const fn code(&self) -> u16 {
        match self {
            Self::Full => 452,
            Self::Busy | Self::TooMany => 450,
            Self::Lost | Self::Other(_) => 451,
            Self::Name | Self::Reserved => 553,
            Self::Beyond => 554,
            _ => 550,
        }
    }
}

impl From<io::Error> for StoreError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            ErrorKind::NotFound => Self::NotFound,
            // cap-std reports a path that leads outside as permission denied.
            ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem | ErrorKind::CrossesDevices => {
                Self::Denied
            }
            ErrorKind::IsADirectory => Self::NotAFile,
            ErrorKind::NotADirectory => Self::NotADirectory,
            ErrorKind::DirectoryNotEmpty => Self::NotEmpty,
            ErrorKind::AlreadyExists => Self::Exists,
            ErrorKind::InvalidFilename | ErrorKind::InvalidInput => Self::Name,
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge => Self::Full,
            // Too many links in a row, a device without its driver, a symbolic link where none may be.
            _ if [Errno::ELOOP, Errno::ENXIO].iter().any(|errno| is(&error, *errno)) => Self::Denied,
            _ => Self::Other(error),
        }
    }
}

/// Whether `error` is `errno`; for errors for which `io::ErrorKind` has no stable name.
fn is(error: &io::Error, errno: Errno) -> bool {
    error.raw_os_error() == Some(errno as i32)
}
