//! Users and certificate of a server, which can be changed while it runs.
//!
//! Properties kept: a login or TLS handshake uses the users and certificate of that moment, even on an older
//! connection; sessions that have logged in or begun TLS go on unchanged; users and certificate change together.

use std::sync::{Arc, Mutex, PoisonError};

use super::config::TlsConfig;
use super::users::Users;

/// Users and encryption.
#[derive(Debug)]
pub struct Admission {
    /// The users.
    pub users: Users,
    /// Encryption; `None`: AUTH is refused.
    pub tls: Option<TlsConfig>,
}

/// Changes users and encryption, from any thread; clones share the state.
#[derive(Clone, Debug)]
pub struct AdmissionHandle(Arc<Mutex<Arc<Admission>>>);

impl AdmissionHandle {
    pub(super) fn new(admission: Admission) -> Self {
        Self(Arc::new(Mutex::new(Arc::new(admission))))
    }

    /// Replaces users and encryption from now on.
    pub fn replace(&self, admission: Admission) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(admission);
    }

    /// Returns the present users and encryption.
    #[must_use]
    pub fn now(&self) -> Arc<Admission> {
        // No thread panics while it holds the lock.
        Arc::clone(&self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Whether TLS is required.
    pub(super) fn requires_tls(&self) -> bool {
        self.now().tls.as_ref().is_some_and(|tls| tls.required)
    }
}
