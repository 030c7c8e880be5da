//! A meeting place behind a connection: what one rank's process calls.

use super::secret::{PROOF_BYTES, Side, Token, random};
use super::wire::{
    Answer, Call, GREETING_BYTES, Greeting, MOST_PAYLOAD, MOST_REPLY, Refusal, Request, Told,
    VERSION, receive, send,
};
use crate::error::Error;
use std::collections::HashMap;
use std::io::{self, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// What a reply may take beyond the limit of its call: the coordinator keeps the limit itself, and
/// this ends the wait for one that hangs.
const GRACE: Duration = Duration::from_secs(2);

/// How long one write may take.
pub(super) const WRITE_LIMIT: Duration = Duration::from_secs(5);

/// The pause between attempts to connect to what does not listen yet.
const RETRY: Duration = Duration::from_millis(20);

/// Calls that the coordinator answers without waiting for a rank.
const PROMPT: Duration = Duration::from_secs(5);

/// The connection of one rank to the coordinator.
#[derive(Debug)]
pub(crate) struct Connection {
    rank: u32,
    world: u32,
    address: String,
    socket: Arc<TcpStream>,
    /// Held while a frame is written.
    writing: Mutex<()>,
    inbox: Arc<Inbox>,
    next: AtomicU64,
}

/// What has come from the coordinator.
#[derive(Debug, Default)]
struct Inbox {
    state: Mutex<State>,
    changed: Condvar,
    /// Whether some rank, or the coordinator, has been lost: looked at while launches wait.
    is_lost: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    /// By call: its answer, once that is there.
    calls: HashMap<u64, Option<Result<Answer, Refusal>>>,
    /// Why nothing will come any more.
    closed: Option<String>,
    /// The first whose process ended in the middle of something.
    lost: Option<(Lost, String)>,
}

/// Whose process has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lost {
    Rank(u32),
    Coordinator,
}

impl Inbox {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Nothing will come any more; unexpectedly, unless the coordinator has said so.
    fn close(&self, reason: String, lost: Option<Lost>) {
        let mut state = self.lock();
        if state.closed.is_none()
            && let Some(lost) = lost
        {
            state.lost.get_or_insert((lost, reason.clone()));
            self.is_lost.store(true, Ordering::Release);
        }
        state.closed.get_or_insert(reason);
        drop(state);
        self.changed.notify_all();
    }

    /// Takes in what comes, until nothing does.
    fn fill(&self, socket: &TcpStream) {
        let mut from = BufReader::new(socket);
        loop {
            match receive(&mut from, MOST_REPLY) {
                Ok(Told::Reply { id, answer }) => {
                    // Nobody waits for an answer that came too late.
                    if let Some(waiting) = self.lock().calls.get_mut(&id) {
                        *waiting = Some(answer);
                    }
                }
                Ok(Told::Lost { rank, reason }) => {
                    self.lock().lost.get_or_insert((Lost::Rank(rank), reason));
                    self.is_lost.store(true, Ordering::Release);
                }
                Ok(Told::Closing) => return self.close("it has ended".into(), None),
                Err(error) => return self.close(ended(&error), Some(Lost::Coordinator)),
            }
            self.changed.notify_all();
        }
    }
}

/// Why a connection has ended.
fn ended(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset => {
            "it closed the connection".into()
        }
        _ => error.to_string(),
    }
}

impl Connection {
    /// Connects `rank` to the coordinator at `address` (`host:port`), which may begin to listen
    /// before `deadline`.
    pub(crate) fn open(
        address: &str,
        (rank, world): (u32, u32),
        token: &Token,
        deadline: Instant,
    ) -> Result<Arc<Connection>, Error> {
        let limit = deadline.saturating_duration_since(Instant::now());
        let unreachable = |error: &io::Error| Error::NoCoordinator {
            address: address.into(),
            reason: error.to_string(),
            limit,
        };
        loop {
            let outcome = reach(address, deadline).and_then(|socket| {
                Ok((greet(&socket, address, (rank, world), token, deadline)?, socket))
            });
            let error = match outcome {
                Ok((verdict, socket)) => {
                    verdict?;
                    return Connection::over(socket, address, (rank, world))
                        .map_err(|error| unreachable(&error));
                }
                Err(error) => error,
            };
            // It does not listen yet, or had no room: both may pass.
            if Instant::now() + RETRY >= deadline {
                return Err(unreachable(&error));
            }
            thread::sleep(RETRY);
        }
    }

