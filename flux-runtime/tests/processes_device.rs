//! Ranks that are processes and share memory of GPUs: as many as there are, several of them on one
//! where these are fewer.
//!
//! The program starts itself again, as ranks. Without a device every case is counted as ignored and
//! the reason is printed.

#[path = "support/ranks.rs"]
#[expect(dead_code, reason = "shared with tests that need more of it")]
mod ranks;

use flux_runtime::{
    Device, DeviceBuffer, Error, Heaps, HostBuffer, Job, Joined, Launch, Module, Rendezvous,
    Residency, Stream, probe,
};
use ranks::{LONG, Process, port, start_all};
use rustix::process::Signal;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

const PTX: &str = include_str!("kernels.ptx");

/// Bytes of a heap: no multiple of what a device maps.
const BYTES: u64 = (3 << 20) + 256;

/// Of which two do not fit where a case leaves room for one and a half.
const MUCH: u64 = 8 << 30;

fn main() -> ExitCode {
    let cases: [(&str, fn()); 6] = [
        ("two_processes_reach_each_others_memory", || exchange(2)),
        ("four_processes_reach_each_others_memory", || exchange(4)),
        ("kernels_of_two_processes_wait_for_each_other", waits),
        ("memory_outlives_the_process_that_made_it", killed),
        ("memory_that_runs_out_is_an_error_to_all", no_memory),
        ("descriptors_that_run_out_are_an_error_to_all", no_descriptors),
    ];
    let missing = || probe().err().map(|reason| format!("no CUDA device ({reason})"));
    ranks::run_unless(missing, play, 1, cases)
}

/// A rank, and what it needs of a device.
struct Player {
    joined: Joined,
    place: Rendezvous,
    device: Arc<Device>,
    near: Vec<bool>,
}

impl Player {
    fn new(ordinal: impl Fn(u32, u32) -> u32) -> Result<Player, Error> {
        let begin = Instant::now();
        let job = Job::from_env()?;
        let joined = Joined::new(&job, Vec::new(), LONG)?;
        println!("{} has joined after {}", say(&joined), ms(begin));
        ranks::step("has joined");
        let begin = Instant::now();
        let opened = Device::open(ordinal(job.local_rank, probe()?.devices));
        ranks::step(format!("has opened {opened:?}"));
        // Whose GPU is not to be had is said to all.
        let device = joined.settle(opened, LONG)?;
        println!("{} has opened its device after {}", say(&joined), ms(begin));
        let (place, own) = (joined.meet(), device.properties().uuid);
        let all = place.all_gather(joined.rank(), 98, own.0.into(), LONG)?;
        let near = all.iter().map(|uuid| *uuid == own.0).collect();
        Ok(Player { place, joined, device, near })
    }

    fn heaps(&self, key: u64, bytes: u64) -> Result<Heaps, Error> {
        let begin = Instant::now();
        let members: Vec<u32> = (0..self.joined.world()).collect();
        let own = (self.joined.rank(), &members[..]);
        let on = (&self.device, &self.near[..]);
        let heaps = self.joined.share_heaps(&self.place, own, key, on, (bytes, 4096), LONG)?;
        ranks::step("has mapped all");
        println!("{} has mapped {bytes} bytes of all in {}", say(&self.joined), ms(begin));
        Ok(heaps)
    }

    fn barrier(&self) -> Result<(), Error> {
        self.place.all_gather(self.joined.rank(), 99, Vec::new(), LONG).map(drop)
    }
}

fn say(joined: &Joined) -> String {
    format!("rank {} of {}", joined.rank(), joined.world())
}

fn ms(begin: Instant) -> String {
    format!("{:.2} ms", begin.elapsed().as_secs_f64() * 1e3)
}

