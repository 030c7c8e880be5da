//! Judges mutants, and counts.
//!
//! | verdict | means |
//! |---|---|
//! | rejected | [`flux_ir::check::verify`] says which rule is broken |
//! | rejected at launch | [`flux_ir::check::Verified::check_launch`] does, on a launch that it harms |
//! | same events | every actor does the same things in the same sequence, in hundreds of launches |
//! | same contents | every interleaving of small launches leaves what the original leaves |
//! | survived | none of these |
//!
//! The score is the share of rejected mutants among those not shown to be equivalent.

use super::{Kind, Mutant, by_point, events, of, proof};
use flux_ir::check::{Verified, verify};
use flux_ir::eval::Launch;
use flux_ir::kernel::{Lhs, Op as KernelOp};
use flux_ir::lower::lower;
use flux_ir::program::Program;
use flux_ir::{Diagnostics, Head, Kernel, Rule, Schedule, Tail, TileShape};
use std::collections::BTreeMap;
use std::fmt;
use std::num::NonZero;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// What became of a mutant.
#[derive(Debug, Clone, PartialEq)]
pub enum Verdict {
    /// The checker rejects it, by this rule first.
    Rejected(Rule),
    /// The checker accepts it on its own and rejects it, by this rule first, for a launch whose
    /// shape brings out what is wrong: so it is compiled, and never run there.
    RejectedAtLaunch(Rule),
    /// Every actor has the events that it has in the original.
    SameEvents,
    /// Every interleaving leaves what the original leaves.
    SameContents {
        /// Launches explored: those in which some actor does something else.
        launches: usize,
        /// States explored, in all of them.
        states: u64,
    },
    /// Accepted, and not shown to be equivalent, for this reason.
    Survived(String),
}

/// A kernel under a schedule, and the same kernel in tiles so small that every interleaving of a
/// launch can be run.
#[derive(Debug, Clone)]
pub struct Subject {
    /// Kernel and schedule.
    pub name: String,
    /// What is mutated.
    pub program: Program,
    /// The kernel on the host in the smallest tiles: where a mutant is executed, at the same point.
    /// Lowering makes the same statements for every schedule; numbers in them differ.
    small: Program,
    /// The schedule's.
    chunk_rows: Option<u32>,
}

impl Subject {
    /// Lowers `kernel` under `schedule`.
    ///
    /// # Errors
    /// The checker rejects the kernel itself.
    pub fn new(kernel: &Kernel, schedule: &Schedule) -> Result<Self, Diagnostics> {
        // Slices of a reduction end between k-steps, which have to be of more than one element then.
        let sums = |op: &KernelOp| matches!(op, KernelOp::Gemm { a: Lhs::Transposed(_), .. });
        let along_k = schedule.tail.is_some() || kernel.ops.values().any(|entry| sums(&entry.op));
        let small = Schedule {
            order: schedule.order.clone(),
            transport: schedule.transport,
            all_reduce: schedule.all_reduce,
            reduce_scatter: schedule.reduce_scatter,
            partials: schedule.partials,
            chunk_rows: schedule.chunk_rows.map(|_| 2),
            head: schedule.head.map(|_| Head { rows: 8, copies: 2 }),
            tail: schedule.tail.map(|_| Tail { rows: 4, slices: 2 }),
            tile: TileShape { m: 4, n: 2, k: if along_k { 2 } else { 1 } },
            consumers: schedule.consumers,
            node: schedule.node,
            ..Schedule::host()
        };
        let lowered = |schedule| {
            let program = lower(kernel, schedule)?;
            verify(program).map(|verified| verified.program().clone())
        };
        let name = format!("{} for {}", kernel.name, shown(schedule));
        let (program, small) = (lowered(schedule)?, lowered(&small)?);
        Ok(Subject { name, program, small, chunk_rows: schedule.chunk_rows })
    }

