//! The keys of an experiment's file, with their texts not yet parsed and their positions.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{self, Deserializer, Visitor};
use serde::{Deserialize, Serialize, Serializer};
use toml::Spanned;

use super::super::model::Quantity;

/// A text with its position in the file.
pub(super) type Word = Spanned<String>;

/// The whole file. A case without paths, links or workloads of its own uses those of the file.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) struct File {
    pub(super) id: Option<Word>,
    pub(super) source: Option<String>,
    pub(super) question: Option<String>,
    pub(super) scale: Option<String>,
    pub(super) way: Option<WayKey>,
    pub(super) quantities: Option<Vec<Quantity>>,
    pub(super) repeat: Option<Spanned<i64>>,
    pub(super) memory: Option<Word>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) path: Vec<Spanned<Path>>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) link: Vec<Spanned<Path>>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) workload: Vec<Spanned<Workload>>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) method: Vec<Spanned<Method>>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) case: Vec<Spanned<Case>>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) expect: Vec<Spanned<Expect>>,
}

/// The direction of the data.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum WayKey {
    Upload,
    Download,
}

/// A path to a host B of its own, with its own link; or a link that paths share, which has no `from`, `links` and
/// `mtu`.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) struct Path {
    pub(super) name: Option<Word>,
    pub(super) from: Option<Word>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) links: Vec<Word>,
    pub(super) rate: Option<Word>,
    pub(super) rtt: Option<Word>,
    pub(super) queue: Option<Word>,
    pub(super) policer: Option<bool>,
    pub(super) mark: Option<Word>,
    pub(super) loss: Option<Word>,
    pub(super) jitter: Option<Word>,
    pub(super) reorder: Option<bool>,
    pub(super) rate_a_to_b: Option<Word>,
    pub(super) cross_a_to_b: Option<Word>,
    pub(super) cross_b_to_a: Option<Word>,
    pub(super) mtu: Option<Spanned<i64>>,
    pub(super) seed: Option<u64>,
    pub(super) trace: Option<Word>,
    pub(super) trace_a_to_b: Option<Word>,
    pub(super) trace_begins: Option<TraceBegins>,
}

/// The moment from which the time of a path's traces counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum TraceBegins {
    /// The making of the path.
    Path,
    /// The first packet of data.
    Data,
}

/// The traffic over a path.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) struct Workload {
    pub(super) kind: Option<Kind>,
    pub(super) path: Option<Word>,
    pub(super) start: Option<Word>,
    pub(super) cross: Option<bool>,
    pub(super) connections: Option<Spanned<i64>>,
    pub(super) time: Option<Word>,
    pub(super) quick_time: Option<Word>,
    pub(super) size: Option<Word>,
    pub(super) quick_size: Option<Word>,
    pub(super) sizes: Option<Vec<Word>>,
    pub(super) count: Option<Spanned<i64>>,
    pub(super) quick_count: Option<Spanned<i64>>,
    pub(super) buffer: Option<Word>,
    pub(super) congestion_control: Option<Word>,
    pub(super) writes: Option<String>,
    pub(super) stops: Option<bool>,
    pub(super) server: Option<String>,
    pub(super) client: Option<String>,
}

/// The kinds of workloads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Kind {
    #[default]
    Bulk,
    Documents,
    Requests,
    File,
    Program,
    Probe,
}

/// A method that carries the workloads.
#[derive(Debug, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) struct Method {
    pub(super) name: Word,
    pub(super) client: Option<Word>,
    pub(super) server: Option<Word>,
    pub(super) congestion_control: Option<Word>,
    pub(super) rmem: Option<Word>,
    pub(super) wmem: Option<Word>,
    pub(super) small_documents: Option<Word>,
    pub(super) gso_max_size: Option<Word>,
    pub(super) initial_window: Option<Spanned<i64>>,
    pub(super) beside: Option<bool>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) sender: BTreeMap<Word, String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) receiver: BTreeMap<Word, String>,
    pub(super) ftp: Option<Ftp>,
    pub(super) workload: Option<Spanned<Workload>>,
}

/// The programs that transfer a file.
#[derive(Debug, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) struct Ftp {
    pub(super) client: Option<Word>,
    pub(super) server: Option<String>,
}

/// A case, in which every method runs.
#[derive(Debug, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) struct Case {
    pub(super) name: Word,
    pub(super) memory: Option<Word>,
    pub(super) quick: Option<Spanned<bool>>,
    pub(super) repeat: Option<Spanned<i64>>,
    pub(super) limits: Option<Word>,
    pub(super) initial_window: Option<Spanned<i64>>,
    pub(super) ipv6: Option<Spanned<bool>>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) methods: Vec<Word>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) settings: BTreeMap<Word, String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) path: Vec<Spanned<Path>>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) link: Vec<Spanned<Path>>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) workload: Vec<Spanned<Workload>>,
}

/// A bound for the median of a quantity.
#[derive(Debug, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) struct Expect {
    pub(super) method: Word,
    pub(super) quantity: Quantity,
    pub(super) at_least: Option<Spanned<Value>>,
    pub(super) at_most: Option<Spanned<Value>>,
    pub(super) at_least_times: Option<f64>,
    pub(super) at_most_times: Option<f64>,
    pub(super) at_most_bdp: Option<f64>,
    pub(super) within_memory: Option<bool>,
    pub(super) reaches: Option<f64>,
    pub(super) of: Option<Word>,
    pub(super) plus: Option<Spanned<Value>>,
    pub(super) before: Option<Word>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) cases: Vec<Word>,
}

/// A number in the quantity's own unit, or a text with a unit.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value {
    Number(f64),
    Text(String),
}

impl Serialize for Value {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Number(number) => serializer.serialize_f64(*number),
            Self::Text(text) => serializer.serialize_str(text),
        }
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;

        impl Visitor<'_> for Either {
            type Value = Value;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number, or text with a unit, as \"37mbit\", \"2MiB\" or \"50ms\"")
            }

            fn visit_f64<E: de::Error>(self, number: f64) -> Result<Value, E> {
                Ok(Value::Number(number))
            }

            fn visit_i64<E: de::Error>(self, number: i64) -> Result<Value, E> {
                Ok(Value::Number(number as f64))
            }

            fn visit_u64<E: de::Error>(self, number: u64) -> Result<Value, E> {
                Ok(Value::Number(number as f64))
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Value, E> {
                Ok(Value::Text(text.to_owned()))
            }
        }

        deserializer.deserialize_any(Either)
    }
}
