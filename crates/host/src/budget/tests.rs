use super::*;
use crate::tuner::asked::Asked;
use crate::tuner::plan::Asked as Options;
use bufwise_socket::diag::{Diag, States};
use bufwise_socket::info::SkMem;

/// A plan with 16 MB to send, and 32 MB to receive.
fn plan() -> Plan {
    let asked = Options {
        memory: Some(Bytes(16_000_000)),
        receive_memory: Some(Bytes(32_000_000)),
        ..Options::default()
    };
    Plan::new("abt,drs".parse().unwrap(), asked).unwrap()
}

/// The terms of a daemon without groups.
fn terms(asked: AskedBoth) -> [Terms; 1] {
    [Terms { group: None, plan: plan(), asked }]
}

/// Returns a connection whose queues hold and are allowed these bytes, and that last sent this many milliseconds ago.
fn connection(send: (u32, u32), receive: (u32, u32), silent_ms: u32) -> Connection {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let all = Diag::open().unwrap().tcp(States::CONNECTED).unwrap();
    let mut found =
        all.into_iter().find(|one| one.local == client.local_addr().unwrap()).expect("it is listed");
    let ((wmem_queued, sndbuf), (rmem_alloc, rcvbuf)) = (send, receive);
    found.mem = SkMem { wmem_queued, sndbuf, rmem_alloc, rcvbuf, ..SkMem::default() };
    (found.info.last_data_sent, found.info.last_data_recv) = (silent_ms, silent_ms + 7);
    found
}

fn process(number: i32) -> Process {
    Process { pid: number, name: "nginx".to_owned() }
}

#[test]
fn reserved_is_what_is_kept_for_newcomers_and_what_idle_connections_may_still_take() {
    let shared = |bytes| Asked { shared: Bytes(bytes), ..Asked::default() };
    let terms = terms(AskedBoth { send: shared(12_800_000), receive: Asked::default() });
    let mut census = Census::new(&terms);
    census.add(&connection((3_000_000, 4_000_000), (0, 131_072), 0), Owned::default(), 0);
    census.add(&connection((1_000, 65_536), (500, 131_072), 60_000), Owned::default(), 0);
    census.add_untuned();
    let budget = census.finish(None);
    let send = Side {
        budget_bytes: 16_000_000,
        held_bytes: 3_001_000,
        allowed_bytes: 4_065_536,
        reserved_newcomers_bytes: 3_200_000,
        reserved_idle_bytes: 64_536,
        idle_connections: 1,
        outside_bytes: 0,
    };
    assert_eq!((budget.send, budget.send.reserved_bytes()), (send, 3_264_536));
    assert_eq!(budget.receive.reserved_newcomers_bytes, 0, "nothing is shared out");
    assert_eq!(budget.receive.reserved_idle_bytes, 131_072 - 500);
    assert_eq!((budget.connections, budget.untuned_connections), (2, 1));
    assert!(!budget.is_short() && budget.processes.is_empty());
}

#[test]
fn buffers_that_programs_have_set_are_outside_the_budget_and_shown_apart() {
    let terms = terms(AskedBoth::default());
    let mut census = Census::new(&terms);
    let one = connection((17_000_000, 20_000_000), (500, 131_072), 60_000);
    let owned = Owned { send: true, receive: false };
    census.add(&one, owned, 0);
    census.attribute(&one, owned, None, Some("/set"));
    let budget = census.finish(None);
    let send = Side { budget_bytes: 16_000_000, outside_bytes: 17_000_000, ..Side::default() };
    assert_eq!((budget.connections, budget.send, budget.receive.held_bytes), (1, send, 500));
    assert!(!budget.is_short(), "as in the log: {:?}", budget.pressure);
    let part = &budget.cgroups[0];
    assert_eq!((part.connections, part.send_held_bytes, part.send_allowed_bytes), (1, 0, 0));
    assert_eq!((part.send_reserved_bytes, part.receive_held_bytes), (0, 500));
}