    /// Judges one mutant; `small` is the one at the same point in small tiles.
    fn judge(&self, mutant: &Mutant, small: Option<&Program>) -> Verdict {
        let verified = match verify(mutant.program.clone()) {
            Ok(verified) => verified,
            Err(found) => return Verdict::Rejected(first_rule(&found)),
        };
        let Some(small) = small else {
            return Verdict::Survived("has no counterpart in small tiles".into());
        };
        let harmful: Vec<Launch> = self.differing(mutant, events::launches(self.program.tile));
        if let Some(rule) = rejected_at(&verified, harmful.iter().copied()) {
            return Verdict::RejectedAtLaunch(rule);
        }
        let same_small = |launch| events::same(&self.small, small, launch);
        if harmful.is_empty() && events::launches(self.small.tile).all(same_small) {
            return Verdict::SameEvents;
        }
        match proof::same_contents(&self.small, small, self.program.target) {
            Verdict::Survived(reason) => {
                // What does harm in small tiles does it in these at rarer shapes.
                let rare =
                    self.differing(mutant, events::all_shards(self.program.tile, self.chunk_rows));
                match rejected_at(&verified, rare.into_iter()) {
                    Some(rule) => Verdict::RejectedAtLaunch(rule),
                    None => Verdict::Survived(reason),
                }
            }
            shown => shown,
        }
    }

    /// The launches among these in which some actor of the mutant does something else.
    fn differing(&self, mutant: &Mutant, launches: impl Iterator<Item = Launch>) -> Vec<Launch> {
        launches.filter(|&launch| !events::same(&self.program, &mutant.program, launch)).collect()
    }

    /// Judges every mutant, on all cores.
    pub fn score(&self) -> Score {
        let (mutants, small) = (of(&self.program), by_point(&self.small));
        let next = AtomicUsize::new(0);
        let judged = Mutex::new(Vec::new());
        let threads = std::thread::available_parallelism().map_or(1, NonZero::get);
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    while let Some((index, mutant)) = take(&mutants, &next) {
                        let verdict = self.judge(mutant, small.get(&mutant.point));
                        judged
                            .lock()
                            .unwrap_or_else(PoisonError::into_inner)
                            .push((index, verdict));
                    }
                });
            }
        });
        let mut judged = judged.into_inner().unwrap_or_else(PoisonError::into_inner);
        judged.sort_by_key(|&(index, _)| index);
        let verdicts = judged.into_iter().map(|(_, verdict)| verdict);
        Score { name: self.name.clone(), judged: mutants.into_iter().zip(verdicts).collect() }
    }
}

/// The rule that is told first of the first launch that is rejected.
fn rejected_at(verified: &Verified, mut launches: impl Iterator<Item = Launch>) -> Option<Rule> {
    launches.find_map(|launch| verified.check_launch(launch).err().map(|found| first_rule(&found)))
}

/// The rule that is told first.
fn first_rule(found: &Diagnostics) -> Rule {
    found.0.first().map_or(Rule::Syntax, |diagnostic| diagnostic.rule)
}

fn take<'m>(mutants: &'m [Mutant], next: &AtomicUsize) -> Option<(usize, &'m Mutant)> {
    let index = next.fetch_add(1, Ordering::Relaxed);
    mutants.get(index).map(|mutant| (index, mutant))
}

/// A schedule without what is the default.
fn shown(schedule: &Schedule) -> String {
    let mut text = format!("{} {}", schedule.target, schedule.tile);
    if schedule.consumers != Schedule::host().consumers {
        text.push_str(&format!(" {}", schedule.consumers.name()));
    }
    if let Some(transport) = schedule.transport {
        text.push_str(&format!(" {}", transport.name()));
    }
    if let Some(algorithm) = schedule.all_reduce {
        text.push_str(&format!(" {}", algorithm.name()));
    }
    if let Some(algorithm) = schedule.reduce_scatter {
        text.push_str(&format!(" {}", algorithm.name()));
    }
    if let Some(element) = schedule.partials {
        text.push_str(&format!(" in {element}"));
    }
    if let Some(Head { rows, copies }) = schedule.head {
        text.push_str(&format!(" head of {rows} in {copies}"));
    }
    if let Some(rows) = schedule.chunk_rows {
        text.push_str(&format!(" chunks of {rows}"));
    }
    if schedule.node != 0 {
        text.push_str(&format!(" nodes of {}", schedule.node));
    }
    if let Some(Tail { rows, slices }) = schedule.tail {
        text.push_str(&format!(" tail of {rows} in {slices}"));
    }
    if let Some(order) = &schedule.order {
        text.push_str(&format!(" {order}"));
    }
    text
}

