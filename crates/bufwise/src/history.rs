//! `bufwise history`: the last hour as the daemon kept it, and why it was slow at a time of it.

mod past;
mod subject;
mod table;
mod when;

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use bufwise_host::address::Pattern;
use bufwise_host::control::{self, Reply, Request};
use bufwise_host::daemon;
use bufwise_host::history::{History, Moment, Query};
use bufwise_host::netns;
use chrono::{DateTime, Local};
use clap::Args;

use crate::exit::{FAILED, Failure, Outcome};
use crate::ls::Subject;
use crate::output;
use past::Past;
use when::{When, readable};

/// Largest distance between a time that is asked for and the moment that answers it, in seconds.
const NEAR: u64 = 60;
/// The same for a moment whose interval contains that time: with very many connections samples are minutes apart.
const FAR: u64 = 900;

/// Show the last hour as the daemon kept it; with --at, say why it was slow then
///
/// The daemon keeps a sample every ten seconds: the 40 connections that moved most, 10 others that held most memory, and the sums of
/// all connections by the peer's network (/24 or /48) and by cgroup. Connections that live for less than ten seconds may be missed.
/// Only root, or the daemon's user, may ask.
#[derive(Debug, Args)]
#[command(after_help = "Example: bufwise history --at 14:05")]
pub(crate) struct HistoryArgs {
    /// Only this peer (198.18.0.2:443, an address, a port, or 198.18.0.0/24), or this cgroup (/system.slice/nginx.service)
    #[arg(value_name = "PEER|CGROUP")]
    subject: Option<Subject>,
    /// Begin at this time: 30m ago (30m), at 14:00 (14:00), or on a day (2026-11-23T14:00)
    #[arg(long, value_name = "TIME")]
    since: Option<When>,
    /// Say why it was slow at this time, in the sentences of explain; times as for --since, but not together with it
    #[arg(long, value_name = "TIME", conflicts_with = "since")]
    at: Option<When>,
    /// Write the samples as JSON, into this file; - or none for standard output
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    json: Option<PathBuf>,
    /// Control socket of the daemon; default the one that /etc/bufwise/bufwise.toml names, or /run/bufwise/control
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
}

impl HistoryArgs {
    pub(crate) fn run(self) -> Outcome {
        if let Some(json) = &self.json {
            if self.subject.is_none() {
                output::check_no_filter(json, |word| word.parse::<Pattern>().is_ok())?;
            }
            output::check_writable(json)?;
        }
        let now = Local::now();
        match self.at {
            Some(at) => self.explain(at, &now)?,
            None => self.show(&now)?,
        }
        Ok(0)
    }

    fn ask(&self, query: Query) -> Result<History> {
        let socket = self.socket.clone().unwrap_or_else(daemon::configured_socket);
        let history = ask(&socket, query)?;
        if history.oldest_s.is_none() {
            bail!("the daemon has no history yet: it begins ten seconds after the daemon's start");
        }
        Ok(history)
    }

    /// Writes the tables, and the JSON, if requested.
    fn show(&self, now: &DateTime<Local>) -> Result<(), Failure> {
        let since_s = self.since.map(|since| since.seconds(now)).transpose().map_err(Failure::usage)?;
        let mut history = self.ask(Query { since_s, ..Query::default() })?;
        let Some(first) = history.moments.first() else {
            let newest = readable(history.newest_s.unwrap_or_default(), now);
            return Err(Failure::new(
                FAILED,
                format!("nothing was kept since then: the last sample was at {newest}"),
            ));
        };
        let mut note = String::new();
        let is_oldest = history.oldest_s == Some(first.time_s);
        if is_oldest && since_s.is_some_and(|since| since + NEAR < first.time_s) {
            note = format!("note: the history begins at {}\n", readable(first.time_s, now));
        }
        if let Some(subject) = &self.subject {
            history.moments.iter_mut().for_each(|moment| subject.narrow(moment));
            known(subject, &history.moments)?;
        }
        let tables = || tables(self.subject.as_ref(), &history.moments, &|time| readable(time, now)) + &note;
        output::both(self.json.as_deref(), &history, tables)?;
        Ok(())
    }

