//! Lists all connections that socket diagnostics show, in the caller's network namespace and in every other that may
//! be entered. Reads only; without root it still sees its own namespace.

use std::collections::HashMap;
use std::thread;
use std::time::Duration;

use bufwise_bpf::now;
use bufwise_socket::diag::{Connection, Diag, States};
use bufwise_socket::limit::SocketSample;
use bufwise_units::{Micros, counted};

use crate::cgroups::Cgroups;
use crate::containers::Container;
use crate::daemon::descriptors::raise_limit;
use crate::error::Result;
use crate::netns;
use crate::processes::Holders;
use crate::view::{ConnectionView, Listing, Seen, Summary};

/// Time between the two samples of a list: longer than most round trips, and short for a user who waits.
const BETWEEN: Duration = Duration::from_millis(300);

/// Open diagnostics of several namespaces, and their last sample.
#[derive(Debug)]
pub struct Survey {
    /// The namespaces, the caller's own first.
    places: Vec<Place>,
    cgroups: Cgroups,
    /// Remarks for people; one line each.
    pub notes: Vec<String>,
}

#[derive(Debug)]
struct Place {
    label: String,
    diag: Diag,
    at: Micros,
    connections: Vec<Connection>,
}

/// A connection, with the place and time of its sample.
#[derive(Clone, Copy, Debug)]
pub struct Found<'a> {
    /// Label of its network namespace.
    pub netns: &'a str,
    /// Time of the sample, on the monotonic clock.
    pub at: Micros,
    /// The socket as diagnostics showed it.
    pub connection: &'a Connection,
}

impl Found<'_> {
    /// Converts to a sample for [`bufwise_socket::limit`].
    pub fn sample(&self) -> SocketSample {
        SocketSample::of(self.connection, self.at)
    }
}

impl Survey {
    /// Opens the diagnostics of every namespace that may be entered. Each takes a descriptor: the process's limit is raised.
    pub fn open() -> Result<Self> {
        let mut survey = Self { places: Vec::new(), cgroups: Cgroups::default(), notes: Vec::new() };
        raise_limit();
        let (namespaces, mut closed) = netns::all()?;
        for (place, namespace) in namespaces.into_iter().enumerate() {
            match namespace.run(Diag::open) {
                Ok(Ok(diag)) => {
                    let label = namespace.label();
                    survey.places.push(Place { label, diag, at: Micros::ZERO, connections: Vec::new() });
                }
                Ok(Err(error)) if place == 0 => return Err(error.into()),
                _ => closed += 1,
            }
        }
        if !nix::unistd::geteuid().is_root() {
            survey.notes.push(
                "without root: this network namespace alone, and only your own processes are named"
                    .to_owned(),
            );
        } else if closed > 0 {
            let namespaces = counted(closed, "network namespace");
            survey.notes.push(format!("{namespaces} could not be entered"));
        }
        Ok(survey)
    }

    /// Opens the diagnostics again, because namespaces come and go. The last sample is forgotten; names of cgroups
    /// are kept.
    pub fn reopen(&mut self) -> Result<()> {
        let Self { places, notes, .. } = Self::open()?;
        (self.places, self.notes) = (places, notes);
        Ok(())
    }

    /// Samples all connections.
    pub fn sample(&mut self) -> Result<()> {
        for (number, place) in self.places.iter_mut().enumerate() {
            place.at = now();
            let dumped = place.diag.tcp_into(States::CONNECTED, &mut place.connections);
            // A failure in another namespace leaves a gap in this sample.
            if number == 0 {
                dumped?;
            }
        }
        Ok(())
    }

    /// Returns the last sample of each connection, by cookie.
    pub fn samples(&self) -> HashMap<u64, SocketSample> {
        let count = self.places.iter().map(|place| place.connections.len()).sum();
        let mut samples = HashMap::with_capacity(count);
        samples.extend(self.found().map(|found| (found.connection.cookie, found.sample())));
        samples
    }

    /// Returns views of the last sample, with rates and causes of the time since an earlier sample.
    pub fn views(&mut self, before: &HashMap<u64, SocketSample>, holders: &Holders) -> Vec<ConnectionView> {
        let mut views = Vec::with_capacity(before.len());
        for place in &self.places {
            for connection in &place.connections {
                let view = ConnectionView::new(&Seen {
                    netns: &place.label,
                    cgroup: None,
                    process: holders.of(connection.inode),
                    connection,
                    at: place.at,
                    previous: before.get(&connection.cookie),
                    period: None,
                });
                let cgroup = self.cgroups.name(connection.cgroup);
                let container = self.cgroups.container(connection.cgroup);
                views.push(ConnectionView { cgroup, container, ..view });
            }
        }
        self.cgroups.settle();
        self.note_cgroups();
        views
    }

    /// Returns the name of the cgroup in which a socket was made, if known.
    pub fn cgroup(&mut self, connection: &Connection) -> Option<String> {
        self.cgroups.name(connection.cgroup)
    }

    /// Returns the container in which a socket was made, if any.
    pub fn container(&mut self, connection: &Connection) -> Option<Box<Container>> {
        self.cgroups.container(connection.cgroup)
    }

    /// Adds a note, once, on why connections have no cgroup.
    fn note_cgroups(&mut self) {
        let is_told = self.found().next().is_none() || self.found().any(|found| found.connection.cgroup != 0);
        let why = match self.cgroups.unavailable() {
            Some(why) => why,
            None if is_told => return,
            None => "the kernel does not report a socket's cgroup (Linux 5.8 and newer do)",
        };
        let note = format!("cgroups are not shown: {why}");
        if !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }

    /// Returns the connections of the last sample.
    pub fn found(&self) -> impl Iterator<Item = Found<'_>> {
        self.places.iter().flat_map(|place| {
            place.connections.iter().map(|connection| Found { netns: &place.label, at: place.at, connection })
        })
    }
}

/// Lists all connections, from two samples 300 ms apart.
pub fn listing() -> Result<Listing> {
    let mut survey = Survey::open()?;
    survey.sample()?;
    let before = survey.samples();
    thread::sleep(BETWEEN);
    survey.sample()?;
    let connections = survey.views(&before, &Holders::scan());
    Ok(Listing { summary: Summary::of(&connections), connections, notes: survey.notes, ..Listing::default() })
}
