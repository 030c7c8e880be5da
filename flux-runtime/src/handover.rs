//! Descriptors handed from process to process of one machine: of shared memory, and of memory of a
//! GPU.
//!
//! A process offers a descriptor under a ticket, random bytes that its peers get to know where ranks
//! meet. A peer connects, shows the ticket and gets the descriptor. The socket has no file: its name
//! is random and in the abstract namespace, so a process that is killed leaves none behind. Processes
//! of other users are turned away, whatever they know.

use crate::error::Error;
use rustix::net::sockopt::socket_peercred;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use std::collections::HashMap;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// What names an offer.
pub(crate) type Ticket = [u8; 16];

/// What a peer may take to show its ticket.
const TICKET_LIMIT: Duration = Duration::from_secs(1);

/// The pause after a connection that could not be accepted, as where descriptors ran out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(5);

/// Where this process hands out descriptors.
#[derive(Debug)]
pub(crate) struct Handover {
    name: String,
    listener: Arc<UnixListener>,
    desk: Arc<Desk>,
}

#[derive(Debug, Default)]
struct Desk {
    offers: Mutex<HashMap<Ticket, Arc<OwnedFd>>>,
    is_closing: AtomicBool,
}

/// An offer, until it is dropped.
#[derive(Debug)]
pub(crate) struct Offer {
    desk: Arc<Desk>,
    pub(crate) ticket: Ticket,
}

fn failed(what: &'static str) -> impl Fn(io::Error) -> Error {
    move |error| Error::Handover { what, reason: error.to_string() }
}

impl Handover {
    /// Begins to listen, under a name of its own.
    pub(crate) fn open() -> Result<Handover, Error> {
        let failed = failed("no socket for descriptors");
        let name = u128::from_le_bytes(random().map_err(&failed)?);
        let name = format!("flux-{name:032x}");
        let address = SocketAddr::from_abstract_name(&name).map_err(&failed)?;
        let listener = Arc::new(UnixListener::bind_addr(&address).map_err(&failed)?);
        let desk = Arc::new(Desk::default());
        let (from, of) = (Arc::clone(&listener), Arc::clone(&desk));
        let clerk = thread::Builder::new().name("flux: descriptors".into());
        clerk.spawn(move || of.serve(&from)).map_err(&failed)?;
        Ok(Handover { name, listener, desk })
    }

    /// The name that peers connect to.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Offers a descriptor to whoever has the ticket, as often as it is wanted.
    pub(crate) fn offer(&self, descriptor: OwnedFd) -> Result<Offer, Error> {
        let ticket = random().map_err(failed("no ticket for a descriptor"))?;
        self.desk.lock().insert(ticket, Arc::new(descriptor));
        Ok(Offer { desk: Arc::clone(&self.desk), ticket })
    }

    /// Gets what a peer offers.
    pub(crate) fn fetch(name: &str, ticket: &Ticket, limit: Duration) -> Result<OwnedFd, Error> {
        fetch(name, ticket, limit).map_err(failed("no descriptor from a peer"))
    }
}

impl Drop for Handover {
    fn drop(&mut self) {
        self.desk.is_closing.store(true, Ordering::Release);
        // Wakes the thread that accepts.
        let _ = rustix::net::shutdown(&*self.listener, rustix::net::Shutdown::Both);
    }
}

impl Drop for Offer {
    fn drop(&mut self) {
        self.desk.lock().remove(&self.ticket);
    }
}

impl Desk {
    fn lock(&self) -> MutexGuard<'_, HashMap<Ticket, Arc<OwnedFd>>> {
        self.offers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn serve(&self, listener: &UnixListener) {
        loop {
            let accepted = listener.accept();
            if self.is_closing.load(Ordering::Acquire) {
                return;
            }
            match accepted {
                // Whoever goes away without its descriptor has said so itself.
                Ok((peer, _)) => drop(self.hand(&peer)),
                Err(_) => thread::sleep(ACCEPT_PAUSE),
            }
        }
    }

