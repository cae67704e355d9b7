//! `bufwise top`: the connections of `ls`, live.
//!
//! A thread samples them ([`source`]) at the interval of [`pace`]; [`state`] holds the samples, their order, and the
//! last minute of each connection; [`draw`] makes the picture from that alone; only [`show`] uses the terminal. `web`
//! shows the same from the same parts.

pub(crate) mod columns;
pub(crate) mod detail;
mod draw;
pub(crate) mod history;
pub(crate) mod keys;
mod lines;
pub(crate) mod news;
pub(crate) mod pace;
mod show;
pub(crate) mod source;
mod state;

use std::env;
use std::io::{IsTerminal, stdin, stdout};

use bufwise_host::netns;
use bufwise_units::Micros;
use clap::Args;

use crate::exit::{Failure, Outcome};
use crate::ls::LsArgs;
pub(crate) use crate::ls::groups;

/// Watch connections live: the rows of ls, each with the last minute of its rate
///
/// Keys sort, filter, group and leave; the last line names them. Loopback, and idle connections that waste nothing, are shown only
/// with --all or the key a. It changes nothing. Without root it shows this network namespace, with root every one.
#[derive(Debug, Args)]
#[command(
    after_help = "Keys: r m w o t l p e sort (rate, memory, waste, RTT over base, RTT, limit, process, peer), / filters, \
a shows loopback and idle connections, g groups (process, peer, prefix, cgroup, group, namespace, none), arrows choose, Enter opens, \
q or Esc leaves.

Example: bufwise top --group cgroup --sort waste"
)]
pub(crate) struct TopArgs {
    #[command(flatten)]
    list: LsArgs,
    /// Print one table, as ls does, and end; --json writes one document and ends
    #[arg(long)]
    once: bool,
    /// Time between two samples, 1s to 60s, without effect on --once and --json; default 1s, and more where samples of many
    /// connections would take more than 1% of a processor
    #[arg(long, value_name = "TIME", value_parser = interval)]
    interval: Option<Micros>,
}

impl TopArgs {
    pub(crate) fn run(self) -> Outcome {
        if self.once || self.list.json.is_some() {
            return self.list.run();
        }
        if self.list.budget {
            return Err(Failure::usage("top shows the daemon's memory as bars; --budget needs --once"));
        }
        // As in an editor's shell, which shows the sequences that move a cursor as text.
        let is_dumb = env::var_os("TERM").is_some_and(|name| name == "dumb");
        if is_dumb || !stdin().is_terminal() || !stdout().is_terminal() {
            let which = if is_dumb { " other than TERM=dumb" } else { "" };
            return Err(Failure::usage(format!(
                "top needs a terminal{which}; top --once prints one table, --json one document"
            )));
        }
        let home = netns::own()?.label();
        let mut state = state::State::new(&self.list, home);
        show::run(&mut state, self.list, pace::Pace::new(self.interval))
    }
}

/// Parses the sampling interval, 1 s to 60 s.
pub(crate) fn interval(text: &str) -> Result<Micros, String> {
    let time: Micros = text.parse().map_err(|error: bufwise_units::ParseError| error.to_string())?;
    let sane = Micros::from_secs(1)..=Micros::from_secs(60);
    if sane.contains(&time) { Ok(time) } else { Err("an interval is 1s to 60s".to_owned()) }
}
