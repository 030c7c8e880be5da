//! The shortest run that shows a race: what the later access needs, then that access, and the
//! earlier one still to come.
//!
//! What a step needs is what comes before it along raises and waits, ends of bodies and ends of
//! launches. A race is a pair of accesses of which neither needs the other; so a run of what the
//! one needs, in which the other has not happened, is a possible one.

use super::super::machine::{Play, Start, play};
use super::super::memory::Access;
use super::super::trace::{Act, Proxy};
use super::order::{Past, Place};
use super::stage::Stage;
use super::table::Table;
use crate::diagnostic::Rule;

/// A table, and the steps that are at fault.
pub(super) type Shown = (Table, Vec<(u32, u32)>);

/// Steps that a search for traces may look at: a second.
const BUDGET: u64 = 1 << 25;

/// Pairs of accesses that are tried for one statement.
const TRIES: u32 = 256;

/// Races of one statement that are compared for length.
const COMPARED: usize = 8;

/// A race, told of how it is to be shown.
pub(super) struct Race {
    /// What the run leads up to.
    later: Place,
    /// Its step; none where it is the end of a launch.
    step: Option<(u32, u32)>,
    /// The step that has not happened.
    missing: Option<(u32, u32)>,
    title: &'static str,
    /// Of the step, and of what is missing.
    notes: [String; 2],
}

impl<'p> Stage<'p> {
    /// The steps that show how a statement breaks a rule.
    pub(super) fn shown(&self, rule: Rule, number: u32) -> Option<Shown> {
        match rule {
            Rule::Deadlock => self.cycle(),
            Rule::WaitWithoutSignal => self.starved(number),
            Rule::SignalNotMonotone => self.raises(number),
            _ if !self.played.stuck().is_empty() => None,
            Rule::ReadBeforeArrival => self.shortest(self.early_reads(number)),
            Rule::OverwriteBeforeRead => self.shortest(self.overwrites(number)),
            Rule::UnorderedWrites => self.shortest(self.unordered(number)),
            Rule::ExitBeforeRead => self.shortest(self.outlived(number)),
            Rule::PutNotPerformed => self.unperformed(number),
            // A bulk copy may lack the fence for what it reads, or for what it writes over.
            Rule::MissingProxyFence => self
                .unfenced(number)
                .or_else(|| self.shortest(self.overwrites(number)))
                .or_else(|| self.shortest(self.unordered(number))),
            Rule::ScopeTooNarrow => self.narrow(number),
            Rule::CountNotExact => self.inexact(number),
            Rule::SumNotExact => self.sum(number),
            Rule::PutNotSignalled => self.untold(number),
            Rule::Syntax
            | Rule::Types
            | Rule::Dimensions
            | Rule::Language
            | Rule::Schedule
            | Rule::Resources
            | Rule::OrderNotPermutation
            | Rule::WrittenTwice
            | Rule::NeverWritten
            | Rule::Bounds
            | Rule::CounterWrap
            | Rule::FlagNotExact
            | Rule::OrderDiffers
            | Rule::Residency
            | Rule::LaunchDiffers
            | Rule::NotMapped
            | Rule::PutNotDelivered => None,
        }
    }

    /// Of some races, the one that takes fewest steps.
    pub(super) fn shortest(&self, races: Vec<Race>) -> Option<Shown> {
        let shown = races.into_iter().map(|race| self.exhibit(race));
        shown.min_by_key(|(table, _)| (table.rows.len(), table.left_out))
    }

