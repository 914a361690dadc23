//! The asking side of the control socket.

use super::{
    printable::{printable, printable_value},
    protocol::{LONGEST_ANSWER, Request, Status, is_name, read_line, socket_name, write_line},
};
use crate::{gate::Change, meter::FlowView};
use intercept::{
    Prefix,
    runtime_dir::{FindError, RuntimeDirs},
};
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::{
    io,
    path::PathBuf,
    time::{Duration, Instant},
};

/// How long the proxy may take to answer.
const PATIENCE: Duration = Duration::from_secs(20);

/// Why a running proxy could not be asked.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// Nobody answers to that name.
    #[error(
        "no proxy named {0:?} runs in this network namespace, or it is another user's: start it (tandem proxy), say its name \
         (--name), or look as the user that runs it"
    )]
    Nobody(String),
    /// The socket belongs to somebody else.
    #[error("only root and the proxy's own user may ask it")]
    Denied,
    /// Another user's process has the socket.
    #[error(
        "a process of user {user} listens at {socket}, in another user's directory: it is not asked; remove the socket and restart the proxy"
    )]
    Impostor {
        /// Where.
        socket: PathBuf,
        /// The user that runs it.
        user: u32,
    },
    /// It broke off.
    #[error("the proxy did not answer: {0}")]
    Broken(io::Error),
    /// It would not.
    #[error("{0}")]
    Refused(String),
}

/// The running proxy of this name in the network namespace of the calling thread.
#[derive(Debug, Clone)]
pub struct Remote {
    name: String,
}

impl Remote {
    /// By its name.
    pub fn named(name: &str) -> Self {
        Remote { name: name.into() }
    }

    fn ask<T: DeserializeOwned>(&self, request: &Request) -> Result<T, AskError> {
        let nobody = || AskError::Nobody(self.name.clone());
        if !is_name(&self.name) {
            return Err(nobody());
        }
        let places = RuntimeDirs::of_thread().map_err(AskError::Broken)?;
        let stream = places.connect(&socket_name(&self.name)).map_err(|error| match error {
            FindError::Absent => nobody(),
            FindError::Denied => AskError::Denied,
            FindError::Impostor(socket, user) => AskError::Impostor { socket, user: user.as_raw() },
        })?;
        let exchange = || {
            let deadline = Instant::now() + PATIENCE;
            // One who may not ask is answered before that.
            let asked = write_line(&stream, request, deadline);
            let line = read_line(&stream, LONGEST_ANSWER, deadline);
            if line.as_ref().map_or(true, Vec::is_empty) {
                asked?;
            }
            let answer: Result<Value, String> = serde_json::from_slice(&line?)?;
            // No text reaches the caller that a terminal must not be given.
            Ok(match answer {
                Ok(value) => Ok(serde_json::from_value(printable_value(value))?),
                Err(text) => Err(printable(&text)),
            })
        };
        exchange().map_err(AskError::Broken)?.map_err(AskError::Refused)
    }

    /// Every flow as it is now.
    pub fn flows(&self) -> Result<Vec<FlowView>, AskError> {
        self.ask(&Request::Flows)
    }

    /// What all flows came to, and what the firewall counted.
    pub fn status(&self) -> Result<Status, AskError> {
        self.ask(&Request::Status)
    }

    /// Changes the prefixes that bypass; returns the list as it then is.
    pub fn bypass(&self, change: Change) -> Result<Vec<Prefix>, AskError> {
        self.ask(&match change {
            Change::Nothing => Request::Bypass,
            Change::Add(prefixes) => Request::BypassAdd(prefixes),
            Change::Remove(prefixes) => Request::BypassRemove(prefixes),
        })
    }
}
