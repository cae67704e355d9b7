//! ncftpget, ncftpput, ncftpls.

use crate::stock::stock;

#[test]
fn ncftp_gets_resumes_puts_and_lists() {
    let Some(ncftp) = stock("ncftpget") else { return };
    let port = ncftp.port();
    let common = ["-P", &port, "-r", "1", "-t", "20", "-V"];
    let get = |more: &[&str]| ncftp.run(&[&common[..], more].concat());
    let put = |more: &[&str]| ncftp.run_other("ncftpput", &[&common[..], more].concat());
    get(&["127.0.0.1", ".", "file"]);
    ncftp.has_got("file");
    ncftp.half_got("file");
    get(&["-z", "127.0.0.1", ".", "file"]);
    ncftp.has_got("file");
    get(&["-R", "127.0.0.1", ".", "tree"]);
    assert_eq!(std::fs::read(ncftp.local("tree/below/two words")).unwrap(), b"two");
    put(&["127.0.0.1", "/", "upload"]);
    ncftp.has_put("upload");
    // No resumed put: version 3.2.6 says REST and then sends the file from its beginning (sendfile), to any server.
    let listed =
        ncftp.run_other("ncftpls", &["-P", &port, "-r", "1", "-t", "20", "-l", "ftp://127.0.0.1/tree/"]);
    assert!(listed.contains("one") && listed.contains("below"), "{listed}");
    ncftp.all_went_well();
}
