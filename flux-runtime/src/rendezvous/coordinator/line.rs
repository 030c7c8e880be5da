//! One rank's connection, and the meeting places it may call.

use super::{Answer, Hall, Local, Refusal, Told, send};
use crate::rendezvous::wire::{Call, Request, text};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// Calls of one rank that wait at once.
const MOST_CALLS: u32 = 256;

/// Meeting places of one rank: the world's and groups'.
const MOST_PLACES: usize = 1024;

/// The longest wait that a rank may ask for.
const LONGEST: Duration = Duration::from_secs(7200);

#[derive(Debug)]
pub(super) struct Line {
    rank: u32,
    socket: TcpStream,
    writing: Mutex<()>,
    calls: AtomicU32,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    places: Vec<Option<Place>>,
    /// Places of the world that this rank has begun.
    begun: u64,
}

/// A meeting place, and who the rank is in it.
#[derive(Debug, Clone)]
struct Place {
    local: Arc<Local>,
    index: u32,
    /// Its number among those of the whole world, while the rank has not left it.
    session: Option<u64>,
}

impl Line {
    pub(super) fn new(rank: u32, socket: TcpStream) -> Line {
        let (writing, calls, state) = (Mutex::default(), AtomicU32::new(0), Mutex::default());
        Line { rank, socket, writing, calls, state }
    }

    pub(super) fn rank(&self) -> u32 {
        self.rank
    }

    pub(super) fn socket(&self) -> &TcpStream {
        &self.socket
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the rank is in the middle of something: of the first `sessions` of the world's places.
    pub(super) fn is_busy(&self, sessions: u64) -> bool {
        let state = self.lock();
        let mut open = state.places.iter().flatten().filter_map(|place| place.session);
        open.any(|session| session < sessions)
    }

    /// Places of the world that the rank has begun.
    pub(super) fn begun(&self) -> u64 {
        self.lock().begun
    }

    /// Sends a message; a rank that takes none is cut off.
    pub(super) fn tell(&self, told: &Told) {
        let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        if send(&mut &self.socket, told).is_err() {
            self.hang_up();
        }
    }

    pub(super) fn hang_up(&self) {
        let _ = self.socket.shutdown(Shutdown::Both);
    }

    /// Tells everybody in its places that the rank will not come.
    pub(super) fn abandon(&self, reason: &str) {
        let places: Vec<_> = self.lock().places.iter().flatten().cloned().collect();
        for place in places {
            let _ = place.local.abandon(place.index, reason);
        }
    }

    /// Forgets all places.
    pub(super) fn abandon_all(&self) {
        self.lock().places.clear();
    }

    /// Answers one call, on a thread of its own where it waits for other ranks.
    pub(super) fn answer(self: &Arc<Self>, hall: &Arc<Hall>, call: Call) {
        let Call { id, place, request } = call;
        let prompt = match request {
            Request::Begin => self.begin(hall),
            Request::Close => {
                self.close(place);
                hall.changed.notify_all();
                return;
            }
            Request::Number => self.place(place).and_then(|place| {
                let number = place.local.next_number(place.index)?;
                Ok(Answer::Number(number))
            }),
            Request::Abandon { reason } => {
                // A run may have ended well before, and this one not.
                hall.lock().depart(self.rank);
                let abandoned = self.place(place).and_then(|found| {
                    found.local.abandon(found.index, text(reason))?;
                    Ok(Answer::Done)
                });
                self.tell(&Told::Reply { id, answer: abandoned });
                // The rank knows before the coordinator may think that it needs nothing more.
                if let Some(Some(place)) = self.lock().places.get_mut(place as usize) {
                    place.session = None;
                }
                hall.changed.notify_all();
                return;
            }
            Request::Gather { .. } | Request::Group { .. } | Request::Recover { .. } => {
                return self.answer_later(id, place, request);
            }
        };
        self.tell(&Told::Reply { id, answer: prompt });
    }

    fn answer_later(self: &Arc<Self>, id: u64, place: u32, request: Request) {
        let refuse = |refusal| self.tell(&Told::Reply { id, answer: Err(refusal) });
        let place = match self.place(place) {
            Ok(place) => place,
            Err(refusal) => return refuse(refusal),
        };
        if self.calls.fetch_add(1, Ordering::AcqRel) >= MOST_CALLS {
            self.calls.fetch_sub(1, Ordering::AcqRel);
            return refuse(Refusal::TooManyMeetings { most: MOST_CALLS.into() });
        }
        let line = Arc::clone(self);
        let work = move || {
            let answer = line.meet(&place, request);
            line.calls.fetch_sub(1, Ordering::AcqRel);
            line.tell(&Told::Reply { id, answer });
        };
        if let Err(error) = thread::Builder::new().name("flux: a call".into()).spawn(work) {
            self.calls.fetch_sub(1, Ordering::AcqRel);
            let reason = format!("the coordinator has no thread for a call: {error}");
            refuse(Refusal::Other { reason });
        }
    }

    /// What waits for other ranks.
    fn meet(&self, place: &Place, request: Request) -> Result<Answer, Refusal> {
        let Place { local, index, .. } = place;
        match request {
            Request::Gather { key, payload, limit } => {
                let all = local.all_gather(*index, key, payload, limit.min(LONGEST))?;
                Ok(Answer::Payloads(all.to_vec()))
            }
            Request::Group { members, limit } => {
                let group = local.group(*index, &members, limit.min(LONGEST))?;
                let index = members.iter().position(|member| member == index).unwrap_or(0) as u32;
                self.add(Place { local: group, index, session: None })
            }
            Request::Recover { limit } => {
                local.recover(*index, limit.min(LONGEST))?;
                Ok(Answer::Done)
            }
            Request::Begin | Request::Number | Request::Abandon { .. } | Request::Close => {
                Ok(Answer::Done)
            }
        }
    }

    fn begin(&self, hall: &Hall) -> Result<Answer, Refusal> {
        let number = {
            let mut state = self.lock();
            state.begun += 1;
            state.begun - 1
        };
        let local = hall.session(number)?;
        self.add(Place { local, index: self.rank, session: Some(number) })
    }

    /// The number of a place from now on.
    fn add(&self, place: Place) -> Result<Answer, Refusal> {
        let mut state = self.lock();
        let free = state.places.iter().position(Option::is_none);
        let number = free.unwrap_or(state.places.len());
        if number >= MOST_PLACES {
            return Err(Refusal::TooManyMeetings { most: MOST_PLACES as u64 });
        }
        if number == state.places.len() {
            state.places.push(None);
        }
        state.places[number] = Some(place);
        Ok(Answer::Place(number as u32))
    }

    fn place(&self, number: u32) -> Result<Place, Refusal> {
        let place = self.lock().places.get(number as usize).cloned().flatten();
        place.ok_or_else(|| Refusal::Other { reason: format!("there is no place {number}") })
    }

    /// A place that its rank needs no more: where it is one of the world, the rank comes to it no
    /// more either.
    fn close(&self, number: u32) {
        let place = self.lock().places.get_mut(number as usize).and_then(Option::take);
        if let Some(place) = place.filter(|place| place.session.is_some()) {
            let _ = place.local.abandon(place.index, "it has left");
        }
    }
}
