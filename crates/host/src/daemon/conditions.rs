//! The conditions of a `[[group]]` as written in the file: `cgroup`, `process`, `peer` and `port`.

use std::fmt;
use std::str::FromStr;

use bufwise_bpf::{Conditions, GroupPattern};
use serde::Deserialize;
use serde::de::{self, Deserializer, SeqAccess, Visitor};
use toml::Spanned;

/// The keys of the conditions, each with its position in the file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Asked {
    pub(super) cgroup: Option<Spanned<String>>,
    pub(super) process: Option<Spanned<Several>>,
    pub(super) peer: Option<Spanned<Several>>,
    pub(super) port: Option<Spanned<Several>>,
}

/// One value or a list of values; numbers are kept as text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Several(Vec<String>);

impl Asked {
    /// Parses the conditions; `place` returns the line and key of a byte offset in the file.
    ///
    /// # Errors
    /// One line: line, key, what is wrong, and what is allowed.
    pub(super) fn conditions(self, place: &impl Fn(usize) -> String) -> Result<Conditions, String> {
        let cgroup = self.cgroup.map(|key| {
            let at = key.span().start;
            key.into_inner().parse::<GroupPattern>().map_err(|error| format!("{}: {error}", place(at)))
        });
        Ok(Conditions {
            cgroup: cgroup.transpose()?,
            programs: parsed(self.process, place)?,
            peers: parsed(self.peer, place)?,
            ports: parsed(self.port, place)?,
        })
    }
}

fn parsed<T: FromStr<Err = String>>(
    key: Option<Spanned<Several>>,
    place: &impl Fn(usize) -> String,
) -> Result<Vec<T>, String> {
    let Some(key) = key else { return Ok(Vec::new()) };
    let at = place(key.span().start);
    let Several(texts) = key.into_inner();
    if texts.is_empty() {
        return Err(format!("{at}: the list is empty: name one at least, or leave the key out"));
    }
    let parse = |text: &String| text.parse().map_err(|error| format!("{at}: {error}"));
    texts.iter().map(parse).collect()
}

impl<'de> Deserialize<'de> for Several {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(OneOrMore)
    }
}

struct OneOrMore;

impl<'de> Visitor<'de> for OneOrMore {
    type Value = Several;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("one value or a list, as \"rsync\", 443 or [\"10.0.0.0/8\", \"fd00::/8\"]")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Several, E> {
        Ok(Several(vec![text.to_owned()]))
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<Several, E> {
        Ok(Several(vec![number.to_string()]))
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<Several, E> {
        Ok(Several(vec![number.to_string()]))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Several, A::Error> {
        let mut all = Vec::new();
        while let Some(One(text)) = list.next_element()? {
            all.push(text);
        }
        Ok(Several(all))
    }
}

/// An element of a list.
struct One(String);

impl<'de> Deserialize<'de> for One {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Element;

        impl Visitor<'_> for Element {
            type Value = One;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text in quotes or a number")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<One, E> {
                Ok(One(text.to_owned()))
            }

            fn visit_i64<E: de::Error>(self, number: i64) -> Result<One, E> {
                Ok(One(number.to_string()))
            }

            fn visit_u64<E: de::Error>(self, number: u64) -> Result<One, E> {
                Ok(One(number.to_string()))
            }
        }

        deserializer.deserialize_any(Element)
    }
}
