//! An origin server with scripted responses, a cache in front of it, and a client.

use bytes::Bytes;
use cache::{Cache, Config, Listen, WorkerProgram};
use http_body_util::BodyExt as _;
use hyper::{
    HeaderMap, Request, Response,
    body::{Body, Frame, Incoming, SizeHint},
    client::conn::http1 as client,
    header::HeaderName,
    server::conn::http1 as server,
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use std::{
    collections::VecDeque,
    convert::Infallible,
    io,
    net::SocketAddr,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};
use tokio::{
    net::{TcpListener, TcpSocket},
    runtime::Runtime,
    sync::Semaphore,
};

/// How long an expected event may take.
pub(crate) const DEADLINE: Duration = Duration::from_secs(20);

/// A step of a scripted body.
pub(crate) enum BodyStep {
    Send(Vec<u8>),
    /// Waits for a permit.
    Gate(Arc<Semaphore>),
    Trailers(HeaderMap),
    Abort,
}

/// A body that executes steps. Without a length it is sent in chunked coding.
pub(crate) struct ScriptedBody {
    steps: VecDeque<BodyStep>,
    length: Option<u64>,
    waiting: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    alive: Option<Arc<AtomicUsize>>,
}

impl ScriptedBody {
    pub(crate) fn new(steps: Vec<BodyStep>, length: Option<u64>) -> Self {
        ScriptedBody { steps: steps.into(), length, waiting: None, alive: None }
    }

    pub(crate) fn all(bytes: impl Into<Vec<u8>>) -> Self {
        let bytes = bytes.into();
        let length = Some(bytes.len() as u64);
        ScriptedBody::new(if bytes.is_empty() { vec![] } else { vec![BodyStep::Send(bytes)] }, length)
    }

    /// Counts it in `alive` until it is dropped.
    pub(crate) fn counted(mut self, alive: &Arc<AtomicUsize>) -> Self {
        alive.fetch_add(1, Ordering::SeqCst);
        self.alive = Some(alive.clone());
        self
    }
}

impl Drop for ScriptedBody {
    fn drop(&mut self) {
        if let Some(alive) = &self.alive {
            alive.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

impl Body for ScriptedBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        loop {
            if let Some(waiting) = &mut self.waiting {
                match waiting.as_mut().poll(cx) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(()) => self.waiting = None,
                }
            }
            return Poll::Ready(match self.steps.pop_front() {
                None => None,
                Some(BodyStep::Send(bytes)) => Some(Ok(Frame::data(bytes.into()))),
                Some(BodyStep::Trailers(trailers)) => Some(Ok(Frame::trailers(trailers))),
                Some(BodyStep::Abort) => Some(Err(io::Error::other("aborted by the test"))),
                Some(BodyStep::Gate(gate)) => {
                    self.waiting = Some(Box::pin(async move { gate.acquire().await.unwrap().forget() }));
                    continue;
                }
            });
        }
    }

    fn is_end_stream(&self) -> bool {
        self.steps.is_empty() && self.waiting.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        self.length.map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}

/// A response with these fields.
pub(crate) fn answer(status: u16, fields: &[(&str, &str)], body: ScriptedBody) -> Response<ScriptedBody> {
    let mut response = Response::new(body);
    *response.status_mut() = status.try_into().unwrap();
    for (name, value) in fields {
        response.headers_mut().append(name.parse::<HeaderName>().unwrap(), value.parse().unwrap());
    }
    response
}

/// A request for a path with these fields.
pub(crate) fn request(method: &str, path: &str, fields: &[(&str, &str)]) -> Request<ScriptedBody> {
    let mut request = Request::new(ScriptedBody::all(""));
    *request.method_mut() = method.parse().unwrap();
    *request.uri_mut() = path.parse().unwrap();
    for (name, value) in fields {
        request.headers_mut().append(name.parse::<HeaderName>().unwrap(), value.parse().unwrap());
    }
    request
}

pub(crate) struct TestOrigin {
    pub(crate) address: SocketAddr,
    seen: Arc<Mutex<Vec<Request<Bytes>>>>,
    _runtime: Runtime,
}

impl TestOrigin {
    pub(crate) fn start(answer: impl Fn(&Request<Bytes>) -> Response<ScriptedBody> + Send + Sync + 'static) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        let seen: Arc<Mutex<Vec<Request<Bytes>>>> = Arc::default();
        let (answer, kept) = (Arc::new(answer), seen.clone());
        runtime.spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let (answer, kept) = (answer.clone(), kept.clone());
                let service = service_fn(move |request: Request<Incoming>| {
                    let (answer, kept) = (answer.clone(), kept.clone());
                    async move {
                        let (parts, body) = request.into_parts();
                        let body = body.collect().await.map(http_body_util::Collected::to_bytes).unwrap_or_default();
                        let request = Request::from_parts(parts, body);
                        kept.lock().unwrap().push(request.clone());
                        Ok::<_, Infallible>(answer(&request))
                    }
                });
                tokio::spawn(server::Builder::new().serve_connection(TokioIo::new(stream), service));
            }
        });
        TestOrigin { address, seen, _runtime: runtime }
    }

    /// The requests that it has received.
    pub(crate) fn seen(&self) -> Vec<Request<Bytes>> {
        self.seen.lock().unwrap().clone()
    }

    pub(crate) fn count(&self) -> usize {
        self.seen.lock().unwrap().len()
    }
}

