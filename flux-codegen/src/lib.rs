//! Program to LLVM module to PTX.
//!
//! The kernel is persistent and warp-specialized: one thread of warpgroup 0 loads operand tiles
//! by TMA into a ring of shared-memory stages, and the one or two warpgroups behind it multiply
//! them with `wgmma` and run the epilogue. What it does around the mainloop is taken
//! statement by statement from the Program:
//!
//! | Where the statement stands | Who runs it |
//! |---|---|
//! | before the tile loop | every consumer warp, before its first tile |
//! | in the tile loop, before the mainloop | the loading thread |
//! | in the tile loop, after the mainloop | every consumer warp of that tile |
//! | `exit` | one thread of the last CTA to finish |
//!
//! A wait that runs out of time, or sees that another did, raises the abort word; from then on
//! nothing waits, nothing is put to a peer and nothing is signalled, and the kernel returns.
//!
//! [`flux_ir::abi`] says how a launch hands over arguments. Types of LLVM do not leave this crate.

mod context;
mod emit;
mod error;
mod lint;
mod machine;
pub mod network;
mod nvvm;
mod plan;
#[cfg(test)]
mod refusals;

pub use error::Error;
pub use lint::{LintError, LintRule, lint};

use flux_ir::Balance;
use flux_ir::check::Verified;
use flux_ir::program::{Op, Program, Scope, Stmt};

/// A compiled kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Image {
    /// The name of the entry function.
    pub entry: String,
    /// The PTX text, for `sm_90a`.
    pub ptx: String,
    /// Dynamic shared memory of a CTA, in bytes.
    pub shared_bytes: u32,
    /// Threads of a CTA.
    pub threads: u32,
}

/// Compiles the CTA agent of `program`. The same Program gives the same text.
///
/// # Errors
/// [`Error::Unsupported`] where the Program has a structure, tile or element type that the
/// kernel does not offer.
/// [`Error::NoNetwork`] where it reaches other nodes, and what does that is not at hand.
pub fn compile(program: &Verified) -> Result<Image, Error> {
    image(program.program(), Times::Unseen, Linked::Whole)
}

/// Compiles the CTA agent of `program`, and leaves the network's functions to be linked: what [`compile`] makes of a
/// Program that reaches no other node.
///
/// # Errors
/// As of [`compile`], but for [`Error::NoNetwork`].
pub fn compile_unlinked(program: &Verified) -> Result<Image, Error> {
    image(program.program(), Times::Unseen, Linked::Calls)
}

/// Compiles the CTA agent of `program` with stores of its tiles' times ([`flux_ir::abi::Stamp`]).
///
/// # Errors
/// As of [`compile`]; tiles that CTAs share.
pub fn compile_recorded(program: &Verified) -> Result<Image, Error> {
    image(program.program(), Times::Recorded, Linked::Whole)
}

/// Whether what a kernel calls of the network is part of its text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Linked {
    Whole,
    Calls,
}

/// Whether a kernel writes when its tiles wait, compute and store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Times {
    Unseen,
    Recorded,
}

fn image(program: &Program, times: Times, linked: Linked) -> Result<Image, Error> {
    let plan = plan::Plan::of(program)?;
    let entry = entry(&program.name);
    let library = match linked {
        Linked::Whole if program.is_networked() => Some(network::found(&program.name)?),
        Linked::Whole | Linked::Calls => None,
    };
    let text = emit::kernel(program, &plan, &entry, (times, library.as_deref()))?;
    let mut broken = lint(&text.own).err().unwrap_or_default();
    if narrow(program) || program.balance == Balance::StreamK {
        // Nobody beyond the device is at the other end: the Program says so, and the checker
        // agrees; or the machine code alone has another end.
        broken.retain(|error| error.rule != LintRule::SystemScope);
    }
    if let Some(first) = broken.first() {
        return Err(Error::Lint {
            kernel: program.name.clone(),
            first: first.clone(),
            count: broken.len(),
        });
    }
    Ok(Image {
        entry,
        ptx: text.linked.unwrap_or(text.own),
        shared_bytes: plan.abi.shared.total,
        threads: flux_ir::abi::threads(program.consumers),
    })
}

/// The name of the entry function. Instructions are reserved words of PTX, so a kernel called
/// `add` needs a prefix; and a Rust name may hold letters that PTX has not.
fn entry(name: &str) -> String {
    let letter = |letter: char| match letter {
        'a'..='z' | 'A'..='Z' | '0'..='9' | '_' => letter.to_string(),
        other => format!("_u{:x}_", u32::from(other)),
    };
    name.chars().fold("flux_".to_owned(), |entry, next| entry + &letter(next))
}

/// Whether some wait or signal of the Program has a narrower scope than the system.
fn narrow(program: &Program) -> bool {
    fn in_body(body: &[Stmt]) -> bool {
        body.iter().any(|stmt| match &stmt.op {
            Op::Wait { scope, .. } | Op::Signal { scope, .. } => *scope != Scope::Sys,
            Op::For { body, .. } | Op::If { body, .. } => in_body(body),
            Op::Let { .. }
            | Op::Row { .. }
            | Op::FenceProxyAsync
            | Op::Mainloop { .. }
            | Op::Store { .. }
            | Op::Sum { .. }
            | Op::Load { .. }
            | Op::Copy { .. } => false,
        })
    }
    program.agents.values().any(|agent| in_body(&agent.body) || in_body(&agent.exit))
}
