//! The life of a split connection.
//!
//! | event                    | `Dialling`                        | `Relaying`                                      | `Settling`            |
//! |--------------------------|-----------------------------------|-------------------------------------------------|-----------------------|
//! | near FIN                 | kept; passed once the far leg is up | passed after the last byte¹                   | –                     |
//! | far FIN                  | –                                 | passed after the last byte¹                     | –                     |
//! | near RST                 | far leg given up                  | far leg reset                                   | far leg reset         |
//! | far RST                  | near leg reset (refused)          | near leg reset                                  | near leg reset²       |
//! | far unreachable, timeout | near leg reset                    | near leg reset                                  | near leg reset²       |
//! | both FINs passed         | –                                 | → `Settling`                                    |                       |
//! | both legs acknowledged   | –                                 | –                                               | ends `Finished`       |
//!
//! ¹ A clean close means delivered: an end that has sent its own FIN and then reads end of file may conclude that the other
//! end's TCP has acknowledged every byte and that FIN. So a FIN is passed on to an end that has finished sending only when
//! the opposite leg has nothing left unacknowledged. To an end that has not finished sending it passes at once: half-close
//! works as ever. When both ends finish before either has been told of the other, one must be told first: it is told when the
//! other has acknowledged all its bytes, its FIN then follows.
//!
//! ² Where it still has a connection to reset.

use crate::{
    config::Config,
    ending::Ending,
    intercept::Arrival,
    leg::{Shares, choose_controller, dial},
    meter::{DirectionStats, FlowStats},
    relay::{Direction, Fault, Pumped, Tools},
    sys,
};
use rustix::fd::{AsFd, BorrowedFd};
use socket2::Socket;
use std::{
    io,
    net::{Shutdown, SocketAddr},
    time::Instant,
};

/// Where a connection is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Life {
    /// The near leg is open, the far leg is connecting.
    Dialling,
    /// Bytes move.
    Relaying,
    /// Both FINs have been passed on; the last acknowledgements are awaited.
    Settling,
}

/// One of the two legs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Near,
    Far,
}

/// What epoll said of a socket.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Events {
    pub(crate) readable: bool,
    pub(crate) writable: bool,
    /// The peer's FIN has come.
    pub(crate) hung_up: bool,
    pub(crate) failed: bool,
    pub(crate) urgent: bool,
}

/// What a connection wants after an event.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Wants {
    /// Another turn, after the others.
    pub(crate) again: bool,
    /// The near socket watched from now on.
    pub(crate) watch_near: bool,
    /// A fresh look by epoll at the near or the far socket.
    pub(crate) look_near: bool,
    pub(crate) look_far: bool,
    /// Another turn in a moment: it waits for something that raises no event.
    pub(crate) tick: bool,
}

/// A split connection: two legs, two directions. Dropping it resets whatever of it is still open.
#[derive(Debug)]
pub(crate) struct Connection {
    near: Socket,
    far: Socket,
    client: SocketAddr,
    server: SocketAddr,
    life: Life,
    born: Instant,
    /// Whether epoll watches the near socket: not before the far leg is up, if that is soon.
    pub(crate) watches_near: bool,
    /// Whether it is among those that want a turn, or a tick.
    pub(crate) in_again: bool,
    pub(crate) in_ticking: bool,
    /// From near to far.
    up: Direction,
    /// From far to near.
    down: Direction,
}

impl Connection {
    /// Begins to dial the far leg of a connection that came in. A failure resets the near leg.
    pub(crate) fn begin(config: &Config, arrival: Arrival, now: Instant) -> Result<Self, Ending> {
        let Arrival { socket: near, client, server, keep_source } = arrival;
        let shares = config.buffer.map(|buffer| Shares::of(buffer.0 as usize));
        let profile = config.profile(client.ip(), &config.near);
        let far = choose_controller(&near, profile)
            .and_then(|()| dial(config.profile(server.ip(), &config.far), shares, keep_source.then_some(client), server));
        let far = match far {
            Ok(far) => far,
            Err(why) => {
                let out_of_descriptors = matches!(why.raw_os_error(), Some(libc::EMFILE | libc::ENFILE));
                return Err(if out_of_descriptors { Ending::NoRoom } else { Ending::FarNotReached(why.kind()) });
            }
        };
        Ok(Connection {
            near,
            far,
            client,
            server,
            life: Life::Dialling,
            born: now,
            watches_near: false,
            in_again: false,
            in_ticking: false,
            up: Direction::new(shares, now),
            down: Direction::new(shares, now),
        })
    }

    pub(crate) fn socket(&self, side: Side) -> &Socket {
        match side {
            Side::Near => &self.near,
            Side::Far => &self.far,
        }
    }

    /// Whether the far leg is still connecting.
    pub(crate) fn is_dialling(&self) -> bool {
        self.life == Life::Dialling
    }

    /// When the connection came in.
    pub(crate) fn born(&self) -> Instant {
        self.born
    }

    /// Takes in what epoll said of one leg, then moves what can be moved. An error is how the connection ended.
    pub(crate) fn on_events(&mut self, side: Side, events: Events, tools: &mut Tools) -> Result<Wants, Ending> {
        let (source_of, destination_of) = match side {
            Side::Near => (&mut self.up, &mut self.down),
            Side::Far => (&mut self.down, &mut self.up),
        };
        source_of.readable |= events.readable || events.failed;
        source_of.hung_up |= events.hung_up;
        source_of.urgent |= events.urgent;
        destination_of.writable |= events.writable || events.failed;
        if events.failed
            && let Some(why) = self.take_error(side)
        {
            return Err(self.failed(side, &why));
        }
        if self.life == Life::Dialling {
            if side == Side::Near || !events.writable || events.failed {
                return Ok(Wants::default());
            }
            self.life = Life::Relaying;
            if !self.watches_near {
                // Its first event tells what it has brought meanwhile.
                return Ok(Wants { watch_near: true, ..Wants::default() });
            }
        }
        self.proceed(tools)
    }

