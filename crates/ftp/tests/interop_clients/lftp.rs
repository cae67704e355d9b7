//! lftp.

use crate::stock::{Stock, stock, stock_with_tls};

/// Settings that switch off lftp's waits and repeated attempts.
const SETTINGS: &str = "set net:max-retries 1; set net:timeout 20; set net:reconnect-interval-base 1; ";

fn script(lftp: &Stock, settings: &str, commands: &str) -> String {
    lftp.run(&["-c", &format!("{SETTINGS}{settings}open -u anonymous,x {}; {commands}", lftp.url(""))])
}

#[test]
fn lftp_gets_puts_resumes_lists_and_mirrors() {
    let Some(lftp) = stock("lftp") else { return };
    let clear = "set ftp:ssl-allow false; ";
    lftp.half_got("half");
    lftp.half_put("resumed");
    let commands = "get file -o got; get -c file -o half; put upload -o put; put -c upload -o resumed; \
                    mkdir made; mv put made/put; cls -l tree; mirror tree copy; mirror -R copy back; rm -r made; get file -o again";
    let shown = script(&lftp, clear, commands);
    assert!(shown.contains("one"), "{shown}");
    for name in ["got", "half", "again"] {
        lftp.has_got(name);
    }
    lftp.has_put("resumed");
    lftp.resumed_at(1_000_000);
    assert_eq!(std::fs::read(lftp.local("copy/below/two words")).unwrap(), b"two");
    assert_eq!(std::fs::read(lftp.served.path("back/below/two words")).unwrap(), b"two");
    assert!(!lftp.served.path("made").exists());
    script(&lftp, clear, "pget -n 3 file -o parts");
    lftp.has_got("parts");
}

#[test]
fn lftp_gets_and_puts_over_tls() {
    let Some(lftp) = stock_with_tls("lftp") else { return };
    let tls = "set ftp:ssl-force true; set ftp:ssl-protect-data true; set ssl:verify-certificate no; ";
    let shown = script(&lftp, tls, "get file -o got; put upload -o put; ls tree; get file -o again");
    assert!(shown.contains("one"), "{shown}");
    lftp.has_got("got");
    lftp.has_got("again");
    lftp.has_put("put");
    lftp.all_went_well();
}
