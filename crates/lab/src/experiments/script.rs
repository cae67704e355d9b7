//! The commands of a run: iperf3, documents or a file for each flow, and `bufwise run` around what a method tunes.
//!
//! They run in a directory of their own. Each flow's client writes `flowN.json` there, and `bufwise run` its report
//! `run.json`.

use std::path::Path;

use bufwise_units::Nanos;

use super::ends::{flow_report, own_end, port};
use super::ftp;
use super::model::{Amount, Case, Experiment, Flow, Method, WEB_SERVER, Way};
use super::probe_grid;
use super::program;

/// Seconds beyond the planned time after which a flow is ended.
const PATIENCE: u32 = 30;
/// Returns the file for the report of `bufwise run` around the clients of the host at which `path` is the first to
/// begin.
pub(super) fn run_report(path: usize) -> String {
    if path == 0 { "run.json".to_owned() } else { format!("run-{path}.json") }
}

/// File for the report of `bufwise run` around the servers.
pub(super) const SERVERS_REPORT: &str = "run-servers.json";

/// Word in the place of a policy for bpftune's rule, which `bufwise lab bpftune` runs.
pub(super) const BPFTUNE: &str = "bpftune";

/// File with the `fdinfo` of the descriptors of `bufwise run`.
pub(super) const COST: &str = "cost";
/// File with the programs' standard error.
pub(super) const ERRORS: &str = "errors";

/// The commands of one run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Commands {
    /// Command for host B of every path.
    pub server: String,
    /// Command for host A, at which the first path begins.
    pub client: String,
    /// Commands for the other hosts at which paths begin.
    pub elsewhere: Vec<Elsewhere>,
}

/// The client of a host at which paths begin, but not the first path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Elsewhere {
    /// Index of one of these paths.
    pub path: usize,
    /// The host's name.
    pub host: String,
    /// The command.
    pub client: String,
}

impl Commands {
    /// Returns the commands as they are run: `program` is bufwise, `directory` is where the reports go.
    pub(super) fn new(
        experiment: &Experiment,
        case: &Case,
        method: &Method,
        quick: bool,
        program: &Path,
        directory: &Path,
    ) -> Self {
        let bufwise = quoted(program);
        let report = Some(SERVERS_REPORT);
        let Self { server, client, elsewhere } =
            Self::with(experiment, case, method, quick, &bufwise, report);
        let place = quoted(directory);
        let client_of = |client: &str| format!("cd {place} && {{ {client} ; }} 2>>{ERRORS}");
        let elsewhere = elsewhere.into_iter().map(|one| Elsewhere { client: client_of(&one.client), ..one });
        Self {
            server: format!("cd {place} && {{ {server} ; }}"),
            client: client_of(&client),
            elsewhere: elsewhere.collect(),
        }
    }

    /// Returns the commands as a user would type them, and as runs are kept: without the servers' report.
    pub(super) fn shown(experiment: &Experiment, case: &Case, method: &Method, quick: bool) -> Self {
        Self::with(experiment, case, method, quick, "bufwise", None)
    }

    fn with(
        experiment: &Experiment,
        case: &Case,
        method: &Method,
        quick: bool,
        bufwise: &str,
        servers_report: Option<&str>,
    ) -> Self {
        let small = method.small_documents.map(|bytes| format!(" --small-documents {bytes}B"));
        let at_once = method.at_once.map(|size| format!(" --gso-max-size {size}"));
        let options = [if method.only_called { " --only-called" } else { "" }.to_owned()];
        let options: String = options.into_iter().chain(small).chain(at_once).collect();
        let counts_cost = experiment.counts_cost;
        let way = experiment.way;
        let ends = Ends { way, case, method, quick, bufwise, options: &options, counts_cost, servers_report };
        let elsewhere = case.begins().skip(1).map(|(path, from)| Elsewhere {
            path,
            host: from.unwrap_or("A").to_owned(),
            client: ends.clients(from, &run_report(path)),
        });
        let (_, from) = case.begins().next().unwrap_or_default();
        Self {
            server: ends.servers(),
            client: ends.clients(from, &run_report(0)),
            elsewhere: elsewhere.collect(),
        }
    }
}

