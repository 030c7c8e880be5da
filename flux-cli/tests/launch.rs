//! `flux launch` as a user runs it: on the shell's programs, and on ranks that meet.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// What no test takes, and the programs that are ended early would.
const LONG: Duration = Duration::from_secs(60);

fn launch(ranks: u32, arguments: &[&str], script: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_flux"));
    command.args(["launch", "-n", &ranks.to_string()]).args(arguments);
    command.args(["--", "sh", "-c", script]);
    command
}

fn run(ranks: u32, arguments: &[&str], script: &str) -> (Output, Duration) {
    let start = Instant::now();
    let output = launch(ranks, arguments, script).output().expect("the command starts");
    (output, start.elapsed())
}

fn lines(bytes: &[u8]) -> Vec<String> {
    let mut lines: Vec<_> = String::from_utf8_lossy(bytes).lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

fn signal(child: &Child, name: &str) {
    let sent = Command::new("kill").args([format!("-{name}"), child.id().to_string()]).status();
    assert!(sent.expect("a shell's command").success());
}

#[test]
fn every_rank_is_told_who_it_is_and_its_output_says_so() {
    let script = "echo $RANK of $WORLD_SIZE, $LOCAL_RANK of $LOCAL_WORLD_SIZE; printf end >&2";
    let (output, _) = run(3, &[], script);
    assert!(output.status.success(), "{output:?}");
    let expected = ["[0] 0 of 3, 0 of 3", "[1] 1 of 3, 1 of 3", "[2] 2 of 3, 2 of 3"];
    assert_eq!(lines(&output.stdout), expected);
    assert_eq!(lines(&output.stderr), ["[0] end", "[1] end", "[2] end"]);
}

#[test]
fn the_first_failure_is_the_exit_status_and_ends_the_others() {
    let script = "if [ $RANK = 1 ]; then exit 7; fi; sleep 100";
    let (output, took) = run(3, &["--grace", "0.2"], script);
    assert_eq!(output.status.code(), Some(7), "{output:?}");
    assert!(took < LONG, "{took:?}");
    let said = lines(&output.stderr);
    assert!(said.contains(&"flux launch: rank 1 ended with exit status 7".into()), "{said:?}");
    assert!(said.contains(&"flux launch: rank 0 was ended by SIGTERM".into()), "{said:?}");
}

#[test]
fn a_rank_that_does_not_listen_is_ended_and_what_it_started() {
    let script = "if [ $RANK = 1 ]; then kill -9 $$; fi; trap '' TERM; sleep 101 & wait; sleep 101";
    let (output, took) = run(2, &["--grace", "0.2"], script);
    assert_eq!(output.status.code(), Some(128 + 9), "{output:?}");
    assert!(took < LONG, "{took:?}");
    assert!(lines(&output.stderr).contains(&"flux launch: rank 0 was ended by SIGKILL".into()));
}

#[test]
fn others_may_end_by_themselves() {
    let script = "if [ $RANK = 0 ]; then exit 3; fi; sleep 0.2; echo done";
    let (output, _) = run(2, &[], script);
    assert_eq!(output.status.code(), Some(3));
    assert_eq!(lines(&output.stdout), ["[1] done"]);
}

#[test]
fn signals_go_to_all_ranks() {
    for (name, code) in [("INT", 130), ("TERM", 143)] {
        let script =
            "trap 'echo caught; exit 0' INT TERM; echo ready; while :; do sleep 0.05; done";
        let mut command = launch(2, &[], script);
        let mut child = command.stdout(Stdio::piped()).spawn().expect("the command starts");
        let mut said = BufReader::new(child.stdout.take().expect("its output")).lines();
        let mut line = || said.next().expect("a line").expect("of text");
        assert!(line().ends_with("ready") && line().ends_with("ready"));
        signal(&child, name);
        let mut caught = [line(), line()];
        caught.sort();
        assert_eq!(caught, ["[0] caught", "[1] caught"]);
        assert_eq!(child.wait().expect("it ends").code(), Some(code));
    }
}

#[test]
fn what_cannot_be_started_is_named() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_flux"));
    let output = command.args(["launch", "-n", "2", "--", "/no/such/program"]).output();
    let output = output.expect("the command starts");
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("cannot start /no/such/program"), "{said}");
    for ranks in ["0", "65", "x"] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_flux"));
        let status = command.args(["launch", "-n", ranks, "--", "true"]).output();
        assert_eq!(status.expect("the command starts").status.code(), Some(2));
    }
}
