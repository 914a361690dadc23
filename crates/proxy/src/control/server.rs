//! The server side of the control socket: a thread that accepts, and one for each client.

use super::{
    line::{read_line, write_line},
    protocol::{DENIED, LONGEST_REQUEST, Request, STOPPING, is_name, socket_name},
};
use crate::{
    error::{ChangeError, ProxyStartError},
    gate::BypassChange,
    running::Proxy,
    takeover::Takeovers,
    worker::sys,
};
use intercept::{
    OpenError,
    peer::Peer,
    runtime_dir::{Access, ClaimError, ClaimedSocket, RuntimeDirs},
};
use rustix::{
    event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll},
    fd::OwnedFd,
    process::geteuid,
};
use std::{
    io,
    os::unix::net::{UnixListener, UnixStream},
    sync::{Arc, Mutex, PoisonError, Weak},
    thread,
    time::{Duration, Instant},
};

/// The most clients that are served at once. Others wait in the backlog.
const MAX_CLIENTS: usize = 16;
/// Time limit for receiving a request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);
/// Time limit for sending the answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);
/// Pause of accepting after an error, or at [`MAX_CLIENTS`].
const PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
/// Clients that fail or are refused are logged once in this time: they could fill the log.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// An open control socket. Dropping it closes and removes the socket.
#[derive(Debug)]
pub struct ControlSocket {
    waker: Arc<OwnedFd>,
    thread: Option<thread::JoinHandle<()>>,
    /// Dropped after the thread has ended, which frees the name.
    claim: Arc<ClaimedSocket>,
}

impl ControlSocket {
    /// Makes the name of a socket that was taken over belong to this process.
    pub(crate) fn keep(&self) {
        self.claim.keep();
    }
}

/// What the threads of clients need.
#[derive(Debug, Clone)]
struct Served {
    proxy: Weak<Proxy>,
    takeovers: Arc<Takeovers>,
    claim: Weak<ClaimedSocket>,
    failures: Arc<FailureLog>,
}

/// Logs clients that fail or are refused, and counts those for which there is no line.
#[derive(Debug, Default)]
struct FailureLog(Mutex<(Option<Instant>, u64)>);

