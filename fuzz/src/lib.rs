//! What the fuzz targets run.

pub mod checks;
pub mod host;

// The daemon's parsers are files of the binary, which is no library: they are compiled here once more, with as much of what
// they name as they need.
#[expect(dead_code, reason = "parsing alone is fuzzed")]
#[path = "../../crates/bufwise/src/address.rs"]
mod address;
#[expect(dead_code, reason = "parsing alone is fuzzed")]
#[path = "../../crates/bufwise/src/exit.rs"]
mod exit;
#[expect(dead_code, reason = "parsing alone is fuzzed")]
#[path = "../../crates/bufwise/src/figures.rs"]
mod figures;

#[expect(dead_code, reason = "parsing alone is fuzzed")]
#[path = "../../crates/bufwise/src/tuner"]
mod tuner {
    pub(crate) mod choice;
    pub(crate) mod plan;
}

#[expect(dead_code, reason = "parsing alone is fuzzed")]
#[path = "../../crates/bufwise/src/control"]
mod control {
    pub(crate) mod message;

    pub(crate) const DEFAULT_PATH: &str = "/run/bufwise/control";
    const MAX_REQUEST: usize = 4 << 10;
}

#[path = "../../crates/bufwise/src/daemon"]
mod daemon {
    mod config;

    /// Reads a configuration file; the error is what the user is told.
    pub(crate) fn read(path: &std::path::Path) -> Result<(), String> {
        match config::settings(Some(path), &config::Options::default()) {
            Ok(_) => Ok(()),
            Err(failure) => Err(failure.to_string()),
        }
    }
}

/// What a list and a plan name, and no parser reads.
mod view {
    use serde::{Deserialize, Serialize};

    #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
    pub(crate) struct Listing {
        pub(crate) connections: Vec<()>,
        pub(crate) notes: Vec<String>,
    }

    #[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
    pub(crate) struct PolicyNames;
}

#[expect(dead_code, reason = "parsing alone is fuzzed")]
mod caps {
    pub(crate) enum Setting {
        TcpRmem,
        RmemMax,
        TcpWmem,
        WmemMax,
    }

    pub(crate) enum Wanted {
        Maximum(Setting, u64),
        Devices(u64),
    }

    pub(crate) struct Caps;

    impl Caps {
        pub(crate) fn of_host() -> Self {
            Self
        }

        pub(crate) fn original_maximum(&self, _setting: Setting) -> Option<u64> {
            None
        }
    }
}
