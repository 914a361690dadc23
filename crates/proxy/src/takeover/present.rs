//! The side of the proxy that runs: it gives its sockets and rules to the next one.

use super::{
    launch::Launch,
    link::EarlierLink,
    messages::{Charge, FromNext, FromPresent, Hello, Offer, PROTOCOL, RestartReport},
    wire,
};
use crate::{
    config::ReloadReport,
    gate::HandoverDecision,
    running::{HandedRules, Proxy},
};
use intercept::{peer::Peer, runtime_dir::ClaimedSocket};
use rustix::{
    fd::{AsFd as _, BorrowedFd, OwnedFd},
    process::{Signal, pidfd_send_signal},
};
use std::{
    fmt,
    io::ErrorKind,
    net::TcpListener,
    os::unix::net::UnixStream,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        mpsc::{self, RecvTimeoutError},
    },
    time::{Duration, Instant},
};

/// Time limit for the start of the next proxy, which may load controllers and look names up.
const READY_TIMEOUT: Duration = Duration::from_secs(20);
/// Time limit for its answer when it gets the rules.
const TAKEN_TIMEOUT: Duration = Duration::from_secs(15);
const SEND_TIMEOUT: Duration = Duration::from_secs(5);
/// Time limit for a reload, which may load controllers.
const RELOAD_TIMEOUT: Duration = Duration::from_secs(15);

/// What a request of the control socket tells the program: a takeover, or a reload.
#[derive(Debug)]
pub enum ControlEvent {
    /// The next proxy is in charge; this one drains. The program closes its control socket and its
    /// metrics, waits until the proxy is idle, and calls [`EarlierLink::end`].
    Left(Arc<EarlierLink>),
    /// The next proxy ends, and this one is to reset its flows and end too.
    Stop,
    /// The program is to read its configuration again, and to answer what that has changed, or why
    /// nothing can be read.
    Reload(mpsc::Sender<Result<ReloadReport, String>>),
}

/// Whether a takeover may begin.
#[derive(Debug, Clone)]
pub(super) enum Phase {
    Open,
    /// One is in progress.
    Busy,
    /// This proxy has left, or ends.
    Left(RestartReport),
    Ending,
}

/// Takeovers from this process: at most one succeeds.
pub struct Takeovers {
    pub(super) launch: Option<Launch>,
    /// Copies of the listening sockets of the web servers.
    web: Vec<TcpListener>,
    on_event: Box<dyn Fn(ControlEvent) + Send + Sync>,
    phase: Mutex<Phase>,
    /// Why the last takeover failed.
    failure: Mutex<Option<String>>,
    /// Held while a restart is carried out.
    pub(super) restarting: Mutex<()>,
    /// Held while a restart is carried out and its answer is sent.
    answering: Mutex<()>,
}

