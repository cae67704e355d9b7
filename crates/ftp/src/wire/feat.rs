//! Features that a server lists: FEAT (RFC 2389).
//!
//! Problem: a client decides by this list which commands it may send, and servers write it in different ways.
//! Terms: a feature is a name and, after a space, parameters in a form that depends on the feature.
//! Properties kept: decoding undoes encoding; an unknown feature changes nothing.

use super::dialect::DrsFeature;
use super::listing::Facts;
use super::reply::Reply;

#[cfg(test)]
mod tests;

/// The features of a server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Features {
    /// Names in upper case, each with its parameters.
    listed: Vec<(String, String)>,
}

impl Features {
    /// Makes an empty list of features.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the features in a reply to FEAT; none if it is another reply than 211.
    #[must_use]
    pub fn from_reply(reply: &Reply) -> Self {
        let mut features = Self::new();
        if reply.code != 211 || reply.lines.len() < 3 {
            return features;
        }
        for line in &reply.lines[1..reply.lines.len() - 1] {
            let line = String::from_utf8_lossy(line);
            let (name, parameters) = line.trim().split_once(' ').unwrap_or((line.trim(), ""));
            if !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_graphic()) {
                features.listed.push((name.to_ascii_uppercase(), parameters.trim().to_owned()));
            }
        }
        features
    }

    /// Adds a feature; a name may be listed more than once.
    #[must_use]
    pub fn with(mut self, name: &str, parameters: impl Into<String>) -> Self {
        self.listed.push((name.to_ascii_uppercase(), parameters.into()));
        self
    }

    /// Returns the reply to FEAT.
    #[must_use]
    pub fn to_reply(&self) -> Reply {
        if self.listed.is_empty() {
            return Reply::single(211, "No features.");
        }
        let lines = self.listed.iter().map(|(name, parameters)| match parameters.as_str() {
            "" => name.clone().into_bytes(),
            _ => format!("{name} {parameters}").into_bytes(),
        });
        Reply::multi(211, "Features:", lines, "End")
    }

    /// Whether a feature is listed.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.all(name).next().is_some()
    }

    /// Returns the parameters of the first feature of this name.
    #[must_use]
    pub fn parameters(&self, name: &str) -> Option<&str> {
        self.all(name).next()
    }

    fn all(&self, name: &str) -> impl Iterator<Item = &str> {
        let of_name = move |(listed, _): &&(String, String)| listed.eq_ignore_ascii_case(name);
        self.listed.iter().filter(of_name).map(|(_, parameters)| parameters.as_str())
    }

    /// Returns the facts that MLST and MLSD can give and bufwise reads; `None` if there is no MLST.
    #[must_use]
    pub fn mlst_facts(&self) -> Option<Facts> {
        // An asterisk says that a fact is on.
        self.parameters("MLST").map(|facts| Facts::decode(facts.replace('*', "").as_bytes()))
    }

    /// Whether `AUTH TLS` can be sent (RFC 4217 section 6; some servers list several in one line).
    #[must_use]
    pub fn auth_tls(&self) -> bool {
        let is_tls = |name: &str| name.eq_ignore_ascii_case("TLS") || name.eq_ignore_ascii_case("TLS-C");
        self.all("AUTH").any(|names| names.split([';', ' ', ',']).any(is_tls))
    }

    /// Returns the algorithms of HASH (draft-bryan-ftp-hash), as the server writes them.
    #[must_use]
    pub fn hashes(&self) -> Vec<&str> {
        self.hash_names().map(|name| name.trim_end_matches('*')).collect()
    }

    /// Returns the algorithm of HASH that is in use before any OPTS HASH.
    #[must_use]
    pub fn hash_selected(&self) -> Option<&str> {
        self.hash_names().find_map(|name| name.strip_suffix('*'))
    }

    fn hash_names(&self) -> impl Iterator<Item = &str> {
        self.all("HASH").flat_map(|names| names.split(';')).map(str::trim).filter(|name| !name.is_empty())
    }

    /// Whether `SBUF` sets the buffers of data connections to come (GridFTP).
    #[must_use]
    pub fn sbuf(&self) -> bool {
        self.has("SBUF")
    }

    /// Returns the parts of bufwise's dialect that the server knows; `None`: it knows none.
    #[must_use]
    pub fn drs(&self) -> Option<DrsFeature> {
        self.parameters(DrsFeature::NAME).map(DrsFeature::decode)
    }
}
