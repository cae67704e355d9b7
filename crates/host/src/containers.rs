//! Finds containers by their cgroups: the path that the kubelet or a container engine makes has the container's
//! number; the runtime's own file `config.json` has its names.
//!
//! No runtime is queried over its socket (CRI is gRPC, too much to link into a daemon that runs as root). Runtimes
//! keep the names among the annotations of the OCI specification, in a directory that root can read.
//!
//! Properties kept, each a test:
//! - identifiers are hexadecimal, so that no path leads out of the runtime's directory; symbolic links, other kinds
//!   of files and files above 1 MiB are not read;
//! - names keep only letters that Kubernetes' names may have, so that none holds a `/` or a control character, and
//!   have a bounded length;
//! - the outermost container of a path counts: a container that makes cgroups inside its own cannot take another's
//!   name, nor can a user, a service or an LXC container to which systemd or LXC has delegated a cgroup;
//! - a file that has the names is read once, any other file at most twice a minute; a bounded number of cgroups is
//!   kept.

use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use bufwise_units::Micros;
use nix::fcntl::OFlag;
use serde::{Deserialize, Serialize};

/// Time after which a file without the names is read again.
const AGAIN: Micros = Micros::from_secs(30);
/// Number of cgroups that are kept; names of further cgroups are not read.
const MOST: usize = 4_096;
/// Largest file that is read, in bytes; a runtime's files have some ten thousand.
const LONGEST_FILE: u64 = 1 << 20;
/// Longest name, in characters: a DNS subdomain (RFC 1123), as for pods.
const LONGEST_NAME: usize = 253;
/// Number of hexadecimal digits of an identifier.
const ID_DIGITS: usize = 64;
/// Digits of an identifier that are shown, as by `docker ps`.
const SHOWN_DIGITS: usize = 12;
/// Digits of a pod's number that are shown.
const SHOWN_UID: usize = 8;

/// Prefixes of cgroup names, and the runtimes that make them.
const RUNTIMES: [(&str, &str); 4] =
    [("cri-containerd-", "containerd"), ("crio-", "cri-o"), ("docker-", "docker"), ("libpod-", "podman")];

/// A container, as its cgroup and its runtime describe it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Container {
    /// Kubernetes' namespace of its pod; omitted, as the other names, if no file of a runtime has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Name of its pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<String>,
    /// Its name in the pod; omitted for the pod's own sandbox.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
    /// The runtime's identifier: 64 hexadecimal digits.
    pub id: String,
    /// Kubernetes' identifier of its pod (`metadata.uid`); omitted outside pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_uid: Option<String>,
    /// `containerd`, `cri-o`, `docker` or `podman`; omitted if the path does not show it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runtime: Option<String>,
}

impl Container {
    /// Returns `namespace/pod/container`; without names the shortened identifiers: `pod 1a2b3c4d 0123456789ab`,
    /// `docker 0123456789ab`.
    #[must_use]
    pub fn label(&self) -> String {
        let id = self.id.get(..SHOWN_DIGITS).unwrap_or(&self.id);
        match (&self.namespace, &self.pod, &self.pod_uid) {
            (Some(namespace), Some(pod), _) => match &self.container {
                Some(container) => format!("{namespace}/{pod}/{container}"),
                None => format!("{namespace}/{pod}"),
            },
            (.., Some(uid)) => format!("pod {} {id}", uid.get(..SHOWN_UID).unwrap_or(uid)),
            _ => format!("{} {id}", self.runtime.as_deref().unwrap_or("container")),
        }
    }

    /// Returns whether a filter names this container: by its label, its namespace or pod, or at least 12 digits of
    /// its identifier.
    #[must_use]
    pub fn matches(&self, filter: &str) -> bool {
        let label = self.label();
        let rest = label.strip_prefix(filter.trim_end_matches('/'));
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
            || (filter.len() >= SHOWN_DIGITS && self.id.starts_with(filter))
    }

