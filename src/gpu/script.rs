//! What passive peers do to the active rank in one launch, derived from the Program: which regions
//! they fill, which signals they raise, in which order.
//!
//! A peer's agents are walked like any other's. Of their events stay those that reach the active
//! rank. Ranks are taken to keep step, so the order between peers is that of progress: how many
//! bytes an agent has sent before, to whichever rank. What a copy engine sends is there from the
//! beginning, unless it waits for CTAs: then a peer sends it when the active rank has computed as
//! much. So is what copy warps send, chunk by chunk. What CTAs send is their product, so a peer sends
//! it no sooner than the active rank has sent as much.

mod deeds;
mod merge;

use deeds::{Deed, Deeds, Raise, deeds, reads_peers};
use flux_ir::eval::{Change, Launch, RankView, Region};
use flux_ir::program::{Agent, At, BufferId, Engine, Op, Program, SignalId, Statements, Stmt};
use std::collections::BTreeMap;

/// Stores of CTAs are gathered into copies of so many bytes: tile by tile they are too many for a
/// stream.
const SEGMENT_BYTES: u64 = 4 << 20;

/// A word of some rank, and what it becomes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Word {
    pub(super) rank: u32,
    pub(super) signal: SignalId,
    pub(super) slot: u32,
    pub(super) value: Value,
}

/// The value of a signal after launch `e`: `e · per_launch + offset`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Value {
    per_launch: u32,
    offset: u32,
}

impl Value {
    fn of(change: Change, epoch: u32) -> Value {
        match change {
            Change::Add(amount) => Value { per_launch: amount, offset: 0 },
            Change::Set(value) => Value { per_launch: 1, offset: value.wrapping_sub(epoch) },
        }
    }

    /// What a wait in launch `epoch` wants.
    fn reached(target: i64, epoch: u32) -> Value {
        let target = target as u32;
        let per_launch = target / epoch.max(1);
        Value { per_launch, offset: target.wrapping_sub(per_launch.wrapping_mul(epoch)) }
    }

    pub(super) fn at(self, epoch: u32) -> u32 {
        epoch.wrapping_mul(self.per_launch).wrapping_add(self.offset)
    }
}

/// A rectangle that a peer fills.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Part {
    /// Where it goes: a region of the active rank.
    pub(super) to: Region,
    /// Position of its plane among those of the buffer that the peer fills in a launch.
    pub(super) plane: u32,
}

/// Some parts, and the words that tell of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Segment {
    pub(super) peer: u32,
    /// Which of the peer's agents that wait for CTAs sends it; 0 for all others.
    pub(super) sender: usize,
    /// What the active rank raises on a peer when it has sent as much.
    pub(super) after: Option<Word>,
    pub(super) parts: Vec<Part>,
    pub(super) words: Vec<Word>,
}

/// One launch as all passive peers play it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Script {
    pub(super) segments: Vec<Segment>,
    /// What peers raise when they are through.
    pub(super) last: Vec<Word>,
}

/// What words become, by array and slot.
type Raised = BTreeMap<(SignalId, u32), Value>;

/// The scripts of launches with odd and with even numbers.
///
/// # Errors
/// In words: what a stream cannot play.
pub(super) fn scripts(
    program: &Program,
    launch: Launch,
    active: u32,
) -> Result<[Script; 2], String> {
    let view = RankView::new(program, launch, active).map_err(|error| error.to_string())?;
    if reads_peers(&view) {
        return Err(
            "the rank reads what its peers computed, and passive peers compute nothing".into()
        );
    }
    if let Some(agent) = program.agents.values().find(|agent| hands_on(program, agent)) {
        let name = &agent.name;
        return Err(format!("`{name}` hands on what peers send, and peers are memory alone here"));
    }
    if program.tables.values().any(|table| table.by_shard) {
        return Err("a sum passes from rank to rank, and passive peers add nothing to it".into());
    }
    if program.buffers.handles().any(|buffer| program.is_flagged(buffer)) {
        return Err(
            "data carry their own flag, and what copies bring of passive peers may not".into()
        );
    }
    let script = |epoch| Script::new(program, launch, active, epoch);
    let [odd, even] = [script(1)?, script(2)?];
    if [script(3)?, script(4)?] != [odd.clone(), even.clone()] || odd.words() != even.words() {
        return Err("what peers send repeats itself neither each launch nor each second".into());
    }
    Ok([odd, even])
}

