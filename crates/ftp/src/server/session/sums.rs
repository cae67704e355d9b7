//! Sums of files: HASH.

use std::fs::File;
use std::io;
use std::path::Path;

use super::ServerSession;
use crate::server::error::StoreError;
use crate::server::sum::Sum;
use crate::server::turns::Party;
use crate::server::users::{Rights, User};

impl ServerSession {
    /// Sums a file. For users who may resume an interrupted upload, sums that upload: the client learns whether the
    /// uploaded part is the beginning of its file.
    pub(super) fn sum(&mut self, path: &Path, user: &User) -> io::Result<()> {
        let (file, sum) = match self.opened(path, user) {
            Ok(opened) => opened,
            Err(error) => return self.refuse(&error),
        };
        if self.server.turns.are_full() {
            return self.reply(450, "Too many checksums are being computed, try again later.");
        }
        let turns = self.server.turns.clone();
        self.begin(move |link| sum.make(link, &turns, &file))
    }

    fn opened(&self, path: &Path, user: &User) -> Result<(File, Sum), StoreError> {
        let store = &self.server.store;
        let path = self.client.here.join(path)?;
        let (file, status) = match store.read(&path) {
            Err(StoreError::NotFound) if user.rights == Rights::Write => store.read_partial(&path)?,
            other => other?,
        };
        let party = Party::new(&user.name, self.control.peer.ip());
        Ok((file, Sum { kind: self.client.hash, size: status.size, path, party }))
    }
}