    /// Runs what the later step of a race needs.
    fn exhibit(&self, race: Race) -> Shown {
        let past = Past::all(&self.scene(), [race.later]);
        let limits = Some(past.issued.as_slice());
        let how = Play { start: Start::Together, limits, recorded: true };
        let run = play(&self.layout, &self.traces, how);
        let mut used = rustc_hash::FxHashSet::default();
        for &(actor, stamp) in &run.order {
            let Act::Wait { slot, len, target } = self.step(actor, stamp).act else { continue };
            for slot in slot..slot + len {
                let raises = self.history.stands_for(slot, target);
                used.extend(raises.iter().map(|raise| (raise.actor, raise.stamp)));
            }
        }
        // The number of the row of each raise that is shown.
        let mut shown = rustc_hash::FxHashMap::default();
        let mut rows = Vec::new();
        for &(actor, stamp) in &run.order {
            let note = match self.step(actor, stamp).act {
                Act::Raise { .. } if used.contains(&(actor, stamp)) => {
                    shown.insert((actor, stamp), rows.len() + 1);
                    String::new()
                }
                Act::Wait { slot, len, target } if target > 0 => {
                    let raises = (slot..slot + len).filter_map(|slot| {
                        let last = self.history.stands_for(slot, target).last()?;
                        shown.get(&(last.actor, last.stamp)).map(usize::to_string)
                    });
                    format!("ends with step {}", raises.collect::<Vec<_>>().join(", "))
                }
                _ => continue,
            };
            rows.push(self.row(actor, stamp, note));
        }
        let [note, missing] = race.notes;
        match race.step {
            Some((actor, stamp)) => rows.push(self.row(actor, stamp, note)),
            None => {
                // It is behind that end.
                let (actor, epoch) = (race.later.actor, race.later.epoch - 1);
                let rank = self.layout.actor(actor).rank;
                rows.push(self.event(
                    actor,
                    epoch,
                    format!("launch {epoch} of rank {rank} ends"),
                    note,
                ));
            }
        }
        if let Some((actor, stamp)) = race.missing {
            rows.push(self.row(actor, stamp, missing));
        }
        let steps = [race.step, race.missing].into_iter().flatten().collect();
        (Table::new(race.title, rows).shortened(), steps)
    }

    /// Accesses of a statement, the earliest launches first, and what comes before each for what
    /// goes through its proxy.
    fn of_statement(
        &self,
        number: u32,
        writes: bool,
    ) -> impl Iterator<Item = (Access, Past)> + use<'_, 'p> {
        let all = self.accesses().filter(|(access, is)| *is == writes && access.number == number);
        let mut all: Vec<Access> = all.map(|(access, _)| access).collect();
        all.sort_by_key(|access| (access.epoch, access.moment()));
        let mut cost = 0;
        all.into_iter().map_while(move |access| {
            let past = Past::all(&self.scene(), [self.before(&access, self.proxy(&access))]);
            cost += past.cost;
            (cost <= BUDGET).then_some((access, past))
        })
    }

    /// Reads that do not come behind a write of what they read.
    fn early_reads(&self, number: u32) -> Vec<Race> {
        let early = self.of_statement(number, false).filter_map(|(read, past)| {
            let region = &self.memory.rects[read.rect as usize];
            let step = Some((read.actor, read.stamp));
            let later = self.before(&read, self.proxy(&read));
            if self.is_exposed(region) {
                let begun = (0..).zip(&past.issued).any(|(actor, &upto)| {
                    self.layout.actor(actor).rank == region.rank
                        && upto > self.traces[actor as usize].starts[read.epoch as usize - 1]
                });
                let owner = region.rank;
                let title =
                    "A run in which a peer's tensor is read before the peer's launch begins";
                let note = format!("rank {owner} may not have begun launch {}", read.epoch);
                let notes = [note, String::new()];
                return (!begun).then_some(Race { later, step, missing: None, title, notes });
            }
            let near = self.memory.around(read.rect);
            let writes = near.flat_map(|near| self.memory.writes(near));
            let of_launch: Vec<&Access> =
                writes.filter(|write| write.epoch == read.epoch).collect();
            let done = |write: &&&Access| past.performed[write.actor as usize] >= write.stamp;
            let seen: Vec<u32> = of_launch.iter().filter(done).map(|write| write.rect).collect();
            let (row, col) = self.memory.gap(read.rect, &seen)?;
            let covers = |write: &&&Access| {
                let region = &self.memory.rects[write.rect as usize];
                region.rows.contains(&row) && region.cols.contains(&col)
            };
            let missing = of_launch.iter().find(covers);
            let title = match missing {
                Some(_) => "A run in which it is read before it arrives",
                None => "A run in which it is read, and nobody writes it",
            };
            let note = format!("reads element ({row}, {col}) of {}", self.buffer(region));
            let notes = [note, format!("still to come: it writes element ({row}, {col})")];
            let missing = missing.map(|write| (write.actor, write.stamp));
            Some(Race { later, step, missing, title, notes })
        });
        early.take(COMPARED).collect()
    }

