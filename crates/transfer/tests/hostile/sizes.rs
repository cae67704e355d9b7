//! Sizes that are not those of the file, and files that are not those of before.

use std::io::Write;

use bufwise_transfer::client::ClientError;
use bufwise_transfer::mover::MoveError;

use crate::support::{Client, Scripted, pattern};

fn sized(size: &'static str) -> Scripted {
    Scripted::new(
        pattern(200_000),
        move |talk, line| {
            if line.starts_with("SIZE") { talk.say(size) } else { talk.usual(line) }
        },
    )
}

#[test]
fn a_file_of_another_size_than_was_said_is_no_success() {
    for size in ["213 200001", "213 9223372036854775807", "213 199999", "213 0"] {
        let error = Client::of(&sized(size)).fails();
        let of_size = matches!(error, ClientError::Size { .. } | ClientError::Move(MoveError::Length { .. }));
        assert!(of_size, "{size}: {error}");
    }
}

#[test]
fn a_size_that_is_none_is_as_if_it_were_not_said() {
    for size in ["213 many", "213 -5", "213 99999999999999999999999", "213", "500 what?", "550 no"] {
        let server = sized(size);
        let client = Client::of(&server);
        client.get().unwrap_or_else(|error| panic!("{size}: {error}"));
        assert_eq!(client.got(), *server.content, "{size}");
    }
}

#[test]
fn a_refusal_in_the_middle_is_told_and_nothing_has_the_name() {
    for last in ["451 disk error", "426 cut", "552 too much", "550 changed my mind"] {
        let server = Scripted::new(pattern(300_000), move |talk, line| {
            if !line.starts_with("RETR") {
                return talk.usual(line);
            }
            let mut data = talk.data()?;
            talk.say("150 here")?;
            data.write_all(&talk.rest()[..150_000])?;
            drop(data);
            talk.say(last)
        });
        let error = Client::of(&server).fails();
        let told =
            matches!(&error, ClientError::Refused { reply, .. } if last.starts_with(&reply.code.to_string()));
        assert!(told, "{last}: {error}");
    }
}

#[test]
fn a_completion_of_less_than_the_file_is_no_success() {
    let server = Scripted::new(pattern(300_000), |talk, line| {
        if !line.starts_with("RETR") {
            return talk.usual(line);
        }
        let mut data = talk.data()?;
        talk.say("150 here")?;
        data.write_all(&talk.rest()[..299_999])?;
        drop(data);
        talk.say("226 all of it, believe me")
    });
    let error = Client::of(&server).fails();
    assert!(matches!(error, ClientError::Size { .. } | ClientError::Move(_)), "{error}");
}
