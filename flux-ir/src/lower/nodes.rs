//! Ranks of several nodes: what is written to mapped memory on the own node is put over the network to others.

use super::build::Builder;
use super::gather::parity;
use crate::diagnostic::{Diagnostic, Diagnostics, Rule};
use crate::kernel::{Distribution, Kernel};
use crate::program::{
    At, Completion, Cond, Expr, Op, Place, Range, Scope, SignalId, Stmt, Sym, Update, VarId,
};
use crate::schedule::{AllGather, Schedule, Transport};

/// How ranks are divided.
#[derive(Debug, Clone, Copy)]
pub(super) struct Nodes {
    /// Ranks of a node.
    ranks: u32,
}

impl Nodes {
    /// Those of the schedule; none where all ranks are of one node.
    pub(super) fn of(b: &Builder<'_>) -> Option<Nodes> {
        (b.schedule.node != 0).then_some(Nodes { ranks: b.schedule.node })
    }

    /// What is done with rank `of`: the first where it is of the own node, the second where it is not.
    pub(super) fn each(self, of: VarId, (mapped, carried): (Vec<Stmt>, Vec<Stmt>)) -> [Op; 2] {
        let ends = || [Expr::from(of) / self.ranks, Expr::from(Sym::Rank) / self.ranks];
        let ([one, other], [left, right]) = (ends(), ends());
        [
            Op::If { cond: Cond::Eq(one, other), body: mapped },
            Op::If { cond: Cond::Ne(left, right), body: carried },
        ]
    }

    /// Puts a part of the own shard to where `to` says, out of workspace: of that alone the network knows where it
    /// lies. It is there when the own signal says so, which every rank raises at itself first.
    pub(super) fn put(
        self,
        (signal, slot): (SignalId, Expr),
        (to, target, update): (Place, Expr, Update),
    ) -> [Op; 3] {
        let from = Place { at: At::Own, planes: vec![parity()], ..to.clone() };
        let at = to.at.clone();
        let scope = Scope::Sys;
        [
            Op::Wait { signal, slots: Range::one(slot.clone()), target, scope },
            Op::Copy { from, to, adds: false },
            Op::Signal { at, signal, slot, update, scope, after: Completion::Delivered },
        ]
    }
}

/// Whether what a kernel moves can be moved between nodes.
pub(super) fn check(kernel: &Kernel, schedule: &Schedule) -> Result<(), Diagnostics> {
    if schedule.node == 0 {
        return Ok(());
    }
    let refuse = |span, message: String, help: &str| {
        Err(Diagnostic::new(Rule::Schedule, span, message).help(help).into())
    };
    let moved = kernel.params.iter().find_map(|(id, param)| {
        let (distribution, ..) = kernel.tensor(id)?;
        let what = match distribution {
            Distribution::Scattered => "scattered",
            Distribution::Reduced => "reduced",
            Distribution::Exchanged => "exchanged",
            _ => return None,
        };
        Some((param, what))
    });
    if let Some((param, what)) = moved {
        let message = format!(
            "expected gathered inputs alone where ranks are of several nodes, found the {what} `{}`",
            param.name
        );
        let help = "leave `node` out: tiles are stored to mapped memory, which no other node has";
        return refuse(param.span, message, help);
    }
    if kernel.protocol.is_some() {
        let message =
            "expected no protocol of one's own where ranks are of several nodes, found one";
        let help = "leave `node` out: roles copy between mapped memories";
        return refuse(kernel.span, message.to_owned(), help);
    }
    if let Some(way @ (AllGather::Pull | AllGather::Ring)) = schedule.all_gather {
        let message = format!(
            "expected shards to be pushed where ranks are of several nodes, found `all_gather = {}`",
            way.name()
        );
        let help =
            "leave `all_gather` out: memory of another node can be written from here, and not read";
        return refuse(kernel.span, message, help);
    }
    if schedule.transport != Some(Transport::Put) {
        let found = schedule.transport.map_or("none", Transport::name);
        let message =
            format!("expected `transport = put` where ranks are of several nodes, found {found}");
        let help = "write `transport = put`: copy warps put what goes over the network, which copy \
                    engines and bulk copies do not reach";
        return refuse(kernel.span, message, help);
    }
    Ok(())
}