    fn hand(&self, mut peer: &UnixStream) -> io::Result<()> {
        require_same_user(peer)?;
        peer.set_read_timeout(Some(TICKET_LIMIT))?;
        peer.set_write_timeout(Some(TICKET_LIMIT))?;
        let mut ticket = Ticket::default();
        peer.read_exact(&mut ticket)?;
        let Some(descriptor) = self.lock().get(&ticket).cloned() else { return Ok(()) };
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let descriptors = [descriptor.as_fd()];
        control.push(SendAncillaryMessage::ScmRights(&descriptors));
        sendmsg(peer, &[IoSlice::new(&[1])], &mut control, SendFlags::NOSIGNAL)?;
        Ok(())
    }
}

fn fetch(name: &str, ticket: &Ticket, limit: Duration) -> io::Result<OwnedFd> {
    let mut peer = UnixStream::connect_addr(&SocketAddr::from_abstract_name(name)?)?;
    require_same_user(&peer)?;
    let limit = limit.max(Duration::from_millis(1));
    peer.set_read_timeout(Some(limit))?;
    peer.set_write_timeout(Some(limit))?;
    peer.write_all(ticket)?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let into = &mut [IoSliceMut::new(&mut byte)];
    recvmsg(&peer, into, &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let descriptor = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    descriptor.ok_or_else(|| io::Error::other("the peer gave none: it has ended, or has none left"))
}

/// Turns away processes of other users.
fn require_same_user(peer: &UnixStream) -> io::Result<()> {
    if socket_peercred(peer)?.uid == rustix::process::geteuid() {
        return Ok(());
    }
    Err(io::Error::new(io::ErrorKind::PermissionDenied, "the peer belongs to another user"))
}

fn random<const N: usize>() -> io::Result<[u8; N]> {
    crate::rendezvous::random()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::fd::OwnedFd;

    const LIMIT: Duration = Duration::from_secs(10);

    fn written(text: &str) -> OwnedFd {
        let fd = rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let mut file = File::from(fd);
        file.write_all(text.as_bytes()).unwrap();
        file.into()
    }

    fn text(fd: OwnedFd) -> String {
        let mut text = String::new();
        let mut file = File::from(fd);
        io::Seek::rewind(&mut file).unwrap();
        file.read_to_string(&mut text).unwrap();
        text
    }

    #[test]
    fn a_ticket_gets_its_descriptor_as_long_as_that_is_offered() {
        let desk = Handover::open().unwrap();
        let offers = ["a", "b"].map(|said| desk.offer(written(said)).unwrap());
        for (offer, said) in offers.iter().zip(["a", "b"]).chain(offers.iter().zip(["a", "b"])) {
            assert_eq!(text(Handover::fetch(desk.name(), &offer.ticket, LIMIT).unwrap()), said);
        }
        let [a, b] = offers;
        let gone = a.ticket;
        drop(a);
        let error = Handover::fetch(desk.name(), &gone, LIMIT).unwrap_err();
        assert!(error.to_string().contains("the peer gave none"), "{error}");
        assert!(Handover::fetch(desk.name(), &b.ticket, LIMIT).is_ok());
        assert!(Handover::fetch(desk.name(), &[0; 16], LIMIT).is_err());
    }

    #[test]
    fn a_peer_that_says_nothing_does_not_keep_the_others() {
        let desk = Handover::open().unwrap();
        let offer = desk.offer(written("a")).unwrap();
        let address = SocketAddr::from_abstract_name(desk.name()).unwrap();
        let _silent = UnixStream::connect_addr(&address).unwrap();
        assert_eq!(text(Handover::fetch(desk.name(), &offer.ticket, LIMIT).unwrap()), "a");
    }

    #[test]
    fn nobody_answers_once_it_is_closed() {
        let desk = Handover::open().unwrap();
        let (name, offer) = (desk.name().to_owned(), desk.offer(written("a")).unwrap());
        drop(desk);
        let start = std::time::Instant::now();
        assert!(Handover::fetch(&name, &offer.ticket, Duration::from_millis(200)).is_err());
        assert!(start.elapsed() < LIMIT);
    }
}