    /// Writes the sentences on one moment, and the JSON, if requested.
    fn explain(&self, at: When, now: &DateTime<Local>) -> Result<(), Failure> {
        let at = at.seconds(now).map_err(Failure::usage)?;
        let until = |span| {
            let (since_s, until_s) = (Some(at.saturating_sub(NEAR)), Some(at + span));
            self.ask(Query { since_s, until_s, ..Query::default() })
        };
        let mut history = until(NEAR)?;
        let may_be_later = history.oldest_s.is_some_and(|oldest| oldest <= at + FAR)
            && history.newest_s.is_some_and(|newest| newest > at + NEAR);
        if may_be_later && !history.moments.iter().any(|moment| contains(moment, at)) {
            history = until(FAR)?;
        }
        let Some(mut moment) = nearest(history.moments, at) else {
            let ends = [history.oldest_s, history.newest_s].map(|end| readable(end.unwrap_or_default(), now));
            let message = format!(
                "nothing was kept around {}: the history goes from {} to {}",
                readable(at, now),
                ends[0],
                ends[1]
            );
            return Err(Failure::new(FAILED, message));
        };
        if let Some(subject) = &self.subject {
            subject.narrow(&mut moment);
            known(subject, std::slice::from_ref(&moment))?;
        }
        let (when, groups) = (readable(moment.time_s, now), Past::groups(&moment));
        let (past, home) = (Past::of(moment), netns::own()?.label());
        output::both(self.json.as_deref(), &past, || past.to_text(&when, &home) + &groups)?;
        Ok(())
    }
}

fn ask(socket: &Path, query: Query) -> Result<History> {
    match control::ask(socket, &Request::History(query))? {
        Some(Reply::History(history)) => Ok(*history),
        Some(Reply::Error(error)) if error.contains("unknown variant") => {
            bail!("the daemon keeps no history: it is of an older version")
        }
        Some(Reply::Error(error)) => bail!("the daemon cannot give its history: {error}"),
        Some(_) => bail!("the daemon's answer is not a history"),
        None => bail!(
            "there is no daemon at {}, which would keep the history: bufwise daemon starts one",
            socket.display()
        ),
    }
}

/// Fails if none of the kept data belongs to the subject.
fn known(subject: &Subject, moments: &[Moment]) -> Result<(), Failure> {
    let is_known = |moment: &Moment| {
        !(moment.connections.is_empty() && moment.prefixes.is_empty() && moment.cgroups.is_empty())
    };
    if moments.iter().any(is_known) {
        return Ok(());
    }
    let name = subject.name();
    let message = match subject {
        Subject::Cgroup(_) => {
            format!("no connection of cgroup {name} was seen, or it was not among the largest")
        }
        _ => format!("no connection from or to {name} was seen, or it was not among the largest"),
    };
    Err(Failure::new(FAILED, message))
}

/// Returns the moment whose interval contains the time, or else the nearest one, which must be near.
fn nearest(moments: Vec<Moment>, at: u64) -> Option<Moment> {
    let distance = |moment: &Moment| (!contains(moment, at), moment.time_s.abs_diff(at));
    let nearest = moments.into_iter().min_by_key(distance);
    nearest.filter(|moment| contains(moment, at) || moment.time_s.abs_diff(at) <= NEAR)
}

/// Whether the moment's interval contains the time.
fn contains(moment: &Moment, at: u64) -> bool {
    at <= moment.time_s && moment.time_s as f64 - moment.interval_s <= at as f64
}