    /// Writes that may come before a read of what they overwrite.
    fn overwrites(&self, number: u32) -> Vec<Race> {
        let early = self.of_statement(number, true).filter_map(|(write, past)| {
            let near = self.memory.around(write.rect);
            let reads = near.flat_map(|near| self.memory.reads(near));
            let mut before = reads.filter(|read| {
                // Within a launch the read may see another write.
                past.issued[read.actor as usize] < read.stamp
                    && (read.epoch < write.epoch
                        || read.epoch == write.epoch && self.is_open(&write, read))
            });
            let read = before.next()?;
            let title = "A run in which it is overwritten before it is read";
            let note = "the write".to_owned();
            let notes = [note, format!("still to come: launch {} reads it here", read.epoch)];
            let (step, missing) = ((write.actor, write.stamp), (read.actor, read.stamp));
            let later = self.before(&write, self.proxy(&write));
            Some(Race { later, step: Some(step), missing: Some(missing), title, notes })
        });
        early.take(COMPARED).collect()
    }

    /// Whether a write may come before or after a read.
    fn is_open(&self, write: &Access, read: &Access) -> bool {
        self.path_to_read(&self.scene(), write, read, self.proxy(read)).is_none()
    }

    /// Writes that do not come behind another of the same element.
    fn unordered(&self, number: u32) -> Vec<Race> {
        let early = self.of_statement(number, true).filter_map(|(write, past)| {
            let near = self.memory.around(write.rect);
            let writes = near.flat_map(|near| self.memory.writes(near));
            let mut before = writes.filter(|other| {
                (other.epoch, other.moment()) < (write.epoch, write.moment())
                    && past.performed[other.actor as usize] < other.stamp
            });
            let other = before.next()?;
            let title = "A run in which the one write comes first; nothing orders the two";
            let notes = ["a write".to_owned(), "the other write, still to come".to_owned()];
            let (step, missing) = ((write.actor, write.stamp), (other.actor, other.stamp));
            let later = self.before(&write, self.proxy(&write));
            Some(Race { later, step: Some(step), missing: Some(missing), title, notes })
        });
        early.take(COMPARED).collect()
    }

    /// Reads of a peer's tensor that may come when the peer's launch is over.
    fn outlived(&self, number: u32) -> Vec<Race> {
        let mut races = Vec::new();
        for epoch in 1..=self.layout.epochs {
            for owner in 0..self.layout.launch.world {
                let ends = self.ends(owner, epoch);
                let past = Past::all(&self.scene(), ends.clone());
                let late = self.accesses().find(|(read, is_write)| {
                    let region = &self.memory.rects[read.rect as usize];
                    let of = !is_write && read.number == number && read.epoch == epoch;
                    of && region.rank == owner && past.issued[read.actor as usize] < read.stamp
                });
                let (Some((read, _)), Some(end)) = (late, ends.last()) else { continue };
                let exit = self.layout.actor(end.actor);
                debug_assert!(exit.cta.is_none());
                races.push(Race {
                    later: Place::new(end.actor, end.upto, epoch + 1, end.performed),
                    step: None,
                    missing: Some((read.actor, read.stamp)),
                    title: "A run in which a tensor is read when its owner's launch is over",
                    notes: [String::new(), "still to come".into()],
                });
                if races.len() == COMPARED {
                    return races;
                }
            }
        }
        races
    }

