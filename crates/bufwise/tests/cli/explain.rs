//! `bufwise explain`: the right sentence for each case, and none without a cause.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use bufwise_lab::spec::PathSpec;
use bufwise_lab::testbed::Testbed;
use bufwise_socket::options;
use bufwise_units::{Bytes, Nanos, Rate};

use crate::connections::{FakeDaemon, Pair, Transfer, find, json};
use crate::place::{Daemon, Net, TestGroup, Transfer as Iperf};
use crate::run::{PROGRAM, command, eventually, only_error, root, run, until_valid};

fn text(address: &str) -> String {
    let output = command(&["explain", address, "--no-daemon"]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn what_is_no_address_is_wrong_usage() {
    for address in ["host:80", "127.0.0.1:", "70000", "0"] {
        only_error(&run(&["explain", address]), 2);
    }
    assert!(only_error(&run(&["explain"]), 2).contains("ADDR:PORT"));
}

#[test]
fn without_such_a_connection_one_line_says_so() {
    // A port that was free a moment ago, at a loopback address that no other test uses.
    let free = TcpListener::bind("127.77.1.2:0").unwrap().local_addr().unwrap().to_string();
    assert!(
        only_error(&run(&["explain", &free, "--no-daemon"]), 1)
            .contains(&format!("no connection from or to {free}"))
    );
}

#[test]
fn a_daemon_that_is_named_and_not_there_is_an_error() {
    let pair = Pair::on("127.0.0.1:0");
    for address in [&pair.address().to_string(), "127.77.1.2:9"] {
        let line = only_error(&run(&["explain", address, "--socket", "/nope"]), 1);
        assert!(line.contains("there is no daemon at /nope"), "{line}");
    }
}

#[test]
fn an_idle_connection_is_limited_by_its_application() {
    let pair = Pair::on("127.0.0.1:0");
    let address = pair.address().to_string();
    // A second; longer on a machine that stands still, but not each time.
    let watched = |report: &serde_json::Value| report["watched_s"].as_f64().unwrap();
    let mut reports = std::iter::repeat_with(|| json(&["explain", &address, "--json"])).take(5);
    let report = reports.find(|report| watched(report) < 3.0).expect("it watches for a second");
    assert!(watched(&report) >= 0.9, "{report}");
    assert_eq!(report["address"], *address);
    assert_eq!(report["connections"].as_array().unwrap().len(), 2, "both ends are here");
    let one = find(&report, pair.client.local_addr().unwrap());
    assert_eq!(one["limited"]["application"], 1.0);
    assert_eq!(one["limited_by"], "application");
    assert!(one["advice"].as_str().unwrap().contains("program itself"), "{one}");
    let text = text(&address);
    assert!(text.contains("Limited by application 100%") && text.contains("Nothing moves now."), "{text}");
}

#[test]
fn who_set_a_buffer_is_read_from_the_socket() {
    if !bufwise_trial::ipv6() {
        return;
    }
    let pair = Pair::on("[::1]:0");
    options::set_receive_buffer(&pair.client, Bytes(50_000)).unwrap();
    let report = json(&["explain", &pair.address().to_string(), "--json"]);
    let one = find(&report, pair.client.local_addr().unwrap());
    if one["application_set_receive_buffer"].is_null() {
        assert!(!nix::unistd::geteuid().is_root(), "root may look into the socket: {one}");
        return bufwise_trial::skip("the kernel lets only root look into this process's sockets");
    }
    assert_eq!(
        (&one["application_set_send_buffer"], &one["application_set_receive_buffer"]),
        (&false.into(), &true.into())
    );
    let other = find(&report, pair.address());
    assert_eq!(other["application_set_receive_buffer"], false);
}

#[test]
fn a_run_without_root_is_told_from_one_with_it() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let script = format!(
        "exec 3<>/dev/tcp/127.0.0.1/{}; exec {PROGRAM} explain {address} --json --no-daemon",
        address.port()
    );
    let output = run(&["run", "--engine", "user", "--", "bash", "-c", &script]);
    assert!(output.status.success(), "{output:?}");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let all = report["connections"].as_array().unwrap();
    let one = all.iter().find(|one| one["peer"] == *address.to_string()).unwrap();
    assert_eq!(one["tuned_by_run"], true, "{one}");
    assert!(one["sentences"].to_string().contains("by `bufwise run` without root"), "{one}");
}

#[test]
fn what_a_daemon_set_is_said_and_judged_by() {
    let pair = Pair::on("127.0.0.1:0");
    let address = pair.address().to_string();
    let mut list = json(&["explain", &address, "--json"]);
    for one in list["connections"].as_array_mut().unwrap() {
        one["age_s"] = 12.5.into();
        one["policy"] = serde_json::json!({ "send": "abt", "receive": "sobas" });
        one["tuned"] = serde_json::json!({
            "send_buffer_bytes": 300_000, "send_changes": 3,
            "receive_window_bytes": null, "receive_buffer_bytes": null, "receive_changes": 0
        });
        one["application_set_send_buffer"] = false.into();
    }
    list["summary"] = json(&["ls", "--json"])["summary"].take();
    let daemon = FakeDaemon::start(&serde_json::json!({ "reply": "list", "content": list }));
    let output = run(&["explain", &address, "--json", "--socket", daemon.path()]);
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let one = find(&report, pair.client.local_addr().unwrap());
    assert_eq!((&one["age_s"], &one["policy"]["send"]), (&12.5.into(), &"abt".into()));
    assert_eq!(one["tuned"]["send_changes"], 3);
    assert!(one["sentences"].to_string().contains("(set by bufwise)"), "{one}");
    assert_eq!(daemon.heard(), format!("{{\"request\":\"explain\",\"address\":\"{address}\"}}"));
}

#[test]
fn a_rate_that_a_daemon_holds_is_told_or_why_it_is_the_kernels() {
    let pair = Pair::on("127.0.0.1:0");
    let address = pair.address().to_string();
    let mut list = json(&["explain", &address, "--json"]);
    list["summary"] = json(&["ls", "--json"])["summary"].take();
    for (rate, phase, reason, words) in [
        (
            Some(94_200_000),
            "following",
            None,
            "Its rate is held to at most 94.2 Mbit/s (following; 12 descents).",
        ),
        (
            None,
            "left-alone",
            Some("foreign-queue"),
            "Fit leaves its rate to the kernel: the queue on the path is not its own.",
        ),
    ] {
        for one in list["connections"].as_array_mut().unwrap() {
            one["policy"] = serde_json::json!({ "send": "fit", "receive": "kernel" });
            one["tuned"] = serde_json::json!({
                "send_buffer_bytes": null, "send_changes": 0,
                "receive_window_bytes": null, "receive_buffer_bytes": null, "receive_changes": 0,
                "rate_bound_bps": rate,
                "fit": {
                    "phase": phase, "reason": reason, "roof_bps": rate, "capacity_bps": 95_000_000,
                    "descents": 12, "left_alone": 0
                }
            });
        }
        let daemon = FakeDaemon::start(&serde_json::json!({ "reply": "list", "content": list }));
        let output = run(&["explain", &address, "--json", "--socket", daemon.path()]);
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let one = find(&report, pair.client.local_addr().unwrap());
        assert_eq!(
            (&one["tuned"]["rate_bound_bps"], &one["tuned"]["fit"]["phase"]),
            (&rate.into(), &phase.into())
        );
        assert!(one["sentences"].as_array().unwrap().contains(&words.into()), "{one}");
    }
}

/// A path of 100 Mbit/s and 40 ms: the BDP is half a megabyte.
fn path() -> PathSpec {
    PathSpec {
        rate: Some("100mbit".parse().unwrap()),
        rtt: "40ms".parse().unwrap(),
        congestion_control: Some("cubic".to_owned()),
        ..PathSpec::default()
    }
}

/// Connects host A to host B; `prepare` is applied to the client's socket before.
fn across(testbed: &Testbed, prepare: fn(&socket2::Socket)) -> Pair {
    let hosts = &testbed.hosts[0];
    let listener = hosts.b.run(|| TcpListener::bind("198.18.0.2:0")).unwrap().unwrap();
    let address = listener.local_addr().unwrap();
    let client = hosts.a.run(|| {
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        prepare(&socket);
        socket.connect(&address.into()).unwrap();
        TcpStream::from(socket)
    });
    Pair { client: client.unwrap(), server: listener.accept().unwrap().0 }
}

/// Takes a path down; returns why a rate that was measured on it is invalid: pauses of the emulator took more than a tenth of the
/// second that `explain` watches.
fn why_paused(testbed: Testbed) -> Option<String> {
    let paused = testbed.finish().unwrap()[0].paused;
    (paused > Nanos::from_millis(100)).then(|| format!("paused for {} ms", paused.0 / 1_000_000))
}

#[test]
fn root_a_small_send_buffer_on_a_long_path_is_named_with_who_set_it() {
    let Some(_alone) = root() else { return };
    let measure = || {
        let testbed = Testbed::start(&[path()]).unwrap();
        let pair = across(&testbed, |socket| options::set_send_buffer(socket, Bytes(16_384)).unwrap());
        let transfer = Transfer::start(&pair);
        let acked = || options::tcp_info(&pair.client).unwrap().bytes_acked;
        eventually("slow start, in which the congestion window limits, is over", || acked() > 2_000_000);
        let address = pair.address().to_string();
        let report = json(&["explain", &address, "--json"]);
        let text = text(&address);
        drop(transfer);
        (find(&report, pair.client.local_addr().unwrap()).clone(), text, why_paused(testbed))
    };
    let (one, text, _) = until_valid(measure, |(.., why_invalid)| why_invalid.clone());
    assert_eq!(one["limited_by"], "send-buffer", "{one}");
    assert!(one["limited"]["send_buffer"].as_f64() > Some(0.5), "{one}");
    assert_eq!(one["application_set_send_buffer"], true);
    assert!(one["send_need_bytes"].as_u64() > Some(32_768), "{one}");
    assert!(one["advice"].as_str().unwrap().contains("SO_SNDBUF"), "{one}");
    // The path carries 95 Mbit/s, and the limit alone would allow 6. The writer begins a buffer of 64 KB whenever less
    // than the limit is queued, and fills it: two to three of them are in flight (26 and 39 Mbit/s; 34 measured).
    assert!((20e6..50e6).contains(&one["goodput_bps"].as_f64().unwrap()), "{one}");
    // The smallest round trip is at least the path's, and a moment without a queue comes within a second.
    assert!((0.04..0.045).contains(&one["min_rtt_s"].as_f64().unwrap()), "{one}");
    let sentence = "Its send buffer may hold 32.8 KB (set by the program itself), less than the";
    assert!(text.contains(sentence), "{text}");
}

#[test]
fn root_a_transfer_with_buffers_enough_is_limited_by_the_path() {
    let Some(_alone) = root() else { return };
    let testbed = Testbed::start(&[PathSpec { rtt: "10ms".parse().unwrap(), ..path() }]).unwrap();
    let pair = across(&testbed, |_| {});
    let _transfer = Transfer::start(&pair);
    let report = json(&["explain", &pair.address().to_string(), "--json"]);
    let one = find(&report, pair.client.local_addr().unwrap());
    assert_eq!(one["limited_by"], "congestion-window", "{one}");
    assert_eq!(one["application_set_send_buffer"], false);
    let advice = one["advice"].as_str().unwrap();
    assert!(advice.starts_with("The path ") || advice.starts_with("A queue of "), "{advice}");
}

#[test]
fn a_bound_of_the_rate_is_told_without_a_daemon() {
    let pair = Pair::on("127.0.0.1:0");
    options::set_max_pacing_rate(&pair.client, Rate(1_000_000)).unwrap();
    (&pair.client).write_all(b"so that it sends").unwrap();
    let report = json(&["explain", &pair.address().to_string(), "--json"]);
    let one = find(&report, pair.client.local_addr().unwrap());
    assert_eq!(one["pacing_limit_bps"], 8_000_000);
    let sentence = "Its rate is held to at most 8.0 Mbit/s (SO_MAX_PACING_RATE).";
    assert!(one["sentences"].as_array().unwrap().contains(&sentence.into()), "{one}");
    let other = find(&report, pair.address());
    assert!(
        other["pacing_limit_bps"].is_null() && !other["sentences"].to_string().contains("congestion"),
        "{other}"
    );
}

#[test]
fn root_a_program_that_reads_slowly_is_the_limit_at_both_ends() {
    let Some(_alone) = root() else { return };
    let near = PathSpec { rtt: "10ms".parse().unwrap(), rmem: Some(400_000), ..path() };
    let testbed = Testbed::start(&[near]).unwrap();
    let pair = across(&testbed, |_| {});
    let (client, server) = (pair.client.try_clone().unwrap(), pair.server.try_clone().unwrap());
    let writer = std::thread::spawn(move || while (&client).write_all(&[7; 65_536]).is_ok() {});
    // Reads as `curl --limit-rate` does: 16 Mbit/s, in pieces.
    let reader = std::thread::spawn(move || {
        let mut piece = vec![0; 20_000];
        while (&server).read(&mut piece).is_ok_and(|count| count > 0) {
            std::thread::sleep(Duration::from_millis(10));
        }
    });
    eventually("the receive buffer is full", || {
        let memory = options::memory(&pair.server).unwrap();
        memory.rmem_alloc * 2 > memory.rcvbuf
    });
    let report = json(&["explain", &pair.address().to_string(), "--json"]);
    let text = text(&pair.address().to_string());
    if report["notes"].to_string().contains("tcp_mem") {
        return bufwise_trial::skip("this machine's TCP is short of memory, and shrinks windows");
    }
    let (sends, receives) = (find(&report, pair.client.local_addr().unwrap()), find(&report, pair.address()));
    for one in [sends, receives] {
        assert_eq!(
            (&one["limited_by"], &one["queueing_delay_s"]),
            (&"reader".into(), &serde_json::Value::Null)
        );
        assert_eq!(
            (&one["fit_would"]["here"], &one["fit_would"]["there"]),
            (&"nothing".into(), &"nothing".into())
        );
    }
    assert!(sends["advice"].as_str().unwrap().contains("program at the other end"), "{sends}");
    assert!(receives["advice"].as_str().unwrap().contains("program here"), "{receives}");
    assert_eq!(sends["other_end"]["netns"], receives["netns"]);
    assert!(text.contains("in network namespace"), "{text}");
    pair.client.shutdown(std::net::Shutdown::Both).unwrap();
    writer.join().unwrap();
    reader.join().unwrap();
}

/// A path with a queue of half a second.
fn bloated() -> PathSpec {
    PathSpec {
        rate: Some("20mbit".parse().unwrap()),
        rtt: "60ms".parse().unwrap(),
        queue: Some("480ms".parse().unwrap()),
        ..path()
    }
}

#[test]
fn root_a_queue_that_stands_is_seen_by_the_receiver() {
    let Some(_alone) = root() else { return };
    let testbed = Testbed::start(&[bloated()]).unwrap();
    let pair = across(&testbed, |_| {});
    let _transfer = Transfer::start(&pair);
    eventually("the queue stands", || options::tcp_info(&pair.server).unwrap().rcv_rtt > 120_000);
    let report = json(&["explain", &pair.address().to_string(), "--json"]);
    if report["notes"].to_string().contains("tcp_mem") {
        return bufwise_trial::skip("this machine's TCP is short of memory, and shrinks windows");
    }
    for local in [pair.address(), pair.client.local_addr().unwrap()] {
        let one = find(&report, local);
        assert!(one["queueing_delay_s"].as_f64() > Some(0.03), "{one}");
        assert_eq!(one["fit_would"]["here"], "queue", "{one}");
        assert!(one["sentences"].to_string().contains("in a queue"), "{one}");
    }
    // 20 Mbit/s over 60 ms are 150 KB: the queue's part of the round trip must not count.
    let need = find(&report, pair.address())["receive_need_bytes"].as_u64().unwrap();
    assert!(need < 4 * 200_000, "{need}");
}

#[test]
fn root_fit_at_this_end_takes_away_the_queue_that_explain_says_it_would() {
    let Some(_alone) = root() else { return };
    let testbed = Testbed::start(&[bloated()]).unwrap();
    let (here, there) = (Net::of(&testbed.hosts[0].a), Net::of(&testbed.hosts[0].b));
    let (group, other) = (TestGroup::new(), TestGroup::new());
    let server = other.spawn(&there, "exec iperf3 -s -1");
    there.listens();
    let _transfer = Iperf([server, group.spawn(&here, "exec iperf3 -c 198.18.0.2 -t 1000")]);
    let srtt_us = || here.connections().iter().map(|one| one.info.rtt).max().unwrap_or_default();
    eventually("the queue stands", || srtt_us() > 200_000);
    let report = json(&["explain", "198.18.0.2:5201", "--json"]);
    if report["notes"].to_string().contains("tcp_mem") {
        return bufwise_trial::skip("this machine's TCP is short of memory, and shrinks windows");
    }
    let one = here.busiest(&report);
    for ends in ["here", "there", "both"] {
        assert_eq!(one["fit_would"][ends], "queue", "{ends}: {one}");
    }
    let queue_s = one["fit_would"]["queue_s"].as_f64().unwrap();
    assert!((0.05..0.5).contains(&queue_s), "{one}");

    let _daemon = Daemon::ready(&here, &["--cgroup", &group.path(), "--policy", "fit,kernel"]);
    eventually("nine tenths of that queue are gone", || f64::from(srtt_us()) < (0.06 + queue_s / 10.0) * 1e6);
    let acked = || here.connections().iter().map(|one| one.info.bytes_acked).max().unwrap();
    let rate = || {
        let (before, start) = (acked(), Instant::now());
        eventually("three megabytes pass", || acked() > before + 3_000_000);
        (acked() - before) as f64 * 8.0 / start.elapsed().as_secs_f64()
    };
    // The median, because a pause of the machine lowers one of them.
    let mut rates = [(); 3].map(|()| rate());
    rates.sort_by(f64::total_cmp);
    assert!(rates[1] > 0.75 * one["goodput_bps"].as_f64().unwrap(), "at the same rate: {rates:?}, {one}");
}
