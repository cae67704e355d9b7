//! A file by FTP: the commands, and the reports of their clients.
//!
//! The file is all zeros and takes no space on the disk; no program on the way looks at its bytes. vsftpd serves
//! anonymous users as the user `daemon`, and needs a directory that this user may enter.

use serde_json::{Value, json};

use super::ends::{flow_report, own_end, port};
use super::model::{Flow, Ftp};
use super::script::wait;

/// Returns the server of flow `number`, with a file of the flow's size. Where there are several paths the servers of
/// all flows run on every host B; clients connect only to the one that has the flow's address.
pub(super) fn server(
    bufwise: &str,
    ftp: Ftp,
    number: usize,
    flow: &Flow,
    (bytes, paths): (u64, usize),
) -> String {
    let (port, own) = (port(number), own_end(number));
    let address = if paths > 1 { "0.0.0.0".to_owned() } else { format!("198.18.{}.2", flow.path) };
    let file = format!("mkdir -p served{own} empty && truncate -s {bytes} served{own}/file");
    match ftp.server {
        Some(options) => format!(
            "{file} && exec {bufwise} serve served{own} --listen {address}:{port}{}{options}",
            if options.is_empty() { "" } else { " " }
        ),
        None => format!(
            "{file} && chmod a+rx . served{own} empty && printf \"%s\\n\" listen=YES listen_port={port} background=NO \
             seccomp_sandbox=NO anonymous_enable=YES local_enable=NO ftp_username=daemon \
             anon_root=$PWD/served{own} secure_chroot_dir=$PWD/empty >vsftpd{own}.conf && exec vsftpd $PWD/vsftpd{own}.conf"
        ),
    }
}

/// Returns the client of flow `number`.
pub(super) fn client(bufwise: &str, ftp: Ftp, number: usize, flow: &Flow) -> String {
    let url = format!("ftp://198.18.{}.2:{}/file", flow.path, port(number));
    let report = flow_report(number);
    // Concurrent flows write different files.
    let got = format!("got{number}");
    let wait = wait(flow);
    match ftp.client {
        Some(policy) => format!(
            "{wait}{bufwise} get {url} -o {got} --policy {policy} --quiet --json {report}; rm -f {got}"
        ),
        None => {
            format!("{wait}curl --silent --show-error {url} -o {got} -w \"%{{json}}\" >{report}; rm -f {got}")
        }
    }
}

/// Converts the report of either client into iperf3's form: the data connection alone, and what its probes found.
pub(super) fn end(report: &Value) -> Option<Value> {
    let (bytes, seconds) = match report.pointer("/files/0") {
        Some(file) => {
            if !file.get("error")?.is_null() {
                return None;
            }
            (file.get("bytes")?.as_f64()?, file.get("seconds")?.as_f64()?)
        }
        None => {
            let number = |name: &str| report.get(name)?.as_f64();
            if number("exitcode")? != 0.0 {
                return None;
            }
            (number("size_download")?, number("time_total")? - number("time_pretransfer")?)
        }
    };
    let rate = bytes * 8.0 / seconds.max(1e-6);
    Some(json!({
        "sum_received": { "bytes": bytes, "bits_per_second": rate },
        "seconds": seconds,
        "probes": report.pointer("/files/0/probes"),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_flow_has_a_file_of_its_own_size() {
        let of = |server, number, bytes| {
            let ftp = Ftp { client: None, server };
            self::server("bufwise", ftp, number, &Flow::default(), (bytes, 1))
        };
        let (one, other) = (of(Some(""), 0, 10), of(Some(""), 1, 20));
        assert_eq!(
            [one, other],
            [
                "mkdir -p served empty && truncate -s 10 served/file && exec bufwise serve served --listen 198.18.0.2:5201",
                "mkdir -p served1 empty && truncate -s 20 served1/file && exec bufwise serve served1 --listen 198.18.0.2:5202",
            ]
        );
        let vsftpd = of(None, 1, 20);
        let end = " >vsftpd1.conf && exec vsftpd $PWD/vsftpd1.conf";
        for words in [" listen_port=5202 ", " anon_root=$PWD/served1 ", end] {
            assert!(vsftpd.contains(words), "{vsftpd}");
        }
    }

    #[test]
    fn both_clients_reports_read_alike() {
        let ours = json!({ "files": [{ "bytes": 1_000_000, "seconds": 2.0, "error": null }] });
        let curl = json!({
            "exitcode": 0, "size_download": 1_000_000, "time_total": 2.5, "time_pretransfer": 0.5
        });
        for report in [&ours, &curl] {
            let end = end(report).unwrap();
            assert_eq!(end.pointer("/sum_received/bits_per_second"), Some(&json!(4e6)));
            assert_eq!(end["seconds"], json!(2.0));
        }
    }

    #[test]
    fn failures_have_no_end() {
        assert_eq!(end(&json!({ "files": [{ "bytes": 1, "seconds": 2.0, "error": "broken" }] })), None);
        assert_eq!(end(&json!({ "exitcode": 18, "size_download": 1, "time_total": 2.5 })), None);
        assert_eq!(end(&json!({})), None);
    }
}
