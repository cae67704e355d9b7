//! Sums of files: HASH, XSHA256 and the like, CKSM.

use std::io;
use std::path::PathBuf;

use bufwise_mover::hash::HashKind;

use super::ServerSession;
use crate::server::error::StoreError;
use crate::server::users::{Rights, User};
use crate::server::work::{self, Sum, SumForm};
use crate::wire::Command;
use crate::wire::checksum::Asked;

impl ServerSession {
    /// A sum of what is there; of an interrupted upload, for whoever could go on with it: so a client learns whether what
    /// has arrived is the beginning of its file.
    pub(super) fn sum(&mut self, command: Command, user: &User) -> io::Result<()> {
        let (kind, form, asked) = match command {
            Command::Hash(path) => (self.hash, SumForm::Hash, whole(path)),
            Command::Xsum(sum, path) => (sum.kind(), SumForm::X, whole(path)),
            Command::Cksm(asked) => match asked.algorithm.parse() {
                Ok(kind) => (kind, SumForm::Cksm, asked),
                Err(_) => return self.reply(504, "Such sums are not made here."),
            },
            _ => return self.reply(502, "Unknown command."),
        };
        let (file, sum) = match self.opened(&asked, kind, form, user) {
            Ok(opened) => opened,
            Err(error) => return self.refuse(&error),
        };
        let Some(place) = work::Hashing::begin(&self.server) else {
            return self.reply(450, "Enough sums are being made, try again later.");
        };
        self.begin(move |link| work::sum(link, place, &file, &sum))
    }

    fn opened(
        &self,
        asked: &Asked,
        kind: HashKind,
        form: SumForm,
        user: &User,
    ) -> Result<(std::fs::File, Sum), StoreError> {
        let store = &self.server.store;
        let path = self.here.join(&asked.path)?;
        let (file, status) = match store.read(&path) {
            Err(StoreError::NotFound) if user.rights == Rights::Write => store.read_partial(&path)?,
            other => other?,
        };
        let left = status.size.checked_sub(asked.offset).ok_or(StoreError::Beyond)?;
        let length = asked.length.unwrap_or(left);
        if length > left {
            return Err(StoreError::Beyond);
        }
        Ok((file, Sum { kind, form, range: asked.offset..asked.offset + length, path }))
    }
}

/// All of a file.
fn whole(path: PathBuf) -> Asked {
    Asked { algorithm: String::new(), offset: 0, length: None, path }
}
