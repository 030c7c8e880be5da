//! Why one element holds what its reader is meant to see: who writes it, what says so to the
//! reader, and what keeps the next write away until it has been read.

use super::super::happens::Scene;
use super::super::memory::Access;
use super::super::trace::{Act, Proxy};
use super::order::{Edge, Past, Place};
use super::stage::Stage;
use super::table::{Row, Table};
use crate::eval::Region;
use crate::program::{AgentId, BufferKind, Engine};
use std::fmt;
use std::str::FromStr;

/// An element of a buffer, rows and columns counted in the whole tensor. Its text form is
/// `buffer[row, column]`, or `buffer{plane}[row, column]` with an index for each leading dimension.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Element {
    /// The buffer's name.
    pub buffer: String,
    /// An index for each leading dimension; empty for the plane that the launch uses.
    pub planes: Vec<u32>,
    /// The row.
    pub row: u32,
    /// The column.
    pub col: u32,
}

/// Which element is asked for. What is left out is chosen: an element that a peer of its writer
/// reads, the first rank, the last launch.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Query {
    /// The element.
    pub element: Option<Element>,
    /// The rank whose memory it lies in.
    pub rank: Option<u32>,
    /// The launch, from 1.
    pub launch: Option<u32>,
}

/// Why nothing is said about an element.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum QueryError {
    /// The text is no element.
    #[error(
        "expected an element as BUFFER[ROW,COLUMN] or BUFFER{{PLANE}}[ROW,COLUMN], found `{0}`"
    )]
    Syntax(String),
    /// The Program has no such buffer.
    #[error("no buffer `{name}`; there are: {known}")]
    NoBuffer {
        /// As asked for.
        name: String,
        /// Those there are.
        known: String,
    },
    /// There is no such rank or launch.
    #[error("expected a {what} {from} to {to}, found {found}")]
    Outside {
        /// What is numbered.
        what: &'static str,
        /// The first.
        from: u32,
        /// The last.
        to: u32,
        /// As asked for.
        found: u32,
    },
    /// Nobody writes or reads it.
    #[error("no agent {verb} {element} in launch {launch}")]
    Untouched {
        /// `reads` or `writes`.
        verb: &'static str,
        /// As asked for.
        element: String,
        /// The launch.
        launch: u32,
    },
    /// The launch never ends.
    #[error("the launch never ends: nothing is argued about its elements")]
    Stuck,
    /// Nothing of the Program is read by a peer.
    #[error("no element is written by one actor and read by another")]
    Private,
}

impl FromStr for Element {
    type Err = QueryError;

    fn from_str(text: &str) -> Result<Self, QueryError> {
        let parse = || {
            let (head, rest) = text.split_once('[')?;
            let (row, col) = rest.strip_suffix(']')?.split_once(',')?;
            let (buffer, planes) = match head.split_once('{') {
                Some((buffer, planes)) => {
                    let planes = planes.trim_end().strip_suffix('}')?;
                    let index = |index: &str| index.trim().parse().ok();
                    (buffer, planes.split(',').map(index).collect::<Option<Vec<u32>>>()?)
                }
                None => (head, Vec::new()),
            };
            let buffer = buffer.trim().trim_start_matches('%').to_owned();
            let (row, col) = (row.trim().parse().ok()?, col.trim().parse().ok()?);
            (!buffer.is_empty()).then_some(Element { buffer, planes, row, col })
        };
        parse().ok_or_else(|| QueryError::Syntax(text.into()))
    }
}

impl fmt::Display for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "%{}", self.buffer)?;
        if !self.planes.is_empty() {
            let planes: Vec<String> = self.planes.iter().map(u32::to_string).collect();
            write!(f, "{{{}}}", planes.join(", "))?;
        }
        write!(f, "[{}, {}]", self.row, self.col)
    }
}

/// What is argued about one element.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Argument {
    /// The element.
    pub element: Element,
    /// The rank whose memory it lies in.
    pub rank: u32,
    /// The launch.
    pub launch: u32,
    /// The steps, one table for each thing that is argued.
    pub tables: Vec<Table>,
    /// Whether everything that has to be ordered is.
    pub holds: bool,
    /// Actors and stamps that have a part in it, for a drawing.
    pub(super) steps: Vec<(u32, u32)>,
}

impl fmt::Display for Argument {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} on rank {}, launch {}", self.element, self.rank, self.launch)?;
        for table in &self.tables {
            write!(f, "\n{table}")?;
        }
        Ok(())
    }
}

/// Which of several reads is argued about: one by a peer of the writer, then by buffer, rank, row,
/// column, reading rank and stamp.
type Choice = (bool, u32, u32, u32, u32, u32, u32);

