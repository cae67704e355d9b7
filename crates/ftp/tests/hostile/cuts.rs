//! A control connection that is cut at any byte, and a data connection that accepts no bytes.

use std::io::Read;
use std::net::Shutdown;

use bufwise_ftp::client::ClientError;
use bufwise_mover::MoveError;

use crate::support::{Client, SHORT, Scripted, patiently, pattern};

#[test]
fn a_control_connection_that_is_cut_at_any_byte_leaves_no_half_file() {
    const MOST: usize = 1_000;
    let mut whole = 0;
    for budget in 0..MOST {
        let server = Scripted::new(pattern(2_000), move |talk, line| {
            if line.is_empty() {
                talk.budget = Some(budget);
                if budget == 0 {
                    return Ok(false);
                }
            }
            let going = talk.usual(line)?;
            if !going {
                talk.control.tcp().shutdown(Shutdown::Both)?;
            }
            Ok(going)
        });
        let client = Client::of(&server);
        match client.get() {
            Ok(_) => {
                whole += 1;
                assert_eq!(client.got(), *server.content, "after {budget} bytes");
            }
            Err(error) => {
                assert!(!client.path().exists(), "after {budget} bytes: {error}");
                assert!(
                    error.is_transient() || matches!(error, ClientError::Wire(_)),
                    "after {budget} bytes: {error}"
                );
            }
        }
        if whole > 12 {
            assert!(budget > 100, "the whole session has some replies");
            return;
        }
    }
    panic!("no session of {MOST} bytes was whole");
}

#[test]
fn a_server_that_takes_no_data_is_given_up() {
    let server = Scripted::new(Vec::new(), |talk, line| {
        if !line.starts_with("STOR") {
            return talk.usual(line);
        }
        let data = talk.data()?;
        talk.say("150 go")?;
        // Until the client gives up.
        let _given_up = patiently(|| talk.control.read(&mut [0]));
        drop(data);
        Ok(false)
    });
    let mut client = Client::of(&server);
    // Only the data has so little time: on a machine that stands still, an answer may take longer.
    client.settings.idle = SHORT;
    let error = client.put(&pattern(20_000_000)).unwrap_err();
    assert!(matches!(error, ClientError::Move(MoveError::Idle { .. })), "{error}");
}
