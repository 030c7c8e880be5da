//! `flux launch`: the ranks of a world as processes of this machine.
//!
//! The command has the place where the ranks meet, so no port is picked that another job could take,
//! and a rank that dies is told to the others by one that lives. Each rank is a process group of its
//! own: what it started itself ends with it.

use clap::Args;
use flux::runtime::Coordinator;
use rustix::process::{Pid, Signal, kill_process_group};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::error::Error;
use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Starts a program as the ranks of a world.
#[derive(Debug, Args)]
pub(crate) struct Launch {
    /// The number of ranks: processes.
    #[arg(short = 'n', long = "ranks", value_parser = clap::value_parser!(u32).range(1..=64))]
    ranks: u32,
    /// Seconds that the other ranks have to end by themselves when one has failed, or a signal has
    /// come; and again, once they have been told to.
    #[arg(long, default_value_t = 3.0, value_parser = seconds)]
    grace: f64,
    /// The program and its arguments; it calls `World::from_env`, or is told `--world env`.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    program: Vec<OsString>,
}

fn seconds(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number| (0.0..=3600.0).contains(number));
    number.ok_or_else(|| "expected seconds from 0 to 3600".into())
}

/// What the command waits for.
enum Event {
    Ended(u32, ExitStatus),
    Signal(Signal),
}

/// Bytes of a line that are passed on in one piece.
const LONGEST_LINE: u64 = 64 << 10;

/// What output may take that is left when all ranks have ended.
const LAST_OUTPUT: Duration = Duration::from_secs(1);

/// Runs the program as all ranks; the exit status is that of the rank that failed first.
pub(crate) fn run(options: &Launch) -> Result<ExitCode, Box<dyn Error>> {
    let mut secret = [0; 16];
    getrandom::fill(&mut secret)?;
    let token = format!("{:032x}", u128::from_le_bytes(secret));
    let coordinator = Coordinator::listen("127.0.0.1:0", options.ranks, Some(&token))?;
    let (into, events) = channel();
    forward_signals(into.clone())?;
    let mut job = Job::default();
    for rank in 0..options.ranks {
        let mut command = command(options, rank, &coordinator.address().to_string(), &token);
        let started = command.spawn().and_then(|child| job.add(rank, child, into.clone()));
        if let Err(error) = started {
            job.signal(Signal::KILL);
            let program = options.program[0].display();
            return Err(format!("cannot start {program}: {error}").into());
        }
    }
    let code = job.wait(&events, Duration::from_secs_f64(options.grace), &coordinator);
    job.flush();
    Ok(code)
}

/// What a rank's process ended with that failed.
type Failure = (u32, ExitStatus);

/// The failure of the rank that gave up or went ahead of all others, as those may have failed because of it: who
/// ends first is chance. `failures` are in the order in which processes ended, `departures` in that in
/// which ranks left the place where they met.
fn first(failures: &[Failure], departures: &[u32]) -> Option<Failure> {
    let place = |rank| departures.iter().position(|&gone| gone == rank);
    failures.iter().copied().min_by_key(|&(rank, _)| place(rank).unwrap_or(usize::MAX))
}

/// One rank, with what `World::from_env` looks for.
fn command(options: &Launch, rank: u32, coordinator: &str, token: &str) -> Command {
    let mut command = Command::new(&options.program[0]);
    command.args(&options.program[1..]);
    command.env("FLUX_COORDINATOR", coordinator).env("FLUX_TOKEN", token);
    for name in ["RANK", "LOCAL_RANK"] {
        command.env(name, rank.to_string());
    }
    for name in ["WORLD_SIZE", "LOCAL_WORLD_SIZE"] {
        command.env(name, options.ranks.to_string());
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.process_group(0);
    command
}

/// Signals that come to the command become events.
fn forward_signals(into: Sender<Event>) -> io::Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])?;
    let forward = move || {
        for signal in signals.forever() {
            let signal = match signal {
                SIGINT => Signal::INT,
                SIGHUP => Signal::HUP,
                _ => Signal::TERM,
            };
            if into.send(Event::Signal(signal)).is_err() {
                return;
            }
        }
    };
    thread::Builder::new().name("signals".into()).spawn(forward).map(drop)
}

/// The ranks that run.
#[derive(Debug, Default)]
struct Job {
    /// By rank, the process group, as long as the process has not ended.
    groups: Vec<Option<Pid>>,
    output: Vec<JoinHandle<()>>,
}

impl Job {
    fn add(&mut self, rank: u32, mut child: Child, events: Sender<Event>) -> io::Result<()> {
        self.groups.push(Some(Pid::from_child(&child)));
        if let Some(stdout) = child.stdout.take() {
            self.output.push(thread::spawn(move || pass_on(rank, stdout, io::stdout)));
        }
        if let Some(stderr) = child.stderr.take() {
            self.output.push(thread::spawn(move || pass_on(rank, stderr, io::stderr)));
        }
        let wait = move || {
            if let Ok(status) = child.wait() {
                let _ = events.send(Event::Ended(rank, status));
            }
        };
        thread::Builder::new().name(format!("rank {rank}")).spawn(wait).map(drop)
    }