/// A write and a read of it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pair {
    /// None for a tensor that peers read: its owner's launch gives it.
    pub(super) write: Option<Access>,
    pub(super) read: Access,
}

impl<'p> Stage<'p> {
    /// Argues about one element.
    pub(super) fn argue(&self, query: &Query) -> Result<Argument, QueryError> {
        let (world, epochs) = (self.layout.launch.world, self.layout.epochs);
        let epoch = query.launch.unwrap_or(epochs);
        if !(1..=epochs).contains(&epoch) {
            return Err(outside("launch", 1, epochs, epoch));
        }
        if let Some(rank) = query.rank.filter(|&rank| rank >= world) {
            return Err(outside("rank", 0, world - 1, rank));
        }
        if !self.played.stuck().is_empty() {
            return Err(QueryError::Stuck);
        }
        if let Some(element) = &query.element {
            let buffers = &self.program().buffers;
            let Some((_, buffer)) = buffers.iter().find(|(_, b)| b.name == element.buffer) else {
                let known: Vec<&str> = buffers.values().map(|b| b.name.as_str()).collect();
                let (name, known) = (element.buffer.clone(), known.join(", "));
                return Err(QueryError::NoBuffer { name, known });
            };
            if buffer.kind == BufferKind::Output {
                return self.argue_output(element, buffer, query.rank, epoch);
            }
        }
        let (pair, element) = self.pair(query, epoch)?;
        Ok(self.argument(pair, element, epoch))
    }

    /// The write and the read to argue about.
    fn pair(&self, query: &Query, epoch: u32) -> Result<(Pair, Element), QueryError> {
        let mut best: Option<(Choice, Pair, Element)> = None;
        for rect in 0..self.memory.rects.len() as u32 {
            let region = &self.memory.rects[rect as usize];
            if query.rank.is_some_and(|rank| rank != region.rank) {
                continue;
            }
            let asked = query.element.as_ref();
            if asked.is_some_and(|element| !self.holds(region, element)) {
                continue;
            }
            let (row, col) = match asked {
                Some(element) => (element.row, element.col),
                None => (region.rows.start, region.cols.start),
            };
            let exposed = self.is_exposed(region);
            for read in self.memory.reads(rect).iter().filter(|read| read.epoch == epoch) {
                let write = if exposed { None } else { self.write_for(read, row, col) };
                let reader = self.layout.actor(read.actor).rank;
                let writer = match write {
                    Some(write) => self.layout.actor(write.actor).rank,
                    None => region.rank,
                };
                if asked.is_none() && write.is_none() && !exposed {
                    continue;
                }
                let buffer = region.buffer.0;
                let key = (writer == reader, buffer, region.rank, row, col, reader, read.stamp);
                if best.as_ref().is_some_and(|(known, ..)| *known <= key) {
                    continue;
                }
                let element = Element {
                    buffer: self.program().buffers[region.buffer].name.clone(),
                    planes: self.plane(region),
                    row,
                    col,
                };
                best = Some((key, Pair { write, read: *read }, element));
            }
        }
        match (best, &query.element) {
            (Some((_, pair, element)), _) => Ok((pair, element)),
            (None, Some(element)) => {
                let verb = "reads";
                Err(QueryError::Untouched { verb, element: element.to_string(), launch: epoch })
            }
            (None, None) => Err(QueryError::Private),
        }
    }

    pub(super) fn holds(&self, region: &Region, element: &Element) -> bool {
        let name = &self.program().buffers[region.buffer].name;
        *name == element.buffer
            && region.rows.contains(&element.row)
            && region.cols.contains(&element.col)
            && (element.planes.is_empty() || self.plane(region) == element.planes)
    }

    /// The writes of an element, in the order of the run.
    fn writes_of(&self, rect: u32, row: u32, col: u32) -> Vec<Access> {
        let holds = |rect: &u32| {
            let Region { rows, cols, .. } = &self.memory.rects[*rect as usize];
            rows.contains(&row) && cols.contains(&col)
        };
        let rects = self.memory.around(rect).filter(holds);
        let mut writes: Vec<Access> =
            rects.flat_map(|rect| self.memory.writes(rect)).copied().collect();
        writes.sort_unstable_by_key(Access::moment);
        writes
    }

    /// The write of its own launch that a read sees: the last one the run did before, or else the
    /// first.
    pub(super) fn write_for(&self, read: &Access, row: u32, col: u32) -> Option<Access> {
        let writes = self.writes_of(read.rect, row, col);
        let mut of_launch = writes.into_iter().filter(|write| write.epoch == read.epoch).peekable();
        let first = of_launch.peek().copied();
        of_launch.take_while(|write| write.moment() < read.moment()).last().or(first)
    }

