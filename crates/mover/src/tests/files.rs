//! Real files, with every policy, plain and encrypted; parts of files; and files that change.

use std::fs::File;
use std::os::unix::fs::FileExt;

use super::*;
use crate::hash::Digest;
use crate::stream::Stream;
use crate::tls::{ClientTls, ServerTls, Trust};

/// A file without a name that holds these bytes.
fn file(bytes: &[u8]) -> File {
    let file = tempfile::tempfile().unwrap();
    file.write_all_at(bytes, 0).unwrap();
    file
}

fn read_back(file: &File) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(file.metadata().unwrap().len()).unwrap()];
    file.read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

/// Sender's end, receiver's end.
fn streams(policy: PolicyKind, tls: bool) -> (Stream, Stream) {
    let (sending, receiving) = pair(&Sockets::for_policy(policy));
    if !tls {
        return (sending.into(), receiving.into());
    }
    let server = ServerTls::self_signed(&["localhost".to_owned()]).unwrap();
    let client = ClientTls::new(&Trust::Anyone).unwrap();
    thread::scope(|scope| {
        let accepting = scope.spawn(|| server.accept(sending, TEST_TIMEOUT, &Cancel::default()).unwrap());
        let receiving = client.connect(receiving, "localhost", TEST_TIMEOUT, &Cancel::default()).unwrap();
        (accepting.join().unwrap().into(), receiving.into())
    })
}

/// Sends a source to a file from an offset on.
fn move_file(
    from: Source<'_>,
    (sending, receiving): (Stream, Stream),
    (into, offset): (&File, u64),
    tuner: &mut Tuner,
    job: &Job,
) -> (Sent, Received) {
    thread::scope(|scope| {
        let sender = scope.spawn(|| send(from, sending, &no_grants(), None, job, |_| {}).unwrap());
        let mut into = FilePart::new(into, offset);
        let received = receive(receiving, &mut into, tuner, None, job, |_| {}).unwrap();
        (sender.join().unwrap(), received)
    })
}

#[test]
fn every_policy_moves_a_file_plain_and_encrypted() {
    let bytes = pattern(3_000_000);
    let from = file(&bytes);
    let policies = [PolicyKind::Kernel, PolicyKind::Drs, PolicyKind::DrsFtp, PolicyKind::Sobas];
    for policy in policies.into_iter().chain([PolicyKind::Fixed(Bytes(65_536))]) {
        for (tls, hash) in [(false, None), (false, Some(HashKind::Xxh3)), (true, Some(HashKind::Sha256))] {
            let into = file(b"");
            let mut tuner = Tuner::new(policy, BuildOptions::default(), None);
            let job = Job { hash, ..job() };
            let ends = streams(policy, tls);
            let (sent, received) = move_file(Source::whole(&from), ends, (&into, 0), &mut tuner, &job);
            assert!(read_back(&into) == bytes, "{policy}, TLS {tls}, {hash:?}");
            assert_eq!(sent.report.hash.map(Digest::kind), hash);
            assert_eq!(sent.report.hash, received.report.hash);
            assert_eq!((sent.report.bytes, received.report.bytes), (3_000_000, 3_000_000));
        }
    }
}

#[test]
fn a_part_of_a_file_lands_where_it_belongs() {
    let bytes = pattern(1_000_000);
    let from = file(&bytes);
    for tls in [false, true] {
        let into = file(&bytes[..400_000]);
        let part = Source::File { file: &from, offset: 400_000, length: Some(500_000) };
        let ends = streams(PolicyKind::Kernel, tls);
        let job = Job { hash: None, ..job() };
        let (sent, _) = move_file(part, ends, (&into, 400_000), &mut Tuner::untouched(), &job);
        assert_eq!(sent.report.bytes, 500_000);
        assert!(read_back(&into) == bytes[..900_000]);
        let rest = Source::from(&from, 900_000);
        let ends = streams(PolicyKind::Kernel, tls);
        move_file(rest, ends, (&into, 900_000), &mut Tuner::untouched(), &job);
        assert!(read_back(&into) == bytes);
    }
}

