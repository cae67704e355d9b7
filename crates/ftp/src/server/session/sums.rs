//! Sums of files: HASH.

use std::fs::File;
use std::io;
use std::path::Path;

use super::ServerSession;
use crate::server::error::StoreError;
use crate::server::users::{Rights, User};
use crate::server::work::{self, Sum};

impl ServerSession {
    /// A sum of the file, or of an interrupted upload for users who may go on with it: so a client learns whether
    /// what has arrived is the beginning of its file.
    pub(super) fn sum(&mut self, path: &Path, user: &User) -> io::Result<()> {
        let (file, sum) = match self.opened(path, user) {
            Ok(opened) => opened,
            Err(error) => return self.refuse(&error),
        };
        let Some(place) = work::Hashing::begin(&self.server) else {
            return self.reply(450, "Enough sums are being made, try again later.");
        };
        self.begin(move |link| work::sum(link, place, &file, &sum))
    }

    fn opened(&self, path: &Path, user: &User) -> Result<(File, Sum), StoreError> {
        let store = &self.server.store;
        let path = self.here.join(path)?;
        let (file, status) = match store.read(&path) {
            Err(StoreError::NotFound) if user.rights == Rights::Write => store.read_partial(&path)?,
            other => other?,
        };
        Ok((file, Sum { kind: self.hash, size: status.size, path }))
    }
}