    pub(super) fn argument(&self, pair: Pair, element: Element, epoch: u32) -> Argument {
        let Pair { write, read } = pair;
        let rank = self.memory.rects[read.rect as usize].rank;
        let (arrival, arrives, mut steps) = match write {
            Some(write) => self.arrival(&write, &read, &element),
            None => self.begin(&read, rank),
        };
        let (reuse, kept, more) = match write {
            Some(write) => self.reuse(&write, &read, &element),
            None => self.end(&read, rank),
        };
        steps.extend(more);
        let tables = [Some(arrival), reuse].into_iter().flatten().collect();
        Argument { element, rank, launch: epoch, tables, holds: arrives && kept, steps }
    }

    /// The reads of an element; `rect` is one that is written and holds it.
    fn reads_of(&self, rect: u32, element: &Element) -> impl Iterator<Item = &Access> {
        let holds = |rect: &u32| {
            let Region { rows, cols, .. } = &self.memory.rects[*rect as usize];
            rows.contains(&element.row) && cols.contains(&element.col)
        };
        self.memory.around(rect).filter(holds).flat_map(|rect| self.memory.reads(rect))
    }

    /// `the read`, or one of several of the launch.
    fn nth_read(&self, read: &Access, written: u32, element: &Element) -> String {
        let all = self.reads_of(written, element).filter(|other| other.epoch == read.epoch);
        match all.count() {
            0 | 1 => "the read".into(),
            reads => format!("the read, one of {reads}"),
        }
    }

    /// From a write to its read.
    fn arrival(
        &self,
        write: &Access,
        read: &Access,
        element: &Element,
    ) -> (Table, bool, Vec<(u32, u32)>) {
        let scene = self.scene();
        let proxy = self.proxy(read);
        let path = self.path_to_read(&scene, write, read, proxy);
        let note = match self.step(write.actor, write.stamp).act {
            Act::Write { value: Some(_), .. } => "the write, asynchronous",
            _ => match self.layout.actor(write.actor).engine {
                Engine::CopyWarps => "the write, by copy warps",
                Engine::Tma => "the write, by bulk copies",
                Engine::CopyEngine | Engine::Ctas => "the write, by the copy engine",
            },
        };
        let mut rows = vec![self.row(write.actor, write.stamp, note)];
        let holds = path.is_some();
        let mut reads = self.nth_read(read, write.rect, element);
        if !holds {
            reads.push_str(": nothing says that the write is done");
        }
        rows.extend(path.iter().flat_map(|path| self.rows_of_path(path, write.stamp, read)));
        rows.push(self.row(read.actor, read.stamp, reads));
        let title = if holds { "How it arrives" } else { "It may be read before it arrives" };
        let steps = steps(path.as_deref().unwrap_or_default(), &[*write, *read]);
        (Table::new(title, rows), holds, steps)
    }

    pub(super) fn path_to_read(
        &self,
        scene: &Scene<'_, 'p>,
        write: &Access,
        read: &Access,
        proxy: Proxy,
    ) -> Option<Vec<Place>> {
        let performed =
            |place: &Place| place.actor == write.actor && place.performed >= write.stamp;
        Past::search(scene, [self.before(read, proxy)], performed).1
    }

    /// The path from where an access is issued, and its source read, to a later step.
    pub(super) fn path_from(&self, first: &Access, later: &Access) -> Option<Vec<Place>> {
        let issued = |place: &Place| place.actor == first.actor && place.upto >= first.stamp;
        Past::search(&self.scene(), [self.before(later, Proxy::Generic)], issued).1
    }

    /// From the begin of the owner's launch to a peer's read of its tensor.
    fn begin(&self, read: &Access, owner: u32) -> (Table, bool, Vec<(u32, u32)>) {
        let of_owner = |place: &Place| {
            self.layout.actor(place.actor).rank == owner && place.epoch >= read.epoch
        };
        let path = Past::search(&self.scene(), [self.before(read, Proxy::Generic)], of_owner).1;
        let exit = self.layout.exit(owner, AgentId(0));
        let first = path.as_ref().and_then(|path| path.first()).map_or(exit, |place| place.actor);
        let text = format!("launch {} of rank {owner} begins: the tensor is there", read.epoch);
        let mut rows = vec![self.event(first, read.epoch, text, "")];
        rows.extend(path.iter().flat_map(|path| self.rows_of_path(path, 0, read)));
        rows.push(self.row(read.actor, read.stamp, "the read"));
        let holds = path.is_some();
        let title = if holds { "How it arrives" } else { "It may be read before it is there" };
        let steps = steps(path.as_deref().unwrap_or_default(), &[*read]);
        (Table::new(title, rows), holds, steps)
    }

