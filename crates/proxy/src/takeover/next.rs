//! The side of the proxy that starts: it takes over from the one that runs.

use super::{
    generations::Generations,
    messages::{Charge, FromNext, FromPresent, Hello, Offer},
    present::Takeovers,
    wire,
};
use crate::{
    config::Service,
    control::{ControlError, ControlSocket, Remote, take_over_control},
    error::ProxyStartError,
    listeners::InheritedListeners,
    running::{PreparedProxy, Proxy},
};
use intercept::{OpenError, peer::Peer, runtime_dir::ClaimedSocket};
use relay::FlowRecord;
use rustix::{fd::OwnedFd, process::geteuid};
use std::{
    io::{self, ErrorKind},
    net::{SocketAddr, TcpListener},
    os::unix::net::UnixStream,
    sync::Arc,
    time::{Duration, Instant},
};

/// Time limit for each answer of the present proxy.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);
const SEND_TIMEOUT: Duration = Duration::from_secs(5);

/// Why a process could not take over. The proxy that runs goes on.
#[derive(Debug, thiserror::Error)]
pub enum TakeoverError {
    /// No proxy runs that could be asked.
    #[error("cannot take over: {0}")]
    Control(#[from] ControlError),
    /// The proxy that runs refuses.
    #[error("cannot take over: the proxy that runs refuses: {0}")]
    Refused(String),
    /// The proxy that runs is another user's.
    #[error(
        "cannot take over: the proxy that runs is user {0}'s, and what it hands over (rules, settings, paths) is used with the rights of \
         this process: start this one as that user (a service: systemctl reload)"
    )]
    OtherUser(u32),
    /// The proxy that runs is of a version without takeovers.
    #[error("cannot take over: the proxy that runs does not know takeovers (an earlier version): stop it and start this one")]
    Unknown,
    /// The exchange failed.
    #[error("cannot take over: the exchange with the proxy that runs failed: {0}")]
    Lost(io::Error),
    /// This proxy cannot be started beside the one that runs.
    #[error("{0} cannot be changed by a takeover: stop the proxy that runs and start this one")]
    Fixed(&'static str),
    /// This proxy could not be started.
    #[error(transparent)]
    Start(#[from] ProxyStartError),
}

impl From<OpenError> for TakeoverError {
    fn from(error: OpenError) -> Self {
        TakeoverError::Start(error.into())
    }
}

/// A takeover in progress. Call [`request`](Self::request), then [`start`](Self::start).
#[derive(Debug)]
pub struct Takeover {
    stream: UnixStream,
    offer: Offer,
    sockets: Vec<OwnedFd>,
}

/// A proxy that has taken over.
#[derive(Debug)]
pub struct StartedProxy {
    /// The proxy.
    pub proxy: Arc<Proxy>,
    /// Its control socket.
    pub control: ControlSocket,
    /// The listening sockets of its web servers, in the order of [`Service::web_addresses`].
    pub web: Vec<TcpListener>,
}

impl Takeover {
    /// Asks the proxy of this name for its listening sockets.
    ///
    /// # Errors
    /// [`TakeoverError`] when no proxy runs, or it refuses.
    pub fn request(name: &str) -> Result<Self, TakeoverError> {
        intercept::leg::raise_open_files();
        let stream = Remote::named(name).connect()?;
        let user = Peer::of(&stream).map_err(TakeoverError::Lost)?.user;
        if user != geteuid() {
            return Err(TakeoverError::OtherUser(user.as_raw()));
        }
        Remote::begin_takeover(&stream, Hello::of_this_process())?;
        match wire::receive(&stream, Instant::now() + ANSWER_TIMEOUT) {
            Ok((FromPresent::Offer(offer), sockets)) => {
                tracing::info!("taking over from process {}, version {}", offer.pid, offer.version);
                Ok(Takeover { stream, offer, sockets })
            }
            Ok((FromPresent::Refused(why), _)) => Err(TakeoverError::Refused(why)),
            Ok((FromPresent::Yours(_), _)) => Err(TakeoverError::Lost(ErrorKind::InvalidData.into())),
            Err(why) if why.kind() == ErrorKind::InvalidData => Err(TakeoverError::Unknown),
            Err(why) => Err(TakeoverError::Lost(why)),
        }
    }

    /// Starts a proxy in the network namespace of the calling thread, which takes over from the one
    /// that runs. `takeovers` makes what the next takeover needs, of the listening sockets of the
    /// web servers.
    ///
    /// # Errors
    /// [`TakeoverError`]: the proxy that runs goes on, and knows why.
    pub fn start(
        self,
        service: &Service,
        on_end: impl Fn(FlowRecord) + Send + Sync + 'static,
        takeovers: impl FnOnce(Vec<TcpListener>) -> Arc<Takeovers>,
    ) -> Result<StartedProxy, TakeoverError> {
        let Takeover { stream, offer, sockets } = self;
        let started = start(&stream, offer, sockets, service, on_end, takeovers);
        if let Err(error) = &started {
            let _ = wire::send(&stream, &FromNext::Failed(service.hide(error)), &[], SEND_TIMEOUT);
        }
        let started = started?;
        // If the present proxy has ended, this one is in charge all the same.
        if let Err(why) = wire::send(&stream, &FromNext::Taken, &[], SEND_TIMEOUT) {
            tracing::warn!("the proxy that this one took over from has ended: {why}");
        }
        started.proxy.keep_rules();
        started.control.keep();
        started.proxy.add_earlier(stream);
        Ok(started)
    }
}

/// Does all of a takeover but the last message.
fn start(
    stream: &UnixStream,
    offer: Offer,
    sockets: Vec<OwnedFd>,
    service: &Service,
    on_end: impl Fn(FlowRecord) + Send + Sync + 'static,
    takeovers: impl FnOnce(Vec<TcpListener>) -> Arc<Takeovers>,
) -> Result<StartedProxy, TakeoverError> {
    let web = OpenedWeb::open(service, &offer.web)?;
    let inherited = InheritedListeners::new(offer.listeners.into_iter().zip(sockets));
    if let Some(key) = PreparedProxy::fixed_in_takeover(&service.config, &inherited, offer.rules) {
        return Err(TakeoverError::Fixed(key));
    }
    let prepared = PreparedProxy::prepare(service.config.clone(), on_end, Some(inherited))?;
    wire::send(stream, &FromNext::Ready, &[], SEND_TIMEOUT).map_err(TakeoverError::Lost)?;

    let (charge, mut descriptors) = match wire::receive(stream, Instant::now() + ANSWER_TIMEOUT) {
        Ok((FromPresent::Yours(charge), descriptors)) => (*charge, descriptors.into_iter()),
        Ok((FromPresent::Refused(why), _)) => return Err(TakeoverError::Refused(why)),
        Ok((FromPresent::Offer(_), _)) => return Err(TakeoverError::Lost(ErrorKind::InvalidData.into())),
        Err(why) => return Err(TakeoverError::Lost(why)),
    };
    let Charge { rules, control, web: inherited_web, earlier, past, measured_by_client } = charge;
    let rules = rules.map(|state| {
        let count = state.descriptors();
        (state, descriptors.by_ref().take(count).collect())
    });
    let missing = || TakeoverError::Lost(ErrorKind::UnexpectedEof.into());
    let of_control = [descriptors.next().ok_or_else(missing)?, descriptors.next().ok_or_else(missing)?];
    let claim = ClaimedSocket::from_parts(control, of_control);
    let inherited = descriptors.by_ref().take(inherited_web).map(TcpListener::from).collect();
    let web = web.join(inherited).ok_or_else(missing)?;
    let generations = Generations::new(descriptors.take(earlier).map(UnixStream::from), past);
    let proxy = Arc::new(prepared.begin(rules, generations, measured_by_client)?);
    let copies = web.iter().map(TcpListener::try_clone).collect::<Result<_, _>>();
    let control = take_over_control(&proxy, claim, takeovers(copies.map_err(OpenError::system("copy the sockets of web servers"))?))?;
    Ok(StartedProxy { proxy, control, web })
}

/// The web servers' listening sockets during a takeover: those that are open, and for the others
/// their index among those that the present proxy hands over.
struct OpenedWeb(Vec<Result<TcpListener, usize>>);

impl OpenedWeb {
    /// Opens those that are not offered.
    fn open(service: &Service, offered: &[SocketAddr]) -> Result<Self, OpenError> {
        let open = |(_, at): (&'static str, SocketAddr)| match offered.iter().position(|offered| *offered == at) {
            Some(index) => Ok(Err(index)),
            None => TcpListener::bind(at).map(Ok).map_err(|why| service.web_failure(at, why)),
        };
        service.web_addresses().into_iter().map(open).collect::<Result<_, _>>().map(OpenedWeb)
    }

    /// All of them, with those that were handed over; none if one of these is missing.
    fn join(self, inherited: Vec<TcpListener>) -> Option<Vec<TcpListener>> {
        let mut inherited: Vec<_> = inherited.into_iter().map(Some).collect();
        let all = self.0.into_iter().map(|listener| match listener {
            Ok(opened) => Some(opened),
            Err(index) => inherited.get_mut(index)?.take(),
        });
        all.collect()
    }
}
