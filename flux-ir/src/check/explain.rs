//! What the checker knows of one launch, for a reader: counts, the argument for one element, and
//! where the launch is rejected the shortest trace that shows why.
//!
//! [`explain`] runs a launch; the [`Explanation`] answers questions about it:
//!
//! | asked | answer |
//! |---|---|
//! | [`Explanation::counts`], [`Explanation::signals`] | how much there is of everything |
//! | [`Explanation::argument`] | who writes an element, what says so to its reader, and what keeps the next write away |
//! | [`Explanation::traces`] | for each broken rule the fewest steps that show it |
//! | [`Explanation::dot`], [`Explanation::svg`] | a drawing, a lane for each actor |
//!
//! Its `Display` gives the counts, and what a rejected launch breaks with the traces.
//!
//! | module | gives |
//! |---|---|
//! | `stage` | the launch, walked and run; its steps in words |
//! | `order` | shortest paths of raises and waits between two steps |
//! | `element`, `output` | the argument for one element |
//! | `race`, `signal` | the run that shows a race; the steps that show a signal that is wrong |
//! | `stuck` | the cycle that a run got stuck in |
//! | `table` | rows of steps |
//! | `picture`, `dot`, `svg` | drawings |

mod dot;
mod element;
mod order;
mod output;
mod picture;
mod race;
mod signal;
mod stage;
mod stuck;
mod svg;
mod table;

pub use element::{Argument, Element, Query, QueryError};
pub use table::{Row, Table};

use super::launch::{self, describe};
use super::trace::Act;
use super::{Findings, structure};
use crate::diagnostic::{Diagnostic, Diagnostics, Rule};
use crate::eval::Launch;
use crate::program::{Program, Stmt};
use crate::span::Span;
use crate::tile::Shape;
use stage::Stage;
use std::fmt;

/// How much there is of everything, in all launches that are run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counts {
    /// Consecutive launches.
    pub launches: u32,
    /// Agents of a rank.
    pub agents: usize,
    /// Actors: bodies of agents on all ranks, and their exits.
    pub actors: usize,
    /// Steps that other actors can see: waits, raises, fences, accesses to shared memory.
    pub events: usize,
    /// Waits.
    pub waits: usize,
    /// Raises of signals.
    pub signals: usize,
    /// Pairs of a raise and a wait that stands for it.
    pub edges: u64,
    /// Reads of memory that ranks share.
    pub reads: usize,
    /// Writes of memory that ranks share.
    pub writes: usize,
}

/// How often a signal array is used, in all launches and on all ranks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SignalUse {
    /// The array's name.
    pub name: String,
    /// Its length on one rank.
    pub slots: u32,
    /// Raises.
    pub raises: usize,
    /// Slots that waits look at, each wait counted anew.
    pub waits: u64,
    /// Waits that end at once: their target is not positive.
    pub idle: u64,
}

/// The fewest steps that show how a rule is broken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trace {
    /// The rule.
    pub rule: Rule,
    /// The place of what it shows in [`Explanation::diagnostics`].
    pub diagnostic: usize,
    /// The steps.
    pub table: Table,
    /// Actors and stamps of the steps at fault, for a drawing.
    steps: Vec<(u32, u32)>,
}

/// A launch that was run, and what is known of it.
#[derive(Debug)]
pub struct Explanation<'p> {
    stage: Stage<'p>,
    found: Findings,
}

/// Runs one launch of `program` for explanation. The Program need not be a sound one.
///
/// # Errors
/// What the Program lacks to be run: its structure, or rules on which a run rests (`bounds`,
/// `dimensions`, `order-not-permutation`, `written-twice`, `never-written`).
pub fn explain(program: &Program, launch: Launch) -> Result<Explanation<'_>, Diagnostics> {
    structure::check(program).into_result(())?;
    let mut found = Findings::default();
    launch::check(program, launch, launch::STEP_LIMIT, &mut found);
    Explanation::new(program, launch, found)
}

