//! The answering side of the control socket: a thread that accepts, and one for each asker.

use super::protocol::{LONGEST_REQUEST, Request, is_name, read_line, socket_name, write_line};
use crate::{
    error::{ChangeError, StartError},
    gate::Change,
    meter::FlowView,
    running::Proxy,
    worker::sys,
};
use intercept::{
    OpenError,
    runtime_dir::{Access, ClaimError, ClaimedSocket, RuntimeDirs},
};
use rustix::{
    event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll},
    fd::OwnedFd,
    net::sockopt::socket_peercred,
    process::geteuid,
};
use std::{
    io,
    os::unix::net::{UnixListener, UnixStream},
    sync::{Arc, Weak},
    thread,
    time::{Duration, Instant},
};

/// Askers at once. Others wait until one of these has been answered, or its time is over.
const ASKERS: usize = 16;
/// How long an asker may take to send its request.
const REQUEST: Duration = Duration::from_secs(2);
/// How long it may take to receive the answer.
const ANSWER: Duration = Duration::from_secs(20);
/// The pause while there are no descriptors, or as many askers as may be.
const PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };

/// A control socket that is served. Dropping it closes and removes it.
#[derive(Debug)]
pub struct ControlSocket {
    waker: Arc<OwnedFd>,
    thread: Option<thread::JoinHandle<()>>,
    /// The name is free when this is dropped, after the thread has ended.
    _claim: Arc<ClaimedSocket>,
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        sys::signal(&self.waker);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Answers for `proxy`, by this name in the network namespace of the calling thread, until what it
/// returns is dropped. Where there is no directory for the socket it says so in the log and returns
/// none: the proxy splits connections without it.
pub fn serve(proxy: &Arc<Proxy>, name: &str) -> Result<Option<ControlSocket>, StartError> {
    let refused = |why: io::Error, cure| StartError::Open(OpenError::Listen { address: format!("the control socket {name:?}"), cure, why });
    if !is_name(name) {
        let cure = "give another name (--name): letters, digits, \"-\", \"_\" and \".\", at most 40";
        return Err(refused(io::ErrorKind::InvalidInput.into(), cure));
    }
    let unusual = "see that /proc is mounted and that this user may write to its runtime directory";
    let places = RuntimeDirs::of_thread().map_err(|why| refused(why, unusual))?;
    let claim = match places.claim(&socket_name(name), Access::Owner) {
        Ok(claim) => Arc::new(claim),
        Err(ClaimError::NoDirectory(path, why)) => {
            let path = path.display();
            tracing::warn!("no control socket, so that tandem flows and bypass cannot reach this proxy: cannot make {path}: {why}");
            return Ok(None);
        }
        Err(ClaimError::Taken) => {
            let cure = "another proxy in this network namespace has that name: stop it, or give this one another (--name)";
            return Err(refused(io::ErrorKind::AddrInUse.into(), cure));
        }
        Err(ClaimError::System(why)) => return Err(refused(why, unusual)),
    };
    let failed = OpenError::system;
    let waker = Arc::new(eventfd(0, EventfdFlags::CLOEXEC).map_err(|errno| failed("make an eventfd")(errno.into()))?);
    claim.listener.set_nonblocking(true).map_err(failed("watch the control socket"))?;
    let (proxy, socket, stop) = (Arc::downgrade(proxy), claim.clone(), waker.clone());
    let work = move || accept(&socket.listener, &stop, &proxy);
    let thread = thread::Builder::new().name("tandem-control".into()).spawn(work).map_err(failed("start the control socket's thread"))?;
    Ok(Some(ControlSocket { waker, thread: Some(thread), _claim: claim }))
}

/// Accepts until `stop` can be read.
fn accept(listener: &UnixListener, stop: &OwnedFd, proxy: &Weak<Proxy>) {
    let mut askers: Vec<thread::JoinHandle<()>> = Vec::new();
    // Whether it ended for `stop`.
    let wait = |on: Option<&UnixListener>, timeout: Option<&Timespec>| {
        let mut polled = vec![PollFd::new(stop, PollFlags::IN)];
        polled.extend(on.map(|listener| PollFd::new(listener, PollFlags::IN)));
        let _ = poll(&mut polled, timeout);
        !polled[0].revents().is_empty()
    };
    loop {
        askers.retain(|asker| !asker.is_finished());
        let ended = if askers.len() < ASKERS { wait(Some(listener), None) } else { wait(None, Some(&PAUSE)) };
        if ended {
            return;
        }
        if askers.len() >= ASKERS {
            continue;
        }
        let begun = listener.accept().and_then(|(asker, _)| begin(asker, proxy));
        match begun {
            Ok(asker) => askers.extend(asker),
            Err(why) if why.kind() == io::ErrorKind::WouldBlock => {}
            Err(why) => {
                tracing::debug!("control socket: {why}");
                if wait(None, Some(&PAUSE)) {
                    return;
                }
            }
        }
    }
}

/// Starts the thread of an asker that may ask.
fn begin(asker: UnixStream, proxy: &Weak<Proxy>) -> io::Result<Option<thread::JoinHandle<()>>> {
    let user = socket_peercred(&asker)?.uid;
    if !user.is_root() && user != geteuid() {
        // Nothing of it is read. The answer fits into the buffer of a new connection.
        let answer: Result<(), &str> = Err("only root and the proxy's own user may ask it");
        let _ = write_line(&asker, &answer, Instant::now() + Duration::from_millis(10));
        return Ok(None);
    }
    asker.set_nonblocking(false)?;
    let proxy = proxy.clone();
    let work = move || {
        if let Err(why) = answer(&proxy, &asker) {
            tracing::debug!("control socket: {why}");
        }
    };
    thread::Builder::new().name("tandem-asker".into()).spawn(work).map(Some)
}

fn answer(proxy: &Weak<Proxy>, asker: &UnixStream) -> io::Result<()> {
    let request = read_line(asker, LONGEST_REQUEST, Instant::now() + REQUEST);
    let request = match request {
        Ok(line) => serde_json::from_slice::<Request>(&line).map_err(|error| error.to_string()),
        Err(why) if why.kind() == io::ErrorKind::InvalidData => Err(why.to_string()),
        Err(why) => return Err(why),
    };
    // The proxy is held no longer than the answer takes to make: it ends when its last reference is
    // dropped.
    let answer = request.map_err(|error| format!("cannot understand the request: {error}")).and_then(|request| {
        let proxy = proxy.upgrade().ok_or("the proxy is ending")?;
        heed(&proxy, request).map_err(|error| error.to_string())
    });
    write_line(asker, &answer, Instant::now() + ANSWER)
}

fn heed(proxy: &Proxy, request: Request) -> Result<serde_json::Value, ChangeError> {
    let json = |value: serde_json::Result<serde_json::Value>| value.unwrap_or_default();
    Ok(match request {
        Request::Flows => json(serde_json::to_value(proxy.flows().iter().map(FlowView::of).collect::<Vec<_>>())),
        Request::Status => json(serde_json::to_value(proxy.status())),
        Request::Bypass => json(serde_json::to_value(proxy.bypass(Change::Nothing)?)),
        Request::BypassAdd(prefixes) => json(serde_json::to_value(proxy.bypass(Change::Add(prefixes))?)),
        Request::BypassRemove(prefixes) => json(serde_json::to_value(proxy.bypass(Change::Remove(prefixes))?)),
    })
}
