//! Earlier proxies that still drain: what they count belongs to the numbers of the present one.

use super::messages::{FromEarlier, ToEarlier};
use crate::{
    control::write_line,
    meter::{FlowView, Totals},
    worker,
};
use serde::de::DeserializeOwned;
use std::{
    io::{self, ErrorKind, Read as _},
    mem,
    os::{fd::OwnedFd, unix::net::UnixStream},
    time::{Duration, Instant},
};

/// Time limit for an answer of an earlier proxy, which waits for its workers as long itself.
const ANSWER_TIMEOUT: Duration = worker::ANSWER_TIMEOUT.saturating_add(Duration::from_secs(1));
/// The longest message of an earlier proxy, bytes.
const LONGEST: usize = 512 << 20;

/// A connection to an earlier proxy.
#[derive(Debug)]
struct Earlier {
    stream: UnixStream,
    /// Bytes that were read after the last message.
    rest: Vec<u8>,
    /// Its totals when it last told them.
    totals: Totals,
    /// Queries to which the answers have not come in time. They are to be discarded.
    unanswered: usize,
}

/// The earlier proxies.
#[derive(Debug, Default)]
pub(crate) struct Generations {
    alive: Vec<Earlier>,
    /// Totals of those that have ended.
    past: Totals,
}

/// What came of reading from an earlier proxy.
enum Received {
    Message(FromEarlier),
    /// Nothing yet.
    Nothing,
    /// The process closed the connection without its totals, or sent something else.
    Closed,
}

impl Earlier {
    fn new(stream: UnixStream) -> Self {
        Earlier { stream, rest: Vec::new(), totals: Totals::default(), unanswered: 0 }
    }

    /// The next message; waits for it until `deadline`.
    fn next(&mut self, deadline: Instant) -> Received {
        let mut part = vec![0; 64 << 10];
        loop {
            if let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.rest.drain(..=end).collect();
                return serde_json::from_slice(&line).map_or(Received::Closed, Received::Message);
            }
            if self.rest.len() > LONGEST {
                return Received::Closed;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            let prepared = self.stream.set_nonblocking(left.is_zero()).and_then(|()| match left.is_zero() {
                true => Ok(()),
                false => self.stream.set_read_timeout(Some(left)),
            });
            match prepared.and_then(|()| self.stream.read(&mut part)) {
                Ok(0) => return Received::Closed,
                Ok(count) => self.rest.extend_from_slice(&part[..count]),
                Err(why) if why.kind() == ErrorKind::Interrupted => {}
                Err(why) if why.kind() == ErrorKind::WouldBlock && (left.is_zero() || Instant::now() >= deadline) => {
                    return Received::Nothing;
                }
                Err(why) if why.kind() == ErrorKind::WouldBlock => {}
                Err(_) => return Received::Closed,
            }
        }
    }
}

impl Earlier {
    /// Reads what has come since the last query. Returns false if the process has ended; its totals
    /// are in `past` then.
    fn catch_up(&mut self, past: &mut Totals) -> bool {
        loop {
            match self.next(Instant::now()) {
                Received::Message(FromEarlier::Answer(_)) => self.unanswered = self.unanswered.saturating_sub(1),
                Received::Message(FromEarlier::Ended(totals)) => {
                    *past += totals;
                    return false;
                }
                Received::Closed => {
                    *past += mem::take(&mut self.totals).of_ended();
                    return false;
                }
                Received::Nothing => return true,
            }
        }
    }
}

impl Generations {
    pub(crate) fn new(streams: impl IntoIterator<Item = UnixStream>, past: Totals) -> Self {
        Generations { alive: streams.into_iter().map(Earlier::new).collect(), past }
    }

    /// Adds a proxy that has just left.
    pub(crate) fn add(&mut self, stream: UnixStream) {
        self.alive.push(Earlier::new(stream));
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
        self.alive.retain_mut(|earlier| earlier.catch_up(past));
    }

    /// Asks all. `take` gets each and its answer; those that do not answer in time are asked again
    /// the next time.
    fn ask<T: DeserializeOwned>(&mut self, query: &ToEarlier, mut take: impl FnMut(&mut Earlier, T)) {
        let past = &mut self.past;
        self.alive.retain_mut(|earlier| {
            if !earlier.catch_up(past) {
                return false;
            }
            // Another query would wait as long again.
            if earlier.unanswered > 0 {
                return true;
            }
            let deadline = Instant::now() + ANSWER_TIMEOUT;
            // One that has just ended has left its totals.
            let _ = earlier.stream.set_nonblocking(false).and_then(|()| write_line(&earlier.stream, query, deadline));
            match earlier.next(deadline) {
                Received::Message(FromEarlier::Answer(value)) => {
                    if let Ok(answer) = serde_json::from_value(value) {
                        take(earlier, answer);
                    }
                    true
                }
                Received::Nothing => {
                    tracing::warn!("an earlier proxy, which drains, does not answer: its flows are not shown, and its totals are not new");
                    earlier.unanswered += 1;
                    true
                }
                Received::Message(FromEarlier::Ended(totals)) => {
                    *past += totals;
                    false
                }
                Received::Closed => {
                    *past += mem::take(&mut earlier.totals).of_ended();
                    false
                }
            }
        });
    }

    /// The flows of those that drain.
    pub(crate) fn flows(&mut self) -> Vec<FlowView> {
        let mut flows = Vec::new();
        self.ask(&ToEarlier::Flows, |_, part: Vec<FlowView>| flows.extend(part));
        flows
    }

    /// The totals of all earlier proxies.
    pub(crate) fn totals(&mut self) -> Totals {
        self.ask(&ToEarlier::Totals, |earlier, totals| earlier.totals = totals);
        let mut totals = self.past.clone();
        self.alive.iter().for_each(|earlier| totals += earlier.totals.clone());
        totals
    }

    /// Has those that drain reset their flows and end. `deadline`: until when it may take.
    pub(crate) fn stop(&mut self, deadline: Instant) {
        for earlier in &self.alive {
            let deadline = deadline.min(Instant::now() + ANSWER_TIMEOUT);
            // It reads the query even if this process has ended by then.
            let _ = earlier.stream.set_nonblocking(false).and_then(|()| write_line(&earlier.stream, &ToEarlier::Stop, deadline));
        }
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

    #[test]
    fn a_late_answer_loses_no_totals() {
        let (near, far) = UnixStream::pair().unwrap();
        let mut all = Generations::new([near], totals(100));
        let answer = |up| write_line(&far, &FromEarlier::Answer(serde_json::to_value(totals(up)).unwrap()), soon()).unwrap();
        // It is here before the query.
        all.alive[0].unanswered = 1;
        answer(1);
        answer(10);
        assert_eq!((all.count(), all.alive[0].unanswered), (1, 0));
        let open = Totals { flows: 3, ..totals(20) };
        all.alive[0].totals = open;
        all.alive[0].unanswered = 1;
        assert_eq!((all.totals().up, all.totals().flows), (120, 3), "it is not asked again, and its last totals count");
        // It is killed.
        drop(far);
        assert_eq!((all.totals().up, all.totals().flows, all.count()), (120, 0, 0));
    }
}
