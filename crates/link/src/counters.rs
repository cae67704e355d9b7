//! Counters of one direction's packets.

use crate::server::{Owner, Server, Tally};

/// Values of a direction's counters at one moment. All bytes are wire bytes.
///
/// At any moment `offered = delivered + drops_queue + drops_random + queued`, in packets and in bytes,
/// and likewise for the packets of cross traffic, which random loss does not touch.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Counters {
    /// Packets that arrived at the link, before any loss.
    pub offered_packets: u64,
    /// Bytes of these packets.
    pub offered_bytes: u64,
    /// Packets that have left the queue and the tight link completely; they may still be in the delay.
    pub delivered_packets: u64,
    /// Bytes of these packets.
    pub delivered_bytes: u64,
    /// Packets for which the queue had no room.
    pub drops_queue_packets: u64,
    /// Bytes of these packets.
    pub drops_queue_bytes: u64,
    /// Packets lost at random.
    pub drops_random_packets: u64,
    /// Bytes of these packets.
    pub drops_random_bytes: u64,
    /// Packets that waited longer than the threshold for marks, of those not dropped.
    pub marked_packets: u64,
    /// Packets in the queue, the one in service included.
    pub queued_packets: u64,
    /// Bytes of these packets, the one in service counted whole.
    pub queued_bytes: u64,

    /// Time-weighted mean of the backlog: unsent bytes, own and cross.
    pub queue_mean_bytes: u64,
    /// Largest backlog, bytes.
    pub queue_max_bytes: u64,
    /// Backlog not exceeded for 95% of the time, exact to 3%.
    pub queue_p95_bytes: u64,
    /// Bits sent, own and cross, as a share of those that the rate allowed since time zero: `0.0..=1.0`. At a constant
    /// rate this is the share of time in which the link was busy; without a rate it is 0.
    pub utilisation: f64,

    /// Cross packets that reached the queue.
    pub cross_offered_packets: u64,
    /// Cross packets that have left the tight link completely.
    pub cross_delivered_packets: u64,
    /// Cross packets for which the queue had no room.
    pub cross_drops_packets: u64,
    /// Cross packets in the queue.
    pub cross_queued_packets: u64,
}

impl Counters {
    pub(crate) fn read(server: &Server, offered: Tally, drops_random: Tally, marked_packets: u64) -> Self {
        let (own, cross) = (server.passage(Owner::Own), server.passage(Owner::Cross));
        let occupancy = server.occupancy();
        Self {
            offered_packets: offered.packets,
            offered_bytes: offered.bytes,
            delivered_packets: own.departed.packets,
            delivered_bytes: own.departed.bytes,
            drops_queue_packets: own.dropped.packets,
            drops_queue_bytes: own.dropped.bytes,
            drops_random_packets: drops_random.packets,
            drops_random_bytes: drops_random.bytes,
            marked_packets,
            queued_packets: own.queued.packets,
            queued_bytes: own.queued.bytes,
            queue_mean_bytes: occupancy.mean(),
            queue_max_bytes: occupancy.max(),
            queue_p95_bytes: occupancy.percentile(0.95),
            utilisation: server.utilisation(),
            cross_offered_packets: cross.departed.packets + cross.dropped.packets + cross.queued.packets,
            cross_delivered_packets: cross.departed.packets,
            cross_drops_packets: cross.dropped.packets,
            cross_queued_packets: cross.queued.packets,
        }
    }
}