#[test]
fn a_file_that_takes_no_pages_gets_the_bytes_all_the_same() {
    let bytes = pattern(2_000_000);
    let (from, folder) = (file(&bytes), tempfile::tempdir().unwrap());
    let path = folder.path().join("appended");
    // The kernel refuses to splice to a file that was opened to append.
    let into = File::options().create(true).append(true).read(true).open(path).unwrap();
    let ends = streams(PolicyKind::Kernel, false);
    let job = Job { hash: None, ..job() };
    move_file(Source::whole(&from), ends, (&into, 0), &mut Tuner::untouched(), &job);
    assert!(read_back(&into) == bytes);
}

#[test]
fn urgent_data_neither_end_a_file_nor_hold_it_up() {
    let (mut sending, receiving) = pair(&Sockets::default());
    sending.write_all(b"before").unwrap();
    socket2::SockRef::from(&sending).send_out_of_band(b"!").unwrap();
    sending.write_all(b"after").unwrap();
    drop(sending);
    let (into, job) = (file(b""), Job { hash: None, ..job() });
    let mut part = FilePart::new(&into, 0);
    let received = receive(receiving, &mut part, &mut Tuner::untouched(), None, &job, |_| {}).unwrap();
    assert_eq!((received.report.bytes, read_back(&into)), (11, b"beforeafter".to_vec()));
}

#[test]
fn drs_ftp_tells_the_sender_growing_sizes_and_stays_below_the_hosts_maximum() {
    let bytes = pattern(20_000_000);
    let (sending, receiving) = streams(PolicyKind::DrsFtp, false);
    let mut tuner = Tuner::new(PolicyKind::DrsFtp, BuildOptions::default(), None);
    let grants = BufferGrants::new(Bytes(1 << 20));
    let mut told = Vec::new();
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut from = &bytes[..];
            send(Source::Reader(&mut from), sending, &grants, None, &job(), |_| {}).unwrap();
        });
        let mut into = Writer(io::sink());
        let received = receive(receiving, &mut into, &mut tuner, None, &job(), |seen| {
            if let Some(size) = seen.buffer_request {
                told.push(size);
                grants.set(size).unwrap();
            }
        });
        let largest = received.unwrap().report.largest_buffer;
        assert!(largest <= super::super::host::rmem_max().times(2), "{largest}");
    });
    assert_eq!(told[0], Bytes(65_536));
    assert!(told.len() > 1 && told.is_sorted(), "{told:?}");
    assert!(grants.granted().is_some());
}

#[test]
fn a_file_that_shrinks_is_noticed_by_the_sender() {
    let from = file(&pattern(100_000));
    for tls in [false, true] {
        let (sending, receiving) = streams(PolicyKind::Kernel, tls);
        let claimed = Source::File { file: &from, offset: 50_000, length: Some(60_000) };
        let error = send(claimed, sending, &no_grants(), None, &job(), |_| {}).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the local file ended after 50000 of 60000 bytes: it became shorter while it was sent"
        );
        drop(receiving);
    }
}

#[test]
fn a_cut_encrypted_stream_is_an_error_unless_the_length_is_complete() {
    for (expected, lenient, whole) in
        [(None, false, false), (Some(1_000), false, true), (Some(2_000), false, false), (None, true, true)]
    {
        let job = Job { unannounced_end: lenient, ..job() };
        let (mut sending, receiving) = streams(PolicyKind::Kernel, true);
        sending.write_all(&[7; 1_000]).unwrap();
        sending.flush().unwrap();
        sending.tcp().shutdown(std::net::Shutdown::Write).unwrap();
        let mut into = Writer(Vec::new());
        let received = receive(receiving, &mut into, &mut Tuner::untouched(), expected, &job, |_| {});
        match received {
            Ok(received) => assert!(whole && received.report.bytes == 1_000),
            Err(MoveError::Truncated { bytes: 1_000 }) => assert!(!whole),
            Err(error) => panic!("{error}"),
        }
        assert_eq!(into.0.len(), 1_000, "what came is kept either way");
    }
}

#[test]
fn a_full_disk_is_one_clear_error() {
    let Ok(full) = File::options().write(true).open("/dev/full") else {
        return bufwise_trial::skip("needs /dev/full");
    };
    let (mut sending, receiving) = pair(&Sockets::default());
    sending.write_all(b"x").unwrap();
    let mut into = FilePart::new(&full, 0);
    let error = receive(receiving, &mut into, &mut Tuner::untouched(), None, &job(), |_| {}).unwrap_err();
    let start = "writing the local file failed after 0 bytes: No space left on device";
    assert!(error.to_string().starts_with(start), "{error}");
}
