//! The client side of the control socket.

use super::{
    line::{read_line, write_line},
    printable::{printable_lines, printable_value},
    protocol::{DENIED, LONGEST_ANSWER, ProxyStatus, Request, STOPPING, is_name, socket_name},
};
use crate::{
    config::ReloadReport,
    experiment::ExperimentView,
    gate::BypassChange,
    meter::FlowView,
    takeover::{Hello, RestartReport},
};
use intercept::{
    Prefix,
    runtime_dir::{FindError, RuntimeDirs},
};
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::{
    io::{self, ErrorKind},
    os::unix::net::UnixStream,
    path::PathBuf,
    thread,
    time::{Duration, Instant},
};

/// Time limit for the answer of the proxy.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);
/// Time limit for a restart: longer than the proxy's own.
const RESTART_TIMEOUT: Duration = Duration::from_secs(90);

/// For how long, and how often, a proxy is asked again that ends: until its successor answers.
const SUCCESSION: Duration = Duration::from_secs(2);
const SUCCESSION_PAUSE: Duration = Duration::from_millis(50);

/// Why a request to a running proxy failed.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// No proxy of this name runs in this network namespace, as far as this user can see.
    #[error(
        "no proxy named {0:?} runs in this network namespace, or it is another user's: start it (tandem proxy), give its name \
         (--name), or run this command as its user"
    )]
    NotFound(String),
    /// The proxy runs as another user.
    #[error("{}", DENIED)]
    Denied,
    /// A process of another user listens at the socket.
    #[error(
        "cannot trust the control socket {socket}: the process that listens there runs as user {user}, who does not own the directory; \
         remove the socket and restart the proxy"
    )]
    Impostor {
        /// Path of the socket.
        socket: PathBuf,
        /// User of the process.
        user: u32,
    },
    /// The system does not say which user the process at the socket runs as.
    #[error("cannot trust the control socket {socket}: the system does not say which user listens there: {why}")]
    Unknown {
        /// Path of the socket.
        socket: PathBuf,
        /// The system's reason.
        why: io::Error,
    },
    /// The exchange failed.
    #[error("the proxy did not answer: {0}; try again, or see its log")]
    Io(io::Error),
    /// The proxy rejected the request; the text is its reason.
    #[error("{0}")]
    Refused(String),
}

/// A running proxy, known by its name, in the network namespace of the calling thread.
#[derive(Debug, Clone)]
pub struct Remote {
    name: String,
}

impl Remote {
    /// The proxy of this name. Connects only when a request is made.
    pub fn named(name: &str) -> Self {
        Remote { name: name.into() }
    }

    /// Asks the proxy, or its successor if it ends just now: the two accept at the same socket.
    fn ask<T: DeserializeOwned>(&self, request: &Request) -> Result<T, ControlError> {
        let begun = Instant::now();
        loop {
            let answer = self.ask_within(request, ANSWER_TIMEOUT);
            let ends = match &answer {
                Err(ControlError::Refused(why)) => why == STOPPING,
                Err(ControlError::Io(why)) => matches!(why.kind(), ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset),
                _ => false,
            };
            if !ends || begun.elapsed() >= SUCCESSION {
                return answer;
            }
            thread::sleep(SUCCESSION_PAUSE);
        }
    }

    /// Connects to the proxy.
    pub(crate) fn connect(&self) -> Result<UnixStream, ControlError> {
        let not_found = || ControlError::NotFound(self.name.clone());
        if !is_name(&self.name) {
            return Err(not_found());
        }
        let places = RuntimeDirs::of_thread().map_err(ControlError::Io)?;
        places.connect(&socket_name(&self.name)).map_err(|error| match error {
            FindError::Absent => not_found(),
            FindError::Denied => ControlError::Denied,
            FindError::Impostor(socket, user) => ControlError::Impostor { socket, user: user.as_raw() },
            FindError::Unknown(socket, why) => ControlError::Unknown { socket, why },
        })
    }

    /// Begins a takeover over this connection, which serves for its messages then.
    pub(crate) fn begin_takeover(stream: &UnixStream, hello: Hello) -> Result<(), ControlError> {
        write_line(stream, &Request::TakeOver(hello), Instant::now() + ANSWER_TIMEOUT).map_err(ControlError::Io)
    }