/// Returns the tables as text.
fn tables(subject: Option<&Subject>, moments: &[Moment], time: &dyn Fn(u64) -> String) -> String {
    let Some(subject) = subject else {
        return table::over_time(moments, |moment| moment.total.clone(), time)
            + &table::groups("PEERS OF", moments, |moment| &moment.prefixes)
            + &table::groups("CGROUP", moments, |moment| &moment.cgroups);
    };
    let has_connections = moments.iter().any(|moment| !moment.connections.is_empty());
    if has_connections && !matches!(subject, Subject::Cgroup(_)) {
        return table::connections(moments, time);
    }
    let sums = |moment: &Moment| table::added(&subject.name(), &subject.sums(moment));
    let names = moments.iter().flat_map(|moment| subject.sums(moment)).map(|sums| sums.name.as_str());
    let mut names: Vec<&str> = names.collect();
    names.sort_unstable();
    names.dedup();
    let note = match subject {
        Subject::Cgroup(_) => String::new(),
        _ => format!(
            "note: none of its connections was among the largest; these are sums of {}\n",
            names.join(", ")
        ),
    };
    table::over_time(moments, sums, time) + &note
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::ls::tests::connection_view;
    use bufwise_host::history::{Kept, Sums};
    use bufwise_host::judge::{Cause, Direction};
    use bufwise_host::view::{ConnectionView, PolicyNames, Tuned};

    /// A moment with a sender that fills a queue, a receiver with a slow program, and one connection that was not kept.
    pub(crate) fn moment(time_s: u64) -> Moment {
        let sender = ConnectionView {
            limited_by: Some(Cause::CongestionWindow),
            segments_out: 1_000,
            retransmits: 17,
            policy: Some(PolicyNames { send: "abt".to_owned(), receive: "sobas".to_owned() }),
            tuned: Some(Tuned { send_buffer_bytes: Some(4_000_000), ..Tuned::default() }),
            ..connection_view()
        };
        let receiver = ConnectionView {
            cookie: 2,
            peer: "198.18.7.7:80".parse().unwrap(),
            direction: Direction::Receive,
            goodput_bps: Some(1_000_000),
            limited_by: Some(Cause::Reader),
            ..connection_view()
        };
        let kept = |view, cgroup: &str, queueing_delay_s, retransmitted| Kept {
            view: ConnectionView { cgroup: Some(cgroup.to_owned()), ..view },
            queueing_delay_s,
            retransmitted,
        };
        let sums = |name: &str, connections, send_bps, receive_bps, limited_by| Sums {
            name: name.to_owned(),
            connections,
            send_bps,
            receive_bps,
            held_bytes: if send_bps > 0 { 100_000 } else { 0 },
            allowed_bytes: 4_100_000 * connections.min(2),
            retransmitted: if send_bps > 0 { 17 } else { 0 },
            srtt_s: (send_bps > 0).then_some(0.050),
            min_rtt_s: (send_bps > 0).then_some(0.040),
            limited_by: Some(limited_by),
        };
        let (busy, slow) = (Cause::CongestionWindow, Cause::Reader);
        Moment {
            time_s,
            interval_s: 10.0,
            budget_bytes: 1 << 20,
            memory_short: false,
            total: sums("", 3, 8_000_000, 1_000_000, busy),
            connections: vec![
                kept(sender, "/system.slice/rsync.service", Some(0.047), 17),
                kept(receiver, "/user.slice", None, 0),
            ],
            prefixes: vec![
                sums("198.18.0.0/24", 2, 8_000_000, 0, busy),
                sums("198.18.7.0/24", 1, 0, 1_000_000, slow),
            ],
            cgroups: vec![
                sums("/system.slice/rsync.service", 2, 8_000_000, 0, busy),
                sums("/user.slice", 1, 0, 1_000_000, slow),
            ],
        }
    }

    fn shown(subject: &str) -> Result<String, String> {
        let subject: Subject = subject.parse().unwrap();
        let mut moments = vec![moment(10), moment(20)];
        moments.iter_mut().for_each(|moment| subject.narrow(moment));
        known(&subject, &moments).map_err(|error| error.to_string())?;
        Ok(tables(Some(&subject), &moments, &|time| time.to_string()))
    }

    #[test]
    fn a_peer_that_was_not_kept_is_in_the_sums_of_its_prefix() {
        let text = shown("198.18.0.2").unwrap();
        assert!(text.starts_with("TIME  PEER ") && !text.contains("198.18.7.7"), "{text}");
        let text = shown("198.18.0.99").unwrap();
        assert!(text.starts_with("TIME  CONNS") && text.contains("sums of 198.18.0.0/24\n"), "{text}");
        let error = shown("203.0.113.1").unwrap_err();
        assert_eq!(error, "no connection from or to 203.0.113.1 was seen, or it was not among the largest");
    }

    #[test]
    fn a_cgroups_history_is_that_of_all_below_it() {
        let text = shown("/system.slice").unwrap();
        assert!(text.contains("8.0M") && text.contains("198.18.0.2:443") && !text.contains("1.0M"), "{text}");
        assert!(shown("/").unwrap().contains("1.0M"));
        assert!(shown("/machine.slice").unwrap_err().contains("cgroup /machine.slice"));
    }

    #[test]
    fn the_moment_of_a_time_is_the_one_that_ends_next_or_the_nearest() {
        let at = |at| nearest(vec![moment(10), moment(20), moment(30)], at).map(|one| one.time_s);
        assert_eq!([9, 10, 11, 29, 31].map(at), [Some(10), Some(10), Some(20), Some(30), Some(30)]);
        let gap = |at| nearest(vec![moment(10), moment(60)], at).map(|one| one.time_s);
        assert_eq!([12, 49, 51].map(gap), [Some(10), Some(60), Some(60)]);
        let rare = |at| {
            let long = Moment { interval_s: 300.0, ..moment(400) };
            nearest(vec![moment(50), long], at).map(|one| one.time_s)
        };
        assert_eq!([90, 105, 300, 461].map(rare), [Some(50), Some(400), Some(400), None]);
        assert_eq!(nearest(Vec::new(), 7), None);
    }
}