/// Writes the commands for both ends of each flow.
struct Ends<'a> {
    way: Way,
    case: &'a Case,
    method: &'a Method,
    quick: bool,
    bufwise: &'a str,
    /// Options of every `bufwise run`.
    options: &'a str,
    counts_cost: bool,
    servers_report: Option<&'a str>,
}

impl Ends<'_> {
    /// Returns the command that tunes what follows, with its memory limit, and with a report into a file if one is
    /// given.
    fn around(&self, policy: &str, memory: &str, report: Option<&str>) -> String {
        if policy == BPFTUNE {
            return format!("{} lab bpftune{memory} --", self.bufwise);
        }
        let report = report.map(|file| format!(" --json {file}")).unwrap_or_default();
        format!("{} run --policy {policy}{}{memory}{report} --", self.bufwise, self.options)
    }

    fn memory(&self) -> String {
        self.case.memory.map(|bytes| format!(" --memory {bytes}B")).unwrap_or_default()
    }

    /// Returns the clients of the paths that begin at a host; `bufwise run` writes its report into the file `report`
    /// there.
    fn clients(&self, from: Option<&str>, report: &str) -> String {
        let Self { case, method, .. } = self;
        let begins = |flow: &Flow| {
            case.paths.get(usize::from(flow.path)).and_then(|path| path.from.as_deref()) == from
        };
        let flows = case.flows.iter().enumerate().filter(|(_, flow)| begins(flow));
        let (cross, own): (Vec<_>, Vec<_>) = flows.partition(|(_, flow)| flow.cross);
        let client = |(number, flow): (usize, &Flow)| self.client(number, flow);
        let mut clients: Vec<String> = cross.into_iter().map(client).collect();
        let own: Vec<String> = own.into_iter().map(client).collect();
        if own.is_empty() {
            return together(clients);
        }
        let own = together(own);
        // The program's descriptor shows its cost, to processes that may read `bufwise run`'s descriptors.
        let cost =
            if self.counts_cost { format!("; cat /proc/$PPID/fdinfo/* >{COST}") } else { String::new() };
        clients.push(match method.client {
            Some(policy) => {
                let around = self.around(policy, &self.memory(), Some(report));
                format!("{around} sh -c {}", one_word(&format!("{own}{cost}")))
            }
            None => own,
        });
        together(clients)
    }

    /// Returns the servers of all flows: the hosts of the other paths get no client, and a server ends with its host.
    fn servers(&self) -> String {
        let flows: Vec<(usize, &Flow)> = self.case.flows.iter().enumerate().collect();
        let server = |(number, flow): &(usize, &Flow)| self.server(*number, flow);
        let Some(policy) = self.method.server else { return together(flows.iter().map(server).collect()) };
        let (cross, own): (Vec<_>, Vec<_>) = flows.iter().partition(|(_, flow)| flow.cross);
        let own = together(own.iter().map(server).collect());
        let mut servers: Vec<String> = cross.iter().map(server).collect();
        let memory = if self.way == Way::Download { self.memory() } else { String::new() };
        let around = self.around(policy, &memory, self.servers_report);
        servers.push(format!("{around} sh -c {}", one_word(&own)));
        together(servers)
    }

    fn client(&self, number: usize, flow: &Flow) -> String {
        let Self { case, method, quick, bufwise, .. } = *self;
        let (amount, host) = (method.amount_of(flow), host(case, flow));
        let seconds = amount.seconds(quick);
        let web = if flow.web { format!(" --web {}", document_sizes(flow, amount)) } else { String::new() };
        match amount {
            Amount::Documents(..) => {
                document(bufwise, number, &host, flow, &format!("--fetch {}{web}", amount.documents(quick)))
            }
            Amount::Requests(..) => {
                document(bufwise, number, &host, flow, &format!("--request-for {seconds}{web}"))
            }
            Amount::File(..) => ftp::client(bufwise, method.ftp, number, flow),
            Amount::Program(own, ..) => program::client(own, number, &host, flow, seconds + PATIENCE),
            Amount::Probe(..) => probe_grid::client(bufwise, number, &host, flow, seconds),
            Amount::Seconds(..) | Amount::Bytes(..) => iperf3(self.way, number, &host, flow, amount, quick),
        }
    }

    fn server(&self, number: usize, flow: &Flow) -> String {
        let Self { case, method, quick, bufwise, .. } = *self;
        let amount = method.amount_of(flow);
        match amount {
            Amount::Documents(..) | Amount::Requests(..) if flow.web => {
                web_server(&document_sizes(flow, amount), number)
            }
            Amount::Documents(..) | Amount::Requests(..) => {
                let sizes = document_sizes(flow, amount);
                format!("{bufwise} lab document --serve {sizes} --port {}", port(number))
            }
            Amount::File(whole, _, part, _) => {
                let bytes = if quick { part } else { whole };
                ftp::server(bufwise, method.ftp, number, flow, (bytes, case.paths.len()))
            }
            Amount::Program(own, ..) => program::server(own, number),
            Amount::Probe(..) => probe_grid::server(bufwise, number, &listens_at(case, flow)),
            Amount::Seconds(..) | Amount::Bytes(..) => format!("iperf3 -s -1 -p {}", port(number)),
        }
    }
}