    /// Moves what can be moved, passes on what has ended.
    pub(crate) fn proceed(&mut self, tools: &mut Tools) -> Result<Wants, Ending> {
        let mut wants = Wants::default();
        if self.life == Life::Dialling {
            return Ok(wants);
        }
        let up = self.up.pump(self.near.as_fd(), self.far.as_fd(), tools).map_err(|fault| self.faulted(Side::Near, fault))?;
        let down = self.down.pump(self.far.as_fd(), self.near.as_fd(), tools).map_err(|fault| self.faulted(Side::Far, fault))?;
        wants.again = up == Pumped::Again || down == Pumped::Again;
        wants.look_far = up == Pumped::WaitsForRoom;
        wants.look_near = down == Pumped::WaitsForRoom;
        wants.tick = self.up.lingers || self.down.lingers;
        self.pass_fins(&mut wants)?;
        if self.up.passed && self.down.passed {
            self.life = Life::Settling;
            if self.acknowledged(Side::Near)? && self.acknowledged(Side::Far)? {
                return Err(Ending::Finished);
            }
        }
        Ok(wants)
    }

    /// A moment has passed without an event that it may have waited for.
    pub(crate) fn tick(&mut self, tools: &mut Tools) -> Result<Wants, Ending> {
        self.up.look_again(self.near.as_fd(), tools.now).map_err(|fault| self.faulted(Side::Near, fault))?;
        self.down.look_again(self.far.as_fd(), tools.now).map_err(|fault| self.faulted(Side::Far, fault))?;
        self.proceed(tools)
    }

    /// Passes on each end of file whose time has come.
    fn pass_fins(&mut self, wants: &mut Wants) -> Result<(), Ending> {
        for (from, to) in [(Side::Near, Side::Far), (Side::Far, Side::Near)] {
            let (this, opposite) = match from {
                Side::Near => (&self.up, &self.down),
                Side::Far => (&self.down, &self.up),
            };
            if !this.finished() || this.passed {
                continue;
            }
            let to_has_ended = opposite.ended || opposite.hung_up || sys::has_hung_up(self.socket(to));
            if to_has_ended && !self.delivered(from)? {
                // An acknowledgement of data alone raises no event.
                wants.tick |= !opposite.passed && opposite.finished();
                continue;
            }
            if let Err(why) = self.socket(to).shutdown(Shutdown::Write)
                && why.kind() != io::ErrorKind::NotConnected
            {
                return Err(self.failed(to, &why));
            }
            if from == Side::Near { self.up.passed = true } else { self.down.passed = true }
        }
        Ok(())
    }

    /// Whether `side`, which has finished sending, has acknowledged everything it can have been sent: all bytes, and the FIN
    /// where that has been passed on already.
    fn delivered(&self, side: Side) -> Result<bool, Ending> {
        let direction = if side == Side::Near { &self.down } else { &self.up };
        Ok(direction.finished() && self.acknowledged(side)?)
    }

    /// Whether `side` has acknowledged all it was given, a FIN too. What a reset threw away never counts as acknowledged.
    fn acknowledged(&self, side: Side) -> Result<bool, Ending> {
        sys::all_acknowledged(self.socket(side)).map_err(|why| self.failed(side, &why))
    }

    fn take_error(&self, side: Side) -> Option<io::Error> {
        self.socket(side).take_error().unwrap_or_else(Some)
    }

    /// The ending that an error on `side` makes.
    fn failed(&self, side: Side, why: &io::Error) -> Ending {
        match (side, self.life) {
            (Side::Near, _) => Ending::NearFailed(why.kind()),
            // A far end that refuses says so by another error: this one was reached, before we heard of it.
            (Side::Far, Life::Dialling) if why.kind() != io::ErrorKind::ConnectionReset => Ending::FarNotReached(why.kind()),
            (Side::Far, _) => Ending::FarFailed(why.kind()),
        }
    }

    /// The ending that a fault makes in the direction that comes from `from`.
    fn faulted(&self, from: Side, fault: Fault) -> Ending {
        let other = if from == Side::Near { Side::Far } else { Side::Near };
        match fault {
            Fault::Source(why) => self.failed(from, &why),
            Fault::Destination(why) => self.failed(other, &why),
            Fault::Own => Ending::NoRoom,
        }
    }

    /// Gives back what it borrowed.
    pub(crate) fn release(&mut self, tools: &mut Tools) {
        self.up.release(tools);
        self.down.release(tools);
    }

    /// The flow as it is now.
    pub(crate) fn stats(&self) -> FlowStats {
        let direction = |direction: &Direction, source: BorrowedFd<'_>, destination: BorrowedFd<'_>| DirectionStats {
            moved: direction.moved,
            received: rustix::io::ioctl_fionread(source).map_or(0, |bytes| bytes as usize),
            in_hand: direction.in_hand(),
            unsent: sys::unsent(destination).unwrap_or(0),
        };
        FlowStats {
            client: self.client,
            server: self.server,
            age: self.born.elapsed(),
            near: sys::tcp_info(&self.near).unwrap_or_default(),
            far: sys::tcp_info(&self.far).unwrap_or_default(),
            up: direction(&self.up, self.near.as_fd(), self.far.as_fd()),
            down: direction(&self.down, self.far.as_fd(), self.near.as_fd()),
        }
    }
}