    /// Returns the outermost container that a path as in `/proc/PID/cgroup` leads through, without names.
    fn of_path(path: &str) -> Option<Self> {
        let (mut pod_uid, mut above, mut of_kubelet) = (None, "", false);
        for part in path.split('/') {
            let is_below = above == "docker" || pod_of(above, of_kubelet).is_some();
            if let Some((runtime, id)) = id_of(part, is_below) {
                let runtime = runtime.or((above == "docker").then_some("docker")).map(str::to_owned);
                return Some(Self { id: id.to_owned(), pod_uid, runtime, ..Self::default() });
            }
            of_kubelet |= part.contains("kubepods");
            pod_uid = pod_of(part, of_kubelet).or(pod_uid);
            above = part;
        }
        None
    }

    fn set_names(&mut self, Names { namespace, pod, container }: Names) {
        (self.namespace, self.pod, self.container) = (Some(namespace), Some(pod), container);
    }

    /// Returns whether files of a runtime for pods may have the names of this container. Below a unit of systemd that has
    /// processes (`user@1000.service`), and in a container of LXC, any program may have made the cgroup.
    fn is_of_a_pod(&self, path: &str) -> bool {
        let is_above = |part: &&str| id_of(part, true).is_none_or(|(_, id)| id != self.id);
        let is_unit = |part: &str| part.ends_with(".service") || part.ends_with(".scope");
        let is_delegated = |part: &str| is_unit(part) || part.starts_with("lxc");
        !path.split('/').take_while(is_above).any(is_delegated)
            && !matches!(self.runtime.as_deref(), Some("docker" | "podman"))
    }
}

/// Returns the runtime and the container's identifier in a cgroup's name: `crio-ID.scope`, or ID alone below the
/// cgroup of a pod or of docker (`is_below`).
fn id_of(part: &str, is_below: bool) -> Option<(Option<&'static str>, &str)> {
    let name = part.strip_suffix(".scope").unwrap_or(part);
    let is_id = |text: &&str| text.len() == ID_DIGITS && text.bytes().all(is_digit);
    let prefixed = |(prefix, runtime): &(&str, &'static str)| {
        Some((Some(*runtime), name.strip_prefix(prefix).filter(is_id)?))
    };
    let alone = || Some((None, Some(part).filter(is_id).filter(|_| is_below)?));
    RUNTIMES.iter().find_map(prefixed).or_else(alone)
}

/// Returns the pod's identifier in a cgroup's name: `kubepods-burstable-podUID.slice`, or `podUID` below `kubepods`.
fn pod_of(part: &str, of_kubelet: bool) -> Option<String> {
    let uid = match part.strip_suffix(".slice") {
        Some(slice) => slice.rsplit_once("-pod")?.1,
        None => part.strip_prefix("pod")?,
    };
    // Identifiers of static pods have no dashes.
    let is_uid =
        (32..=36).contains(&uid.len()) && uid.bytes().all(|one| is_digit(one) || b"-_".contains(&one));
    (of_kubelet && is_uid).then(|| uid.replace('_', "-"))
}

fn is_digit(one: u8) -> bool {
    matches!(one, b'0'..=b'9' | b'a'..=b'f')
}