    fn over(
        socket: TcpStream,
        address: &str,
        (rank, world): (u32, u32),
    ) -> io::Result<Arc<Connection>> {
        socket.set_read_timeout(None)?;
        let (socket, inbox) = (Arc::new(socket), Arc::new(Inbox::default()));
        let (from, into) = (Arc::clone(&socket), Arc::clone(&inbox));
        let reader = thread::Builder::new().name(format!("flux: replies to rank {rank}"));
        reader.spawn(move || into.fill(&from))?;
        let (address, next) = (address.into(), AtomicU64::new(1));
        let writing = Mutex::default();
        Ok(Arc::new(Connection { rank, world, address, socket, writing, inbox, next }))
    }

    /// The next meeting place of the whole world: the n-th of each rank is the same place.
    pub(crate) fn begin(self: &Arc<Self>, needs: Needs) -> Remote {
        let place = match self.call((0, Needs::Calls), Request::Begin, PROMPT) {
            Ok(Answer::Place(place)) => Ok(place),
            Ok(_) => Err(self.confused()),
            Err(error) => Err(error),
        };
        let (rank, world) = (self.rank, self.world);
        Remote { connection: Arc::clone(self), place, rank, world, needs }
    }

    /// Whose process has ended in the middle of something, and why.
    pub(crate) fn lost(&self) -> Option<(Lost, String)> {
        if !self.inbox.is_lost.load(Ordering::Acquire) {
            return None;
        }
        self.inbox.lock().lost.clone()
    }

