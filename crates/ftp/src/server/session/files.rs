//! Commands about files and directories that need no data connection.

use std::io;
use std::path::Path;
use std::time::SystemTime;

use super::ServerSession;
use crate::server::error::StoreError;
use crate::server::event::Event;
use crate::server::listing::{Form, entry, line};
use crate::server::path::VirtualPath;
use crate::server::store::Status;
use crate::server::users::{Rights, User};
use crate::wire::{Command, Kind, Reply, timestamp};

impl ServerSession {
    pub(super) fn files(
        &mut self,
        command: Command,
        user: &User,
        rename_from: Option<VirtualPath>,
    ) -> io::Result<()> {
        match command {
            Command::Cwd(path) => self.enter(self.client.here.join(&path)),
            Command::Cdup => self.enter(Ok(self.client.here.parent())),
            Command::Pwd => self.control.reply(&named(&self.client.here, "is the current directory.")),
            Command::Site(argument) => self.site(&argument),
            Command::Size(path) => self.size(&path, user),
            Command::Mdtm(path) => self.modified(&path, user),
            Command::Mlst(path) => self.facts_of(path.as_deref(), user),
            Command::Stat(path) => self.line_of(path.as_deref(), user),
            Command::Rnto(path) => self.rename(rename_from, &path, user),
            Command::Rnfr(_)
            | Command::Dele(_)
            | Command::Rmd(_)
            | Command::Mkd(_)
            | Command::Mfmt { .. } => self.change(command, user),
            _ => self.reply(502, "Unknown command."),
        }
    }

    fn enter(&mut self, path: Result<VirtualPath, StoreError>) -> io::Result<()> {
        let entered = path.and_then(|path| self.server.store.enter(&path).map(|()| path));
        match entered {
            Ok(path) => {
                self.client.here = path;
                self.reply(250, "The directory is entered.")
            }
            Err(error) => self.refuse(&error),
        }
    }

    /// Returns the status of a path; users who could resume an unfinished upload see the status of its bytes.
    fn status_of(&self, path: Option<&Path>, user: &User) -> Result<(VirtualPath, Status), StoreError> {
        let path = self.client.here.join(path.unwrap_or(Path::new("")))?;
        let status = self.server.store.status(&path, user.rights == Rights::Write)?;
        Ok((path, status))
    }

    fn size(&mut self, path: &Path, user: &User) -> io::Result<()> {
        match self.status_of(Some(path), user) {
            Ok((_, status)) if status.kind == Kind::File => self.reply(213, &status.size.to_string()),
            Ok(_) => self.refuse(&StoreError::NotAFile),
            Err(error) => self.refuse(&error),
        }
    }

    fn modified(&mut self, path: &Path, user: &User) -> io::Result<()> {
        match self.status_of(Some(path), user) {
            Ok((_, Status { kind: Kind::File, modified: Some(time), .. })) => {
                self.reply(213, &timestamp::format(time))
            }
            Ok(_) => self.refuse(&StoreError::NotAFile),
            Err(error) => self.refuse(&error),
        }
    }

    /// Answers MLST.
    fn facts_of(&mut self, path: Option<&Path>, user: &User) -> io::Result<()> {
        let form = Form::Facts(self.client.facts);
        match self.status_of(path, user) {
            Ok((path, status)) => self.show(250, &path, &status, form, user),
            Err(error) => self.refuse(&error),
        }
    }

    /// Answers STAT with a path.
    fn line_of(&mut self, path: Option<&Path>, user: &User) -> io::Result<()> {
        match self.status_of(path, user) {
            Ok((path, status)) => self.show(213, &path, &status, Form::Long, user),
            Err(error) => self.refuse(&error),
        }
    }

    fn show(
        &mut self,
        code: u16,
        path: &VirtualPath,
        status: &Status,
        form: Form,
        user: &User,
    ) -> io::Result<()> {
        use std::os::unix::ffi::OsStringExt;
        let name = std::ffi::OsString::from_vec(path.to_bytes());
        match line(&entry(name, status, user.rights), form, SystemTime::now()) {
            Some(mut line) => {
                // Without its end.
                line.truncate(line.len() - 2);
                self.control.reply(&Reply::multi(code, "The facts:", [line], "End"))
            }
            None => self.refuse(&StoreError::Name),
        }
    }