/// The annotations that name a container: its namespace, its pod, and itself.
type Keys = [&'static str; 3];

/// A directory in which a runtime keeps a directory for each container.
#[derive(Clone, Debug)]
struct Root {
    directory: PathBuf,
    /// Path of the specification inside a container's directory.
    file: &'static str,
    /// The keys of this runtime only: pods' authors may set other runtimes' keys.
    keys: Keys,
}

impl Root {
    fn containerd(directory: impl Into<PathBuf>) -> Self {
        let keys = [
            "io.kubernetes.cri.sandbox-namespace",
            "io.kubernetes.cri.sandbox-name",
            "io.kubernetes.cri.container-name",
        ];
        Self { directory: directory.into(), file: "config.json", keys }
    }

    fn cri_o(directory: impl Into<PathBuf>) -> Self {
        let keys = ["io.kubernetes.pod.namespace", "io.kubernetes.pod.name", "io.kubernetes.container.name"];
        Self { directory: directory.into(), file: "userdata/config.json", keys }
    }

    fn names(&self, id: &str) -> Option<Names> {
        Names::read(&content(&self.directory.join(id).join(self.file))?, self.keys)
    }
}

/// A container's names.
#[derive(Clone, Debug)]
struct Names {
    namespace: String,
    pod: String,
    container: Option<String>,
}

impl Names {
    /// Reads the names in a specification.
    fn read(specification: &[u8], keys: Keys) -> Option<Self> {
        let Spec { mut annotations } = serde_json::from_slice(specification).ok()?;
        let [namespace, pod, container] = keys.map(|key| annotations.remove(key));
        let container = container.and_then(|name| clean(&name));
        Some(Self { namespace: clean(&namespace?)?, pod: clean(&pod?)?, container })
    }
}

/// The part of an OCI specification that is read.
#[derive(Deserialize)]
struct Spec {
    #[serde(default)]
    annotations: HashMap<String, String>,
}

/// Returns the container of a cgroup with this path, with its names in the content of a runtime's file; `None` outside containers.
#[must_use]
pub fn described(path: &str, specification: &[u8]) -> Option<Container> {
    let mut container = Container::of_path(path)?;
    if container.is_of_a_pod(path) {
        let names = Containers::default().roots.iter().find_map(|root| Names::read(specification, root.keys));
        if let Some(names) = names {
            container.set_names(names);
        }
    }
    Some(container)
}

/// Reads a file; `None` unless `path` is a regular file of bounded length.
fn content(path: &Path) -> Option<Vec<u8>> {
    let flags = (OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK).bits();
    let file = File::options().read(true).custom_flags(flags).open(path).ok()?;
    let about = file.metadata().ok()?;
    if !about.is_file() || about.len() > LONGEST_FILE {
        return None;
    }
    let mut text = Vec::new();
    file.take(LONGEST_FILE).read_to_end(&mut text).ok()?;
    Some(text)
}

/// Returns a name with the letters that Kubernetes allows and a bounded length; other letters are replaced, because
/// names go to terminals and labels. `None` for an empty name.
fn clean(name: &str) -> Option<String> {
    let is_allowed = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
    let letters = name.chars().take(LONGEST_NAME);
    let name: String = letters.map(|letter| if is_allowed(letter) { letter } else { '?' }).collect();
    (!name.is_empty()).then_some(name)
}

/// Containers by the numbers of their cgroups.
#[derive(Debug)]
pub(crate) struct Containers {
    roots: Vec<Root>,
    known: HashMap<u64, Known>,
}

/// A cgroup that was requested.
#[derive(Debug)]
struct Known {
    /// `None` if the cgroup is no container's.
    container: Option<Box<Container>>,
    /// Time at which its names are read again; `None` if they are known or nowhere to be found.
    again: Option<Micros>,
    needed: bool,
}

impl Default for Containers {
    fn default() -> Self {
        Self::new(vec![
            Root::containerd("/run/containerd/io.containerd.runtime.v2.task/k8s.io"),
            Root::containerd("/run/k3s/containerd/io.containerd.runtime.v2.task/k8s.io"),
            Root::cri_o("/run/containers/storage/overlay-containers"),
            Root::cri_o("/var/lib/containers/storage/overlay-containers"),
        ])
    }
}

impl Containers {
    fn new(roots: Vec<Root>) -> Self {
        Self { roots, known: HashMap::new() }
    }

    /// Returns the container that a cgroup is part of, by the cgroup's number and path; `None` outside containers.
    pub(crate) fn of(&mut self, number: u64, path: &str, now: Micros) -> Option<Box<Container>> {
        if !self.known.contains_key(&number) {
            let container = Container::of_path(path).map(Box::new);
            if self.known.len() >= MOST {
                return container;
            }
            let again = container.as_ref().filter(|one| one.is_of_a_pod(path)).map(|_| now);
            self.known.insert(number, Known { container, again, needed: true });
        }
        let known = self.known.get_mut(&number)?;
        known.needed = true;
        let container = known.container.as_mut()?;
        if known.again.is_some_and(|again| now >= again) {
            let names = self.roots.iter().find_map(|root| root.names(&container.id));
            known.again = names.is_none().then(|| now + AGAIN);
            if let Some(names) = names {
                container.set_names(names);
            }
        }
        Some(container.clone())
    }

    /// Forgets cgroups that were not requested since the last call.
    pub(crate) fn settle(&mut self) {
        self.known.retain(|_, known| std::mem::take(&mut known.needed));
    }
}

#[cfg(test)]
mod tests;
