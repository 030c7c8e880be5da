//! What goes over a connection, and the bounds of it.
//!
//! First a greeting of fixed bytes, which is to stay as it is in every version; then frames: a
//! length, and so many bytes of `postcard`. A length is compared with its bound before anything is
//! read, and memory grows with the bytes that come, not with what a length claims.

use super::secret::{NONCE_BYTES, Nonce};
use crate::error::Error;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io::{self, ErrorKind, Read, Write};
use std::time::Duration;

/// What a greeting begins with.
const MAGIC: [u8; 4] = *b"FLUX";

/// The version of everything behind the greeting, what ranks tell each other in their payloads
/// included. It grows with each change.
pub(crate) const VERSION: u32 = 2;

/// Ranks of a world, at most.
pub(crate) const MOST_RANKS: u32 = 64;

/// Bytes that a rank may give to a meeting.
pub(crate) const MOST_PAYLOAD: usize = 1 << 20;

/// Bytes of a frame beside its payloads.
const SLACK: usize = 64 << 10;

/// Bytes of a frame to the coordinator.
pub(crate) const MOST_CALL: usize = MOST_PAYLOAD + SLACK;

/// Bytes of a frame from the coordinator: a payload of every rank.
pub(crate) const MOST_REPLY: usize = MOST_PAYLOAD * MOST_RANKS as usize + SLACK;

/// The longest text that is passed on.
const MOST_TEXT: usize = 4 << 10;

/// What both sides say first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Greeting {
    pub(crate) version: u32,
    /// Of the one that connects; of the coordinator 0.
    pub(crate) rank: u32,
    /// Ranks of the world.
    pub(crate) world: u32,
    pub(crate) nonce: Nonce,
}

pub(crate) const GREETING_BYTES: usize = 16 + NONCE_BYTES;

impl Greeting {
    pub(crate) fn encode(&self) -> [u8; GREETING_BYTES] {
        let mut bytes = [0; GREETING_BYTES];
        let numbers = [self.version, self.rank, self.world].map(u32::to_le_bytes);
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4..16].copy_from_slice(numbers.as_flattened());
        bytes[16..].copy_from_slice(&self.nonce);
        bytes
    }

    /// `None` where it is no greeting of ours.
    pub(crate) fn decode(bytes: &[u8; GREETING_BYTES]) -> Option<Greeting> {
        let (magic, rest) = bytes.split_first_chunk::<4>()?;
        let (version, rest) = rest.split_first_chunk::<4>()?;
        let (rank, rest) = rest.split_first_chunk::<4>()?;
        let (world, rest) = rest.split_first_chunk::<4>()?;
        let [version, rank, world] = [version, rank, world].map(|&word| u32::from_le_bytes(word));
        let nonce = rest.try_into().ok()?;
        (*magic == MAGIC).then_some(Greeting { version, rank, world, nonce })
    }
}

/// A call of a rank, numbered so that the reply finds who waits for it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Call {
    pub(crate) id: u64,
    /// Which of the connection's meeting places; for [`Request::Begin`] nothing.
    pub(crate) place: u32,
    pub(crate) request: Request,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Request {
    /// The next meeting place of the whole world.
    Begin,
    Gather {
        key: u64,
        payload: Vec<u8>,
        limit: Duration,
    },
    Number,
    Abandon {
        reason: String,
    },
    Group {
        members: Vec<u32>,
        limit: Duration,
    },
    Recover {
        limit: Duration,
    },
    /// The rank needs the place no more.
    Close,
}

/// What the coordinator says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Told {
    /// The answer to a call.
    Reply { id: u64, answer: Result<Answer, Refusal> },
    /// A rank's process has ended in the middle of something.
    Lost { rank: u32, reason: String },
    /// The coordinator ends in good order.
    Closing,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Answer {
    Done,
    Payloads(Vec<Vec<u8>>),
    Number(u64),
    Place(u32),
}