/// Every mutant of a subject with its verdict.
#[derive(Debug, Clone)]
pub struct Score {
    /// The subject's name.
    pub name: String,
    /// In the order of [`of`].
    pub judged: Vec<(Mutant, Verdict)>,
}

impl Score {
    /// The number of mutants that were rejected: on their own, and at a launch.
    pub fn rejected(&self) -> (usize, usize) {
        let at_launch = self.count(|verdict| matches!(verdict, Verdict::RejectedAtLaunch(_)));
        (self.count(|verdict| matches!(verdict, Verdict::Rejected(_))), at_launch)
    }

    /// The number of mutants that were shown to be equivalent: by events, and by execution.
    pub fn equivalent(&self) -> (usize, usize) {
        let by_events = self.count(|verdict| matches!(verdict, Verdict::SameEvents));
        (by_events, self.count(|verdict| matches!(verdict, Verdict::SameContents { .. })))
    }

    fn count(&self, which: impl Fn(&Verdict) -> bool) -> usize {
        self.judged.iter().filter(|(_, verdict)| which(verdict)).count()
    }

    /// The mutants that survived, and why they were not shown to be equivalent.
    pub fn survivors(&self) -> impl Iterator<Item = (&Mutant, &str)> {
        self.judged.iter().filter_map(|(mutant, verdict)| match verdict {
            Verdict::Survived(reason) => Some((mutant, reason.as_str())),
            _ => None,
        })
    }

    /// Rejected mutants among those not shown to be equivalent, in percent, rounded down.
    pub fn percent(&self) -> usize {
        let (alone, at_launch) = self.rejected();
        let rejected = alone + at_launch;
        100 * rejected / (rejected + self.survivors().count()).max(1)
    }
}

/// A line a subject: mutants, rejected, equivalent, survived, score.
impl fmt::Display for Score {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ((alone, at_launch), (events, contents)) = (self.rejected(), self.equivalent());
        write!(
            f,
            "{:<56} {:>7} {:>8} {:>6} {:>6} {:>8} {:>8} {:>4} %",
            self.name,
            self.judged.len(),
            alone,
            at_launch,
            events,
            contents,
            self.survivors().count(),
            self.percent()
        )
    }
}

/// The head of a table of [`Score`]s.
pub const HEAD: &str = "\
kernel and schedule                                      mutants rejected     at     equivalent survived  score
                                                                          launch events contents";

/// How many mutants of each kind each rule rejects first.
pub fn by_rule(scores: &[Score]) -> String {
    let mut counts: BTreeMap<(Rule, Kind), usize> = BTreeMap::new();
    for (mutant, verdict) in scores.iter().flat_map(|score| &score.judged) {
        if let Verdict::Rejected(rule) | Verdict::RejectedAtLaunch(rule) = verdict {
            *counts.entry((*rule, mutant.kind)).or_default() += 1;
        }
    }
    let mut rules: Vec<_> = counts.keys().map(|&(rule, _)| rule).collect();
    rules.dedup();
    let mut text = format!("{:<24}", "rejected first by");
    for kind in Kind::ALL {
        text.push_str(&format!("{:>12}", kind.name()));
    }
    for rule in rules {
        text.push_str(&format!("\n{:<24}", rule.name()));
        for kind in Kind::ALL {
            let count = counts.get(&(rule, kind)).map_or(String::new(), usize::to_string);
            text.push_str(&format!("{count:>11}"));
        }
    }
    text
}
