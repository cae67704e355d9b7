//! A server that says nothing any more, at any point.

use std::io::Write;
use std::thread;

use bufwise_transfer::client::ClientError;
use bufwise_transfer::mover::MoveError;

use crate::support::{Client, SOON, Scripted, pattern};

#[test]
fn a_server_that_falls_silent_is_given_up() {
    for silent in ["", "USER", "PASS", "FEAT", "TYPE", "SIZE", "EPSV", "RETR"] {
        let server = Scripted::new(pattern(1_000), move |talk, line| {
            let verb = line.split(' ').next().unwrap_or(line);
            if verb == silent { Ok(true) } else { talk.usual(line) }
        });
        let error = Client::hasty(&server).fails();
        let ClientError::Silent { during, .. } = &error else { panic!("{silent}: {error}") };
        assert!(during.contains(silent), "{during}");
    }
}

#[test]
fn data_that_stands_still_is_given_up() {
    let server = Scripted::new(pattern(1_000_000), |talk, line| {
        if !line.starts_with("RETR") {
            return talk.usual(line);
        }
        let mut data = talk.data()?;
        talk.say("150 here")?;
        let rest = talk.rest();
        data.write_all(&rest[..500_000])?;
        thread::sleep(SOON);
        drop(data);
        Ok(false)
    });
    let error = Client::hasty(&server).fails();
    assert!(matches!(error, ClientError::Move(MoveError::Idle { .. })), "{error}");
}

#[test]
fn a_completion_that_does_not_come_is_no_success() {
    let server = Scripted::new(pattern(1_000), |talk, line| {
        if !line.starts_with("RETR") {
            return talk.usual(line);
        }
        let mut data = talk.data()?;
        talk.say("150 here")?;
        data.write_all(&talk.rest())?;
        Ok(true)
    });
    let error = Client::hasty(&server).fails();
    assert!(matches!(error, ClientError::Silent { .. }), "{error}");
}

#[test]
fn a_server_that_takes_no_data_is_given_up() {
    let server = Scripted::new(Vec::new(), |talk, line| {
        if !line.starts_with("STOR") {
            return talk.usual(line);
        }
        let data = talk.data()?;
        talk.say("150 go")?;
        thread::sleep(SOON);
        drop(data);
        Ok(false)
    });
    let error = Client::hasty(&server).put(&pattern(20_000_000)).unwrap_err();
    assert!(matches!(error, ClientError::Move(MoveError::Idle { .. })), "{error}");
}