/// What a rank does.
fn play(role: &str) -> Result<(), Error> {
    // What runs out is that of one GPU.
    let player = Player::new(|rank, count| if role == "full" { 0 } else { rank % count })?;
    let outcome = match role {
        "exchange" => (0..3).try_for_each(|round| player.exchange(round)),
        "waits" => player.waits(),
        "killed" => player.outlives(),
        "full" => player.runs_out(),
        "poor" => {
            player.heaps(1, BYTES)?;
            player.barrier()?;
            if player.joined.rank() == 1 {
                ranks::exhaust_descriptors();
            }
            player.heaps(2, BYTES).map(drop)
        }
        other => panic!("no role `{other}`"),
    };
    ranks::step("has played");
    player.joined.wait_idle(LONG);
    ranks::step("ends");
    outcome
}

impl Player {
    /// Every rank writes a word and a block into the heaps of all, on the device and on the host.
    fn exchange(&self, round: u64) -> Result<(), Error> {
        let (rank, world) = (self.joined.rank(), self.joined.world());
        let heaps = self.heaps(round, BYTES)?;
        let stream = Stream::new(&self.device)?;
        let block = |from: u32, to: u32| -> Vec<u32> {
            (0..4096u32).map(|i| i ^ (from << 20 | to << 16) ^ round as u32).collect()
        };
        let at = |from: u32| 4096 + 16384 * u64::from(from);
        for peer in 0..world {
            let data = block(rank, peer);
            let from = DeviceBuffer::alloc(&self.device, 16384)?;
            from.copy_from(0, &data)?;
            stream.copy(heaps.span(peer, at(rank), 16384)?, from.span())?;
            let slot = 4 * u64::from(rank);
            stream.write_u32(heaps.span(peer, slot, 4)?, 100 + rank)?;
            stream.write_u32(heaps.host(peer)?.span().part(slot, 4)?, 200 + rank)?;
            stream.synchronize(LONG)?;
        }
        // The last bytes of each are there, too.
        stream.fill_u8(heaps.span((rank + 1) % world, BYTES - 16, 16)?, 7)?;
        stream.synchronize(LONG)?;
        ranks::step("has written");
        self.barrier()?;
        ranks::step("all have written");
        for from in 0..world {
            let word = heaps.host(rank)?.words()[from as usize].load(Ordering::Acquire);
            assert_eq!(word, 200 + from, "of the host");
            assert_eq!(self.words(&heaps, rank, 4 * u64::from(from), 1)?, [100 + from]);
            assert_eq!(self.words(&heaps, rank, at(from), 4096)?, block(from, rank));
            // Whoever maps the heap of another sees the same.
            for of in 0..world {
                assert_eq!(self.words(&heaps, of, at(from), 4096)?, block(from, of));
            }
        }
        assert_eq!(self.words(&heaps, rank, BYTES - 16, 4)?, [0x0707_0707; 4]);
        assert_eq!(self.words(&heaps, rank, BYTES - 32, 4)?, [0; 4], "zero where nobody wrote");
        self.barrier()
    }

    fn words(
        &self,
        heaps: &Heaps,
        rank: u32,
        offset: u64,
        count: usize,
    ) -> Result<Vec<u32>, Error> {
        let (bytes, mut found) = (4 * count as u64, vec![0; count]);
        let to = DeviceBuffer::alloc(&self.device, bytes)?;
        let stream = Stream::new(&self.device)?;
        stream.copy(to.span(), heaps.span(rank, offset, bytes)?)?;
        stream.synchronize(LONG)?;
        to.copy_to(0, &mut found)?;
        Ok(found)
    }

