//! Rules of the memory model, checked on PTX text.
//!
//! The text is cut into basic blocks, and facts flow along every edge: a rule is broken where
//! some path breaks it. Only what this crate emits is read, one instruction or one braced group
//! a line; it is no parser of PTX.

use std::fmt;

/// A rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LintRule {
    /// Between a bulk store and a release stands a full `cp.async.bulk.wait_group 0`: after
    /// `.read` the source may be reused, but the data may not have arrived.
    PerformedBeforeRelease,
    /// Signals are released and acquired at `.sys` scope: a peer or a copy engine is at the
    /// other end.
    SystemScope,
    /// Between an acquire and a bulk load, or a bulk copy to global memory, stands
    /// `fence.proxy.async`: without it the load may read what was there before, and the copy
    /// overwrite what is still read.
    FenceBeforeBulkLoad,
}

impl fmt::Display for LintRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LintRule::PerformedBeforeRelease => "performed-before-release",
            LintRule::SystemScope => "system-scope",
            LintRule::FenceBeforeBulkLoad => "fence-before-bulk-load",
        })
    }
}

/// A broken rule, and the instruction that breaks it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{rule}: line {line}: `{instruction}`")]
pub struct LintError {
    /// The rule.
    pub rule: LintRule,
    /// Line of the text, from 1.
    pub line: usize,
    /// The instruction.
    pub instruction: String,
}

/// Checks PTX text.
///
/// # Errors
/// Every instruction that breaks a [`LintRule`], in the order of the text.
pub fn lint(ptx: &str) -> Result<(), Vec<LintError>> {
    let blocks = blocks(ptx);
    let mut entry = vec![Facts::default(); blocks.len()];
    let mut broken = Vec::new();
    // Facts only grow, so this ends.
    let mut changed = true;
    while changed {
        changed = false;
        for (index, block) in blocks.iter().enumerate() {
            let mut facts = entry[index];
            block.instructions.iter().for_each(|(_, text)| facts.pass(text));
            for &next in &block.next {
                let joined = entry[next].join(facts);
                changed |= joined != entry[next];
                entry[next] = joined;
            }
        }
    }
    for (block, mut facts) in blocks.iter().zip(entry) {
        for &(line, text) in &block.instructions {
            for rule in facts.breaks(text) {
                broken.push(LintError { rule, line, instruction: text.to_owned() });
            }
            facts.pass(text);
        }
    }
    if broken.is_empty() { Ok(()) } else { Err(broken) }
}

/// What may be true on some path to an instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Facts {
    /// A bulk store may not have been performed yet.
    storing: bool,
    /// Something was acquired that no proxy fence has passed on.
    acquired: bool,
}

impl Facts {
    fn join(self, other: Facts) -> Facts {
        Facts { storing: self.storing || other.storing, acquired: self.acquired || other.acquired }
    }

    /// What holds behind an instruction.
    fn pass(&mut self, text: &str) {
        if is_bulk_store(text) {
            self.storing = true;
        }
        if text.contains("cp.async.bulk.wait_group 0") {
            self.storing = false;
        }
        if text.contains("ld.acquire") {
            self.acquired = true;
        }
        if text.contains("fence.proxy.async;") || text.contains("fence.proxy.async.global;") {
            self.acquired = false;
        }
    }

    /// The rules that an instruction breaks here.
    fn breaks(&self, text: &str) -> Vec<LintRule> {
        let mut rules = Vec::new();
        let signals = ["ld.acquire", "st.release", "red.release"].iter().any(|s| text.contains(s));
        let releases = text.contains(".release") || text.contains(".acq_rel");
        if releases && !text.contains("mbarrier") && self.storing {
            rules.push(LintRule::PerformedBeforeRelease);
        }
        if signals && !text.contains(".sys") {
            rules.push(LintRule::SystemScope);
        }
        if (is_bulk_load(text) || is_bulk_copy(text)) && self.acquired {
            rules.push(LintRule::FenceBeforeBulkLoad);
        }
        rules
    }
}

fn is_bulk_store(text: &str) -> bool {
    text.contains(".async.bulk") && text.contains(".global.shared::cta")
}

/// A store of what was loaded from elsewhere; those of tensor maps leave with what was computed.
fn is_bulk_copy(text: &str) -> bool {
    is_bulk_store(text) && !text.contains(".tensor")
}

fn is_bulk_load(text: &str) -> bool {
    text.contains("cp.async.bulk")
        && (text.contains(".shared::cluster.global") || text.contains(".shared::cta.global"))
}

/// A run of instructions that control enters at the top and leaves at the bottom.
struct Block<'t> {
    label: Option<&'t str>,
    /// Lines, from 1, and instructions.
    instructions: Vec<(usize, &'t str)>,
    /// Labels it may jump to.
    jumps: Vec<&'t str>,
    /// Whether control may reach the block below.
    falls: bool,
    /// Where control may go.
    next: Vec<usize>,
}

fn blocks(ptx: &str) -> Vec<Block<'_>> {
    let fresh = |label| Block {
        label,
        instructions: Vec::new(),
        jumps: Vec::new(),
        falls: true,
        next: Vec::new(),
    };
    let mut blocks = vec![fresh(None)];
    for (number, line) in ptx.lines().enumerate() {
        let text = line.split("//").next().unwrap_or(line).trim();
        if text.is_empty() {
            continue;
        }
        if let Some(label) = text.strip_suffix(':').filter(|label| label.starts_with("$L")) {
            blocks.push(fresh(Some(label)));
            continue;
        }
        let current = blocks.last_mut().expect("there is a first block");
        current.instructions.push((number + 1, text));
        let guarded = text.starts_with('@');
        let jump = text.split_once("bra").and_then(|(_, to)| to.find("$L").map(|at| &to[at..]));
        let ends = text.ends_with("ret;") || text.ends_with("exit;");
        if let Some(to) = jump {
            current.jumps.push(to.trim_end_matches(';'));
        }
        if jump.is_some() || ends {
            current.falls = guarded;
            blocks.push(fresh(None));
        }
    }
    let labels: Vec<Option<&str>> = blocks.iter().map(|block| block.label).collect();
    let count = blocks.len();
    for (index, block) in blocks.iter_mut().enumerate() {
        let targets = block.jumps.iter();
        block.next =
            targets.filter_map(|to| labels.iter().position(|label| *label == Some(*to))).collect();
        if block.falls && index + 1 < count {
            block.next.push(index + 1);
        }
    }
    blocks
}
