//! The Program under construction.

use super::usage::Usage;
use crate::kernel::Kernel;
use crate::program::{
    Agent, At, BufferId, Engine, Expr, Home, Op, Place, Program, Range, SignalArray, SignalId,
    Stmt, Var, VarId,
};
use crate::schedule::{Schedule, Transport};
use crate::span::Span;

/// The Program under construction, and what it is made from.
pub(super) struct Builder<'a> {
    pub(super) kernel: &'a Kernel,
    pub(super) schedule: &'a Schedule,
    pub(super) usage: &'a Usage,
    pub(super) program: Program,
}

impl<'a> Builder<'a> {
    pub(super) fn new(kernel: &'a Kernel, schedule: &'a Schedule, usage: &'a Usage) -> Self {
        let program = Program::empty(&kernel.name, schedule);
        Builder { kernel, schedule, usage, program }
    }

    pub(super) fn finish(self) -> Program {
        self.program
    }

    /// A new variable; a number is appended where the name is taken.
    pub(super) fn var(&mut self, name: &str) -> VarId {
        let taken = |name: &str| self.program.vars.values().any(|var| var.name == name);
        let mut unique = name.to_owned();
        let mut number = 1;
        while taken(&unique) {
            number += 1;
            unique = format!("{name}{number}");
        }
        self.program.vars.push(Var { name: unique })
    }

    /// What copies beside the tiles of a CTA.
    pub(super) fn copier(&self) -> Engine {
        match self.schedule.transport {
            Some(Transport::Tma) => Engine::Tma,
            None | Some(Transport::CopyEngine | Transport::CopyFirst | Transport::Put) => {
                Engine::CopyWarps
            }
        }
    }

    /// A definition that holds everywhere.
    pub(super) fn define(&mut self, name: &str, value: Expr) -> VarId {
        let var = self.var(name);
        self.program.lets.push((var, value));
        var
    }

    /// Adds an agent that copies beside the tiles of a CTA; behind one that is there, as what copies is one.
    pub(super) fn beside(&mut self, agent: Agent) {
        let agents = &mut self.program.agents;
        let known = agents.iter().find(|(_, known)| known.engine == agent.engine).map(|(id, _)| id);
        match known {
            Some(id) => agents[id].body.extend(agent.body),
            None => {
                agents.push(agent);
            }
        }
    }

    pub(super) fn signal(&mut self, name: &str, len: impl Into<Expr>, home: Home) -> SignalId {
        let (name, len) = (name.into(), len.into());
        self.program.signals.push(SignalArray { name, len, home, carrier: None })
    }

    /// A signal that the data of `carrier` stand for.
    pub(super) fn carried(
        &mut self,
        name: &str,
        len: impl Into<Expr>,
        carrier: BufferId,
    ) -> SignalId {
        let signal = self.signal(name, len, Home::Device);
        self.program.signals[signal].carrier = Some(carrier);
        signal
    }
}

/// A statement at a token.
pub(super) fn stmt(span: Span, op: Op) -> Stmt {
    Stmt { op, span }
}

/// An agent that copies. What a bulk copy reads, and overwrites, was let go by ordinary accesses:
/// behind each of its waits stands the fence that says so to the async proxy.
pub(super) fn copying(name: &str, engine: Engine, mut body: Vec<Stmt>) -> Agent {
    if engine == Engine::Tma {
        body = fenced(body);
    }
    Agent { name: name.into(), engine, body, exit: Vec::new() }
}

fn fenced(body: Vec<Stmt>) -> Vec<Stmt> {
    let mut all = Vec::with_capacity(body.len());
    for Stmt { mut op, span } in body {
        if let Op::For { body, .. } | Op::If { body, .. } = &mut op {
            *body = fenced(std::mem::take(body));
        }
        let waits = matches!(op, Op::Wait { .. });
        all.push(Stmt { op, span });
        all.extend(waits.then(|| stmt(span, Op::FenceProxyAsync)));
    }
    all
}

/// A region on the own rank, without planes.
pub(super) fn own(buffer: BufferId, rows: Range, cols: Range) -> Place {
    Place { at: At::Own, buffer, planes: Vec::new(), rows, cols }
}
