//! What is said about races: the rule, the user's token, the other places involved.

use super::Findings;
use super::launch::describe;
use super::machine::{Raise, moment};
use super::memory::{Access, Memory};
use super::trace::{Act, ActorTrace, Layout};
use crate::diagnostic::{Diagnostic, Rule};
use crate::program::{Op, Scope, Stmt};
use crate::span::Span;

/// Says what is wrong, each rule once for a statement.
pub(super) struct Report<'a, 'p, 'f> {
    layout: &'a Layout<'p>,
    memory: &'a Memory,
    found: &'f mut Findings,
}

impl<'a, 'p, 'f> Report<'a, 'p, 'f> {
    pub(super) fn new(layout: &'a Layout<'p>, memory: &'a Memory, found: &'f mut Findings) -> Self {
        Report { layout, memory, found }
    }

    fn stmt(&self, number: u32) -> &'p Stmt {
        self.layout.stmts[number as usize]
    }

    fn name(&self, access: &Access) -> String {
        self.layout.name(access.actor)
    }

    /// `rows 0..8, columns 0..4 of %x{1} on rank 2`.
    fn place(&self, rect: u32) -> String {
        let region = &self.memory.rects[rect as usize];
        let buffer = &self.layout.program.buffers[region.buffer];
        let plane =
            if buffer.planes.is_empty() { String::new() } else { format!("{{{}}}", region.plane) };
        format!(
            "rows {:?}, columns {:?} of `%{}{plane}` on rank {}",
            region.rows, region.cols, buffer.name, region.rank
        )
    }

    fn moment(&self, epoch: u32) -> String {
        moment(self.layout, epoch)
    }

    fn say(
        &mut self,
        rule: Rule,
        stmt: &'p Stmt,
        epoch: u32,
        message: String,
        rest: impl FnOnce(Diagnostic) -> Diagnostic,
    ) {
        let moment = self.moment(epoch);
        self.found.once(rule, stmt, || {
            rest(Diagnostic::new(rule, stmt.span, message)).note(Span::UNKNOWN, moment)
        });
    }

    /// A read that does not come behind a write of what it reads.
    pub(super) fn not_arrived(
        &mut self,
        write: Access,
        read: Access,
        wait: Option<u32>,
        (row, col): (u32, u32),
    ) {
        let stmt = self.stmt(read.number);
        let message = format!(
            "{} reads {}, and nothing it waits for says that element ({row}, {col}) has been written",
            self.name(&read),
            self.place(read.rect)
        );
        let writer = self.name(&write);
        let (written, wait) = (self.stmt(write.number), wait.map(|number| self.stmt(number)));
        self.say(Rule::ReadBeforeArrival, stmt, read.epoch, message, |diagnostic| {
            let diagnostic = diagnostic.note(written.span, format!("{writer} writes it here"));
            let diagnostic = match wait {
                Some(wait) => diagnostic.note(wait.span, "the last wait before the read"),
                None => diagnostic,
            };
            diagnostic.help(match is_put_over_network(written) {
                true => OVER_NETWORK,
                false => {
                    "wait for the signal that the writer raises behind this write, of this launch"
                }
            })
        });
    }

    /// A read of what no write of its launch gives.
    pub(super) fn never_arrives(&mut self, read: Access, (row, col): (u32, u32)) {
        let stmt = self.stmt(read.number);
        let message = format!(
            "{} reads {}, and no agent writes element ({row}, {col}) in this launch",
            self.name(&read),
            self.place(read.rect)
        );
        self.say(Rule::ReadBeforeArrival, stmt, read.epoch, message, |diagnostic| {
            diagnostic.help("workspace keeps nothing from launch to launch: write it in each")
        });
    }

    /// A peer's tensor is read before the peer's launch is known to have begun.
    pub(super) fn not_begun(&mut self, read: Access, rank: u32) {
        let stmt = self.stmt(read.number);
        let message = format!(
            "{} reads {}, and nothing it waits for says that rank {rank} has begun this launch",
            self.name(&read),
            self.place(read.rect)
        );
        self.say(Rule::ReadBeforeArrival, stmt, read.epoch, message, |diagnostic| {
            diagnostic.help("let the owner signal that its tensor is there, and wait for that")
        });
    }

    /// A read of a peer's tensor that the peer's launch does not wait for.
    pub(super) fn outlives(&mut self, read: Access, rank: u32) {
        let stmt = self.stmt(read.number);
        let message = format!(
            "{} may still read {} when the launch of rank {rank} is over",
            self.name(&read),
            self.place(read.rect)
        );
        self.say(Rule::ExitBeforeRead, stmt, read.epoch, message, |diagnostic| {
            diagnostic.help("let the reader signal when it is through, and its owner wait for that")
        });
    }

    /// A write that may come before a read which is meant to see what it overwrites.
    pub(super) fn overwrites(&mut self, write: Access, read: Access) {
        let stmt = self.stmt(write.number);
        let message = format!(
            "{} writes {}, which {} may not have read yet in launch {}",
            self.name(&write),
            self.place(write.rect),
            self.name(&read),
            read.epoch
        );
        let read = self.stmt(read.number);
        let help = match is_put_over_network(read) {
            true => {
                "the network reads the source of a put at some time: signal `after read`, and wait for that, before the write"
            }
            false => "let the reader signal when it is through, and wait for that before the write",
        };
        self.say(Rule::OverwriteBeforeRead, stmt, write.epoch, message, |diagnostic| {
            diagnostic.note(read.span, "read here").help(help)
        });
    }

    /// The first element two rectangles share.
    fn first(&self, a: u32, b: u32) -> (u32, u32) {
        let [a, b] = [a, b].map(|rect| &self.memory.rects[rect as usize]);
        (a.rows.start.max(b.rows.start), a.cols.start.max(b.cols.start))
    }

    /// Two writes without an order.
    pub(super) fn unordered(&mut self, first: Access, second: Access) {
        let stmt = self.stmt(second.number);
        let (row, col) = self.first(first.rect, second.rect);
        let message = format!(
            "{} writes {}, where {} writes element ({row}, {col}) as well, and nothing orders the two",
            self.name(&second),
            self.place(second.rect),
            self.name(&first)
        );
        let (first, epoch) = (self.stmt(first.number), first.epoch);
        let help = match is_put_over_network(first) {
            true => OVER_NETWORK,
            false => "signal behind one (`after performed`) and wait for that before the other",
        };
        self.say(Rule::UnorderedWrites, stmt, second.epoch, message, |diagnostic| {
            diagnostic.note(first.span, format!("the other write, in launch {epoch}")).help(help)
        });
    }

    /// A read behind a signal that did not wait for the write.
    pub(super) fn unperformed(
        &mut self,
        write: Access,
        read: Access,
        traces: &[ActorTrace],
        wait: Option<u32>,
    ) {
        let steps = &traces[write.actor as usize].steps;
        let raise =
            steps[write.stamp as usize..].iter().find(|step| matches!(step.act, Act::Raise { .. }));
        let Some(raise) = raise else {
            return self.not_arrived(write, read, wait, self.first(write.rect, read.rect));
        };
        let stmt = self.layout.stmt(*raise);
        let message = format!(
            "{} signals before its write of {} is performed",
            self.name(&write),
            self.place(write.rect)
        );
        let (written, reader) = (self.stmt(write.number), self.name(&read));
        let read_at = self.stmt(read.number);
        self.say(Rule::PutNotPerformed, stmt, write.epoch, message, |diagnostic| {
            diagnostic
                .note(written.span, "the write")
                .note(read_at.span, format!("{reader} reads it here"))
                .help("signal `after performed`: `after read` only says that the source is free")
        });
    }

    /// A bulk read without a fence behind the wait for what it reads.
    pub(super) fn unfenced(&mut self, write: Option<Access>, read: Access, wait: Option<u32>) {
        let stmt = self.stmt(read.number);
        let message = format!(
            "{} reads {} by TMA, and no `fence proxy.async` stands behind the wait for it",
            self.name(&read),
            self.place(read.rect)
        );
        let written = write.map(|write| self.stmt(write.number));
        let wait = wait.map(|number| self.stmt(number));
        self.say(Rule::MissingProxyFence, stmt, read.epoch, message, |diagnostic| {
            let diagnostic = match written {
                Some(written) => diagnostic.note(written.span, "written here"),
                None => diagnostic,
            };
            let diagnostic = match wait {
                Some(wait) => diagnostic.note(wait.span, "waited for here"),
                None => diagnostic,
            };
            diagnostic.help("an acquire orders ordinary loads alone: put a fence behind the wait")
        });
    }

    /// A bulk write without a fence behind the wait for what was done before it.
    pub(super) fn unfenced_write(&mut self, write: Access, before: Access, wait: Option<u32>) {
        let stmt = self.stmt(write.number);
        let message = format!(
            "{} writes {} by TMA, and no `fence proxy.async` stands behind the wait for {}",
            self.name(&write),
            self.place(write.rect),
            self.name(&before)
        );
        let (earlier, epoch) = (self.stmt(before.number), before.epoch);
        let wait = wait.map(|number| self.stmt(number));
        self.say(Rule::MissingProxyFence, stmt, write.epoch, message, |diagnostic| {
            let diagnostic = diagnostic
                .note(earlier.span, format!("what it has to come behind, in launch {epoch}"));
            let diagnostic = match wait {
                Some(wait) => diagnostic.note(wait.span, "waited for here"),
                None => diagnostic,
            };
            diagnostic.help("an acquire orders ordinary stores alone: put a fence behind the wait")
        });
    }

    /// The statement of a raise is the only one of its slot and actor that the caller knows; it is
    /// named where the array has one raise alone.
    fn raise_stmt(&self, raise: &Raise) -> Option<&'p Stmt> {
        let (_, signal, _) = self.layout.place_of_slot(raise.slot);
        super::raises(self.layout.program, signal).first().map(|(stmt, _)| *stmt)
    }

    /// A wait whose target no sum of raises meets.
    pub(super) fn overshoots(&mut self, wait: Access, slot: u32, target: i32, last: &Raise) {
        let stmt = self.stmt(wait.number);
        let message = format!(
            "{} waits for `{}` >= {target}, which goes to {} at once: the count is never exact",
            self.name(&wait),
            self.layout.slot_name(slot),
            last.value
        );
        let raise = self.raise_stmt(last);
        self.say(Rule::CountNotExact, stmt, wait.epoch, message, |diagnostic| {
            let diagnostic = match raise {
                Some(raise) => diagnostic.note(raise.span, "raised here"),
                None => diagnostic,
            };
            diagnostic.help("wait for what the raises of a launch add up to")
        });
    }

    /// A raise that may end a wait in place of another.
    pub(super) fn early(&mut self, raise: Access, slot: u32, before: &Raise, target: i32) {
        let stmt = self.stmt(raise.number);
        let message = format!(
            "{} may raise `{}` before {} does, and end a wait for {target} in its place",
            self.name(&raise),
            self.layout.slot_name(slot),
            self.layout.name(before.actor)
        );
        self.say(Rule::CountNotExact, stmt, raise.epoch, message, |diagnostic| {
            diagnostic
                .help("give each raiser a slot of its own, or let it wait for the others first")
        });
    }

    /// A contribution that comes from several ranks, or stores.
    pub(super) fn mixed_contribution(&mut self, read: Access) {
        let stmt = self.stmt(read.number);
        let message = format!(
            "{} sums {}, whose elements come from several ranks or stores",
            self.name(&read),
            self.place(read.rect)
        );
        self.say(Rule::SumNotExact, stmt, read.epoch, message, |diagnostic| {
            diagnostic.help("give the contributions of each rank a plane of their own")
        });
    }

    /// A contribution that is no term of this sum.
    pub(super) fn other_value(&mut self, read: Access, rank: u32) {
        let stmt = self.stmt(read.number);
        let message = format!(
            "{} sums {}, where rank {rank} stores another value than its own contribution",
            self.name(&read),
            self.place(read.rect)
        );
        self.say(Rule::SumNotExact, stmt, read.epoch, message, |diagnostic| diagnostic);
    }

    /// A rank whose contribution is summed again.
    pub(super) fn summed_twice(&mut self, read: Access, rank: u32) {
        let stmt = self.stmt(read.number);
        let message = format!(
            "{} sums {}, and has the contribution of rank {rank} already",
            self.name(&read),
            self.place(read.rect)
        );
        self.say(Rule::SumNotExact, stmt, read.epoch, message, |diagnostic| diagnostic);
    }

    /// A rank whose contribution is not summed.
    pub(super) fn left_out(&mut self, read: Access, rank: u32) {
        let stmt = self.stmt(read.number);
        let message = format!("{} sums without the contribution of rank {rank}", self.name(&read));
        self.say(Rule::SumNotExact, stmt, read.epoch, message, |diagnostic| diagnostic);
    }

    /// A launch whose steps take too long to order.
    pub(super) fn too_many(&mut self, limit: u64) {
        let launch = describe(self.layout.launch);
        self.found.once(Rule::Bounds, self.layout.program, || {
            let message = format!("the check would ask for the order of more than {limit} steps");
            Diagnostic::new(Rule::Bounds, Span::UNKNOWN, message).note(Span::UNKNOWN, launch)
        });
    }

    /// A put that its rank is never told of.
    pub(super) fn not_signalled(&mut self, write: Access) {
        let stmt = self.stmt(write.number);
        let rank = self.memory.rects[write.rect as usize].rank;
        let message = format!(
            "{} writes {}, and signals nothing to rank {rank} after it",
            self.name(&write),
            self.place(write.rect)
        );
        self.say(Rule::PutNotSignalled, stmt, write.epoch, message, |diagnostic| {
            diagnostic.help("raise a signal of that rank behind the put, `after performed`")
        });
    }
}

