//! Send buffers of many downloads at once, as the kernel counts them.

use std::collections::HashSet;
use std::fs::File;
use std::io::Read;
use std::net::{SocketAddr, TcpStream};

use bufwise_ftp::server::BufferCaps;
use bufwise_mover::Share;
use bufwise_socket::diag::{Diag, States};
use bufwise_units::Bytes;

use crate::support::{Client, eventually, serve};

/// Downloads at once.
const COUNT: usize = 24;
const SIZE: u64 = 16 << 20;
const BOUND: u64 = 8 << 20;
/// Memory that each may hold beside its grant: segments being filled when the grant was used up, with their overhead.
const FILLING: u64 = 128 << 10;

#[test]
fn a_crowd_of_downloads_that_nobody_reads_stays_within_the_bound_and_all_arrive() {
    let served = serve(|config| {
        let buffers = BufferCaps { user: Bytes(BOUND), host: Bytes(2 * BOUND), ..BufferCaps::default() };
        config.tuning.buffers = buffers;
    });
    File::create(served.path("file")).unwrap().set_len(SIZE).unwrap();
    let mut downloads: Vec<(Client, TcpStream)> = (0..COUNT)
        .map(|_| {
            let mut client = served.client();
            let data = client.data();
            client.ask("RETR file", 150);
            (client, data)
        })
        .collect();
    // By both addresses: two connections to different ports may have the same port at this end.
    let ends: HashSet<[SocketAddr; 2]> =
        downloads.iter().map(|(_, data)| [data.peer_addr().unwrap(), data.local_addr().unwrap()]).collect();
    let mut diag = Diag::open().unwrap();
    let (mut queued, mut steady) = (Vec::new(), 0);
    // A queue stops growing once its grant is used up. The size of the grant depends on the order of the requests.
    eventually("all have filled their buffers", || {
        let all = diag.tcp(States::ESTABLISHED).unwrap();
        let ours = all.iter().filter(|one| ends.contains(&[one.local, one.peer]));
        let now: Vec<u64> = ours.map(|one| u64::from(one.mem.wmem_queued)).collect();
        let stands = now == queued && now.len() == COUNT && !now.contains(&0);
        steady = if stands { steady + 1 } else { 0 };
        queued = now;
        steady >= 100
    });
    let most = BOUND + COUNT as u64 * (Share::LEAST.0 + FILLING);
    assert!(queued.iter().sum::<u64>() <= most, "{queued:?}");
    for (client, data) in &mut downloads {
        let mut bytes = Vec::new();
        data.read_to_end(&mut bytes).unwrap();
        assert_eq!(bytes.len() as u64, SIZE);
        client.expect(226);
    }
}