/// This crate's own picture worker: the test program, which is the default, is none.
pub(crate) fn picture_worker() -> WorkerProgram {
    WorkerProgram { program: env!("CARGO_BIN_EXE_tandem-picture-worker").into(), arguments: Vec::new() }
}

/// A cache with two listeners: one that forwards to `origin`, and an explicit proxy.
pub(crate) fn cache_for(origin: SocketAddr, change: impl FnOnce(&mut Config)) -> Cache {
    let listen = vec![
        Listen::Forward("127.0.0.1:0".parse().unwrap(), origin),
        "http=127.0.0.1:0,allow=127.0.0.0/8,allow=0.0.0.0/0".parse().unwrap(),
    ];
    let mut config = Config { listen, picture_worker: picture_worker(), ..Config::default() };
    change(&mut config);
    Cache::start(config).unwrap()
}

/// A response as received.
#[derive(Debug)]
pub(crate) struct TestReply {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    /// The bytes of the body that were received.
    pub(crate) body: Vec<u8>,
    /// Whether the body is complete.
    pub(crate) whole: bool,
    pub(crate) trailers: Option<HeaderMap>,
}

impl TestReply {
    pub(crate) fn field(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    /// Whether `Cache-Status` contains `word`.
    pub(crate) fn cache_status_contains(&self, word: &str) -> bool {
        self.headers.get_all("cache-status").iter().any(|value| value.to_str().unwrap().contains(word))
    }
}

pub(crate) struct TestClient(Runtime);

impl TestClient {
    pub(crate) fn new() -> Self {
        TestClient(tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap())
    }

    /// Sends a request on a new connection.
    pub(crate) fn ask(&self, at: SocketAddr, request: Request<ScriptedBody>) -> TestReply {
        self.0.block_on(Self::send(None, at, request))
    }

    /// As [`TestClient::ask`], from this address.
    pub(crate) fn ask_from(&self, from: [u8; 4], at: SocketAddr, request: Request<ScriptedBody>) -> TestReply {
        self.0.block_on(Self::send(Some(from), at, request))
    }

    pub(crate) fn get_from(&self, from: [u8; 4], at: SocketAddr, path: &str, fields: &[(&str, &str)]) -> TestReply {
        self.ask_from(from, at, request("GET", path, fields))
    }

    /// Runs a future in the background.
    pub(crate) fn start(&self, what: impl Future<Output = ()> + Send + 'static) -> tokio::task::JoinHandle<()> {
        self.0.spawn(what)
    }

    pub(crate) fn get(&self, at: SocketAddr, path: &str, fields: &[(&str, &str)]) -> TestReply {
        self.ask(at, request("GET", path, fields))
    }

    /// As [`TestClient::ask`], in the background.
    pub(crate) fn spawn(&self, at: SocketAddr, request: Request<ScriptedBody>) -> tokio::task::JoinHandle<TestReply> {
        self.0.spawn(Self::send(None, at, request))
    }

    pub(crate) fn wait<T>(&self, what: impl Future<Output = T>) -> T {
        self.0.block_on(async { tokio::time::timeout(DEADLINE, what).await.expect("the deadline has passed") })
    }

    async fn send(from: Option<[u8; 4]>, at: SocketAddr, mut request: Request<ScriptedBody>) -> TestReply {
        if !request.headers().contains_key("host") {
            request.headers_mut().insert("host", at.to_string().parse().unwrap());
        }
        let socket = TcpSocket::new_v4().unwrap();
        if let Some(from) = from {
            socket.bind((from, 0).into()).unwrap();
        }
        let stream = socket.connect(at).await.unwrap();
        let (mut sender, connection) = client::handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        let whole = async {
            let (parts, mut body) = sender.send_request(request).await.unwrap().into_parts();
            let mut reply =
                TestReply { status: parts.status.as_u16(), headers: parts.headers, body: Vec::new(), whole: false, trailers: None };
            loop {
                match body.frame().await {
                    None => {
                        reply.whole = true;
                        return reply;
                    }
                    Some(Err(_)) => return reply,
                    Some(Ok(frame)) => match frame.into_data() {
                        Ok(bytes) => reply.body.extend_from_slice(&bytes),
                        Err(frame) => reply.trailers = frame.into_trailers().ok(),
                    },
                }
            }
        };
        tokio::time::timeout(DEADLINE, whole).await.expect("no response before the deadline")
    }
}

/// Waits until `holds` returns true; fails with `what` if it does not.
pub(crate) fn eventually(what: &str, holds: impl Fn() -> bool) {
    let begun = std::time::Instant::now();
    while !holds() {
        assert!(begun.elapsed() < DEADLINE, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Whether `test` must be skipped: the program is missing.
pub(crate) fn skip(test: &str, program: &str) -> bool {
    let missing = testing::missing(&[program]);
    missing.iter().for_each(|program| testing::skipped(test, &format!("{program} is not installed")));
    missing.is_some()
}