impl fmt::Debug for Takeovers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Takeovers").field("phase", &self.phase).finish_non_exhaustive()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Takeovers {
    /// `launch`: how the next proxy is started; none: it cannot be started by this one. `web`: the
    /// listening sockets of the web servers, which the next proxy gets. `on_event` is called on a
    /// thread of the control socket.
    pub fn new(launch: Option<Launch>, web: Vec<TcpListener>, on_event: impl Fn(ControlEvent) + Send + Sync + 'static) -> Self {
        Takeovers {
            launch,
            web,
            on_event: Box::new(on_event),
            phase: Mutex::new(Phase::Open),
            failure: Mutex::default(),
            restarting: Mutex::default(),
            answering: Mutex::default(),
        }
    }

    pub(super) fn phase(&self) -> MutexGuard<'_, Phase> {
        lock(&self.phase)
    }

    /// Whether another process is in charge.
    pub(crate) fn has_left(&self) -> bool {
        matches!(*self.phase(), Phase::Left(_))
    }

    pub(super) fn failure(&self) -> Option<String> {
        lock(&self.failure).clone()
    }

    pub(super) fn forget_failure(&self) {
        *lock(&self.failure) = None;
    }

    /// To be held until the answer to a request for a restart is sent.
    pub(crate) fn answering(&self) -> MutexGuard<'_, ()> {
        lock(&self.answering)
    }

    /// Has the program read its configuration again. A program that drains answers nothing.
    ///
    /// # Errors
    /// Why it has not.
    pub(crate) fn reload(&self) -> Result<ReloadReport, String> {
        let (reply, answer) = mpsc::channel();
        (self.on_event)(ControlEvent::Reload(reply));
        match answer.recv_timeout(RELOAD_TIMEOUT) {
            Ok(outcome) => outcome,
            Err(RecvTimeoutError::Timeout) => Ok(ReloadReport { unfinished: true, ..ReloadReport::default() }),
            Err(RecvTimeoutError::Disconnected) => Err("this proxy is ending, or another process is in charge already".into()),
        }
    }

    /// Refuses takeovers from now on, because this proxy ends. Returns whether none has succeeded;
    /// waits for one that is in progress.
    pub fn close(&self) -> bool {
        loop {
            match &mut *self.phase() {
                Phase::Left(_) => return false,
                phase @ (Phase::Open | Phase::Ending) => {
                    *phase = Phase::Ending;
                    return true;
                }
                Phase::Busy => {}
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits until the answer to a request for a restart is sent, at most for `patience`. To be
    /// called before the process ends.
    pub fn wait_for_answer(&self, patience: Duration) {
        let begun = Instant::now();
        while self.answering.try_lock().is_err() && begun.elapsed() < patience {
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Gives this proxy's sockets and rules to the process at the other end of `stream`. If that
    /// succeeds, answers its queries until it closes the connection.
    pub(crate) fn give(&self, proxy: Arc<Proxy>, claim: Arc<ClaimedSocket>, stream: UnixStream, hello: &Hello) {
        let begun = match &mut *self.phase() {
            phase @ Phase::Open => {
                *phase = Phase::Busy;
                Ok(())
            }
            Phase::Busy => Err("another takeover is in progress"),
            Phase::Left(_) => Err("another process has taken over already"),
            Phase::Ending => Err("this proxy is ending"),
        };
        if let Err(why) = begun {
            let _ = wire::send(&stream, &FromPresent::Refused(why.into()), &[], SEND_TIMEOUT);
            return;
        }
        let version = hello.version.clone();
        let next = next_process(&stream);
        // Its own number is another one if it is in a PID namespace below this one.
        let pid = next.as_ref().map_or(hello.pid, |(pid, _)| *pid);
        tracing::info!("process {pid}, version {version}, asks to take over");
        let given = next.and_then(|(_, process)| self.try_give(&proxy, &claim, &stream, hello, &process).map(|()| process));
        match given {
            Ok(process) => {
                let report = RestartReport {
                    pid,
                    version: version.clone(),
                    earlier_pid: std::process::id(),
                    earlier_version: env!("CARGO_PKG_VERSION").into(),
                    flows: proxy.own_totals().flows,
                };
                *self.phase() = Phase::Left(report);
                drop(claim);
                let Ok(queries) = stream.try_clone() else { return };
                let link = Arc::new(EarlierLink::new(stream, pid, process, version));
                (self.on_event)(ControlEvent::Left(link.clone()));
                let weak = Arc::downgrade(&proxy);
                drop(proxy);
                link.serve(queries, &weak, || (self.on_event)(ControlEvent::Stop));
            }
            Err(why) => {
                tracing::error!("the takeover has failed, and this process goes on: {why}");
                // The next process may have ended.
                let _ = wire::send(&stream, &FromPresent::Refused(why.clone()), &[], SEND_TIMEOUT);
                *lock(&self.failure) = Some(why);
                *self.phase() = Phase::Open;
            }
        }
    }

    fn try_give(&self, proxy: &Proxy, claim: &ClaimedSocket, stream: &UnixStream, hello: &Hello, process: &OwnedFd) -> Result<(), String> {
        if hello.protocol != PROTOCOL {
            return Err(format!(
                "the new process (version {}) speaks version {} of the takeover's protocol, and this one version {PROTOCOL}: stop this \
                 proxy and start the new one",
                hello.version, hello.protocol
            ));
        }
        let lost = |what: &str| {
            let what = what.to_owned();
            move |why: std::io::Error| match why.kind() {
                ErrorKind::UnexpectedEof | ErrorKind::BrokenPipe | ErrorKind::ConnectionReset => format!("the new process ended {what}"),
                ErrorKind::TimedOut | ErrorKind::WouldBlock => format!("the new process did not answer in time {what}"),
                _ => format!("the exchange with the new process failed {what}: {why}"),
            }
        };
        let (listeners, sockets) = proxy.offer().map_err(|why| format!("cannot copy the listening sockets: {why}"))?;
        let offer = Offer {
            version: env!("CARGO_PKG_VERSION").into(),
            pid: std::process::id(),
            listeners,
            web: self.web.iter().map(TcpListener::local_addr).collect::<Result<_, _>>().map_err(|why| why.to_string())?,
            rules: proxy.has_rules(),
        };
        let borrowed: Vec<BorrowedFd<'_>> = sockets.iter().map(OwnedFd::as_fd).collect();
        wire::send(stream, &FromPresent::Offer(offer), &borrowed, SEND_TIMEOUT).map_err(lost("before it was ready"))?;
        drop(sockets);
        expect(stream, FromNext::Ready, READY_TIMEOUT)?.map_err(lost("before it was ready"))?;

        // From here on the gate waits for the decision: the next proxy uses the owner of the table.
        let (rules, decision) = proxy.hand_over_rules()?.map_or((None, None), |(rules, decision)| (Some(rules), Some(decision)));
        let outcome = self.send_charge(proxy, claim, stream, rules).map_err(lost("before it was in charge")).and_then(|()| {
            expect(stream, FromNext::Taken, TAKEN_TIMEOUT)?.or_else(|why| match why.kind() {
                // It may be about to take charge. Two proxies must not be in charge.
                ErrorKind::TimedOut => kill(process, stream).map_or(Ok(()), |()| Err(lost("when it was to take charge")(why))),
                _ => Err(lost("before it was in charge")(why)),
            })
        });
        if let Some(decision) = decision {
            let _ = decision.send(if outcome.is_ok() { HandoverDecision::Leave } else { HandoverDecision::Resume });
        }
        if outcome.is_ok() {
            claim.leave();
            proxy.leave();
        } else {
            proxy.resume_links();
        }
        outcome
    }

    fn send_charge(
        &self,
        proxy: &Proxy,
        claim: &ClaimedSocket,
        stream: &UnixStream,
        rules: Option<HandedRules>,
    ) -> Result<(), std::io::Error> {
        let (rules, mut descriptors) = rules.map_or((None, Vec::new()), |(state, descriptors)| (Some(state), descriptors));
        let (control, of_control) = claim.parts()?;
        descriptors.extend(of_control);
        for listener in &self.web {
            descriptors.push(listener.try_clone()?.into());
        }
        let (earlier, past) = proxy.earlier_connections()?;
        let charge = Charge { rules, control, web: self.web.len(), earlier: earlier.len(), past, measured_by_client: proxy.measured() };
        descriptors.extend(earlier);
        let borrowed: Vec<BorrowedFd<'_>> = descriptors.iter().map(OwnedFd::as_fd).collect();
        wire::send(stream, &FromPresent::Yours(charge.into()), &borrowed, SEND_TIMEOUT)
    }
}

/// Receives a message of the next proxy, which must be this one.
///
/// # Errors
/// The outer one: it has sent another, such as the reason why it cannot start.
fn expect(stream: &UnixStream, expected: FromNext, timeout: Duration) -> Result<std::io::Result<()>, String> {
    match wire::receive::<FromNext>(stream, Instant::now() + timeout) {
        Ok((FromNext::Failed(why), _)) => Err(why),
        Ok((message, _)) if message == expected => Ok(Ok(())),
        Ok((message, _)) => Err(format!("the new process sent {message:?} instead of {expected:?}")),
        Err(why) => Ok(Err(why)),
    }
}

/// The process at the other end: its ID, and a descriptor by which it can be killed.
///
/// # Errors
/// This process cannot see it. It could not end a process that hangs in the middle of a takeover,
/// and the service manager could not be told its ID.
fn next_process(stream: &UnixStream) -> Result<(u32, OwnedFd), String> {
    let cannot = |why: std::io::Error| format!("cannot find the new process: {why}");
    let Some(pid) = Peer::of(stream).map_err(cannot)?.pid else {
        return Err("the new process is outside of this proxy's PID namespace: run `tandem restart`, which has this proxy start \
                    the new process beside itself"
            .into());
    };
    Ok((pid.as_raw_nonzero().get().unsigned_abs(), Peer::process(stream).map_err(cannot)?))
}

/// Kills the process at the other end, and waits until it has ended. `None`: it cannot be killed.
fn kill(process: &OwnedFd, stream: &UnixStream) -> Option<()> {
    pidfd_send_signal(process, Signal::KILL).ok()?;
    // Its end closes the connection.
    let ended = wire::receive::<FromNext>(stream, Instant::now() + TAKEN_TIMEOUT);
    matches!(ended, Err(why) if why.kind() != ErrorKind::TimedOut).then_some(())
}