/// Runs all commands at once; ends when all have ended.
fn together(mut commands: Vec<String>) -> String {
    match commands.len() {
        1 => commands.remove(0),
        _ => commands.iter().map(|command| format!("{{ {command} ; }} & ")).collect::<String>() + "wait",
    }
}

/// Returns the address of the flow's server.
fn host(case: &Case, flow: &Flow) -> String {
    let path = flow.path;
    if case.setup.ipv6 { format!("fd00:b:0:{path}::2") } else { format!("198.18.{path}.2") }
}

/// Returns the address at which the flow's server listens. Where there are several paths, the servers of all flows run on every host
/// B, and only one of these has the flow's address.
fn listens_at(case: &Case, flow: &Flow) -> String {
    match (case.paths.len(), case.setup.ipv6) {
        (0 | 1, _) => host(case, flow),
        (_, true) => "::".to_owned(),
        (_, false) => "0.0.0.0".to_owned(),
    }
}

/// Returns a command that waits until the flow's start.
pub(super) fn wait(flow: &Flow) -> String {
    if flow.delay > Nanos(0) { format!("sleep {}; ", flow.delay.0 as f64 / 1e9) } else { String::new() }
}

/// Returns the sizes of the flow's documents in bytes, with commas.
fn document_sizes(flow: &Flow, amount: Amount) -> String {
    match amount {
        Amount::Documents(bytes, ..) | Amount::Requests(bytes, ..) if flow.sizes.is_empty() => {
            bytes.to_string()
        }
        _ => flow.sizes.iter().map(u64::to_string).collect::<Vec<_>>().join(","),
    }
}

/// Returns the web server of a flow, with a file of each size that is named by it. The files take no space on the disk.
fn web_server(sizes: &str, number: usize) -> String {
    let (files, port, own) = (sizes.replace(',', " "), port(number), own_end(number));
    format!(
        "mkdir -p web && for size in {files}; do truncate -s $size web/$size; done && printf \"%s\\n\" \"user root;\" \
         \"daemon off;\" \"pid $PWD/web{own}.pid;\" \"error_log stderr;\" \"events {{}}\" \
         \"http {{ access_log off; server {{ listen {port}; root $PWD/web; }} }}\" >web{own}.conf && \
         exec {WEB_SERVER} -e stderr -c $PWD/web{own}.conf"
    )
}

fn document(bufwise: &str, number: usize, host: &str, flow: &Flow, what: &str) -> String {
    let (wait, port, report) = (wait(flow), port(number), flow_report(number));
    format!("{wait}{bufwise} lab document {what} --host {host} --port {port} >{report}")
}

