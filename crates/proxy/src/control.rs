//! How a running proxy is asked and told things: one JSON request a line over a Unix socket, one answer a line.
//!
//! The socket's name is abstract: it is of the network namespace, as the proxy is, and nothing is left of it when the proxy
//! goes. Only root and the proxy's own user are answered.

use crate::{Change, ChangeError, Counted, LinkView, Prefix, Proxy, ReceiveCounters, StartError, Totals, meter::FlowView};
use rustix::{net::sockopt::socket_peercred, process::geteuid};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::{
    io::{self, BufRead as _, BufReader, Write as _},
    os::{
        linux::net::SocketAddrExt as _,
        unix::net::{SocketAddr, UnixListener, UnixStream},
    },
    sync::{Arc, Weak},
    thread,
    time::Duration,
};

/// How long either side waits for the other.
const PATIENCE: Duration = Duration::from_secs(20);

/// What may be asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Request {
    Flows,
    Status,
    /// Prefixes that bypass: the list, or a change of it.
    Bypass,
    BypassAdd(Vec<Prefix>),
    BypassRemove(Vec<Prefix>),
}

/// What all flows came to, and what the firewall counted.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// Of this proxy's flows.
    pub totals: Totals,
    /// None when the rules are the operator's own.
    pub counted: Option<Counted>,
    /// The links whose capacity is known.
    #[serde(default)]
    pub links: Vec<LinkView>,
    /// Of the proxy's network namespace; absent where they cannot be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub receive: Option<ReceiveCounters>,
}

impl Proxy {
    /// What all flows came to, and what the firewall counted.
    pub fn status(&self) -> Status {
        Status {
            totals: self.totals(),
            counted: self.counted().and_then(Result::ok),
            links: self.links(),
            receive: ReceiveCounters::read().ok(),
        }
    }
}

fn address(name: &str) -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(format!("tandem/{name}"))
}

/// Answers for `proxy`, by this name, until the proxy is gone.
pub fn serve(proxy: &Arc<Proxy>, name: &str) -> Result<(), StartError> {
    let listener = address(name).and_then(|address| UnixListener::bind_addr(&address)).map_err(|why| StartError::Listen {
        address: format!("the control socket {name:?}"),
        cure: match why.kind() {
            io::ErrorKind::AddrInUse => "another proxy in this network namespace has that name: stop it, or give this one another (--name)",
            _ => "give another name (--name): letters and digits, not too many",
        },
        why,
    })?;
    let proxy = Arc::downgrade(proxy);
    let work = move || {
        for caller in listener.incoming().flatten() {
            if proxy.strong_count() == 0 {
                return;
            }
            // One who says nothing must not keep others waiting for ever.
            if let Err(why) = answer(&proxy, &caller) {
                tracing::debug!("control socket: {why}");
            }
        }
    };
    let spawned = thread::Builder::new().name("tandem-control".into()).spawn(work);
    spawned.map(drop).map_err(|why| StartError::System { what: "start the control socket's thread", why })
}

fn answer(proxy: &Weak<Proxy>, caller: &UnixStream) -> io::Result<()> {
    caller.set_read_timeout(Some(PATIENCE))?;
    caller.set_write_timeout(Some(PATIENCE))?;
    let who = socket_peercred(caller)?.uid;
    if !who.is_root() && who != geteuid() {
        // Not even listened to: one who says nothing would keep others waiting.
        return tell(caller, &Err("only root and the proxy's own user may ask it".to_string()));
    }
    let mut line = String::new();
    BufReader::new(caller).read_line(&mut line)?;
    let answer = match (proxy.upgrade(), serde_json::from_str::<Request>(&line)) {
        (None, _) => Err("the proxy is ending".to_string()),
        (_, Err(error)) => Err(format!("cannot understand the request: {error}")),
        (Some(proxy), Ok(request)) => heed(&proxy, request).map_err(|error| error.to_string()),
    };
    tell(caller, &answer)
}

fn tell(caller: &UnixStream, answer: &Result<serde_json::Value, String>) -> io::Result<()> {
    let mut text = serde_json::to_string(answer)?;
    text.push('\n');
    (&mut &*caller).write_all(text.as_bytes())
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

/// Why a running proxy could not be asked.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// Nobody answers to that name.
    #[error(
        "no proxy named {0:?} runs in this network namespace, or it is another user's: start it (tandem proxy), say its name \
         (--name), or look as root"
    )]
    Nobody(String),
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
        let stream =
            address(&self.name).and_then(|address| UnixStream::connect_addr(&address)).map_err(|_| AskError::Nobody(self.name.clone()))?;
        let exchange = || {
            stream.set_read_timeout(Some(PATIENCE))?;
            let mut text = serde_json::to_string(request)?;
            text.push('\n');
            // One who may not ask is answered before that.
            let asked = (&mut &stream).write_all(text.as_bytes());
            let mut line = String::new();
            let answered = BufReader::new(&stream).read_line(&mut line);
            if line.is_empty() {
                asked?;
            }
            answered?;
            Ok(serde_json::from_str::<Result<T, String>>(&line)?)
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