/// Whether an agent copies to peers behind what other agents that copy say. What it copies to its own rank
/// alone is nobody else's.
fn hands_on(program: &Program, agent: &Agent) -> bool {
    let copies = |agent: &&Agent| agent.engine != Engine::Ctas;
    let sends = |stmt: &Stmt| match &stmt.op {
        Op::Copy { to, .. } => to.at != At::Own,
        Op::Signal { at, .. } => *at != At::Own,
        _ => false,
    };
    let is_raised = |array: SignalId| {
        let mut raises = program.agents.values().filter(copies).flat_map(Agent::statements);
        raises.any(|stmt| matches!(stmt.op, Op::Signal { signal, .. } if signal == array))
    };
    let waits = |stmt: &Stmt| matches!(stmt.op, Op::Wait { signal, .. } if is_raised(signal));
    let first =
        agent.body.iter().position(|stmt| Statements::of(std::slice::from_ref(stmt)).any(waits));
    let behind = first.map_or(&[][..], |first| &agent.body[first..]);
    copies(&agent) && Statements::of(behind).any(sends)
}

impl Script {
    fn new(program: &Program, launch: Launch, active: u32, epoch: u32) -> Result<Script, String> {
        let deeds = |rank| {
            let view = RankView::new(program, launch, rank).map_err(|error| error.to_string())?;
            Ok::<_, String>(deeds(&view, epoch))
        };
        let own = deeds(active)?;
        let mut timed = Vec::new();
        let mut script = Script::default();
        for peer in (0..launch.world).filter(|&rank| rank != active) {
            for (agent, theirs) in deeds(peer)?.iter().enumerate() {
                let pace = own[agent].items.as_slice();
                timed.extend(match theirs.engine {
                    Engine::CopyWarps | Engine::Tma => chunks(peer, active, &theirs.items, epoch),
                    Engine::CopyEngine | Engine::Ctas => {
                        segments((peer, active), theirs, pace, epoch)
                    }
                });
                let last = theirs.last.iter().filter(|raise| raise.rank == active);
                script.last.extend(last.map(|raise| raise.word(epoch)));
            }
        }
        timed.sort_by_key(|(progress, segment)| (*progress, segment.peer));
        script.segments = timed.into_iter().map(|(_, segment)| segment).collect();
        script.number_planes();
        script.words().map(|_| script)
    }

    /// Numbers the planes that each peer fills of each buffer.
    fn number_planes(&mut self) {
        let mut planes: BTreeMap<(u32, BufferId), Vec<u32>> = BTreeMap::new();
        for segment in &self.segments {
            for Part { to, .. } in &segment.parts {
                let known = planes.entry((segment.peer, to.buffer)).or_default();
                if let Err(at) = known.binary_search(&to.plane) {
                    known.insert(at, to.plane);
                }
            }
        }
        for segment in &mut self.segments {
            for part in &mut segment.parts {
                let known = &planes[&(segment.peer, part.to.buffer)];
                part.plane = known.partition_point(|&plane| plane < part.to.plane) as u32;
            }
        }
    }

    /// What each word becomes.
    ///
    /// # Errors
    /// A word that is raised twice: a stream sets words, and adds to none.
    fn words(&self) -> Result<Raised, String> {
        let mut all = BTreeMap::new();
        let words = self.segments.iter().flat_map(|segment| &segment.words);
        for word in words.chain(&self.last) {
            if all.insert((word.signal, word.slot), word.value).is_some() {
                return Err("two peers, or one of them twice, raise the same signal".into());
            }
        }
        Ok(all)
    }
}

/// What copy warps of `peer` send to `active`: the pieces of each chunk together, and what its
/// signal has become when all are there.
fn chunks(peer: u32, active: u32, items: &[Deed], epoch: u32) -> Vec<(u64, Segment)> {
    let mut found: BTreeMap<(SignalId, u32), (u64, Segment)> = BTreeMap::new();
    let mut sent = 0;
    for item in items {
        let mut to = item.region.clone().filter(|region| region.rank == active);
        for raise in item.raises.iter().filter(|raise| raise.rank == active) {
            let word = raise.word(epoch);
            let empty = || Segment { peer, sender: 0, after: None, parts: vec![], words: vec![] };
            let (_, segment) =
                found.entry((word.signal, word.slot)).or_insert_with(|| (sent, empty()));
            segment.parts.extend(to.take().map(|to| Part { to, plane: 0 }));
            match segment.words.first_mut() {
                Some(all) => all.value.per_launch += word.value.per_launch,
                None => segment.words.push(word),
            }
        }
        sent += item.bytes;
    }
    let mut found: Vec<_> = found.into_values().collect();
    found.iter_mut().for_each(|(_, segment)| merge::merge(&mut segment.parts));
    found
}