    /// Sends a signal to all ranks that run.
    fn signal(&self, signal: Signal) {
        for group in self.groups.iter().flatten() {
            // It may have ended just now.
            let _ = kill_process_group(*group, signal);
        }
    }

    /// Waits until all ranks have ended. When one fails, or a signal comes, the others have `grace` to
    /// end, then are told to, then are made to.
    fn wait(
        &mut self,
        events: &Receiver<Event>,
        grace: Duration,
        coordinator: &Coordinator,
    ) -> ExitCode {
        let mut failures = Vec::new();
        let mut stopped = None;
        // What is done to those that still run, and when.
        let mut next: Option<(Instant, Signal)> = None;
        while self.groups.iter().any(Option::is_some) {
            let wait =
                next.map_or(Duration::MAX, |(at, _)| at.saturating_duration_since(Instant::now()));
            match events.recv_timeout(wait) {
                Ok(Event::Ended(rank, status)) => {
                    self.groups[rank as usize] = None;
                    let reason = format!("its process {} and had not joined", fate(status));
                    let is_missed = coordinator.ended(rank, reason);
                    if !status.success() || is_missed {
                        let apart = if is_missed { ", and had not joined the others" } else { "" };
                        eprintln!("flux launch: rank {rank} {}{apart}", fate(status));
                    }
                    if !status.success() {
                        failures.push((rank, status));
                        next.get_or_insert_with(|| (Instant::now() + grace, Signal::TERM));
                    }
                }
                Ok(Event::Signal(signal)) => {
                    eprintln!("flux launch: signal {} goes to all ranks", signal.as_raw());
                    self.signal(signal);
                    if failures.is_empty() {
                        stopped.get_or_insert(signal);
                    }
                    next.get_or_insert_with(|| (Instant::now() + grace, Signal::KILL));
                }
                Err(RecvTimeoutError::Timeout) => {
                    let signal = next.map_or(Signal::KILL, |(_, signal)| signal);
                    self.signal(signal);
                    next = Some((Instant::now() + grace.max(LAST_OUTPUT), Signal::KILL));
                }
                // The senders live as long as ranks and signals are waited for.
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        match (stopped, first(&failures, &coordinator.departures())) {
            (Some(signal), _) => ExitCode::from(128 + signal.as_raw() as u8),
            (None, Some((_, status))) => exit_code(status),
            (None, None) => ExitCode::SUCCESS,
        }
    }

    /// Waits for the last output; what a process that outlives its rank may still write is let go.
    fn flush(self) {
        let start = Instant::now();
        while self.output.iter().any(|thread| !thread.is_finished())
            && start.elapsed() < LAST_OUTPUT
        {
            thread::sleep(Duration::from_millis(2));
        }
    }
}

/// Passes the lines of a rank on, each with its number in front.
fn pass_on<W: Write>(rank: u32, from: impl Read, to: impl Fn() -> W) {
    let mut from = BufReader::new(from);
    loop {
        let mut line = format!("[{rank}] ").into_bytes();
        let empty = line.len();
        // A line without an end is passed on in parts.
        let read = from.by_ref().take(LONGEST_LINE).read_until(b'\n', &mut line);
        if read.is_err() || line.len() == empty {
            return;
        }
        if line.last() != Some(&b'\n') {
            line.push(b'\n');
        }
        // In one piece. Where nobody reads any more, the rank need not be kept from ending.
        let mut to = to();
        let _ = to.write_all(&line).and_then(|()| to.flush());
    }
}

/// How a process ended, for people.
fn fate(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("ended with exit status {code}"),
        (None, Some(signal)) => match signal_hook::low_level::signal_name(signal) {
            Some(name) => format!("was ended by {name}"),
            None => format!("was ended by signal {signal}"),
        },
        (None, None) => "ended in an unknown way".into(),
    }
}

/// The exit status of a process, as shells give it.
fn exit_code(status: ExitStatus) -> ExitCode {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    ExitCode::from(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_cause_is_the_rank_that_left_first() {
        let [one, seven, killed] = [1 << 8, 7 << 8, 9].map(ExitStatus::from_raw);
        // Rank 2 heard of rank 1, and its process was through sooner.
        assert_eq!(first(&[(2, one), (1, seven)], &[1, 2]), Some((1, seven)));
        assert_eq!(first(&[(0, one), (2, one), (1, killed)], &[3, 1, 2, 0]), Some((1, killed)));
        // Where ranks never met, the process that ended first.
        assert_eq!(first(&[(2, one), (1, seven)], &[]), Some((2, one)));
        assert_eq!(first(&[], &[0, 1]), None);
    }
}