fn iperf3(way: Way, number: usize, host: &str, flow: &Flow, amount: Amount, quick: bool) -> String {
    let wait = wait(flow);
    let how_much = match amount {
        Amount::Bytes(bytes, ..) if !quick => format!("-n {bytes}"),
        _ => format!("-t {}", amount.seconds(quick)),
    };
    let reverse = if way == Way::Download { " -R" } else { "" };
    let buffer = flow.buffer.map(|bytes| format!(" -w {bytes}")).unwrap_or_default();
    let parallel = if flow.connections > 1 { format!(" -P {}", flow.connections) } else { String::new() };
    let congestion_control = flow.congestion_control.map(|name| format!(" -C {name}")).unwrap_or_default();
    let writes = flow.writes.map(|options| format!(" {options}")).unwrap_or_default();
    let seconds = amount.seconds(quick);
    // timeout(1) makes a process group of itself and iperf3.
    let stop = |quarter: f64| {
        let [stop, go_on] = ["STOP", "CONT"].map(|signal| format!("kill -{signal} -$p"));
        format!(" & p=$!; sleep {quarter}; {stop}; sleep {}; {go_on}; wait $p", 2.0 * quarter)
    };
    let stop = if flow.stops { stop(f64::from(seconds) / 4.0) } else { String::new() };
    format!(
        "{wait}timeout {} iperf3 -c {host} -p {} {how_much}{reverse}{parallel}{buffer}{congestion_control}{writes} -J >{}{stop}",
        seconds + PATIENCE,
        port(number),
        flow_report(number)
    )
}

/// Returns the path as one word of the shell.
pub(crate) fn quoted(path: &Path) -> String {
    one_word(&path.display().to_string())
}