    /// From a peer's read of a tensor to the end of its owner's launch.
    fn end(&self, read: &Access, owner: u32) -> (Option<Table>, bool, Vec<(u32, u32)>) {
        let issued = |place: &Place| place.actor == read.actor && place.upto >= read.stamp;
        let ends = self.ends(owner, read.epoch);
        let path = Past::search(&self.scene(), ends, issued).1;
        let last = path.as_ref().and_then(|path| path.last()).map(|place| place.actor);
        let last = last.unwrap_or(self.layout.exit(owner, AgentId(0)));
        let mut rows = vec![self.row(read.actor, read.stamp, "the read")];
        let to = Access::point(last, self.traces[last as usize].end(read.epoch) + 1, read.epoch, 0);
        rows.extend(path.iter().flat_map(|path| self.rows_of_path_to_end(path, &to)));
        let text = format!("launch {} of rank {owner} ends", read.epoch);
        rows.push(self.event(last, read.epoch, text, "its caller may rewrite the tensor"));
        let holds = path.is_some();
        let title = if holds {
            "What keeps it until it has been read"
        } else {
            "Its owner's launch may end before it is read"
        };
        let steps = steps(path.as_deref().unwrap_or_default(), &[*read]);
        (Some(Table::new(title, rows)), holds, steps)
    }

    /// The ends of all actors of a rank in a launch.
    pub(super) fn ends(&self, rank: u32, epoch: u32) -> Vec<Place> {
        let end = |actor: u32| {
            let upto = self.traces[actor as usize].end(epoch);
            Place::new(actor, upto, epoch, upto)
        };
        self.layout.of_rank(rank).map(end).collect()
    }

    fn rows_of_path_to_end(&self, path: &[Place], to: &Access) -> Vec<Row> {
        self.rows_to(path, 0, to, Proxy::Generic)
    }

    /// From a read to the next write of the element; where the run has none, from the last read
    /// before the write at hand.
    fn reuse(
        &self,
        write: &Access,
        read: &Access,
        element: &Element,
    ) -> (Option<Table>, bool, Vec<(u32, u32)>) {
        let writes = self.writes_of(read.rect, element.row, element.col);
        let next = writes.iter().filter(|next| next.epoch > read.epoch);
        let next = next.min_by_key(|next| (next.epoch, next.moment()));
        let (read, next) = match next {
            Some(next) => (*read, *next),
            None => {
                let reads = self.reads_of(write.rect, element);
                let earlier = reads.filter(|read| read.epoch < write.epoch);
                match earlier.max_by_key(|earlier| {
                    (earlier.epoch, earlier.actor == read.actor, earlier.moment())
                }) {
                    Some(earlier) => (*earlier, *write),
                    None => {
                        let title = "No launch that is run writes it again; the others are alike";
                        return (Some(Table::new(title, Vec::new())), true, Vec::new());
                    }
                }
            }
        };
        let path = self.path_from(&read, &next);
        let holds = path.is_some();
        let mut rows = vec![self.row(read.actor, read.stamp, "the read")];
        rows.extend(
            path.iter().flat_map(|path| self.rows_to(path, read.stamp, &next, Proxy::Generic)),
        );
        let note = if holds { "the next write" } else { "the next write: it waits for no read" };
        rows.push(self.row(next.actor, next.stamp, note));
        let title = if holds {
            format!(
                "What keeps the write of launch {} away until launch {} has read it",
                next.epoch, read.epoch
            )
        } else {
            format!("Launch {} may write it before launch {} has read it", next.epoch, read.epoch)
        };
        let steps = steps(path.as_deref().unwrap_or_default(), &[read, next]);
        (Some(Table::new(title, rows)), holds, steps)
    }
}

fn outside(what: &'static str, from: u32, to: u32, found: u32) -> QueryError {
    QueryError::Outside { what, from, to, found }
}

/// The steps of a path, and of accesses.
fn steps(path: &[Place], accesses: &[Access]) -> Vec<(u32, u32)> {
    let mut steps: Vec<(u32, u32)> = accesses.iter().map(|a| (a.actor, a.stamp)).collect();
    for (place, next) in path.iter().zip(path.iter().skip(1)) {
        if let Edge::Raise { raise, wait } = place.edge {
            steps.extend([(raise.actor, raise.stamp), (next.actor, wait)]);
        }
    }
    steps
}
