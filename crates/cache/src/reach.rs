//! Reaches one of several addresses of a server (RFC 8305).

use intercept::{AddressHistory, AddressRace};
use std::{
    future::poll_fn,
    io,
    net::SocketAddr,
    pin::Pin,
    task::Poll,
    time::{Duration, Instant},
};
use tokio::time::sleep_until;

/// Connects to one of these addresses, in the resolver's order. `dial` connects to one; dropping
/// its future closes the socket. `limit` is the time after which the caller gives up.
///
/// # Errors
/// The last failure, when all addresses have failed.
pub(crate) async fn reach<T, F>(
    addresses: Vec<SocketAddr>,
    history: &AddressHistory,
    limit: Duration,
    dial: impl Fn(SocketAddr) -> F,
) -> io::Result<T>
where
    F: Future<Output = io::Result<T>>,
{
    let mut race = AddressRace::new(addresses, history, limit, Instant::now());
    let mut open: Vec<(SocketAddr, Pin<Box<F>>)> = Vec::new();
    let mut failure = io::Error::other("the name has no address");
    loop {
        while let Some(next) = race.next(AddressRace::MOST_ATTEMPTS, Instant::now()) {
            open.retain(|(address, _)| Some(*address) != next.give_up);
            open.push((next.address, Box::pin(dial(next.address))));
        }
        if race.is_lost() {
            return Err(failure);
        }
        let due = race.due();
        let next_due = async {
            match due {
                Some(at) => sleep_until(at.into()).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            (address, outcome) = first_answer(&mut open) => match outcome {
                Ok(reached) => {
                    race.won(address, history, Instant::now());
                    return Ok(reached);
                }
                Err(why) => {
                    race.failed(address, Instant::now());
                    failure = why;
                }
            },
            () = next_due => {}
        }
    }
}

/// Waits for the first attempt that succeeds or fails, and removes it.
async fn first_answer<T, F: Future<Output = io::Result<T>>>(open: &mut Vec<(SocketAddr, Pin<Box<F>>)>) -> (SocketAddr, io::Result<T>) {
    poll_fn(|context| {
        for index in 0..open.len() {
            if let Poll::Ready(outcome) = open[index].1.as_mut().poll(context) {
                return Poll::Ready((open.remove(index).0, outcome));
            }
        }
        Poll::Pending
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{cell::RefCell, future::pending};

    fn address(last: u8) -> SocketAddr {
        SocketAddr::from(([192, 0, 2, last], 80))
    }

    /// Reaches one of two addresses; the outcome, and the addresses that were dialled.
    async fn reach_one(
        history: &AddressHistory,
        answer: impl Fn(SocketAddr) -> Option<io::Result<SocketAddr>> + Copy,
    ) -> (io::Result<SocketAddr>, Vec<SocketAddr>) {
        let dialled = RefCell::new(Vec::new());
        let dial = |address| {
            dialled.borrow_mut().push(address);
            async move {
                match answer(address) {
                    Some(answer) => answer,
                    None => pending().await,
                }
            }
        };
        let reached = reach(vec![address(1), address(2)], history, Duration::from_secs(30), dial).await;
        (reached, dialled.into_inner())
    }

    #[tokio::test]
    async fn a_silent_address_delays_the_first_connection_alone() {
        let history = AddressHistory::default();
        let answer = |it| (it == address(2)).then_some(Ok(it));
        let (reached, dialled) = reach_one(&history, answer).await;
        assert_eq!((reached.unwrap(), dialled), (address(2), vec![address(1), address(2)]));
        let (reached, dialled) = reach_one(&history, answer).await;
        assert_eq!((reached.unwrap(), dialled), (address(2), vec![address(2)]));
    }

    #[tokio::test]
    async fn the_last_failure_is_reported() {
        let refused = |it: SocketAddr| Some(Err(io::Error::other(it.to_string())));
        let (reached, dialled) = reach_one(&AddressHistory::default(), refused).await;
        assert_eq!((reached.unwrap_err().to_string(), dialled.len()), (address(2).to_string(), 2));
        let none: Vec<SocketAddr> = Vec::new();
        let reached = reach(none, &AddressHistory::default(), Duration::from_secs(30), |_| async { Ok(()) }).await;
        assert_eq!(reached.unwrap_err().to_string(), "the name has no address");
    }
}