    /// Kernels of both ranks raise each other's words in turn. On one GPU they have it in turns.
    fn waits(&self) -> Result<(), Error> {
        const ROUNDS: u64 = 300;
        let (rank, heaps) = (self.joined.rank(), self.heaps(1, BYTES)?);
        let stream = Stream::new(&self.device)?;
        let kernel = Module::load(&self.device, PTX)?.function("ping_pong", 0)?;
        let ended = HostBuffer::alloc(&self.device, 8)?;
        let (own, other) = (heaps.device(rank)?.address(), heaps.device(1 - rank)?.address());
        let words = [own, other, ROUNDS, rank.into(), 40_000_000_000, ended.address()];
        let launch = Launch {
            function: &kernel,
            ctas: 1,
            threads: 1,
            shared_bytes: 0,
            residency: Residency::Independent,
            maps: &[],
            words: &words,
        };
        self.barrier()?;
        // SAFETY: the kernel uses the words at three addresses, by atomic operations.
        unsafe { launch.enqueue(&stream) }?;
        ranks::step("has launched");
        stream.synchronize(LONG)?;
        ranks::step("its kernel has ended");
        let ns = ended.words()[0].load(Ordering::Acquire);
        assert!(rank > 0 || ns > 0, "a word did not come");
        if rank == 0 {
            let one = f64::from(ns) / 1e6 / ROUNDS as f64;
            println!("a signal to and fro between processes, on one GPU: {} : {one:.3} ms", {
                self.near.iter().all(|near| *near)
            });
        }
        self.barrier()
    }

    /// Rank 1 is killed; what it had made is still there.
    fn outlives(&self) -> Result<(), Error> {
        let heaps = self.heaps(1, BYTES)?;
        let rank = self.joined.rank();
        let stream = Stream::new(&self.device)?;
        stream.write_u32(heaps.span(rank, 8, 4)?, 300 + rank)?;
        stream.synchronize(LONG)?;
        self.barrier()?;
        println!("ready");
        let begin = Instant::now();
        while self.joined.lost().is_none() && begin.elapsed() < LONG {
            thread::sleep(Duration::from_millis(1));
        }
        println!("lost: {:?}", self.joined.lost());
        for of in 0..self.joined.world() {
            assert_eq!(self.words(&heaps, of, 8, 1)?, [300 + of]);
            stream.write_u32(heaps.host(of)?.span().part(0, 4)?, 1)?;
        }
        stream.synchronize(LONG)?;
        Ok(())
    }

    /// One of two heaps fits, so one rank at least has none.
    fn runs_out(&self) -> Result<(), Error> {
        let hoard = match self.joined.rank() {
            0 => {
                let free = self.device.free_bytes()?;
                Some(DeviceBuffer::alloc(&self.device, free.saturating_sub(MUCH + MUCH / 2))?)
            }
            _ => None,
        };
        self.barrier()?;
        let heaps = self.heaps(1, MUCH).map(drop);
        drop(hoard);
        let error = heaps.expect_err("there is no room for two");
        println!("{error}");
        self.barrier()?;
        // What one of them had is free again.
        self.exchange(5)?;
        Err(error)
    }
}

/// That a job at this port works: what was there before has left nothing behind.
fn works_at(port: u16) {
    start_all("exchange", 2, port).into_iter().for_each(Process::succeed);
}

fn exchange(world: u32) {
    let port = port();
    start_all("exchange", world, port).into_iter().for_each(Process::succeed);
    works_at(port);
}

fn waits() {
    start_all("waits", 2, port()).into_iter().for_each(Process::succeed);
}

fn killed() {
    let port = port();
    let mut ranks = start_all("killed", 3, port);
    ranks.iter().for_each(|rank| rank.wait_for("ready"));
    ranks[1].signal(Signal::KILL);
    ranks.remove(1);
    for rank in ranks {
        let ended = rank.end();
        assert!(ended.status.success(), "{ended:?}");
        assert!(ended.said.contains("lost: Some((1, \"its process has ended\"))"), "{ended:?}");
    }
    works_at(port);
}

fn no_memory() {
    let port = port();
    for rank in start_all("full", 2, port) {
        let ended = rank.fail("bytes of device memory wanted on device 0");
        println!("{}", ended.said);
    }
    works_at(port);
}

fn no_descriptors() {
    let port = port();
    for rank in start_all("poor", 2, port) {
        let ended = rank.fail("rank 1: ");
        println!("{}", ended.said);
    }
    works_at(port);
}
