//! Loads the programs, each by itself.
//!
//! Problem: kernels differ in the programs they accept. A refused program must disable only what depends on it, and a
//! program that is not needed must cost nothing: the verifier's time is most of the start. So the object is opened
//! once for each program, with all others left out; the second one gets the maps of the first.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{Link, MapHandle, OpenObject};

use crate::abi::{FlowSkel, FlowSkelBuilder, OpenFlowSkel, bw_config, rodata};
use crate::config::{Config, ReceiveRule};
use crate::error::{EngineError, refused};
use crate::matching::Matching;
use crate::refusal;

/// Number of peers whose paths are remembered (`bpf/peers.h`), the latest ones: 0.4 MB of the kernel's memory.
const PEERS: u32 = 4_096;

/// The maps that user space or a second program needs.
#[derive(Debug)]
pub(crate) struct Maps {
    pub(crate) flows: MapHandle,
    pub(crate) orders: MapHandle,
    pub(crate) control: MapHandle,
    pub(crate) requests: MapHandle,
    pub(crate) watched: MapHandle,
    pub(crate) others: MapHandle,
    /// Cgroups of the groups, and the groups that match a socket's program.
    pub(crate) members: MapHandle,
    pub(crate) programs: MapHandle,
    /// Records made and connections closed.
    pub(crate) turnover: MapHandle,
    fast_path: MapHandle,
    /// Room on the peers' paths.
    rooms: MapHandle,
}

/// Loads the program for callbacks; returns it with the maps.
pub(crate) fn callbacks(config: &Config, matching: &Matching) -> Result<(OwnedFd, Maps), EngineError> {
    let mut storage = MaybeUninit::uninit();
    let mut open = open(&mut storage, config, matching)?;
    open.progs.bufwise_sweep.set_autoload(false);
    open.maps.swept.set_autocreate(false).map_err(refused("leaving out a map"))?;
    let skeleton = load(open, "loading")?;
    let keep = |map: &libbpf_rs::MapMut<'_>| MapHandle::try_from(map).map_err(refused("keeping a map"));
    let maps = Maps {
        flows: keep(&skeleton.maps.flows)?,
        orders: keep(&skeleton.maps.orders)?,
        control: keep(&skeleton.maps.data)?,
        requests: keep(&skeleton.maps.requests)?,
        watched: keep(&skeleton.maps.watched)?,
        others: keep(&skeleton.maps.others)?,
        members: keep(&skeleton.maps.members)?,
        programs: keep(&skeleton.maps.programs)?,
        turnover: keep(&skeleton.maps.turnover)?,
        fast_path: keep(&skeleton.maps.fast_path)?,
        rooms: keep(&skeleton.maps.rooms)?,
    };
    let program = skeleton.progs.bufwise_flow.as_fd().try_clone_to_owned();
    Ok((program.map_err(EngineError::Attach)?, maps))
}

/// Loads the iterator; returns it with its link and the map of its counts.
pub(crate) fn iterator(
    config: &Config,
    matching: &Matching,
    maps: &Maps,
) -> Result<(OwnedFd, Link, MapHandle), EngineError> {
    let mut storage = MaybeUninit::uninit();
    let mut open = open(&mut storage, config, matching)?;
    open.progs.bufwise_flow.set_autoload(false);
    let unused = [&mut open.maps.orders, &mut open.maps.requests];
    for map in unused {
        map.set_autocreate(false).map_err(refused("leaving out a map"))?;
    }
    let shared = [
        (&mut open.maps.flows, &maps.flows),
        (&mut open.maps.data, &maps.control),
        (&mut open.maps.watched, &maps.watched),
        (&mut open.maps.others, &maps.others),
        (&mut open.maps.members, &maps.members),
        (&mut open.maps.programs, &maps.programs),
        (&mut open.maps.turnover, &maps.turnover),
        (&mut open.maps.fast_path, &maps.fast_path),
        (&mut open.maps.rooms, &maps.rooms),
    ];
    for (map, of) in shared {
        map.reuse_fd(of.as_fd()).map_err(refused("sharing a map"))?;
    }
    let skeleton = load(open, "loading the iterator")?;
    let link = skeleton.progs.bufwise_sweep.attach().map_err(refused("keeping the iterator"))?;
    let program = skeleton.progs.bufwise_sweep.as_fd().try_clone_to_owned().map_err(EngineError::Attach)?;
    let counts = MapHandle::try_from(&skeleton.maps.swept).map_err(refused("keeping a map"))?;
    Ok((program, link, counts))
}

/// Loads the opened object; an error has the verifier's cause.
fn load<'a>(open: OpenFlowSkel<'a>, step: &'static str) -> Result<FlowSkel<'a>, EngineError> {
    let listening = refusal::listen();
    open.load().map_err(|error| EngineError::Refused { step, reason: listening.cause(&error) })
}

fn open<'a>(
    storage: &'a mut MaybeUninit<OpenObject>,
    config: &Config,
    matching: &Matching,
) -> Result<OpenFlowSkel<'a>, EngineError> {
    let mut open = FlowSkelBuilder::default().open(storage).map_err(refused("opening"))?;
    if let Some(data) = open.maps.rodata_data.as_deref_mut() {
        *data = rodata { config: bw_config::from(config), matching: matching.table() };
    }
    for map in [&mut open.maps.flows, &mut open.maps.orders] {
        map.set_max_entries(config.max_flows).map_err(refused("sizing a map"))?;
    }
    if config.receive == ReceiveRule::Fit {
        open.maps.rooms.set_max_entries(PEERS).map_err(refused("sizing a map"))?;
    }
    Ok(open)
}