    /// Sends a request and waits for its answer.
    fn call(
        &self,
        (place, needs): (u32, Needs),
        request: Request,
        limit: Duration,
    ) -> Result<Answer, Error> {
        let start = Instant::now();
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        self.inbox.lock().calls.insert(id, None);
        if let Err(error) = self.send(&Call { id, place, request }) {
            self.inbox.close(error.to_string(), Some(Lost::Coordinator));
        }
        let mut state = self.inbox.lock();
        let longest = limit.saturating_add(GRACE);
        loop {
            if let Some(Some(answer)) = state.calls.get_mut(&id).map(Option::take) {
                state.calls.remove(&id);
                return answer.map_err(Error::from);
            }
            if let (Needs::Everybody, Some((Lost::Rank(rank), reason))) = (needs, &state.lost) {
                let error = Error::RankAbandoned { rank: *rank, reason: reason.clone() };
                state.calls.remove(&id);
                return Err(error);
            }
            let silent = (start.elapsed() >= longest).then(|| format!("no answer in {longest:?}"));
            if let Some(reason) = state.closed.clone().or(silent) {
                state.calls.remove(&id);
                return Err(Error::CoordinatorLost { address: self.address.clone(), reason });
            }
            let rest = longest.saturating_sub(start.elapsed());
            let waited = self.inbox.changed.wait_timeout(state, rest);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn send(&self, call: &Call) -> io::Result<()> {
        let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        send(&mut &*self.socket, call)
    }

    fn confused(&self) -> Error {
        let reason = "an answer to something else".into();
        Error::CoordinatorLost { address: self.address.clone(), reason }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // Ends the thread that reads, and tells the coordinator.
        let _ = self.socket.shutdown(Shutdown::Both);
    }
}

/// A connection to any of the addresses that `address` stands for.
fn reach(address: &str, deadline: Instant) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "it stands for no address");
    for address in address.to_socket_addrs()? {
        match connect(&address, deadline) {
            Ok(socket) => return Ok(socket),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn connect(address: &SocketAddr, deadline: Instant) -> io::Result<TcpStream> {
    // No limit at all is an error.
    let limit = deadline.saturating_duration_since(Instant::now()).max(RETRY);
    let socket = TcpStream::connect_timeout(address, limit)?;
    if socket.local_addr()? == socket.peer_addr()? {
        // A port of this machine's own, picked for the attempt, may be the very one asked for.
        return Err(io::Error::new(io::ErrorKind::ConnectionRefused, "nobody listens"));
    }
    socket.set_nodelay(true)?;
    socket.set_write_timeout(Some(WRITE_LIMIT))?;
    Ok(socket)
}

/// Introduces a rank. The outer error may pass, the inner one is the coordinator's last word.
fn greet(
    mut socket: &TcpStream,
    address: &str,
    (rank, world): (u32, u32),
    token: &Token,
    deadline: Instant,
) -> io::Result<Result<(), Error>> {
    let limit = deadline.saturating_duration_since(Instant::now()).max(RETRY);
    socket.set_read_timeout(Some(limit))?;
    let ours = Greeting { version: VERSION, rank, world, nonce: random()? }.encode();
    socket.write_all(&ours)?;
    let mut theirs = [0; GREETING_BYTES];
    socket.read_exact(&mut theirs)?;
    if Greeting::decode(&theirs).is_none() {
        return Ok(Err(Error::NotCoordinator { address: address.into() }));
    }
    socket.write_all(&token.prove(Side::Rank, [&ours, &theirs]))?;
    let mut proof = [0; PROOF_BYTES];
    if let Err(error) = socket.read_exact(&mut proof) {
        return match error.kind() {
            // Whoever does not know the token is left without a word.
            io::ErrorKind::UnexpectedEof => {
                Ok(Err(Error::TokenRejected { address: address.into() }))
            }
            _ => Err(error),
        };
    }
    if !token.accepts(Side::Coordinator, [&ours, &theirs], &proof) {
        return Ok(Err(Error::TokenRejected { address: address.into() }));
    }
    match receive(&mut socket, MOST_REPLY)? {
        Told::Reply { answer, .. } => Ok(answer.map(drop).map_err(Error::from)),
        Told::Lost { .. } | Told::Closing => {
            Ok(Err(Error::NotCoordinator { address: address.into() }))
        }
    }
}

/// Who has to live for a call to be answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Needs {
    /// What the call itself needs: a rank may go once it has given what it had.
    Calls,
    Everybody,
}

/// One meeting place behind a connection, for one rank.
#[derive(Debug)]
pub(crate) struct Remote {
    connection: Arc<Connection>,
    /// Its number among those of the connection, or why there is none.
    place: Result<u32, Error>,
    /// This process's number in it.
    rank: u32,
    world: u32,
    needs: Needs,
}

impl Remote {
    pub(crate) fn world(&self) -> u32 {
        self.world
    }

    /// A connection speaks for one rank.
    pub(crate) fn require_own(&self, rank: u32) -> Result<(), Error> {
        if rank >= self.world {
            return Err(Error::NoSuchRank { rank, world: self.world });
        }
        if rank == self.rank { Ok(()) } else { Err(Error::OtherRank { own: self.rank, rank }) }
    }

    fn call(&self, rank: u32, request: Request, limit: Duration) -> Result<Answer, Error> {
        self.require_own(rank)?;
        self.connection.call((self.place.clone()?, self.needs), request, limit)
    }

    pub(crate) fn all_gather(
        &self,
        rank: u32,
        key: u64,
        payload: Vec<u8>,
        limit: Duration,
    ) -> Result<Arc<[Vec<u8>]>, Error> {
        if payload.len() > MOST_PAYLOAD {
            let (bytes, most) = (payload.len() as u64, MOST_PAYLOAD as u64);
            return Err(Error::PayloadTooLarge { bytes, most });
        }
        match self.call(rank, Request::Gather { key, payload, limit }, limit)? {
            Answer::Payloads(all) if all.len() == self.world as usize => Ok(all.into()),
            _ => Err(self.connection.confused()),
        }
    }

    pub(crate) fn abandon(&self, rank: u32, reason: String) -> Result<(), Error> {
        self.call(rank, Request::Abandon { reason }, PROMPT).map(drop)
    }

    pub(crate) fn next_number(&self, rank: u32) -> Result<u64, Error> {
        match self.call(rank, Request::Number, PROMPT)? {
            Answer::Number(number) => Ok(number),
            _ => Err(self.connection.confused()),
        }
    }

    pub(crate) fn group(
        &self,
        rank: u32,
        members: &[u32],
        limit: Duration,
    ) -> Result<Remote, Error> {
        let index = members.iter().position(|&member| member == rank).unwrap_or(0) as u32;
        match self.call(rank, Request::Group { members: members.into(), limit }, limit)? {
            Answer::Place(place) => {
                let (connection, world) = (Arc::clone(&self.connection), members.len() as u32);
                let (place, needs) = (Ok(place), self.needs);
                Ok(Remote { connection, place, rank: index, world, needs })
            }
            _ => Err(self.connection.confused()),
        }
    }

    pub(crate) fn recover(&self, rank: u32, limit: Duration) -> Result<(), Error> {
        self.call(rank, Request::Recover { limit }, limit).map(drop)
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        if let Ok(place) = self.place {
            // Nothing is waited for: without a connection there is nothing left to close.
            let _ = self.connection.send(&Call { id: 0, place, request: Request::Close });
        }
    }
}
