use super::*;

const MD5: &str = "b1946ac92492d2347c6235b4d2611184";

#[test]
fn the_strongest_sum_is_asked_for() {
    let sha256 = HashKind::Sha256;
    for (listed, question) in [
        ("CRC32;MD5;SHA-1*;SHA-256;SHA-512;", Some(Question { kind: sha256, select: true })),
        ("SHA-256*;SHA-1", Some(Question { kind: sha256, select: false })),
        ("md5;sha-1", Some(Question { kind: HashKind::Sha1, select: true })),
        ("CRC32*", None),
    ] {
        assert_eq!(Question::best(&Features::new().with("HASH", listed)), question);
    }
    assert_eq!(Question::best(&Features::new().with("XSHA256", "")), None);
}

#[test]
fn questions_are_written_as_servers_read_them() {
    let hash = Question { kind: HashKind::Sha1, select: true };
    assert_eq!(hash.preparation().unwrap().encode(), Ok(b"OPTS HASH SHA-1\r\n".to_vec()));
    assert_eq!(hash.command(Path::new("two words")).encode(), Ok(b"HASH two words\r\n".to_vec()));
    assert_eq!(Question { select: false, ..hash }.preparation(), None);
}

#[test]
fn answers_are_read_as_servers_write_them() {
    let answer = |code, text: &str| {
        let question = Question { kind: HashKind::Md5, select: false };
        question.answer(&Reply::multi(code, "Computing", [], text)).map(|digest| digest.to_string())
    };
    assert_eq!(answer(213, &format!("MD5 0-6 {MD5} some name")), Some(MD5.to_owned()));
    assert_eq!(answer(550, &format!("MD5 0-6 {MD5} some name")), None);
    for text in [&format!("SHA-1 0-6 {MD5} f"), &format!("MD5 {MD5} f"), "MD5 0-6 123 f", "MD5", ""] {
        assert_eq!(answer(213, text), None, "{text}");
    }
}
