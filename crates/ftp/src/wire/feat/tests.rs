use proptest::prelude::*;

use super::*;
use crate::wire::ReplyReader;

fn features(reply: &str) -> Features {
    let mut reader = ReplyReader::new();
    reader.feed(reply.as_bytes());
    Features::from_reply(&reader.next_reply().unwrap().unwrap())
}

#[test]
fn features_of_servers_in_the_field() {
    let vsftpd = features(
        "211-Features:\r\n AUTH TLS\r\n EPRT\r\n EPSV\r\n MDTM\r\n PASV\r\n PBSZ\r\n PROT\r\n REST STREAM\r\n SIZE\r\n \
         TVFS\r\n211 End\r\n",
    );
    assert!(vsftpd.auth_tls() && vsftpd.has("epsv") && vsftpd.has("TVFS"));
    assert!(!vsftpd.has("UTF8") && !vsftpd.sbuf());
    assert_eq!((vsftpd.mlst_facts(), vsftpd.drs(), vsftpd.hashes()), (None, None, vec![]));

    let proftpd = features(
        "211-Features:\r\n HASH CRC32;MD5;SHA-1*;SHA-256;SHA-512\r\n UTF8\r\n AUTH TLS;SSL\r\n \
         MLST modify*;perm*;size*;type*;unique*;UNIX.group;UNIX.mode*;\r\n REST STREAM\r\n211 End\r\n",
    );
    assert!(proftpd.has("UTF8") && proftpd.auth_tls());
    assert_eq!(proftpd.hashes(), ["CRC32", "MD5", "SHA-1", "SHA-256", "SHA-512"]);
    assert_eq!(proftpd.hash_selected(), Some("SHA-1"));
    assert_eq!(proftpd.mlst_facts(), Some(Facts::default()));

    let pure = features(
        "211-Extensions supported:\r\n AUTH TLS-C;\r\n MLST type*;size*;sizd*;modify*;\r\n211 End.\r\n",
    );
    assert!(pure.auth_tls());
    let facts = Facts { perm: false, mode: false, ..Facts::default() };
    assert_eq!(pure.mlst_facts(), Some(facts));

    let dashes = features("211-Features\r\n211-rest stream\r\n211-SBUF\r\n211 End\r\n");
    assert!(dashes.parameters("REST") == Some("stream") && dashes.sbuf());
    for none in [
        "211 No features\r\n",
        "500 What?\r\n",
        "211-Features:\r\n211 End\r\n",
        "500-x\r\n UTF8\r\n500 x\r\n",
    ] {
        assert_eq!(features(none), Features::new(), "{none}");
    }
    assert_eq!(Features::from_reply(&Reply { code: 211, lines: vec![] }), Features::new());
}

#[test]
fn our_own_features_come_back() {
    let drs = DrsFeature { sbuf: true, notify: true, probe: false };
    let ours = Features::new()
        .with("MLST", Facts::default().feature())
        .with("SBUF", "")
        .with(DrsFeature::NAME, drs.to_string())
        .with("HASH", "SHA-256*;XXH3-128");
    assert_eq!(ours.parameters("MLST"), Some("type*;size*;modify*;perm*;UNIX.mode*;"));
    assert_eq!(ours.parameters("DRS"), Some("SBUF;NOTIFY;"));
    let read = features(&String::from_utf8(ours.to_reply().encode()).unwrap());
    assert_eq!(read, ours);
    assert_eq!(read.drs(), Some(drs));
    assert_eq!((read.hash_selected(), read.hashes()), (Some("SHA-256"), vec!["SHA-256", "XXH3-128"]));
    let fewer = Facts { size: false, ..Facts::default() };
    assert_eq!(fewer.feature(), "type*;size;modify*;perm*;UNIX.mode*;");
    assert_eq!(Features::new().to_reply(), Reply::single(211, "No features."));
}

proptest! {
    #[test]
    fn decoding_undoes_encoding(
        listed in prop::collection::vec(("[!-~]{1,12}", "([!-~]([ -~]{0,20}[!-~])?)?"), 0..12)
    ) {
        let given = listed.iter().fold(Features::new(), |all, (name, rest)| all.with(name, rest.clone()));
        let mut reader = ReplyReader::new();
        reader.feed(&given.to_reply().encode());
        let reply = reader.next_reply().unwrap().unwrap();
        prop_assert_eq!(Features::from_reply(&reply), given);
    }

    #[test]
    fn any_lines_are_features_or_skipped(lines in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..60), 0..12)) {
        let features = Features::from_reply(&Reply { code: 211, lines });
        let _ = (features.drs(), features.mlst_facts(), features.hashes(), features.auth_tls());
        // A feature that is listed can be sent on as it is.
        let mut reader = ReplyReader::new();
        reader.feed(&features.to_reply().encode());
        let again = Features::from_reply(&reader.next_reply().unwrap().unwrap());
        prop_assert_eq!(again.listed.len(), features.listed.len());
    }
}
