use proptest::prelude::*;

use super::*;
use crate::wire::checksum::{quote, unquote};

const PROFTPD: &str = "CRC32;MD5;SHA-1*;SHA-256;SHA-512;";
const GLOBUS: &str = "MD5:10;ADLER32:10;SHA1:10;SHA256:11;SHA512:12;";
const MD5: &str = "b1946ac92492d2347c6235b4d2611184";

fn x(verbs: &[&str]) -> Features {
    verbs.iter().fold(Features::new(), |features, verb| features.with(verb, ""))
}

#[test]
fn the_strongest_sum_is_asked_for_and_hash_before_other_ways_to_it() {
    let sha256 = HashKind::Sha256;
    let all = ["XCRC", "XMD5", "XSHA", "XSHA1", "XSHA256", "XSHA512"];
    for (features, question) in [
        (x(&all).with("HASH", PROFTPD), Some(Question::Hash { kind: sha256, select: true })),
        (
            Features::new().with("HASH", "SHA-256*;SHA-1"),
            Some(Question::Hash { kind: sha256, select: false }),
        ),
        (x(&all).with("HASH", "SHA-1*"), Some(Question::X(XSum::Sha256))),
        (x(&all), Some(Question::X(XSum::Sha256))),
        (x(&["XMD5", "XSHA512"]), Some(Question::X(XSum::Sha512))),
        (
            x(&["XSHA1"]).with("CKSM", GLOBUS),
            Some(Question::Cksm { kind: sha256, name: "SHA256".to_owned() }),
        ),
        (x(&["XMD5", "XSHA1", "XCRC"]), Some(Question::X(XSum::Sha1))),
        (
            Features::new().with("CKSM", "ADLER32,md5"),
            Some(Question::Cksm { kind: HashKind::Md5, name: "md5".to_owned() }),
        ),
        (Features::new().with("XMD5", "filename;start;end"), Some(Question::X(XSum::Md5))),
        (x(&["XCRC", "MD5"]).with("HASH", "CRC32*").with("CKSM", "ADLER32:10;"), None),
        (Features::new(), None),
    ] {
        assert_eq!(Question::best(&features), question);
    }
}

#[test]
fn questions_are_written_as_servers_read_them() {
    let sent = |question: &Question, path: &str| {
        let command = question.command(Path::new(path)).encode().unwrap();
        String::from_utf8(command).unwrap()
    };
    let hash = Question::Hash { kind: HashKind::Sha512, select: true };
    assert_eq!(hash.preparation().unwrap().encode(), Ok(b"OPTS HASH SHA-512\r\n".to_vec()));
    assert_eq!(sent(&hash, "two words"), "HASH two words\r\n");
    let x = Question::X(XSum::Sha1);
    assert_eq!((x.preparation(), sent(&x, "a/b")), (None, "XSHA1 a/b\r\n".to_owned()));
    // Without the marks these would be ranges of `f`.
    assert_eq!(sent(&x, "f 0 3"), "XSHA1 \"f 0 3\"\r\n");
    assert_eq!(sent(&x, "a \"b\""), "XSHA1 \"a \"\"b\"\"\"\r\n");
    let cksm = Question::Cksm { kind: HashKind::Md5, name: "MD5".to_owned() };
    assert_eq!(sent(&cksm, "two words"), "CKSM MD5 0 -1 two words\r\n");
}

#[test]
fn answers_are_read_as_servers_write_them() {
    let answer = |question: &Question, code, text: &str| {
        question.answer(&Reply::multi(code, "Computing", [], text)).map(|digest| digest.to_string())
    };
    let md5 = Some(MD5.to_owned());
    let hash = Question::Hash { kind: HashKind::Md5, select: false };
    assert_eq!(answer(&hash, 213, &format!("MD5 0-6 {MD5} some name")), md5);
    for text in
        [format!("SHA-1 0-6 {MD5} f"), format!("MD5 {MD5} f"), "MD5 0-6 123 f".to_owned(), "MD5".to_owned()]
    {
        assert_eq!(answer(&hash, 213, &text), None, "{text}");
    }
    let other = MD5.replace('b', "c");
    for question in [Question::X(XSum::Md5), Question::Cksm { kind: HashKind::Md5, name: "MD5".to_owned() }] {
        for text in [
            MD5.to_owned(),
            MD5.to_uppercase(),
            format!("\"f\" {MD5}"),
            format!("{MD5} f"),
            format!("{MD5} {MD5}"),
        ] {
            assert_eq!(answer(&question, 250, &text), md5, "{text}");
        }
        for text in [String::new(), format!("{MD5}0"), format!("{other} {MD5}"), "0".repeat(40)] {
            assert_eq!(answer(&question, 250, &text), None, "{text}");
        }
        assert_eq!(answer(&question, 550, MD5), None);
    }
}

#[test]
fn what_follows_quotation_marks_is_no_path() {
    assert_eq!(unquote(b"two words"), Some(b"two words".to_vec()));
    assert_eq!(unquote(b"\"two \"\"words\"\"\""), Some(b"two \"words\"".to_vec()));
    for range in ["\"f\" 0 3", "\"f", "\"f\"x"] {
        assert_eq!(unquote(range.as_bytes()), None, "{range}");
    }
}

proptest! {
    #[test]
    fn unquoting_undoes_quoting(path in proptest::collection::vec(any::<u8>(), 0..40)) {
        prop_assert_eq!(unquote(&quote(&path)), Some(path));
    }
}