#[test]
fn the_largest_processes_and_cgroups_are_named_and_the_parts_sum_to_the_whole() {
    let terms = terms(AskedBoth::default());
    let mut census = Census::new(&terms);
    for number in 1..=10 {
        // Every third one is idle.
        let silent_ms = if number % 3 == 0 { 60_000 } else { 0 };
        let one = connection((1_000 * number, 10_000), (number, 20_000), silent_ms);
        let cgroup = if number % 2 == 0 { "/even" } else { "/odd" };
        let holder = process(number as i32);
        census.add(&one, Owned::default(), 0);
        census.attribute(&one, Owned::default(), Some(&holder).filter(|_| number > 1), Some(cgroup));
    }
    let budget = census.finish(None);
    let names: Vec<&str> = budget.processes.iter().map(|part| part.name.as_str()).collect();
    let largest =
        ["nginx/10", "nginx/9", "nginx/8", "nginx/7", "nginx/6", "nginx/5", "nginx/4", "nginx/3", "others"];
    assert_eq!(names, largest);
    let others = &budget.processes[8];
    assert_eq!((others.connections, others.send_held_bytes, others.receive_held_bytes), (2, 3_000, 3));
    let cgroups: Vec<(&str, u64, u64)> = budget
        .cgroups
        .iter()
        .map(|part| (part.name.as_str(), part.connections, part.send_held_bytes))
        .collect();
    assert_eq!(cgroups, [("/even", 5, 30_000), ("/odd", 5, 25_000)]);
    let reserved: Vec<u64> = budget.cgroups.iter().map(|part| part.send_reserved_bytes).collect();
    assert_eq!(reserved, [4_000, 7_000 + 1_000], "of the sixth; of the third and the ninth");
    for parts in [&budget.processes, &budget.cgroups] {
        let sum = |figure: fn(&Part) -> u64| parts.iter().map(figure).sum::<u64>();
        assert_eq!(sum(|part| part.send_held_bytes), budget.send.held_bytes);
        assert_eq!(sum(|part| part.send_allowed_bytes), budget.send.allowed_bytes);
        assert_eq!(sum(|part| part.send_reserved_bytes), budget.send.reserved_idle_bytes);
        assert_eq!(sum(|part| part.receive_reserved_bytes), budget.receive.reserved_idle_bytes);
        assert_eq!(sum(|part| part.receive_held_bytes), budget.receive.held_bytes);
        assert_eq!(sum(|part| part.receive_allowed_bytes), budget.receive.allowed_bytes);
        assert_eq!(sum(|part| part.connections), budget.connections);
    }
}

#[test]
fn each_part_is_judged_by_its_own_budget_and_the_figures_are_sums() {
    let asked =
        AskedBoth { send: Asked { shared: Bytes(12_800_000), ..Asked::default() }, ..AskedBoth::default() };
    let part = |group: Option<&str>| Terms { group: group.map(str::to_owned), plan: plan(), asked };
    let terms = [part(Some("db")), part(None)];
    let mut census = Census::new(&terms);
    census.add(&connection((17_000_000, 20_000_000), (5, 131_072), 0), Owned::default(), 0);
    census.add(&connection((1_000_000, 4_000_000), (7, 131_072), 0), Owned::default(), 1);
    census.add(&connection((1_000_000, 4_000_000), (7, 131_072), 0), Owned::default(), 2);
    let held: Vec<u64> = census.parts().iter().map(|part| part.send.held_bytes).collect();
    assert_eq!(held, [17_000_000, 1_000_000], "one of no part is not counted");
    let host = TcpMemory { held: Bytes(40_000_000), low: Bytes(20_000_000), pressure: Bytes(30_000_000) };
    let budget = census.finish(Some(host));
    let sentences: Vec<&str> = budget.pressure.iter().map(|one| one.sentence.as_str()).collect();
    assert_eq!(
        sentences,
        [
            "group db: send queues hold 17.00 MB of 16.00 MB; buffers shrink",
            "host: tcp_mem is above its pressure mark: TCP holds 40.00 MB of 30.00 MB"
        ]
    );
    let send = Side {
        budget_bytes: 32_000_000,
        held_bytes: 18_000_000,
        allowed_bytes: 24_000_000,
        reserved_newcomers_bytes: 6_400_000,
        ..Side::default()
    };
    assert_eq!((budget.connections, budget.send), (2, send));
    let groups: Vec<_> = budget.groups.iter().map(|one| (one.name.as_deref(), one.connections)).collect();
    assert_eq!(groups, [(Some("db"), 1), (None, 1)]);
    let sides: Vec<_> =
        budget.groups.iter().map(|one| (one.send.held_bytes, one.receive.budget_bytes)).collect();
    assert_eq!(sides, [(17_000_000, 32_000_000), (1_000_000, 32_000_000)]);
    assert_eq!((budget.receive.budget_bytes, budget.receive.held_bytes), (64_000_000, 12));
}

#[test]
fn it_travels_as_json_with_the_sentence_of_each_cause() {
    let terms = terms(AskedBoth::default());
    let mut census = Census::new(&terms);
    census.add(&connection((17_000_000, 20_000_000), (0, 0), 0), Owned::default(), 0);
    let budget = census.finish(None);
    let text = serde_json::to_string(&budget).unwrap();
    assert_eq!(serde_json::from_str::<Budget>(&text).unwrap(), budget);
    let pressure =
        r#"[{"cause":"send-held","sentence":"send queues hold 17.00 MB of 16.00 MB; buffers shrink"}]"#;
    assert!(text.contains(pressure), "{text}");
}