    /// A read behind a signal that did not wait for the write.
    fn unperformed(&self, number: u32) -> Option<Shown> {
        let raised_by = |write: &Access| {
            let trace = &self.traces[write.actor as usize];
            let steps = trace.steps.iter().enumerate().skip(write.stamp as usize);
            let raise = steps.into_iter().find(|(_, step)| matches!(step.act, Act::Raise { .. }));
            raise.filter(|(_, step)| step.number == number).map(|(at, _)| at as u32 + 1)
        };
        let (mut cost, mut tries) = (0, 0);
        for (write, is_write) in self.accesses() {
            let Some(raise) = raised_by(&write).filter(|_| is_write) else { continue };
            for near in self.memory.around(write.rect) {
                for read in self.memory.reads(near).iter().filter(|r| r.epoch == write.epoch) {
                    tries += 1;
                    if tries > TRIES {
                        return None;
                    }
                    let Some(path) = self.path_from(&write, read) else { continue };
                    let past = Past::all(&self.scene(), [self.before(read, self.proxy(read))]);
                    cost += past.cost;
                    if past.performed[write.actor as usize] >= write.stamp {
                        continue;
                    }
                    let mut rows = vec![self.row(write.actor, write.stamp, "the write")];
                    rows.extend(self.rows_of_path(&path, write.stamp, read));
                    let note = "the read: the write may still be in flight";
                    rows.push(self.row(read.actor, read.stamp, note));
                    if let Some(row) = rows.get_mut(1) {
                        let note = "after read: its source is free, no more";
                        row.note = format!("{note}; {}", row.note);
                    }
                    let title = "The signal is raised before the write is performed";
                    let steps = vec![
                        (write.actor, write.stamp),
                        (write.actor, raise),
                        (read.actor, read.stamp),
                    ];
                    return Some((Table::new(title, rows).shortened(), steps));
                }
                if cost > BUDGET {
                    return None;
                }
            }
        }
        None
    }

    /// A bulk read without a fence behind the wait for what it reads.
    fn unfenced(&self, number: u32) -> Option<Shown> {
        for (read, past) in self.of_statement(number, false) {
            for near in self.memory.around(read.rect) {
                for write in self.memory.writes(near).iter().filter(|w| w.epoch == read.epoch) {
                    if past.performed[write.actor as usize] >= write.stamp {
                        continue;
                    }
                    let scene = self.scene();
                    let Some(path) = self.path_to_read(&scene, write, &read, Proxy::Generic) else {
                        continue;
                    };
                    let mut rows = vec![self.row(write.actor, write.stamp, "the write")];
                    rows.extend(self.rows_to(&path, write.stamp, &read, Proxy::Generic));
                    let note = "the read, by TMA: no fence proxy.async since the wait";
                    rows.push(self.row(read.actor, read.stamp, note));
                    let title = "The wait orders ordinary loads, and the read is none";
                    let steps = vec![(write.actor, write.stamp), (read.actor, read.stamp)];
                    return Some((Table::new(title, rows), steps));
                }
            }
        }
        None
    }

    /// Raises of a statement that may come before one that a wait stands for.
    pub(super) fn stand_ins(&self, number: u32) -> Vec<Race> {
        let counters = self.counters();
        let (mut races, mut cost) = (Vec::new(), 0);
        for raise in &self.played.run.raises {
            let step = self.step(raise.actor, raise.stamp);
            let Some(counter) = counters.of(raise.slot).filter(|_| step.number == number) else {
                continue;
            };
            let Some(&place) = counter.places.get(&(raise.actor, raise.stamp)) else { continue };
            let at = Access::point(raise.actor, raise.stamp, raise.epoch, number);
            let later = self.before(&at, Proxy::Generic);
            let past = Past::all(&self.scene(), [later]);
            cost += past.cost;
            if races.len() == COMPARED || cost > BUDGET {
                return races;
            }
            let all = self.history.of(raise.slot);
            let open =
                counter.levels.iter().filter(|level| level.members <= place).find_map(|level| {
                    let before = |actor: u32, stamp: u32| past.issued[actor as usize] >= stamp;
                    let over = level.waits.iter().all(|wait| before(wait.actor, wait.stamp));
                    let missing = all[..level.members]
                        .iter()
                        .find(|member| !before(member.actor, member.stamp));
                    missing.filter(|_| !over).map(|missing| (missing, level.target))
                });
            let Some((missing, target)) = open else { continue };
            races.push(Race {
                later,
                step: Some((raise.actor, raise.stamp)),
                missing: Some((missing.actor, missing.stamp)),
                title: "A run in which one raise stands in for another",
                notes: [
                    format!("counts towards {target} in place of the one below"),
                    format!("still to come: a wait for {target} is meant to wait for this"),
                ],
            });
        }
        races
    }
}