/// The smallest launch of the checker's family that is rejected, explained. `None` where none is.
///
/// # Errors
/// As of [`explain`].
pub fn smallest_rejected(program: &Program) -> Result<Option<Explanation<'_>>, Diagnostics> {
    structure::check(program).into_result(())?;
    let mut launches: Vec<Launch> = super::family::family(program).collect();
    launches.sort_by_key(|Launch { shape: Shape { m, n, k }, world, ctas }| {
        (*world, *ctas, u64::from(*m) * u64::from(*n), *k)
    });
    for launch in launches {
        let mut found = Findings::default();
        launch::check(program, launch, launch::FAMILY_STEP_LIMIT, &mut found);
        if !found.diagnostics.is_empty() {
            return Explanation::new(program, launch, found).map(Some);
        }
    }
    Ok(None)
}

/// A launch that is small enough to be read: two ranks of two CTAs, one tile of rows each.
pub fn small_launch(program: &Program) -> Launch {
    let tile = program.tile;
    let shape = Shape { m: 2 * tile.m, n: tile.n, k: tile.k };
    Launch { shape, world: 2, ctas: 2 }
}

/// Rules that a run rests on.
const NEEDED: [Rule; 5] = [
    Rule::Bounds,
    Rule::Dimensions,
    Rule::OrderNotPermutation,
    Rule::WrittenTwice,
    Rule::NeverWritten,
];

impl<'p> Explanation<'p> {
    fn new(program: &'p Program, launch: Launch, found: Findings) -> Result<Self, Diagnostics> {
        if found.diagnostics.0.iter().any(|diagnostic| NEEDED.contains(&diagnostic.rule)) {
            return Err(found.diagnostics);
        }
        if launch.shape.m == 0 || launch.shape.n == 0 {
            let message = "a launch without output elements does nothing".to_owned();
            let nothing = Diagnostic::new(Rule::Bounds, Span::UNKNOWN, message);
            return Err(nothing.note(Span::UNKNOWN, describe(launch)).into());
        }
        let stage = Stage::new(program, launch).map_err(|error| {
            Diagnostic::new(Rule::OrderNotPermutation, Span::UNKNOWN, error.to_string())
        })?;
        Ok(Explanation { stage, found })
    }

    /// The launch.
    pub fn launch(&self) -> Launch {
        self.stage.layout.launch
    }

    /// The rules it breaks.
    pub fn diagnostics(&self) -> &Diagnostics {
        &self.found.diagnostics
    }

    /// How much there is of everything.
    pub fn counts(&self) -> Counts {
        let layout = &self.stage.layout;
        let mut counts = Counts {
            launches: layout.epochs,
            agents: layout.program.agents.len(),
            actors: layout.actors.len(),
            events: 0,
            waits: 0,
            signals: 0,
            edges: self.stage.edges(),
            reads: 0,
            writes: 0,
        };
        for step in self.stage.traces.iter().flat_map(|trace| &trace.steps) {
            counts.events += 1;
            match step.act {
                Act::Wait { .. } => counts.waits += 1,
                Act::Raise { .. } => counts.signals += 1,
                Act::Read { .. } | Act::Contribution { .. } => counts.reads += 1,
                Act::Write { .. } => counts.writes += 1,
                Act::Fence => {}
            }
        }
        counts
    }

    /// How often each signal array is raised and waited for.
    pub fn signals(&self) -> Vec<SignalUse> {
        let layout = &self.stage.layout;
        let arrays = layout.program.signals.iter().map(|(id, array)| SignalUse {
            name: array.name.clone(),
            slots: layout.slots(0, id).len() as u32,
            raises: 0,
            waits: 0,
            idle: 0,
        });
        let mut arrays: Vec<SignalUse> = arrays.collect();
        for step in self.stage.traces.iter().flat_map(|trace| &trace.steps) {
            match step.act {
                Act::Wait { slot, len, target } => {
                    let array = &mut arrays[layout.place_of_slot(slot).1.0 as usize];
                    array.waits += u64::from(len);
                    array.idle += if target > 0 { 0 } else { u64::from(len) };
                }
                Act::Raise { slot, .. } => {
                    arrays[layout.place_of_slot(slot).1.0 as usize].raises += 1;
                }
                Act::Fence | Act::Read { .. } | Act::Contribution { .. } | Act::Write { .. } => {}
            }
        }
        arrays
    }

