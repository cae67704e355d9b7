//! Why the control socket cannot be used, by the daemon or by a client.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use thiserror::Error;

/// Why the control socket cannot be used.
#[derive(Debug, Error)]
pub enum ControlError {
    /// The path has no directory part.
    #[error("the socket {} needs a whole path", path.display())]
    NoDirectory {
        /// The socket's path.
        path: PathBuf,
    },
    /// A file of another kind has the directory's name.
    #[error("the socket's directory {} is no directory", path.display())]
    NotADirectory {
        /// The directory's path.
        path: PathBuf,
    },
    /// Another user could replace the socket.
    #[error(
        "the socket's directory {} belongs to user {owner}: choose another one",
        path.display()
    )]
    ForeignDirectory {
        /// The directory's path.
        path: PathBuf,
        /// The user's number.
        owner: u32,
    },
    /// Users other than the owner could replace the socket.
    #[error("the socket's directory {} can be written by others: choose another one", path.display())]
    WritableDirectory {
        /// The directory's path.
        path: PathBuf,
    },
    /// A file of another kind has the socket's name.
    #[error("{} is there and is no socket: remove it", path.display())]
    InTheWay {
        /// The socket's path.
        path: PathBuf,
    },
    /// Another daemon listens at this path.
    #[error("a daemon is running already: it listens at {}", path.display())]
    Running {
        /// The socket's path.
        path: PathBuf,
    },
    /// The caller is not root.
    #[error("only root may ask the daemon at {}", path.display())]
    NotAllowed {
        /// The socket's path.
        path: PathBuf,
    },
    /// The listener belongs neither to root nor to the caller.
    #[error("the program that listens at {} belongs to user {owner}", path.display())]
    Stranger {
        /// The socket's path.
        path: PathBuf,
        /// The user's number.
        owner: u32,
    },
    /// The request or the reply was lost.
    #[error("the daemon at {} did not answer", path.display())]
    NoAnswer {
        /// The socket's path.
        path: PathBuf,
        /// How it was lost.
        source: ExchangeError,
    },
}

/// How a request or its reply was lost.
#[derive(Debug, Error)]
pub enum ExchangeError {
    /// A system call failed.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// No data came within this time.
    #[error("it has said nothing for {} s: is it stopped, as by SIGSTOP?", .0.as_secs())]
    Silent(Duration),
    /// No reply came.
    #[error("it closed the connection")]
    Closed,
    /// The reply is malformed.
    #[error("its reply is not understood: is it of another version?")]
    Reply(#[from] serde_json::Error),
}
