//! The process that has the meeting place, and answers the ranks of others.
//!
//! Each connection speaks for one rank, and can do no more than that rank could: places are
//! numbered for each connection, and the number of the rank in each stands here, not in what it
//! sends. A rank's process that ends, however it ends, has abandoned all its places.

mod line;

use super::local::Local;
use super::remote::WRITE_LIMIT;
use super::secret::{PROOF_BYTES, Side, Token, random};
use super::wire::{
    Answer, GREETING_BYTES, Greeting, MOST_CALL, MOST_RANKS, Refusal, Told, VERSION, receive, send,
};
use crate::error::Error;
use line::Line;
use std::collections::BTreeMap;
use std::io::{self, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// What one step of a greeting may take.
const GREETING_LIMIT: Duration = Duration::from_secs(5);

/// Connections that have not greeted yet.
const MOST_STRANGERS: u32 = 128;

/// Meeting places of the world that some rank has begun, and some has not.
const MOST_SESSIONS: usize = 1024;

/// The pause after a connection that could not be accepted, as where descriptors ran out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);

/// The meeting place of a world of processes. Whoever has it listens until it is dropped.
#[derive(Debug)]
pub struct Coordinator {
    address: SocketAddr,
    listener: Arc<TcpListener>,
    hall: Arc<Hall>,
}

#[derive(Debug)]
struct Hall {
    world: u32,
    token: Token,
    state: Mutex<State>,
    changed: Condvar,
    is_closing: AtomicBool,
    strangers: AtomicU32,
}

#[derive(Debug)]
struct State {
    seats: Vec<Seat>,
    /// Places that not every rank has begun, with the number of ranks that have.
    sessions: BTreeMap<u64, (Arc<Local>, u32)>,
    /// When each rank last gave up, or went without; 0 where it did neither.
    departed: Vec<u64>,
    departures: u64,
}

/// A rank's process, as the coordinator knows it.
#[derive(Debug)]
enum Seat {
    /// It has not come.
    Empty,
    Taken(Arc<Line>),
    /// It has gone, or will not come, and why.
    Left(String),
}

impl Coordinator {
    /// Listens at `address` (`host:port`; port 0 picks one) for the ranks of a world of `world`,
    /// who know `token` where there is one.
    ///
    /// # Errors
    ///
    /// [`Error::CannotListen`], as where the port is in use; [`Error::OutOfRange`] for a world
    /// without ranks, or of more than 64.
    pub fn listen(address: &str, world: u32, token: Option<&str>) -> Result<Coordinator, Error> {
        Coordinator::open(address, world, token.map(Token::new).unwrap_or_default())
    }

    pub(crate) fn open(address: &str, world: u32, token: Token) -> Result<Coordinator, Error> {
        if !(1..=MOST_RANKS).contains(&world) {
            let (low, high, found) = (1, MOST_RANKS.into(), world.into());
            return Err(Error::OutOfRange { what: "ranks of a world", low, high, found });
        }
        let failed = |error: io::Error| Error::CannotListen {
            address: address.into(),
            reason: error.to_string(),
        };
        let listener = Arc::new(bind(address).map_err(failed)?);
        let bound = listener.local_addr().map_err(failed)?;
        let state = State {
            seats: (0..world).map(|_| Seat::Empty).collect(),
            sessions: BTreeMap::new(),
            departed: vec![0; world as usize],
            departures: 0,
        };
        let hall = Arc::new(Hall {
            world,
            token,
            state: Mutex::new(state),
            changed: Condvar::new(),
            is_closing: AtomicBool::new(false),
            strangers: AtomicU32::new(0),
        });
        let (from, into) = (Arc::clone(&listener), Arc::clone(&hall));
        let acceptor = thread::Builder::new().name("flux: coordinator".into());
        acceptor.spawn(move || into.admit(&from)).map_err(failed)?;
        Ok(Coordinator { address: bound, listener, hall })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Takes it that `rank` will not come, where it has not: those who wait for it hear `reason` at once.
    /// Says whether it has not, and somebody has. For those who start the processes of ranks, and see
    /// them end.
    pub fn ended(&self, rank: u32, reason: impl Into<String>) -> bool {
        let is_missed = {
            let state = self.hall.lock();
            let others = state.seats.iter().any(|seat| matches!(seat, Seat::Taken(_)));
            match state.seats.get(rank as usize) {
                Some(Seat::Empty) => others,
                Some(Seat::Taken(_) | Seat::Left(_)) | None => return false,
            }
        };
        self.hall.leave(rank, reason.into(), true);
        is_missed
    }

    /// Ranks in the order in which they gave up or went: whoever went because of another one comes behind
    /// it.
    pub fn departures(&self) -> Vec<u32> {
        let state = self.hall.lock();
        let mut ranks: Vec<u32> = (0..state.departed.len() as u32).collect();
        ranks.retain(|rank| state.departed[*rank as usize] > 0);
        ranks.sort_by_key(|rank| state.departed[*rank as usize]);
        ranks
    }

    /// Waits until no rank is in the middle of something, `limit` at most: each has abandoned its
    /// places, closed them, gone, or never come.
    pub fn wait_idle(&self, limit: Duration) {
        self.wait(limit, |_, seat| seat.is_busy(u64::MAX));
    }

    /// As [`Coordinator::wait_idle`], for the others than `rank` and the places of the world that it has
    /// begun: in later ones they may be waiting for it.
    pub(crate) fn wait_behind(&self, rank: u32, limit: Duration) {
        let sessions = match self.hall.lock().seats.get(rank as usize) {
            Some(Seat::Taken(line)) => line.begun(),
            Some(Seat::Empty | Seat::Left(_)) | None => 0,
        };
        self.wait(limit, |other, seat| other != rank && seat.is_busy(sessions));
    }

    /// Waits until every rank has come and gone, `limit` at most.
    pub(crate) fn wait_gone(&self, limit: Duration) {
        self.wait(limit, |_, seat| !matches!(seat, Seat::Left(_)));
    }

    fn wait(&self, limit: Duration, is_awaited: impl Fn(u32, &Seat) -> bool) {
        let start = Instant::now();
        let mut state = self.hall.lock();
        let is_greeting = || self.hall.strangers.load(Ordering::Acquire) > 0;
        let any = |seats: &[Seat]| seats.iter().zip(0..).any(|(seat, rank)| is_awaited(rank, seat));
        while (is_greeting() || any(&state.seats)) && start.elapsed() < limit {
            let rest = limit.saturating_sub(start.elapsed());
            let waited = self.hall.changed.wait_timeout(state, rest);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Drop for Coordinator {
    fn drop(&mut self) {
        self.hall.is_closing.store(true, Ordering::Release);
        // Wakes the thread that accepts; a system that does not lets it wait for one more stranger.
        let _ = rustix::net::shutdown(&*self.listener, rustix::net::Shutdown::Both);
        for seat in &self.hall.lock().seats {
            if let Seat::Taken(line) = seat {
                line.tell(&Told::Closing);
                line.hang_up();
            }
        }
    }
}

/// Whose connection has ended. Its process has, where it held on to what it joined.
const ENDED: &str = "its process has ended";

/// Why a rank that is gone may not come again.
fn gone(rank: u32, reason: &str) -> String {
    let why = match reason {
        ENDED => String::new(),
        reason => format!(" ({reason})"),
    };
    format!(
        "rank {rank} has joined and has left{why}, and a rank joins once: keep the `World` of this process \
         as long as it takes part, and clone it or pass it on in place of a second `World::from_env`"
    )
}

/// Listens at the first of the addresses that can be had.
fn bind(address: &str) -> io::Result<TcpListener> {
    let addresses: Vec<_> = address.to_socket_addrs()?.collect();
    TcpListener::bind(&addresses[..])
}

impl State {
    /// Notes that a rank gives up, ahead of all who hear of it.
    fn depart(&mut self, rank: u32) {
        self.departures += 1;
        self.departed[rank as usize] = self.departures;
    }
}

impl Seat {
    fn is_busy(&self, sessions: u64) -> bool {
        match self {
            Seat::Taken(line) => line.is_busy(sessions),
            Seat::Empty | Seat::Left(_) => false,
        }
    }
}

impl Hall {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Accepts connections until the coordinator is dropped.
    fn admit(self: &Arc<Self>, listener: &TcpListener) {
        loop {
            let accepted = listener.accept();
            if self.is_closing.load(Ordering::Acquire) {
                return;
            }
            let Ok((socket, _)) = accepted else {
                thread::sleep(ACCEPT_PAUSE);
                continue;
            };
            if self.strangers.fetch_add(1, Ordering::AcqRel) >= MOST_STRANGERS {
                self.strangers.fetch_sub(1, Ordering::AcqRel);
                continue;
            }
            let hall = Arc::clone(self);
            let serve = move || {
                let line = hall.greet(socket);
                hall.strangers.fetch_sub(1, Ordering::AcqRel);
                hall.changed.notify_all();
                if let Some(line) = line {
                    hall.serve(&line);
                }
            };
            if thread::Builder::new().name("flux: a rank's calls".into()).spawn(serve).is_err() {
                self.strangers.fetch_sub(1, Ordering::AcqRel);
            }
        }
    }

    /// Finds out who has connected; the line of a rank that may stay.
    fn greet(&self, socket: TcpStream) -> Option<Arc<Line>> {
        let theirs = self.prove(&socket).ok()??;
        let line = Arc::new(Line::new(theirs.rank, socket));
        let tell = |answer| line.tell(&Told::Reply { id: 0, answer });
        match self.seat(&theirs, &line) {
            Ok(()) => {
                tell(Ok(Answer::Done));
                Some(line)
            }
            Err((refusal, reason)) => {
                tell(Err(refusal));
                // The others hear it behind the rank itself, as they may end the world.
                if let Some(reason) = reason {
                    self.leave(theirs.rank, reason, true);
                }
                None
            }
        }
    }

    /// The greeting of one who knows the token.
    fn prove(&self, mut socket: &TcpStream) -> io::Result<Option<Greeting>> {
        socket.set_nodelay(true)?;
        socket.set_read_timeout(Some(GREETING_LIMIT))?;
        socket.set_write_timeout(Some(WRITE_LIMIT))?;
        let mut theirs = [0; GREETING_BYTES];
        socket.read_exact(&mut theirs)?;
        let Some(greeting) = Greeting::decode(&theirs) else { return Ok(None) };
        let ours = Greeting { version: VERSION, rank: 0, world: self.world, nonce: random()? };
        let ours = ours.encode();
        socket.write_all(&ours)?;
        let mut proof = [0; PROOF_BYTES];
        socket.read_exact(&mut proof)?;
        if !self.token.accepts(Side::Rank, [&theirs, &ours], &proof) {
            return Ok(None);
        }
        socket.write_all(&self.token.prove(Side::Coordinator, [&theirs, &ours]))?;
        socket.set_read_timeout(None)?;
        Ok(Some(greeting))
    }

    /// Gives a rank its seat; or a refusal, and why the others will miss it where it is one of theirs
    /// that was started wrongly.
    fn seat(&self, theirs: &Greeting, line: &Arc<Line>) -> Result<(), (Refusal, Option<String>)> {
        let (rank, world) = (theirs.rank, self.world);
        let wrong = if theirs.version != VERSION {
            let (ours, theirs) = (VERSION, theirs.version);
            let reason =
                format!("it speaks version {theirs} of the rendezvous, the coordinator {ours}");
            Some((Refusal::Version { ours, theirs }, reason))
        } else if theirs.world != world {
            let (ours, theirs) = (world, theirs.world);
            let reason =
                format!("it was started for a world of {theirs}, the coordinator for {ours}");
            Some((Refusal::World { ours, theirs }, reason))
        } else {
            None
        };
        let mut state = self.lock();
        match (state.seats.get_mut(rank as usize), wrong) {
            (Some(Seat::Taken(_)), _) => Err((Refusal::Taken { rank }, None)),
            (Some(Seat::Left(reason)), None) => {
                Err((Refusal::Other { reason: gone(rank, reason) }, None))
            }
            (Some(Seat::Empty), Some((refusal, reason))) => Err((refusal, Some(reason))),
            (Some(Seat::Left(_)) | None, Some((refusal, _))) => Err((refusal, None)),
            (None, None) => Err((Refusal::NoSuchRank { rank, world }, None)),
            (Some(seat @ Seat::Empty), None) => {
                *seat = Seat::Taken(Arc::clone(line));
                Ok(())
            }
        }
    }

    /// Answers the calls of a rank until its connection ends.
    fn serve(self: &Arc<Self>, line: &Arc<Line>) {
        let mut from = BufReader::new(line.socket());
        let why = loop {
            match receive(&mut from, MOST_CALL) {
                Ok(call) => line.answer(self, call),
                Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                    break format!("it sent what is no call: {error}");
                }
                Err(_) => break ENDED.into(),
            }
        };
        line.hang_up();
        self.leave(line.rank(), why, line.is_busy(u64::MAX));
        line.abandon_all();
    }

    /// Notes that a rank is gone for good, and tells those who wait for it; and whoever is in a
    /// launch, where it was in the middle of something.
    fn leave(&self, rank: u32, reason: String, is_lost: bool) {
        let mut state = self.lock();
        if state.departed[rank as usize] == 0 {
            state.depart(rank);
        }
        let seat = std::mem::replace(&mut state.seats[rank as usize], Seat::Left(reason.clone()));
        if let Seat::Taken(line) = seat {
            line.abandon(&reason);
        }
        for (place, _) in state.sessions.values() {
            // Ranks of the world are ranks of its places.
            let _ = place.abandon(rank, &*reason);
        }
        let others = state.seats.iter().filter_map(|seat| match seat {
            Seat::Taken(line) if is_lost => Some(Arc::clone(line)),
            Seat::Taken(_) | Seat::Empty | Seat::Left(_) => None,
        });
        let others: Vec<_> = others.collect();
        drop(state);
        self.changed.notify_all();
        for line in others {
            line.tell(&Told::Lost { rank, reason: reason.clone() });
        }
    }

    /// The `number`-th place of the world, for one more rank.
    fn session(&self, number: u64) -> Result<Arc<Local>, Refusal> {
        let mut state = self.lock();
        let State { seats, sessions, .. } = &mut *state;
        if !sessions.contains_key(&number) {
            if sessions.len() >= MOST_SESSIONS {
                return Err(Refusal::TooManyMeetings { most: MOST_SESSIONS as u64 });
            }
            let place = Arc::new(Local::new(self.world));
            for (seat, rank) in seats.iter().zip(0..) {
                if let Seat::Left(reason) = seat {
                    let _ = place.abandon(rank, &**reason);
                }
            }
            sessions.insert(number, (place, 0));
        }
        let (place, begun) = sessions
            .get_mut(&number)
            .ok_or(Refusal::Other { reason: "the place is gone".into() })?;
        *begun += 1;
        let (place, is_complete) = (Arc::clone(place), *begun == self.world);
        if is_complete {
            sessions.remove(&number);
        }
        Ok(place)
    }
}
