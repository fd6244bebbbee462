//! The status socket: a few answers by HTTP/1.1 on how the daemon is, from a thread of its own with an event loop of its
//! own, so that it answers when the other one is stuck.
//!
//! What is asked costs no more than looking at what is known; see `vitals`. Nobody can make it cost more: connections are
//! few, each has one request of a bounded size and a few seconds. It logs nothing, as a log that takes no line may be what
//! is wrong.

use std::convert::Infallible;
use std::io;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use arc_swap::ArcSwap;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{self, ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{interval, sleep, timeout};

use super::State;
use super::listener::{Listener, ListeningSocket, SocketFile};
use super::stream::{Acceptor, Stream};
use super::vitals::Vitals;
use crate::health::Readiness;

/// The status socket; its file is removed when this is dropped.
#[derive(Debug, Default)]
pub(super) struct StatusSocket {
    _files: Vec<SocketFile>,
}

/// Whose status it is. The state is let go with the daemon's event loop, keys and all, and not kept for the sake of this.
#[derive(Clone)]
struct Patient {
    vitals: Arc<Vitals>,
    state: Weak<ArcSwap<State>>,
}

impl StatusSocket {
    /// Answers on `listeners` from now on, until the process ends.
    ///
    /// # Errors
    /// No thread or no event loop can be had.
    pub(super) fn serve(
        listeners: Vec<Listener>,
        vitals: Arc<Vitals>,
        state: &Arc<ArcSwap<State>>,
    ) -> io::Result<Self> {
        let mut files = Vec::new();
        let mut sockets = Vec::new();
        for listener in listeners {
            let (socket, _, file) = listener.split();
            sockets.push(socket);
            files.extend(file);
        }
        if sockets.is_empty() {
            return Ok(Self::default());
        }
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let state = Arc::downgrade(state);
        let patient = Patient { vitals, state };
        thread::Builder::new()
            .name("status".to_owned())
            .spawn(move || runtime.block_on(answer_all(sockets, patient)))?;
        Ok(Self { _files: files })
    }
}

/// Answers for ever.
async fn answer_all(sockets: Vec<ListeningSocket>, patient: Patient) {
    let seats = Arc::new(Semaphore::new(MOST_CONNECTIONS));
    for socket in sockets {
        // One that the event loop does not take was none.
        if let Ok(acceptor) = Acceptor::new(socket) {
            tokio::spawn(accept_all(acceptor, patient.clone(), Arc::clone(&seats)));
        }
    }
    let mut second = interval(Duration::from_secs(1));
    loop {
        second.tick().await;
        patient.vitals.look_at_threads();
    }
}

async fn accept_all(acceptor: Acceptor, patient: Patient, seats: Arc<Semaphore>) {
    while let Ok(seat) = Arc::clone(&seats).acquire_owned().await {
        match acceptor.accept().await {
            Ok(Stream::Tcp(stream)) => {
                tokio::spawn(converse(stream, patient.clone(), seat));
            }
            Ok(Stream::Unix(stream)) => {
                tokio::spawn(converse(stream, patient.clone(), seat));
            }
            // Out of descriptors, most likely.
            Err(_) => sleep(Duration::from_millis(100)).await,
        }
    }
}

/// One connection, one request. Whatever becomes of it is the client's affair.
async fn converse<S>(stream: S, patient: Patient, _seat: OwnedSemaphorePermit)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let service = service_fn(move |request: Request<Incoming>| {
        let answer = patient.answer(request.method(), request.uri().path());
        async move { Ok::<_, Infallible>(answer) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(LONGEST_REQUEST)
        .keep_alive(false)
        .max_buf_size(LARGEST_REQUEST)
        .serve_connection(TokioIo::new(stream), service);
    let _ = timeout(LONGEST_CONNECTION, connection).await;
}

impl Patient {
    fn answer(&self, method: &Method, path: &str) -> Response<Full<Bytes>> {
        if ![Method::GET, Method::HEAD].contains(method) {
            let mut answer = text(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD\n".into());
            let allowed = HeaderValue::from_static("GET, HEAD");
            answer.headers_mut().insert(ALLOW, allowed);
            return answer;
        }
        let state = self.state.upgrade().map(|state| state.load_full());
        let state = state.as_deref();
        match path {
            "/live" => {
                let health = self.vitals.health(state);
                text(code(health.is_live()), health.life_lines())
            }
            "/ready" => {
                let health = self.vitals.health(state);
                let is_ready = health.readiness() != Readiness::NotReady;
                text(code(is_ready), health.readiness_lines())
            }
            "/metrics" => {
                let mut answer = text(StatusCode::OK, self.vitals.metrics_text(state));
                answer.headers_mut().insert(CONTENT_TYPE, PROMETHEUS);
                answer
            }
            _ => text(StatusCode::NOT_FOUND, "/live, /ready or /metrics\n".into()),
        }
    }
}

fn code(is_well: bool) -> StatusCode {
    match is_well {
        true => StatusCode::OK,
        false => StatusCode::SERVICE_UNAVAILABLE,
    }
}

fn text(code: StatusCode, text: String) -> Response<Full<Bytes>> {
    let mut answer = Response::new(Full::new(Bytes::from(text)));
    *answer.status_mut() = code;
    let headers = answer.headers_mut();
    headers.insert(CONTENT_TYPE, PLAIN);
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(header::SERVER, HeaderValue::from_static(SERVER));
    answer
}

/// By what `--status` knows an answer of ours from that of another program.
pub(super) const SERVER: &str = "dkim-milter";

#[allow(clippy::declare_interior_mutable_const, reason = "as in hyper")]
const PLAIN: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
#[allow(clippy::declare_interior_mutable_const, reason = "as in hyper")]
const PROMETHEUS: HeaderValue =
    HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");

/// Those who watch are few.
const MOST_CONNECTIONS: usize = 32;

/// How long a request may take to come, in octets how large it may be, and how long all of a connection may take.
const LONGEST_REQUEST: Duration = Duration::from_secs(2);
const LARGEST_REQUEST: usize = 8192;
const LONGEST_CONNECTION: Duration = Duration::from_secs(5);
