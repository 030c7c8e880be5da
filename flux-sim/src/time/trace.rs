//! A timeline as a Chrome trace: JSON that Perfetto and `chrome://tracing` open.
//!
//! A process is a rank, a thread is a lane of an actor. An arrow leads from what raised a signal
//! to the wait that it ended, where both are in the trace.

use super::record::{Kind, Lane, Op, Role, Timeline};
use super::run::role_name;
use flux_ir::program::Program;
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// The trace of a timeline's launch, as JSON text. Times are in µs from its start.
pub fn chrome_trace(timeline: &Timeline, program: &Program) -> String {
    let mut events = Vec::new();
    let mut lanes = BTreeSet::new();
    for (number, op) in (0u32..).zip(&timeline.ops) {
        if op.start < timeline.begins {
            continue;
        }
        lanes.insert((op.actor, op.lane));
        events.push(event(timeline, program, op));
        arrow(timeline, number, op, &mut events);
    }
    let mut named = Vec::new();
    for rank in 0..timeline.classes {
        named.push(metadata("process_name", rank, 0, &format!("rank {rank}")));
    }
    for (actor, lane) in lanes {
        let at = timeline.actors[actor as usize];
        let name = role_name(program, at.role) + lane_suffix(lane);
        named.push(metadata("thread_name", at.rank, thread(actor, lane), &name));
    }
    named.append(&mut events);
    json!({ "displayTimeUnit": "ns", "traceEvents": named }).to_string()
}

fn lane_suffix(lane: Lane) -> &'static str {
    match lane {
        Lane::Main => "",
        Lane::Epilogue(0) => ", epilogue",
        Lane::Epilogue(_) => ", second epilogue",
        Lane::Link => ", link",
    }
}

/// The thread of a lane: four to an actor.
fn thread(actor: u32, lane: Lane) -> u64 {
    let lane = match lane {
        Lane::Main => 0,
        Lane::Epilogue(which) => 1 + u64::from(which.min(1)),
        Lane::Link => 3,
    };
    u64::from(actor) * 4 + lane
}

fn metadata(what: &str, rank: u32, thread: u64, name: &str) -> Value {
    json!({ "ph": "M", "name": what, "pid": rank, "tid": thread, "args": { "name": name } })
}

fn event(timeline: &Timeline, program: &Program, op: &Op) -> Value {
    let rank = timeline.rank(op);
    let mut args = serde_json::Map::new();
    if !op.tile.rows.is_empty() {
        args.insert("rows".into(), range(&op.tile.rows));
        args.insert("cols".into(), range(&op.tile.cols));
        let (m, n) = (program.tile.m.max(1), program.tile.n.max(1));
        args.insert("tile".into(), json!([op.tile.rows.start / m, op.tile.cols.start / n]));
    }
    if op.bytes > 0 {
        args.insert("bytes".into(), op.bytes.into());
    }
    if op.peer != rank {
        args.insert("peer".into(), op.peer.into());
    }
    if op.kind == Kind::Wait
        && let Some((_, peer)) = timeline.cause(op, rank)
    {
        args.insert("waited_for_rank".into(), peer.into());
    }
    json!({
        "ph": "X",
        "name": op.kind.name(),
        "cat": op.kind.name(),
        "pid": rank,
        "tid": thread(op.actor, op.lane),
        "ts": op.start.since(timeline.begins).us(),
        "dur": op.end.since(op.start).us(),
        "args": args,
    })
}

fn range(range: &std::ops::Range<u32>) -> Value {
    json!([range.start, range.end])
}

/// From the raise that ended a wait.
fn arrow(timeline: &Timeline, number: u32, op: &Op, events: &mut Vec<Value>) {
    let rank = timeline.rank(op);
    let Some((cause, by)) = timeline.cause(op, rank) else { return };
    let raise = &timeline.ops[cause as usize];
    let seen = op.kind == Kind::Wait && raise.kind == Kind::Signal;
    // Of a rank that another stands for, the raise is not here.
    if !seen || timeline.rank(raise) != by || raise.start < timeline.begins {
        return;
    }
    let end = |phase: &str, at: &Op, ts: f64| {
        json!({
            "ph": phase, "bp": "e", "name": "signal", "cat": "signal", "id": number,
            "pid": timeline.rank(at), "tid": thread(at.actor, at.lane), "ts": ts,
        })
    };
    events.push(end("s", raise, raise.start.since(timeline.begins).us()));
    events.push(end("f", op, op.end.since(timeline.begins).us()));
}

/// The actors of one rank with what they are called, in the order in which they are drawn: copy
/// engines, then CTAs.
pub(super) fn drawn(timeline: &Timeline, program: &Program, rank: u32) -> Vec<(u32, String)> {
    let of_rank = (0u32..).zip(&timeline.actors).filter(|(_, actor)| actor.rank == rank);
    let shown = of_rank.filter(|(_, a)| matches!(a.role, Role::Engine(_) | Role::Cta(..)));
    let mut shown: Vec<_> = shown.collect();
    shown.sort_by_key(|(number, actor)| (matches!(actor.role, Role::Cta(..)), *number));
    shown.into_iter().map(|(n, actor)| (n, role_name(program, actor.role))).collect()
}
