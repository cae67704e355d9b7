//! tnftp, the BSD client.

use crate::stock::stock;

#[test]
fn tnftp_gets_puts_resumes_and_lists() {
    let Some(tnftp) = stock("tnftp") else { return };
    tnftp.run(&["-V", "-o", "url", &tnftp.url("file")]);
    tnftp.has_got("url");
    tnftp.run(&["-V", "-u", &tnftp.url("put"), "upload"]);
    tnftp.has_put("put");
    tnftp.half_got("half");
    let port = tnftp.port();
    let script = "user anonymous x\nbinary\nget file got\nreget file half\nput upload session\nappend upload session\n\
                  cd tree\nls\nmget o*\nsize one\nmodtime one\ncd ..\nrename session renamed\nget file again\nbye\n";
    let shown = tnftp.feed(&["-n", "-i", "-V", "127.0.0.1", &port], script);
    assert!(shown.contains("one"), "{shown}");
    for name in ["got", "half", "again"] {
        tnftp.has_got(name);
    }
    assert_eq!(std::fs::read(tnftp.local("one")).unwrap(), b"one");
    assert!(std::fs::read(tnftp.served.path("renamed")).unwrap() == tnftp.bytes.repeat(2));
    tnftp.resumed_at(1_000_000);
    tnftp.all_went_well();
}