/// What one agent of `peer` sends to `active`, each part with its progress: the bytes that it has
/// sent when the part may go.
fn segments(
    (peer, active): (u32, u32),
    &Deeds { engine, sender, ref items, .. }: &Deeds,
    pace: &[Deed],
    epoch: u32,
) -> Vec<(u64, Segment)> {
    let mut found = Vec::new();
    let (mut sent, mut gathered) = (0, 0);
    let mut open: Option<Segment> = None;
    let empty = || Segment { peer, sender, after: None, parts: vec![], words: vec![] };
    for item in items {
        let before = sent;
        sent += item.bytes;
        let to = item.region.clone().filter(|region| region.rank == active);
        let raises: Vec<&Raise> = item.raises.iter().filter(|raise| raise.rank == active).collect();
        if to.is_none() && raises.is_empty() {
            continue;
        }
        let segment = open.get_or_insert_with(empty);
        if let Some(to) = to {
            segment.parts.push(Part { to, plane: 0 });
            gathered += item.bytes;
        }
        segment.words.extend(raises.iter().map(|raise| raise.word(epoch)));
        match engine {
            Engine::CopyEngine => found.extend(open.take().map(|segment| (before, segment))),
            Engine::Ctas if gathered >= SEGMENT_BYTES => {
                found.extend(open.take().map(|segment| (sent, segment)));
                gathered = 0;
            }
            Engine::Ctas | Engine::CopyWarps | Engine::Tma => {}
        }
    }
    found.extend(open.map(|segment| (sent, segment)));
    for (progress, segment) in &mut found {
        merge::merge(&mut segment.parts);
        segment.after = match engine {
            Engine::Ctas => sent_as_much(pace, *progress, epoch),
            Engine::CopyEngine => computed_as_much(pace, *progress),
            Engine::CopyWarps | Engine::Tma => None,
        };
    }
    found
}

/// What the active rank's CTAs raise for its copy engine to go on when that has sent `progress`
/// bytes; nothing where it waits for none.
fn computed_as_much(own: &[Deed], progress: u64) -> Option<Word> {
    let mut sent = 0;
    let mut last = None;
    for item in own {
        last = item.awaited.or(last);
        if sent >= progress {
            break;
        }
        sent += item.bytes;
    }
    last
}

/// The first signal that the active rank raises on a peer once it has sent `progress` bytes, or
/// its last one where it sends fewer.
fn sent_as_much(own: &[Deed], progress: u64, epoch: u32) -> Option<Word> {
    let mut sent = 0;
    let mut last = None;
    for item in own {
        sent += item.bytes;
        last = item.raises.last().or(last);
        if sent >= progress && !item.raises.is_empty() {
            break;
        }
    }
    last.map(|raise| raise.word(epoch))
}

#[cfg(test)]
mod tests {
    use super::{Script, Word, scripts};
    use flux_ir::eval::Launch;
    use flux_ir::lower::lower;
    use flux_ir::program::Program;
    use flux_ir::{Schedule, Shape};

    fn program(definition: &crate::Definition, schedule: Schedule) -> Program {
        lower(&definition.kernel().unwrap(), &schedule).unwrap()
    }

    fn launch(m: u32, n: u32, world: u32) -> Launch {
        Launch { shape: Shape { m, n, k: 256 }, world, ctas: 5 }
    }

    /// Bytes (of bf16) that each peer sends.
    fn bytes(script: &Script, peer: u32) -> u64 {
        let segments = script.segments.iter().filter(|segment| segment.peer == peer);
        let parts = segments.flat_map(|segment| &segment.parts);
        parts.map(|part| 2 * super::deeds::area(&part.to)).sum()
    }

    #[test]
    fn shards_arrive_in_the_order_of_the_ring() {
        let program = program(crate::kernels::ag_gemm::definition(), Schedule::sm_90a());
        let [odd, even] = scripts(&program, launch(1000, 512, 4), 0).unwrap();
        let peers: Vec<u32> = odd.segments.iter().map(|segment| segment.peer).collect();
        // Each pushes to the rank behind it first: rank 3's first push is to rank 0.
        assert_eq!(peers, [3, 2, 1]);
        assert!(odd.segments.iter().all(|segment| segment.after.is_none()));
        for (peer, rows) in [(1, 250..500), (2, 500..750), (3, 750..1000)] {
            let parts = |script: &Script| {
                let mut segments = script.segments.iter();
                segments.find(|segment| segment.peer == peer).unwrap().parts.clone()
            };
            assert_eq!(parts(&odd).len(), 1);
            assert_eq!(
                (parts(&odd)[0].to.rows.clone(), parts(&odd)[0].to.cols.clone()),
                (rows, 0..256)
            );
            assert_eq!((parts(&odd)[0].to.plane, parts(&even)[0].to.plane), (1, 0));
            assert_eq!((parts(&odd)[0].plane, parts(&even)[0].plane), (0, 0));
            assert_eq!(bytes(&odd, peer), 250 * 256 * 2);
        }
        // Arrival and, at the end, credit: the number of the launch.
        let words: Vec<&Word> = odd.segments.iter().flat_map(|segment| &segment.words).collect();
        assert_eq!((words.len(), odd.last.len()), (3, 3));
        assert!(
            words
                .iter()
                .chain(&odd.last.iter().collect::<Vec<_>>())
                .all(|word| { word.value.at(1) == 1 && word.value.at(7) == 7 && word.rank == 0 })
        );
    }