/// The errors of a meeting place, as they travel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Refusal {
    Missing {
        missing: Vec<u32>,
        elsewhere: Vec<u32>,
        waited: Duration,
    },
    Late {
        rank: u32,
        waited: Duration,
    },
    Abandoned {
        rank: u32,
        reason: String,
    },
    Recovers {
        rank: u32,
    },
    Twice {
        rank: u32,
    },
    NoSuchRank {
        rank: u32,
        world: u32,
    },
    NotInGroup {
        rank: u32,
        members: Vec<u32>,
    },
    TwiceInGroup {
        rank: u32,
        members: Vec<u32>,
    },
    GroupsDiffer {
        rank: u32,
        ours: Vec<u32>,
        other: u32,
        theirs: Vec<u32>,
    },
    TooManyMeetings {
        most: u64,
    },
    Taken {
        rank: u32,
    },
    Version {
        ours: u32,
        theirs: u32,
    },
    World {
        ours: u32,
        theirs: u32,
    },
    /// Anything else, as text.
    Other {
        reason: String,
    },
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Refusal {
        match error {
            Error::RankMissing { missing, elsewhere, waited } => {
                Refusal::Missing { missing, elsewhere, waited }
            }
            Error::RankLate { rank, waited } => Refusal::Late { rank, waited },
            Error::RankAbandoned { rank, reason } => Refusal::Abandoned { rank, reason },
            Error::RankRecovers { rank } => Refusal::Recovers { rank },
            Error::RankTwice { rank } => Refusal::Twice { rank },
            Error::NoSuchRank { rank, world } => Refusal::NoSuchRank { rank, world },
            Error::NotInGroup { rank, members } => Refusal::NotInGroup { rank, members },
            Error::TwiceInGroup { rank, members } => Refusal::TwiceInGroup { rank, members },
            Error::GroupsDiffer { rank, ours, other, theirs } => {
                Refusal::GroupsDiffer { rank, ours, other, theirs }
            }
            Error::TooManyMeetings { most } => Refusal::TooManyMeetings { most },
            other => Refusal::Other { reason: other.to_string() },
        }
    }
}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Error {
        match refusal {
            Refusal::Missing { missing, elsewhere, waited } => {
                Error::RankMissing { missing, elsewhere, waited }
            }
            Refusal::Late { rank, waited } => Error::RankLate { rank, waited },
            Refusal::Abandoned { rank, reason } => Error::RankAbandoned { rank, reason },
            Refusal::Recovers { rank } => Error::RankRecovers { rank },
            Refusal::Twice { rank } => Error::RankTwice { rank },
            Refusal::NoSuchRank { rank, world } => Error::NoSuchRank { rank, world },
            Refusal::NotInGroup { rank, members } => Error::NotInGroup { rank, members },
            Refusal::TwiceInGroup { rank, members } => Error::TwiceInGroup { rank, members },
            Refusal::GroupsDiffer { rank, ours, other, theirs } => {
                Error::GroupsDiffer { rank, ours, other, theirs }
            }
            Refusal::TooManyMeetings { most } => Error::TooManyMeetings { most },
            Refusal::Taken { rank } => Error::RankTaken { rank },
            // Told from the coordinator's side.
            Refusal::Version { ours, theirs } => Error::OtherVersion { ours: theirs, theirs: ours },
            Refusal::World { ours, theirs } => Error::OtherWorld { ours: theirs, theirs: ours },
            Refusal::Other { reason } => Error::Refused { reason },
        }
    }
}

/// Text of a peer, no longer than is passed on.
pub(crate) fn text(mut said: String) -> String {
    if said.len() > MOST_TEXT {
        let end = (0..=MOST_TEXT).rev().find(|&end| said.is_char_boundary(end));
        said.truncate(end.unwrap_or(0));
    }
    said
}

/// Writes one frame.
pub(crate) fn send(to: &mut impl Write, message: &impl Serialize) -> io::Result<()> {
    let body = postcard::to_stdvec(message).map_err(io::Error::other)?;
    let length = u32::try_from(body.len()).map_err(io::Error::other)?;
    // In one piece: a frame is a packet where it is short.
    let mut frame = Vec::with_capacity(4 + body.len());
    frame.extend(length.to_le_bytes());
    frame.extend(body);
    to.write_all(&frame)
}

/// Reads one frame of at most `most` bytes.
pub(crate) fn receive<T: DeserializeOwned>(from: &mut impl Read, most: usize) -> io::Result<T> {
    let mut length = [0; 4];
    from.read_exact(&mut length)?;
    let length = u32::from_le_bytes(length) as usize;
    if length > most {
        let reason = format!("a message of {length} bytes, where {most} are allowed");
        return Err(io::Error::new(ErrorKind::InvalidData, reason));
    }
    let mut body = Vec::new();
    if from.take(length as u64).read_to_end(&mut body)? < length {
        return Err(ErrorKind::UnexpectedEof.into());
    }
    decode(&body)
}

/// A message that fills `body`, and nothing beside it.
fn decode<T: DeserializeOwned>(body: &[u8]) -> io::Result<T> {
    match postcard::take_from_bytes(body) {
        Ok((message, [])) => Ok(message),
        Ok(_) => Err(io::Error::new(ErrorKind::InvalidData, "bytes behind a message")),
        Err(error) => Err(io::Error::new(ErrorKind::InvalidData, error)),
    }
}

#[cfg(test)]
mod tests;
