//! Real processes as ranks: this test's own program, started again with a role.

use libtest_mimic::{Arguments, Trial};
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, setrlimit};
use std::env;
use std::fmt::Display;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

/// Which role a process has, if it is no test.
const ROLE: &str = "FLUX_TEST_ROLE";

/// What no test takes; then its processes are killed and it fails.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// What a process may take, in seconds, where that is not [`LONG`]: then it says so and ends.
const LIMIT: &str = "FLUX_TEST_LIMIT";

/// Whether processes say what they have done, and when.
const STEPS: &str = "FLUX_TEST_STEPS";

/// Every variable that a launcher might have set for the test itself.
const LAUNCHERS: [&str; 15] = [
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHELASTIC_USE_AGENT_STORE",
    "OMPI_COMM_WORLD_RANK",
    "PMI_RANK",
    "SLURM_PROCID",
    "FLUX_COORDINATOR",
    "FLUX_TOKEN",
    "FLUX_BACKEND",
    "FLUX_PEERS",
    "TORCHELASTIC_RUN_ID",
];

/// The test's own program: what a process with a role plays, else the cases, so many at once where
/// nobody says otherwise.
pub(crate) fn run<E: Display, const N: usize>(
    play: impl FnOnce(&str) -> Result<(), E>,
    at_once: usize,
    cases: [(&str, fn()); N],
) -> ExitCode {
    run_unless(|| None, play, at_once, cases)
}

/// The same, where `missing` names nothing that the cases need; else they are ignored.
pub(crate) fn run_unless<E: Display, const N: usize>(
    missing: impl FnOnce() -> Option<String>,
    play: impl FnOnce(&str) -> Result<(), E>,
    at_once: usize,
    cases: [(&str, fn()); N],
) -> ExitCode {
    if let Ok(role) = env::var(ROLE) {
        thread::spawn(|| {
            thread::sleep(limit());
            step("still here, and ends itself");
            eprintln!("a rank ends itself after {:?}", limit());
            std::process::exit(3);
        });
        step("begins");
        return match play(&role) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                println!("{error}");
                ExitCode::from(1)
            }
        };
    }
    let mut arguments = Arguments::from_args();
    arguments.test_threads = arguments.test_threads.or(Some(at_once));
    let missing = missing();
    if let Some(what) = &missing {
        println!("skipped: {what}");
    }
    let is_missing = missing.is_some();
    let trials = cases.map(|(name, case)| {
        Trial::test(name, move || {
            case();
            Ok(())
        })
        .with_ignored_flag(is_missing)
    });
    libtest_mimic::run(&arguments, trials.into()).exit_code()
}

/// What a process may take.
fn limit() -> Duration {
    let said = env::var(LIMIT).ok().and_then(|seconds| seconds.parse().ok());
    said.map_or(LONG, Duration::from_secs)
}

/// Says what a rank has come to, where somebody wants to know.
pub(crate) fn step(what: impl Display) {
    static BEGAN: OnceLock<Instant> = OnceLock::new();
    let began = BEGAN.get_or_init(Instant::now);
    if env::var(STEPS).is_ok() {
        let rank = env::var("RANK").unwrap_or_default();
        eprintln!("[{:7.3}] rank {rank}: {what}", began.elapsed().as_secs_f64());
    }
}

/// One rank's process. It is killed when it is dropped.
pub(crate) struct Process {
    child: Child,
    lines: Receiver<String>,
}

/// How a process ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) status: ExitStatus,
    /// What it said that nobody had waited for.
    pub(crate) said: String,
    /// How long it was waited for.
    pub(crate) after: Duration,
}

/// A port that nobody has at this moment.
pub(crate) fn port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("its number").port()
}

/// Leaves no descriptor to this process.
pub(crate) fn exhaust_descriptors() {
    let limit = Rlimit { current: Some(64), ..getrlimit(Resource::Nofile) };
    setrlimit(Resource::Nofile, limit).expect("a lower limit");
    while let Ok(file) = std::fs::File::open("/dev/null") {
        std::mem::forget(file);
    }
}

/// Starts a rank in a role, with more variables.
pub(crate) fn start(
    role: &str,
    (rank, world, port): (u32, u32, u16),
    variables: &[(&str, &str)],
) -> Process {
    let mut command = Command::new(env::current_exe().expect("this program"));
    LAUNCHERS.iter().for_each(|name| {
        command.env_remove(name);
    });
    command.env(ROLE, role).env("RANK", rank.to_string()).env("WORLD_SIZE", world.to_string());
    command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", port.to_string());
    command.envs(variables.iter().copied()).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = command.spawn().expect("a process");
    let from = BufReader::new(child.stdout.take().expect("its output"));
    let (into, lines) = channel();
    thread::spawn(move || {
        for line in from.lines().map_while(Result::ok) {
            if into.send(line).is_err() {
                return;
            }
        }
    });
    Process { child, lines }
}

/// Starts ranks `0..world` in one role.
pub(crate) fn start_all(role: &str, world: u32, port: u16) -> Vec<Process> {
    (0..world).map(|rank| start(role, (rank, world, port), &[])).collect()
}

impl Process {
    /// Waits until the process says `line`, whatever it says before.
    pub(crate) fn wait_for(&self, line: &str) {
        loop {
            match self.lines.recv_timeout(limit()) {
                Ok(said) if said == line => return,
                Ok(_) => {}
                Err(error) => panic!("expected `{line}`: {error}"),
            }
        }
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("it is there");
    }

    /// Waits for its end.
    pub(crate) fn end(mut self) -> Ended {
        let start = Instant::now();
        let status = loop {
            match self.child.try_wait().expect("a child") {
                Some(status) => break status,
                None if start.elapsed() > limit() => {
                    let said: Vec<_> = self.lines.try_iter().collect();
                    panic!("a process did not end; it said {said:?}");
                }
                None => thread::sleep(Duration::from_millis(5)),
            }
        };
        let after = start.elapsed();
        let said = self.lines.iter().collect::<Vec<_>>().join("\n");
        Ended { status, said, after }
    }

    /// Waits for its end, which has to be a good one.
    pub(crate) fn succeed(self) {
        let ended = self.end();
        assert!(ended.status.success(), "{ended:?}");
        ended.said.lines().filter(|line| line.contains(" ms")).for_each(|line| println!("{line}"));
    }

    /// Waits for its end, which has to be an error that says `expected`.
    pub(crate) fn fail(self, expected: &str) -> Ended {
        let ended = self.end();
        assert_eq!(ended.status.code(), Some(1), "{ended:?}");
        assert!(ended.said.contains(expected), "expected `{expected}`, found {ended:?}");
        ended
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