    #[test]
    fn chunks_stay_chunks_and_alternate_between_no_peers() {
        let schedule = Schedule::sm_90a().chunk_rows(100);
        let program = program(crate::kernels::ag_gemm::definition(), schedule);
        let [odd, _] = scripts(&program, launch(1000, 512, 4), 0).unwrap();
        let peers: Vec<u32> = odd.segments.iter().map(|segment| segment.peer).collect();
        assert_eq!(peers, [3, 3, 3, 2, 2, 2, 1, 1, 1]);
    }

    #[test]
    fn pieces_of_a_push_arrive_by_chunks_each_told_of_once() {
        let of_chunk = [flux_ir::Transport::Put, flux_ir::Transport::Tma].map(|transport| {
            let schedule = Schedule::sm_90a().transport(transport).chunk_rows(100);
            let program = program(crate::kernels::ag_gemm::definition(), schedule);
            let [odd, even] = scripts(&program, launch(1000, 512, 4), 0).unwrap();
            for script in [&odd, &even] {
                let peers: Vec<u32> = script.segments.iter().map(|segment| segment.peer).collect();
                assert_eq!(peers, [3, 3, 3, 2, 2, 2, 1, 1, 1]);
                for segment in &script.segments {
                    assert_eq!((segment.parts.len(), segment.words.len()), (1, 1), "{segment:?}");
                    assert_eq!(segment.words[0].value.offset, 0);
                }
                assert_eq!(bytes(script, 1), 250 * 256 * 2);
            }
            odd.segments[0].words[0].value.per_launch
        });
        // Three warps raise each piece, or the one that feeds bulk copies.
        assert_eq!(of_chunk[0], 3 * of_chunk[1]);
    }

    #[test]
    fn a_tail_arrives_in_slices_and_whole() {
        let schedule = Schedule::sm_90a().tail(128, 4);
        let program = program(crate::kernels::ag_gemm::definition(), schedule);
        let [odd, even] = scripts(&program, launch(1024, 512, 4), 0).unwrap();
        for peer in 1..4 {
            assert_eq!((bytes(&odd, peer), bytes(&even, peer)), (256 * 256 * 2, 256 * 256 * 2));
        }
        let parts = odd.segments.iter().flat_map(|segment| &segment.parts);
        assert!(parts.clone().any(|part| part.to.cols.len() < 256), "no slice");
        // Every part of a launch is told of, by words of their own.
        let words: usize = odd.segments.iter().map(|segment| segment.words.len()).sum();
        assert!(words >= odd.segments.len());
    }

    #[test]
    fn contributions_cover_the_own_rows_once_and_follow_the_own_progress() {
        let program = program(crate::kernels::gemm_rs::definition(), Schedule::sm_90a());
        for (m, n, world) in [(1000, 700, 4), (4096, 4096, 2), (3, 40, 8)] {
            let [odd, even] = scripts(&program, launch(m, n, world), 0).unwrap();
            let own = m.div_ceil(world);
            for peer in 1..world {
                assert_eq!(bytes(&odd, peer), u64::from(own * n) * 2, "peer {peer} of {world}");
                assert_eq!(bytes(&even, peer), u64::from(own * n) * 2);
            }
            // One word for each peer and tile that the own rows touch, four warps or eight a tile.
            let tiles = own.div_ceil(128) * n.div_ceil(256);
            let words: Vec<&Word> =
                odd.segments.iter().flat_map(|segment| &segment.words).collect();
            assert_eq!(words.len() as u32, (world - 1) * tiles);
            let warps = words[0].value.at(1);
            assert!(warps >= 4 && words.iter().all(|word| word.value.at(3) == 3 * warps));
            let followed = odd.segments.iter().filter_map(|segment| segment.after);
            // Whoever has rows for others raises signals that peers can follow.
            assert_eq!(followed.count() > 0, m > own, "{m} {n} {world}");
            assert!(odd.segments.iter().filter_map(|s| s.after).all(|word| word.rank != 0));
        }
    }

    #[test]
    fn large_contributions_are_few_copies() {
        let program = program(crate::kernels::gemm_rs::definition(), Schedule::sm_90a());
        let [odd, _] = scripts(&program, launch(8192, 8192, 8), 0).unwrap();
        let parts: usize = odd.segments.iter().map(|segment| segment.parts.len()).sum();
        // 7 contributions of 16 MiB in segments of 4.
        assert!((28..=100).contains(&parts), "{parts} copies");
        assert!(odd.segments.len() <= 35, "{} segments", odd.segments.len());
    }
}