    fn ask_within<T: DeserializeOwned>(&self, request: &Request, timeout: Duration) -> Result<T, ControlError> {
        let stream = self.connect()?;
        let exchange = || {
            let deadline = Instant::now() + timeout;
            // The proxy answers a user that it refuses without reading the request.
            let sent = write_line(&stream, request, deadline);
            let line = read_line(&stream, LONGEST_ANSWER, deadline);
            if line.as_ref().map_or(true, Vec::is_empty) {
                sent?;
            }
            let answer: Result<Value, String> = serde_json::from_slice(&line?)?;
            // Callers print these texts on terminals.
            Ok(match answer {
                Ok(value) => Ok(serde_json::from_value(printable_value(value))?),
                Err(text) => Err(printable_lines(&text)),
            })
        };
        exchange().map_err(ControlError::Io)?.map_err(ControlError::Refused)
    }

    /// The present state of every flow.
    ///
    /// # Errors
    /// [`ControlError`] when the proxy cannot be reached or rejects the request.
    pub fn flows(&self) -> Result<Vec<FlowView>, ControlError> {
        self.ask(&Request::Flows)
    }

    /// Counts of all flows, of the firewall and of the host.
    ///
    /// # Errors
    /// [`ControlError`] when the proxy cannot be reached or rejects the request.
    pub fn status(&self) -> Result<ProxyStatus, ControlError> {
        self.ask(&Request::Status)
    }

    /// What the experiment has shown; none: no experiment is configured.
    ///
    /// # Errors
    /// [`ControlError`] when the proxy cannot be reached or rejects the request.
    pub fn experiment(&self) -> Result<Option<ExperimentView>, ControlError> {
        self.ask(&Request::Experiment)
    }

    /// Has the proxy start a process that takes over from it, and waits until that is in charge.
    ///
    /// # Errors
    /// [`ControlError::Refused`] with the reason why the proxy that runs is still in charge, or
    /// [`ControlError`] when it cannot be reached.
    pub fn restart(&self) -> Result<RestartReport, ControlError> {
        self.ask_within(&Request::Restart, RESTART_TIMEOUT)
    }

    /// Has the proxy read its configuration file again.
    ///
    /// # Errors
    /// [`ControlError::Refused`] with the reason why it has read none, or [`ControlError`] when it
    /// cannot be reached.
    pub fn reload(&self) -> Result<ReloadReport, ControlError> {
        self.ask(&Request::Reload)
    }

    /// Changes the prefixes that bypass; returns the resulting list.
    ///
    /// # Errors
    /// [`ControlError`] when the proxy cannot be reached or rejects the request.
    pub fn bypass(&self, change: BypassChange) -> Result<Vec<Prefix>, ControlError> {
        self.ask(&match change {
            BypassChange::Nothing => Request::Bypass,
            BypassChange::Add(prefixes) => Request::BypassAdd(prefixes),
            BypassChange::Remove(prefixes) => Request::BypassRemove(prefixes),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use intercept::runtime_dir::Access;
    use std::io::Write as _;

    #[test]
    fn the_successor_of_a_proxy_that_ends_is_asked() {
        let name = format!("successor-{}", std::process::id());
        let socket = RuntimeDirs::of_thread().unwrap().claim(&socket_name(&name), Access::Owner).unwrap();
        let stopping = format!("{{\"Err\":\"{STOPPING}\"}}\n");
        let proxies = thread::spawn(move || {
            for answer in [stopping.as_str(), "", "{\"Ok\":[]}\n", "{\"Err\":\"no\"}\n"] {
                let (mut client, _) = socket.listener.accept().unwrap();
                read_line(&client, LONGEST_ANSWER, Instant::now() + ANSWER_TIMEOUT).unwrap();
                client.write_all(answer.as_bytes()).unwrap();
            }
        });
        let remote = Remote::named(&name);
        assert_eq!(remote.bypass(BypassChange::Nothing).unwrap(), []);
        assert!(matches!(remote.bypass(BypassChange::Nothing), Err(ControlError::Refused(why)) if why == "no"));
        proxies.join().unwrap();
    }
}