    /// For each broken rule, as far as a run shows it, the fewest steps that do: in the order of
    /// [`Explanation::diagnostics`].
    pub fn traces(&self) -> Vec<Trace> {
        let faults = self.found.diagnostics.0.iter().zip(&self.found.seen).enumerate();
        let traces = faults.filter_map(|(diagnostic, (_, (rule, entry)))| {
            let at = |stmt: &&Stmt| std::ptr::from_ref::<Stmt>(stmt).addr() == *entry;
            let number = self.stage.layout.stmts.iter().position(at)? as u32;
            let (table, steps) = self.stage.shown(*rule, number)?;
            Some(Trace { rule: *rule, diagnostic, table, steps })
        });
        traces.collect()
    }

    /// Why one element holds what its reader is meant to see.
    ///
    /// # Errors
    /// A [`Query`] for what does not exist, or what no agent touches.
    pub fn argument(&self, query: &Query) -> Result<Argument, QueryError> {
        self.stage.argue(query)
    }

    /// The launch as a Graphviz graph, a lane for each actor; around the element of `query` where
    /// it is too much for one picture. What is at fault is red.
    pub fn dot(&self, query: &Query) -> String {
        dot::dot(&self.picture(query))
    }

    /// The same as an SVG image.
    pub fn svg(&self, query: &Query) -> String {
        svg::svg(&self.picture(query))
    }

    fn picture(&self, query: &Query) -> picture::Picture {
        let stage = &self.stage;
        let title = format!("{}, {}", stage.program().name, describe(self.launch()));
        let traces = self.traces();
        let red = traces.first().map_or_else(Vec::new, |trace| trace.steps.clone());
        let (focus, of) = match (traces.first(), self.argument(query)) {
            (Some(trace), _) => (trace.steps.clone(), format!("what breaks {}", trace.rule)),
            (None, Ok(argument)) => {
                let Argument { element, rank, launch, steps, .. } = argument;
                (steps, format!("{element} on rank {rank}, launch {launch}"))
            }
            (None, Err(_)) => (vec![(0, 1)], "the first step".to_owned()),
        };
        let red = red.into_iter().collect();
        stage.picture(&title, &focus, &of, &red)
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let launches = if self.launches == 1 { "launch" } else { "launches" };
        writeln!(f, "  {:<10} {:>10}  of a rank", "agents", self.agents)?;
        writeln!(f, "  {:<10} {:>10}  on all ranks, exits included", "actors", self.actors)?;
        let of = format!("in {} {launches}", self.launches);
        for (name, count, rest) in [
            ("events", self.events as u64, of.as_str()),
            ("waits", self.waits as u64, ""),
            ("signals", self.signals as u64, "raises"),
            ("edges", self.edges, "from a raise to a wait that stands for it"),
            ("reads", self.reads as u64, "of memory that ranks share"),
            ("writes", self.writes as u64, "of memory that ranks share"),
        ] {
            writeln!(f, "  {}", format!("{name:<10} {count:>10}  {rest}").trim_end())?;
        }
        Ok(())
    }
}

impl fmt::Display for SignalUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SignalUse { name, slots, raises, waits, idle } = self;
        let array = format!("%{name}[{slots}]");
        write!(f, "{array:<20} raised {raises} times, waited for {waits} times")?;
        if *idle > 0 {
            write!(f, ", {idle} of them for nothing yet")?;
        }
        Ok(())
    }
}

impl Explanation<'_> {
    /// Counts and signals, as text.
    pub fn summary(&self) -> impl fmt::Display + '_ {
        fmt::from_fn(|f| {
            writeln!(f, "{}, {}", self.stage.program().name, describe(self.launch()))?;
            write!(f, "{}", self.counts())?;
            let signals = self.signals();
            if !signals.is_empty() {
                writeln!(f, "\nSignals, of all ranks and launches")?;
            }
            signals.iter().try_for_each(|signal| writeln!(f, "  {signal}"))
        })
    }
}

impl fmt::Display for Explanation<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.summary())?;
        let traces = self.traces();
        for (index, diagnostic) in self.found.diagnostics.0.iter().enumerate() {
            writeln!(f, "\n{diagnostic}")?;
            if let Some(trace) = traces.iter().find(|trace| trace.diagnostic == index) {
                write!(f, "\n{}", trace.table)?;
            }
        }
        Ok(())
    }
}