pub(super) fn one_word(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::super::model::{Program, path};
    use super::*;
    use crate::spec::PathSpec;

    fn commands(id: &str, case: usize, method: &str) -> Commands {
        let catalogue = super::super::catalogue();
        let experiment = catalogue.iter().find(|experiment| experiment.id == id).unwrap();
        let method = experiment.methods.iter().find(|one| one.name == method).unwrap();
        Commands::shown(experiment, &experiment.cases[case], method, false)
    }

    #[test]
    fn a_reader_stands_still_from_a_quarter_to_three_quarters_of_its_time() {
        let Commands { server, client, .. } = commands("budget-receive", 0, "drs");
        assert_eq!(server, "iperf3 -s -1 -p 5201");
        let run = "bufwise run --policy drs --memory 2097152B --json run.json -- sh -c";
        let iperf3 = "timeout 40 iperf3 -c 198.18.0.2 -p 5201 -t 10 -R -J >flow0.json";
        let stop = "p=$!; sleep 2.5; kill -STOP -$p; sleep 5; kill -CONT -$p; wait $p";
        assert_eq!(client, format!("{run} '{iperf3} & {stop}'"));
    }

    #[test]
    fn the_sender_is_tuned_with_the_cases_memory() {
        let Commands { server, client, .. } = commands("abt-many", 0, "abt");
        assert_eq!(server, "iperf3 -s -1 -p 5201");
        let run = "bufwise run --policy abt --memory 2097152B --json run.json -- sh -c";
        assert_eq!(
            client,
            format!("{run} 'timeout 45 iperf3 -c 198.18.0.2 -p 5201 -t 15 -P 12 -J >flow0.json'")
        );
    }

    #[test]
    fn what_a_writer_fills_at_once_is_for_bufwise_to_bound() {
        let client = commands("abt-many", 1, "abt, 64 KB at once").client;
        assert!(
            client.starts_with("bufwise run --policy abt --gso-max-size device --memory 2097152B "),
            "{client}"
        );
    }

    #[test]
    fn the_server_of_documents_is_told_which_are_small() {
        let Commands { server, client, .. } = commands("sabt-fig10", 1, "sabt, 30 KB");
        let run = "bufwise run --policy sabt --small-documents 30720B -- sh -c";
        assert_eq!(server, format!("{run} 'bufwise lab document --serve 30720 --port 5201'"));
        assert!(!client.contains("run"), "{client}");
    }

    #[test]
    fn the_servers_report_is_no_part_of_the_commands_by_which_runs_are_kept() {
        let catalogue = super::super::catalogue();
        let experiment = catalogue.iter().find(|one| one.id == "sabt-fig10").unwrap();
        let method = experiment.methods.iter().find(|one| one.name == "sabt, 8 KB").unwrap();
        let (case, directory) = (&experiment.cases[0], Path::new("/tmp/x"));
        let run = Commands::new(experiment, case, method, false, Path::new("bufwise"), directory);
        assert!(run.server.contains(" run --policy sabt --json run-servers.json -- sh -c "), "{run:?}");
        assert!(!Commands::shown(experiment, case, method, false).server.contains("--json"));
    }

    #[test]
    fn a_web_server_has_a_file_for_each_size_and_is_tuned_as_any_program() {
        let Commands { server, client, .. } = commands("sabt-fig10", 2, "sabt, 8 KB");
        let (tuned, web) = server.split_once(" -- sh -c 'mkdir -p web && for size in 1024 ").unwrap();
        assert_eq!(tuned, "bufwise run --policy sabt");
        assert!(web.contains(" 49152; do truncate -s $size web/$size; done && printf \"%s\\n\" "), "{web}");
        assert!(web.contains("\"http { access_log off; server { listen 5201; root $PWD/web; } }\""), "{web}");
        assert!(web.ends_with("exec nginx -e stderr -c $PWD/web.conf'"), "{web}");
        assert!(client.starts_with("bufwise lab document --request-for 10 --web 1024,1024,"), "{client}");
        assert!(client.ends_with(",49152 --host 198.18.0.2 --port 5201 >flow0.json"), "{client}");
        let second = web_server("1024", 1);
        assert!(second.contains("listen 5202;") && second.contains("pid $PWD/web1.pid;"), "{second}");
        assert!(second.ends_with(">web1.conf && exec nginx -e stderr -c $PWD/web1.conf"), "{second}");
    }

    #[test]
    fn more_connections_than_iperf3_opens_are_two_flows() {
        let Commands { server, client, .. } = commands("abt-many", 2, "kernel");
        assert_eq!(server, "{ iperf3 -s -1 -p 5201 ; } & { iperf3 -s -1 -p 5202 ; } & wait");
        assert_eq!(client.matches("-P 100").count(), 2);
        assert!(!client.contains("bufwise"));
    }

    #[test]
    fn flows_of_others_are_never_tuned() {
        let Commands { client, .. } = commands("sobas-cross", 0, "sobas");
        let (others, own) = client.split_once("bufwise run --policy sobas").unwrap();
        assert!(others.contains("-p 5202 -t 32 -R -P 2") && own.contains("-p 5201 -t 25 -R"), "{client}");
        assert!(!own.contains("-p 5202"), "{client}");
    }

    #[test]
    fn a_methods_own_amount_is_not_for_the_flows_in_the_way() {
        let Commands { server, client, .. } = commands("sobas-fig1-4", 0, "128 KB");
        assert!(client.contains("sleep 1; bufwise get ftp://198.18.0.2:5201/file"), "{client}");
        assert!(client.contains("-p 5202 -t 22 -R"), "it lasts longer than the file may take: {client}");
        assert!(
            server.contains("truncate -s 31250000") && server.contains("iperf3 -s -1 -p 5202"),
            "{server}"
        );
    }

    #[test]
    fn files_are_fetched_when_their_time_comes() {
        let client = commands("path-fig1-3", 0, "probes").client;
        assert!(client.starts_with("{ sleep 1; bufwise get ftp://198.18.0.2:5201/file -o got0"), "{client}");
        assert!(client.contains("sleep 41; bufwise get ftp://198.18.0.2:5205/file -o got4"), "{client}");
    }

    #[test]
    fn others_have_servers_of_their_own() {
        let catalogue = super::super::catalogue();
        let experiment = catalogue.iter().find(|experiment| experiment.id == "fit-harm").unwrap();
        let case = experiment.cases.iter().position(|case| case.name == "beside BBR").unwrap();
        let Commands { server, client, .. } = commands("fit-harm", case, "fit at both");
        let run = "bufwise run --policy fit,kernel -- sh -c 'iperf3 -s -1 -p 5201'";
        assert_eq!(server, format!("{{ iperf3 -s -1 -p 5202 ; }} & {{ {run} ; }} & wait"));
        assert!(client.contains("-p 5202 -t 30 -R -C bbr -J"), "{client}");
        assert!(client.contains("bufwise run --policy kernel,fit --json"), "{client}");
    }

    #[test]
    fn programs_of_ones_own_know_the_server_and_the_port() {
        let program = Program { server: "serve 'it' $PORT", client: "fetch $SERVER" };
        let flow = Flow {
            amount: Amount::Program(program, 5, 5),
            delay: Nanos::from_millis(2_500),
            path: 1,
            ..Flow::default()
        };
        let catalogue = super::super::catalogue();
        let mut experiment =
            catalogue.iter().find(|experiment| experiment.id == "abt-fig7-8").unwrap().clone();
        experiment.cases[0].flows = vec![flow];
        experiment.cases[0].paths.push(path(1, 1));
        let method = Method { client: Some("fit"), ..Method::default() };
        let Commands { server, client, .. } =
            Commands::shown(&experiment, &experiment.cases[0], &method, false);
        assert_eq!(server, r"PORT=5201 sh -c 'serve '\''it'\'' $PORT'");
        let run = "bufwise run --policy fit --memory 2097152B --json run.json -- sh -c 'sleep 2.5; begin=$(date +%s%N); ";
        let fetch = r"SERVER=198.18.1.2 PORT=5201 timeout 35 sh -c '\''fetch $SERVER'\'' >/dev/null && ";
        assert!(client.starts_with(&format!("{run}{fetch}")), "{client}");
        assert!(client.ends_with(">flow0.json'"), "{client}");
    }

    #[test]
    fn documents_of_several_sizes_start_when_their_time_comes() {
        let amount = Amount::Requests(9_000, 10, 5);
        let flow = Flow { amount, sizes: vec![2_000, 30_000], delay: Nanos::from_secs(3), ..Flow::default() };
        let catalogue = super::super::catalogue();
        let mut experiment = catalogue.iter().find(|experiment| experiment.id == "no-harm").unwrap().clone();
        experiment.cases[0].flows = vec![flow];
        let case = &experiment.cases[0];
        let Commands { server, client, .. } = Commands::shown(&experiment, case, &Method::default(), true);
        assert_eq!(server, "bufwise lab document --serve 2000,30000 --port 5201");
        let request = "bufwise lab document --request-for 5 --host 198.18.0.2 --port 5201 >flow0.json";
        assert_eq!(client, format!("sleep 3; {request}"));
    }

    #[test]
    fn paths_that_begin_elsewhere_have_clients_of_their_own() {
        let catalogue = super::super::catalogue();
        let mut experiment =
            catalogue.iter().find(|experiment| experiment.id == "abt-fig7-8").unwrap().clone();
        let from = |name: &str| PathSpec { from: Some(name.to_owned()), ..path(10, 20) };
        let case = &mut experiment.cases[0];
        case.paths = vec![path(10, 20), from("C"), from("C")];
        let flow = |path| Flow { path, ..Flow::default() };
        case.flows = vec![flow(2), flow(0), Flow { cross: true, ..flow(1) }];
        let method = Method { client: Some("abt"), ..Method::default() };
        let shown = Commands::shown(&experiment, &experiment.cases[0], &method, false);
        assert_eq!(shown.client.matches("bufwise run").count(), 1, "{shown:?}");
        assert!(shown.client.contains("--json run.json") && shown.client.contains("-c 198.18.0.2 -p 5202"));
        let [there] = &shown.elsewhere[..] else { panic!("{shown:?}") };
        assert_eq!((there.path, there.host.as_str()), (1, "C"));
        let (cross, own) = there.client.split_once("bufwise run").unwrap();
        assert!(cross.contains("-c 198.18.1.2 -p 5203") && own.contains("--json run-1.json"), "{there:?}");
        assert!(own.contains("-c 198.18.2.2 -p 5201"), "{there:?}");
    }

    #[test]
    fn a_server_of_probes_can_listen_on_the_host_of_every_path() {
        let catalogue = super::super::catalogue();
        let experiment = catalogue.iter().find(|experiment| experiment.id == "probe-grid").unwrap();
        let mut case = experiment.cases[0].clone();
        let server = |case: &Case| Commands::shown(experiment, case, &Method::default(), false).server;
        assert_eq!(server(&case), "bufwise probe --serve 198.18.0.2:5201");
        case.paths.push(path(10, 20));
        assert_eq!(server(&case), "bufwise probe --serve 0.0.0.0:5201");
        case.setup.ipv6 = true;
        assert_eq!(server(&case), "bufwise probe --serve [::]:5201");
    }

    #[test]
    fn flows_may_go_over_ipv6() {
        let catalogue = super::super::catalogue();
        let experiment = catalogue.iter().find(|experiment| experiment.id == "fit-harm").unwrap();
        let case = experiment.cases.iter().position(|case| case.name == "IPv6").unwrap();
        assert!(commands("fit-harm", case, "kernel").client.contains("iperf3 -c fd00:b:0:0::2 -p 5201"));
    }
}