impl FailureLog {
    fn add(&self, what: std::fmt::Arguments<'_>) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (last, omitted) = &mut *state;
        if last.is_some_and(|last| last.elapsed() < LOG_INTERVAL) {
            *omitted += 1;
            return;
        }
        *last = Some(Instant::now());
        match std::mem::take(omitted) {
            0 => tracing::warn!("control socket: {what}"),
            more => tracing::warn!("control socket: {what} ({more} more failed since the last such line)"),
        }
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        sys::signal(&self.waker);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Serves the control socket of `proxy` under this name, in the network namespace of the calling
/// thread, until the result is dropped: [`claim`], then [`serve_claimed`].
///
/// # Errors
/// As those.
pub fn serve(proxy: &Arc<Proxy>, name: &str, takeovers: Arc<Takeovers>) -> Result<Option<ControlSocket>, ProxyStartError> {
    serve_claimed(proxy, claim(name)?, takeovers)
}

/// A name of a control socket that belongs to this process, which does not answer yet. Dropping it
/// frees the name.
#[derive(Debug)]
pub struct ClaimedName(Arc<ClaimedSocket>);

/// Serves the control socket of `proxy` under a claimed name, until the result is dropped. Other
/// processes may take over by it. None: there is no name.
///
/// # Errors
/// [`OpenError::System`] when its thread cannot be started.
pub fn serve_claimed(
    proxy: &Arc<Proxy>,
    name: Option<ClaimedName>,
    takeovers: Arc<Takeovers>,
) -> Result<Option<ControlSocket>, ProxyStartError> {
    name.map(|ClaimedName(claim)| start(proxy, claim, takeovers)).transpose().map_err(ProxyStartError::from)
}

/// Claims the name of a control socket, in the network namespace of the calling thread. A proxy that
/// cannot get its name must not begin to accept connections. None: the socket's directory cannot be
/// made, which is logged; the proxy works without a control socket.
///
/// # Errors
/// [`ProxyStartError::Open`] when the name is invalid or taken, or the socket cannot be opened.
pub fn claim(name: &str) -> Result<Option<ClaimedName>, ProxyStartError> {
    let refused =
        |why: io::Error, cure| ProxyStartError::Open(OpenError::Listen { address: format!("the control socket {name:?}"), cure, why });
    if !is_name(name) {
        let cure = "give another name (--name) of at most 40 letters, digits, \"-\", \"_\" and \".\"";
        return Err(refused(io::ErrorKind::InvalidInput.into(), cure));
    }
    let system_cure = "mount /proc, and let this user write to its runtime directory";
    let places = RuntimeDirs::of_thread().map_err(|why| refused(why, system_cure))?;
    match places.claim(&socket_name(name), Access::Owner) {
        Ok(claim) => Ok(Some(ClaimedName(Arc::new(claim)))),
        Err(ClaimError::NoDirectory(path, why)) => {
            let path = path.display();
            tracing::warn!("no control socket, so that tandem flows and bypass cannot reach this proxy: cannot make {path}: {why}");
            Ok(None)
        }
        Err(ClaimError::Taken) => {
            let cure = "another proxy in this network namespace has that name: stop it, or give this one another (--name); only one can take \
                        routed connections";
            Err(refused(io::ErrorKind::AddrInUse.into(), cure))
        }
        Err(ClaimError::System(why)) => Err(refused(why, system_cure)),
    }
}

/// Serves a control socket that was taken over. Its name belongs to the other process until
/// [`ControlSocket::keep`].
///
/// # Errors
/// [`OpenError::System`] when its thread cannot be started.
pub(crate) fn take_over_control(proxy: &Arc<Proxy>, claim: ClaimedSocket, takeovers: Arc<Takeovers>) -> Result<ControlSocket, OpenError> {
    start(proxy, Arc::new(claim), takeovers)
}

fn start(proxy: &Arc<Proxy>, claim: Arc<ClaimedSocket>, takeovers: Arc<Takeovers>) -> Result<ControlSocket, OpenError> {
    let failed = OpenError::system;
    let waker = Arc::new(eventfd(0, EventfdFlags::CLOEXEC).map_err(|errno| failed("make an eventfd")(errno.into()))?);
    claim.listener.set_nonblocking(true).map_err(failed("watch the control socket"))?;
    let served = Served { proxy: Arc::downgrade(proxy), takeovers, claim: Arc::downgrade(&claim), failures: Arc::default() };
    let (socket, stop) = (claim.clone(), waker.clone());
    let work = move || accept(&socket.listener, &stop, &served);
    let thread = thread::Builder::new().name("tandem-control".into()).spawn(work).map_err(failed("start the control socket's thread"))?;
    Ok(ControlSocket { waker, thread: Some(thread), claim })
}

/// Accepts until `stop` becomes readable, or another process is in charge, which accepts from the
/// same socket.
fn accept(listener: &UnixListener, stop: &OwnedFd, served: &Served) {
    let mut clients: Vec<thread::JoinHandle<()>> = Vec::new();
    // Returns whether `stop` became readable.
    let wait = |on: Option<&UnixListener>, timeout: Option<&Timespec>| {
        let mut polled = vec![PollFd::new(stop, PollFlags::IN)];
        polled.extend(on.map(|listener| PollFd::new(listener, PollFlags::IN)));
        let _ = poll(&mut polled, timeout);
        !polled[0].revents().is_empty()
    };
    loop {
        clients.retain(|client| !client.is_finished());
        let stopped = if clients.len() < MAX_CLIENTS { wait(Some(listener), None) } else { wait(None, Some(&PAUSE)) };
        if stopped {
            return;
        }
        if clients.len() >= MAX_CLIENTS {
            continue;
        }
        if served.takeovers.has_left() {
            return;
        }
        let begun = listener.accept().and_then(|(client, _)| begin(client, served));
        match begun {
            Ok(client) => clients.extend(client),
            Err(why) if why.kind() == io::ErrorKind::WouldBlock => {}
            Err(why) => {
                served.failures.add(format_args!("cannot accept a client: {why}; trying again"));
                if wait(None, Some(&PAUSE)) {
                    return;
                }
            }
        }
    }
}

/// Starts the thread of a client, if its user is permitted.
fn begin(client: UnixStream, served: &Served) -> io::Result<Option<thread::JoinHandle<()>>> {
    let peer = Peer::of(&client)?;
    if !peer.user.is_root() && peer.user != geteuid() {
        served.failures.add(format_args!(
            "a request of {peer} is refused: only root and this proxy's user, {}, may use the socket",
            geteuid().as_raw()
        ));
        // Its request is not read. The answer fits into the buffer of a new connection.
        let answer: Result<(), &str> = Err(DENIED);
        let _ = write_line(&client, &answer, Instant::now() + Duration::from_millis(10));
        return Ok(None);
    }
    client.set_nonblocking(false)?;
    let served = served.clone();
    let work = move || {
        if let Err(why) = answer(&served, client) {
            served.failures.add(format_args!("cannot answer a request of {peer}: {why}"));
        }
    };
    thread::Builder::new().name("tandem-asker".into()).spawn(work).map(Some)
}

fn answer(served: &Served, client: UnixStream) -> io::Result<()> {
    let request = read_line(&client, LONGEST_REQUEST, Instant::now() + REQUEST_TIMEOUT);
    let request = match request {
        Ok(line) => serde_json::from_slice::<Request>(&line).map_err(|error| error.to_string()),
        Err(why) if why.kind() == io::ErrorKind::InvalidData => Err(why.to_string()),
        Err(why) => return Err(why),
    };
    if let Ok(Request::TakeOver(hello)) = &request {
        if let (Some(proxy), Some(claim)) = (served.proxy.upgrade(), served.claim.upgrade()) {
            served.takeovers.give(proxy, claim, client, hello);
        }
        return Ok(());
    }
    let _answering = matches!(request, Ok(Request::Restart)).then(|| served.takeovers.answering());
    // The reference to the proxy is kept only while the answer is made: the proxy ends when its
    // last reference is dropped.
    let answer = request.map_err(|error| format!("cannot understand the request: {error}")).and_then(|request| {
        if request == Request::Restart {
            return Ok(serde_json::to_value(served.takeovers.restart()?).unwrap_or_default());
        }
        if request == Request::Reload {
            return Ok(serde_json::to_value(served.takeovers.reload()?).unwrap_or_default());
        }
        let proxy = served.proxy.upgrade().ok_or(STOPPING)?;
        carry_out(&proxy, request).map_err(|error| error.to_string())
    });
    write_line(&client, &answer, Instant::now() + ANSWER_TIMEOUT)
}

fn carry_out(proxy: &Proxy, request: Request) -> Result<serde_json::Value, ChangeError> {
    let json = |value: serde_json::Result<serde_json::Value>| value.unwrap_or_default();
    Ok(match request {
        Request::Flows => json(serde_json::to_value(proxy.flow_views())),
        Request::Status => json(serde_json::to_value(proxy.status())),
        Request::Experiment => json(serde_json::to_value(proxy.experiment_view())),
        Request::Bypass => json(serde_json::to_value(proxy.bypass(BypassChange::Nothing)?)),
        Request::BypassAdd(prefixes) => json(serde_json::to_value(proxy.bypass(BypassChange::Add(prefixes))?)),
        Request::BypassRemove(prefixes) => json(serde_json::to_value(proxy.bypass(BypassChange::Remove(prefixes))?)),
        Request::TakeOver(_) | Request::Restart | Request::Reload => serde_json::Value::Null,
    })
}