    /// Executes the commands that change files or directories.
    fn change(&mut self, command: Command, user: &User) -> io::Result<()> {
        if user.rights != Rights::Write {
            return self.forbid();
        }
        match command {
            Command::Rnfr(path) => {
                let there = self.status_of(Some(&path), user);
                match there.and_then(|(path, _)| self.server.store.check_free(&path).map(|()| path)) {
                    Ok(path) => {
                        self.client.rename_from = Some(path);
                        self.reply(350, "RNTO with the new name, please.")
                    }
                    Err(error) => self.refuse(&error),
                }
            }
            Command::Mkd(path) => match self.client.here.join(&path) {
                Ok(path) => match self.server.store.make_directory(&path) {
                    Ok(()) => {
                        self.changed(user, "made directory", &path);
                        self.control.reply(&named(&path, "is made."))
                    }
                    Err(error) => self.refuse(&error),
                },
                Err(error) => self.refuse(&error),
            },
            Command::Dele(path) => {
                let done = self.client.here.join(&path);
                let done = done.and_then(|path| self.server.store.remove_file(&path).map(|()| path));
                self.done(done, user, "removed", 250, "The file is removed.")
            }
            Command::Rmd(path) => {
                let done = self.client.here.join(&path);
                let done = done.and_then(|path| self.server.store.remove_directory(&path).map(|()| path));
                self.done(done, user, "removed directory", 250, "The directory is removed.")
            }
            Command::Mfmt { modified, path } => {
                let done = self.client.here.join(&path);
                let done =
                    done.and_then(|path| self.server.store.set_modified(&path, modified).map(|()| path));
                let text = format!("Modify={}; {}", timestamp::format(modified), self.shown(&path));
                self.done(done, user, "set the time of", 213, &text)
            }
            _ => self.reply(502, "Unknown command."),
        }
    }

    fn rename(&mut self, from: Option<VirtualPath>, to: &Path, user: &User) -> io::Result<()> {
        let Some(from) = from else {
            return self.reply(503, "RNFR comes first.");
        };
        let done = self.client.here.join(to);
        let done = done.and_then(|to| self.server.store.rename(&from, &to).map(|()| from));
        self.done(done, user, "renamed", 250, "It has the new name.")
    }

    fn done(
        &mut self,
        done: Result<VirtualPath, StoreError>,
        user: &User,
        what: &'static str,
        code: u16,
        text: &str,
    ) -> io::Result<()> {
        match done {
            Ok(path) => {
                self.changed(user, what, &path);
                self.reply(code, text)
            }
            Err(error) => self.refuse(&error),
        }
    }

    fn changed(&self, user: &User, what: &'static str, path: &VirtualPath) {
        let (peer, is_known, user) = (self.control.peer, !user.is_guest(), user.name.clone());
        self.server.tell(&Event::Changed { peer, user, is_known, what, path: path.to_string() });
    }

    /// Returns the full path that a client named, escaped for the log.
    fn shown(&self, path: &Path) -> String {
        self.client.here.join(path).map(|path| path.to_string()).unwrap_or_default()
    }

    /// Replies with an error; logs it, too, if the client cannot have caused it.
    pub(super) fn refuse(&mut self, error: &StoreError) -> io::Result<()> {
        if let StoreError::Other(source) = error {
            self.server.tell(&Event::Trouble { what: format!("the file system reports: {source}") });
        }
        self.reply(error.code(), &error.to_string())
    }

    pub(super) fn forbid(&mut self) -> io::Result<()> {
        self.reply(550, "You may only read here.")
    }
}

/// Returns a reply with a path in quotes, which are doubled within it (RFC 959, appendix II).
fn named(path: &VirtualPath, text: &str) -> Reply {
    let mut line = vec![b'"'];
    for byte in path.to_bytes() {
        line.push(byte);
        if byte == b'"' {
            line.push(byte);
        }
    }
    line.extend_from_slice(b"\" ");
    line.extend_from_slice(text.as_bytes());
    Reply::single(257, line)
}
