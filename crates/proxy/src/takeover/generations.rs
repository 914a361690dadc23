//! Earlier proxies that still drain: what they count belongs to the numbers of the present one.

use super::messages::{FromEarlier, ToEarlier};
use crate::{
    control::write_line,
    meter::{FlowView, Totals},
};
use serde::de::DeserializeOwned;
use std::{
    io::{self, ErrorKind, Read as _},
    os::{fd::OwnedFd, unix::net::UnixStream},
    time::{Duration, Instant},
};

/// Time limit for an answer of an earlier proxy.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);
/// The longest message of an earlier proxy, bytes.
const LONGEST: usize = 512 << 20;

/// A connection to an earlier proxy.
#[derive(Debug)]
struct Earlier {
    stream: UnixStream,
    /// Bytes that were read after the last message.
    rest: Vec<u8>,
}

/// The earlier proxies.
#[derive(Debug, Default)]
pub(crate) struct Generations {
    alive: Vec<Earlier>,
    /// Totals of those that have ended.
    past: Totals,
}

/// What has become of a connection.
enum Heard {
    Message(FromEarlier),
    /// Nothing yet.
    Silence,
    /// The process has ended without a word.
    Closed,
}

impl Earlier {
    /// The next message; waits for it until `deadline`.
    fn next(&mut self, deadline: Instant) -> Heard {
        let mut part = vec![0; 64 << 10];
        loop {
            if let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.rest.drain(..=end).collect();
                return serde_json::from_slice(&line).map_or(Heard::Closed, Heard::Message);
            }
            if self.rest.len() > LONGEST {
                return Heard::Closed;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            let prepared = self.stream.set_nonblocking(left.is_zero()).and_then(|()| match left.is_zero() {
                true => Ok(()),
                false => self.stream.set_read_timeout(Some(left)),
            });
            match prepared.and_then(|()| self.stream.read(&mut part)) {
                Ok(0) => return Heard::Closed,
                Ok(count) => self.rest.extend_from_slice(&part[..count]),
                Err(why) if why.kind() == ErrorKind::Interrupted => {}
                Err(why) if why.kind() == ErrorKind::WouldBlock && (left.is_zero() || Instant::now() >= deadline) => return Heard::Silence,
                Err(why) if why.kind() == ErrorKind::WouldBlock => {}
                Err(_) => return Heard::Closed,
            }
        }
    }
}

impl Generations {
    pub(crate) fn new(streams: impl IntoIterator<Item = UnixStream>, past: Totals) -> Self {
        Generations { alive: streams.into_iter().map(|stream| Earlier { stream, rest: Vec::new() }).collect(), past }
    }

    /// Adds a proxy that has just left.
    pub(crate) fn add(&mut self, stream: UnixStream) {
        self.alive.push(Earlier { stream, rest: Vec::new() });
    }

    /// Copies of the connections, for the next proxy.
    ///
    /// # Errors
    /// No descriptor is left.
    pub(crate) fn connections(&mut self) -> io::Result<Vec<OwnedFd>> {
        self.forget_ended();
        self.alive.iter().map(|earlier| earlier.stream.try_clone().map(OwnedFd::from)).collect()
    }

    /// Leaves the connections to the next proxy.
    pub(crate) fn leave(&mut self) {
        self.alive.clear();
        self.past = Totals::default();
    }

    /// The totals of those that have ended.
    pub(crate) fn past(&self) -> Totals {
        self.past.clone()
    }

    /// The number of those that still drain.
    pub(crate) fn count(&mut self) -> usize {
        self.forget_ended();
        self.alive.len()
    }

    /// Takes the totals of those that have ended.
    fn forget_ended(&mut self) {
        let past = &mut self.past;
        self.alive.retain_mut(|earlier| match earlier.next(Instant::now()) {
            Heard::Message(FromEarlier::Ended(totals)) => {
                *past += totals;
                false
            }
            // The answer to a query that had timed out.
            Heard::Message(FromEarlier::Answer(_)) | Heard::Silence => true,
            Heard::Closed => false,
        });
    }

    /// Asks all; leaves out those that do not answer.
    fn ask<T: DeserializeOwned>(&mut self, query: &ToEarlier) -> Vec<T> {
        self.forget_ended();
        let (past, mut answers) = (&mut self.past, Vec::new());
        self.alive.retain_mut(|earlier| {
            let deadline = Instant::now() + ANSWER_TIMEOUT;
            // One that has just ended has left its totals.
            let _ = earlier.stream.set_nonblocking(false).and_then(|()| write_line(&earlier.stream, query, deadline));
            match earlier.next(deadline) {
                Heard::Message(FromEarlier::Answer(value)) => {
                    answers.extend(serde_json::from_value(value).ok());
                    true
                }
                Heard::Message(FromEarlier::Ended(totals)) => {
                    *past += totals;
                    false
                }
                Heard::Silence => {
                    tracing::warn!("an earlier proxy, which drains, does not answer: its flows are not shown from now on");
                    false
                }
                Heard::Closed => false,
            }
        });
        answers
    }

    /// The flows of those that drain.
    pub(crate) fn flows(&mut self) -> Vec<FlowView> {
        self.ask::<Vec<FlowView>>(&ToEarlier::Flows).into_iter().flatten().collect()
    }

    /// The totals of all earlier proxies.
    pub(crate) fn totals(&mut self) -> Totals {
        let answers = self.ask::<Totals>(&ToEarlier::Totals);
        let mut totals = self.past.clone();
        answers.into_iter().for_each(|answer| totals += answer);
        totals
    }

    /// Has those that drain reset their flows and end.
    pub(crate) fn stop(&mut self) {
        self.ask::<serde_json::Value>(&ToEarlier::Stop);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        io::{BufRead as _, BufReader},
        thread,
    };

    fn totals(up: u64) -> Totals {
        Totals { up, ..Totals::default() }
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(20)
    }

    #[test]
    fn totals_of_a_proxy_stay_when_it_has_ended() {
        let (near, far) = UnixStream::pair().unwrap();
        let (silent, closed) = UnixStream::pair().unwrap();
        drop(closed);
        let mut all = Generations::new([near, silent], totals(100));
        assert_eq!(all.count(), 1, "one has closed its connection");
        let earlier = thread::spawn(move || {
            let mut queries = BufReader::new(far.try_clone().unwrap()).lines();
            assert_eq!(queries.next().unwrap().unwrap(), "\"totals\"");
            write_line(&far, &FromEarlier::Answer(serde_json::to_value(totals(10)).unwrap()), soon()).unwrap();
            // It ends before it reads the next query.
            write_line(&far, &FromEarlier::Ended(totals(11)), soon()).unwrap();
        });
        assert_eq!(all.totals().up, 110);
        earlier.join().unwrap();
        assert_eq!((all.totals().up, all.count(), all.totals().up), (111, 0, 111));
    }
}