/// What says that data lie on a rank of another node.
const OVER_NETWORK: &str = "what went over the network is there for whoever has seen a signal `after delivered` of the same agent, \
                            on the rank it went to: wait for that, or for one who did";

fn is_put_over_network(stmt: &Stmt) -> bool {
    matches!(&stmt.op, Op::Copy { to, .. } if to.at.is_remote())
}

/// A scope that does not reach who is at the other end: actor and statement of both.
pub(super) fn scope(
    layout: &Layout<'_>,
    slot: u32,
    (actor, number): (u32, u32),
    (other, other_number): (u32, u32),
    has: Scope,
    needed: Scope,
    found: &mut Findings,
) {
    let (stmt, other_stmt) = (layout.stmts[number as usize], layout.stmts[other_number as usize]);
    found.once(Rule::ScopeTooNarrow, stmt, || {
        let (does, others) = match &stmt.op {
            Op::Wait { .. } => ("waits for", "raises it"),
            _ => ("raises", "waits for it"),
        };
        let message = format!(
            "{} {does} `{}` at scope {}, expected {}: {} {others}",
            layout.name(actor),
            layout.slot_name(slot),
            has.name(),
            needed.name(),
            layout.name(other)
        );
        Diagnostic::new(Rule::ScopeTooNarrow, stmt.span, message)
            .note(other_stmt.span, "the other end")
            .note(Span::UNKNOWN, describe(layout.launch))
            .help(format!("write `scope {}`", needed.name()))
    });
}
