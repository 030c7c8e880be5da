//! What a target has room for: tile extents, registers, shared memory.

use super::network;
use crate::abi::{self, Abi, SWIZZLE_BYTES};
use crate::diagnostic::{Diagnostic, Diagnostics, Rule};
use crate::element::Element;
use crate::program::Home;
use crate::program::{Agent, At, BufferKind, Engine, Expr, Op, Program, SignalId, Stmt, Update};
use crate::schedule::{Balance, Consumers};
use crate::span::Span;
use crate::target::Target;

/// Every limit of the target that `program` exceeds. Needs a sound structure.
pub(super) fn check(program: &Program, found: &mut Diagnostics) {
    match program.target {
        // The host has caches, not shared memory, and takes any tile.
        Target::Host => {}
        Target::Sm90a => sm90a(program, found),
    }
    jitter(program, found);
    network::fits(program, found);
}

/// Registers of a thread that accumulators may take: `setmaxnreg` gives a consumer thread 240,
/// and addresses, descriptors and the epilogue need the rest (`docs/ir.md`, "Limits").
const ACCUMULATOR_REGISTERS: u32 = 208;

/// Rows, and columns, of the largest box a tensor map can describe (`cuTensorMapEncodeTiled`).
const BOX_LIMIT: u32 = 256;

/// Tile rows below those of a `wgmma`.
const FEW_ROWS: [u32; 3] = [8, 16, 32];

/// Stages beyond any that fit, to keep sizes in 32 bits.
const STAGES_LIMIT: u32 = 64;

fn sm90a(program: &Program, found: &mut Diagnostics) {
    let before = found.0.len();
    let mainloop = one_mainloop(program, found);
    let products = abi::products(program);
    let span = mainloop.map_or(Span::UNKNOWN, |stmt| stmt.span);
    if let Some(element) = products.first().map(|p| program.buffers[p.a.buffer].element) {
        if element == Element::F32 {
            let message = "sm_90a multiplies bf16 and f16, found f32";
            found.push(
                Diagnostic::new(Rule::Resources, span, message).help("cast the operands to bf16"),
            );
        }
        swizzle(program, element, found);
    }
    copy_signals(program, found);
    copies_beside_grid(program, found);
    beside_tiles(program, found);
    exposed(program, found);
    split(program, found);
    rows(program, found);
    columns(program, found);
    accumulators(program, span, found);
    if !(2..=STAGES_LIMIT).contains(&program.stages) {
        let message = format!("expected 2 to {STAGES_LIMIT} stages, found {}", program.stages);
        found.push(Diagnostic::new(Rule::Schedule, Span::UNKNOWN, message));
    }
    if found.0.len() == before {
        shared(program, found);
    }
}

/// One agent on CTAs with one mainloop: what becomes one kernel.
fn one_mainloop<'p>(program: &'p Program, found: &mut Diagnostics) -> Option<&'p Stmt> {
    let on_ctas = program.agents.values().filter(|agent| agent.engine == Engine::Ctas);
    if on_ctas.count() != 1 {
        let message = "expected one agent on ctas: one kernel runs per rank";
        found.push(Diagnostic::new(Rule::Resources, Span::UNKNOWN, message));
    }
    let is_mainloop = |stmt: &&Stmt| matches!(stmt.op, Op::Mainloop { .. });
    let mainloops: Vec<_> = program.statements().filter(is_mainloop).collect();
    if let [first, second, ..] = mainloops[..] {
        let message = "expected one mainloop, found another";
        found.push(
            Diagnostic::new(Rule::Resources, second.span, message).note(first.span, "the first"),
        );
    }
    mainloops.first().copied()
}

/// A copy engine writes a word behind its copies; it cannot add to one.
fn copy_signals(program: &Program, found: &mut Diagnostics) {
    let copies = program.agents.values().filter(|agent| agent.engine == Engine::CopyEngine);
    for agent in copies {
        for stmt in agent.statements() {
            if let Op::Signal { signal, update: Update::Add(_), .. } = stmt.op {
                let name = &program.signals[signal].name;
                let message =
                    format!("a copy engine sets `%{name}` once a launch, it cannot add to it");
                let help = "give each raise a slot of its own and wait for all of them, or let copy \
                            warps raise it: `transport = put`";
                let counted = program.statements().find(
                    |stmt| matches!(stmt.op, Op::Wait { signal: waited, .. } if waited == signal),
                );
                let diagnostic = Diagnostic::new(Rule::Resources, stmt.span, message).help(help);
                found.push(match counted {
                    Some(wait) => diagnostic.note(wait.span, "its raises are counted here"),
                    None => diagnostic,
                });
            }
        }
    }
}

/// A rank's streams for copies that wait for its CTAs.
const COPY_STREAMS: usize = 2;

/// A stream cannot give up a wait: its own rank's CTAs have to raise what it waits for, which have a
/// limit. None waits for another then, and none may stand behind another either: each such agent has
/// a stream of its own.
fn copies_beside_grid(program: &Program, found: &mut Diagnostics) {
    let copies = program.agents.values().filter(|agent| agent.engine == Engine::CopyEngine);
    let waiting: Vec<_> = copies.filter(|agent| program.beside_grid(agent)).collect();
    for stmt in waiting.iter().flat_map(|agent| agent.statements()) {
        let Op::Wait { signal, .. } = stmt.op else { continue };
        if program.signals[signal].home == Home::Host {
            continue;
        }
        for raise in raised_elsewhere(program, signal) {
            let name = &program.signals[signal].name;
            let message = format!(
                "expected a stream to wait for CTAs of its own rank alone, `%{name}` is raised by others"
            );
            found.push(
                Diagnostic::new(Rule::Resources, stmt.span, message)
                    .note(raise.span, "raised here")
                    .help("let the host wait (a signal at home on the host), or the CTAs"),
            );
        }
    }
    if let Some(one_more) = waiting.get(COPY_STREAMS) {
        let message = format!(
            "expected at most {COPY_STREAMS} copy engines that wait in a launch, found {}",
            waiting.len()
        );
        let span = one_more.body.first().map_or(Span::UNKNOWN, |stmt| stmt.span);
        found.push(
            Diagnostic::new(Rule::Resources, span, message)
                .help("give the copies of two to one agent, in the order in which they can go"),
        );
    }
}

/// What copies beside the tiles of a CTA acts as one: copy warps run one agent's statements, each
/// raises its signals by its share, and nothing counts them at the end. Bulk copies are fed by one of
/// them.
fn beside_tiles(program: &Program, found: &mut Diagnostics) {
    let agents = program.agents.values().filter(|agent| agent.engine.is_beside_tiles());
    let agents: Vec<_> = agents.collect();
    if let [first, second, ..] = agents[..] {
        let message = format!(
            "expected one agent on copy warps or tma, found `{}` and `{}`",
            first.name, second.name
        );
        let span = second.body.first().map_or(Span::UNKNOWN, |stmt| stmt.span);
        found.push(
            Diagnostic::new(Rule::Resources, span, message)
                .help("give the copies of both to one agent"),
        );
    }
    for agent in agents {
        if let Some(stmt) = agent.exit.first() {
            let message = format!(
                "expected no exit of `{}`, which runs on {}",
                agent.name,
                agent.engine.name()
            );
            found.push(
                Diagnostic::new(Rule::Resources, stmt.span, message)
                    .help("give it to the agent on ctas"),
            );
        }
        for stmt in agent.statements() {
            let Op::Signal { update, .. } = &stmt.op else { continue };
            let warps = agent.engine.raisers();
            let shared = matches!(update, Update::Add(Expr::Int(by))
                if *by > 0 && by % i64::from(warps) == 0);
            if shared {
                continue;
            }
            let (message, help) = match warps {
                1 => (
                    "expected `+=` a number in a signal behind bulk copies".into(),
                    "the bulk copies of every CTA raise it: let each add",
                ),
                _ => (
                    format!(
                        "expected `+=` a multiple of {warps} in a signal of {warps} copy warps"
                    ),
                    "each of them raises it by its share once its part is written",
                ),
            };
            found.push(Diagnostic::new(Rule::Resources, stmt.span, message).help(help));
        }
    }
}

/// Raises of an array that do not come from CTAs of the rank it lies on.
fn raised_elsewhere(program: &Program, array: SignalId) -> impl Iterator<Item = &Stmt> {
    program.agents.values().flat_map(move |agent| {
        agent.statements().filter(move |stmt| match &stmt.op {
            Op::Signal { at, signal, .. } => {
                *signal == array && !(agent.engine.is_in_kernel() && *at == At::Own)
            }
            _ => false,
        })
    })
}

/// Tensors of the caller lie in memory that peers cannot reach.
fn exposed(program: &Program, found: &mut Diagnostics) {
    for buffer in program.buffers.values().filter(|b| b.kind == BufferKind::Exposed) {
        let message = format!("sm_90a has no tensors that peers read, found `%{}`", buffer.name);
        found.push(
            Diagnostic::new(Rule::Resources, buffer.span, message)
                .help("copy it into a symmetric buffer first"),
        );
    }
}

/// A k-step is one row of the 128-byte swizzle.
fn swizzle(program: &Program, element: Element, found: &mut Diagnostics) {
    let bytes = program.tile.k * element.bytes();
    if bytes != SWIZZLE_BYTES {
        let k = SWIZZLE_BYTES / element.bytes();
        let message = format!(
            "expected a k-step of {SWIZZLE_BYTES} bytes, found {} elements of {element}, {bytes} bytes",
            program.tile.k
        );
        found.push(
            Diagnostic::new(Rule::Schedule, Span::UNKNOWN, message)
                .help(format!("use tile = ({}, {}, {k})", program.tile.m, program.tile.n)),
        );
    }
}

/// Threads sleep for a millisecond at most (PTX ISA, "nanosleep"). The host executor does not pause, but what it
/// takes a device has to take.
fn jitter(program: &Program, found: &mut Diagnostics) {
    const MOST: u32 = 1000;
    if program.jitter > MOST {
        let message = format!("`jitter` is expected up to {MOST} µs, found {}", program.jitter);
        found.push(Diagnostic::new(Rule::Schedule, Span::UNKNOWN, message).help(
            "write `jitter = 30`: many short pauses shake a protocol more than a few long ones",
        ));
    }
}

/// A cluster of two exchanges halves of the tile's columns on the chip.
fn split(program: &Program, found: &mut Diagnostics) {
    let mut refuse = |message: String, help: &str| {
        let diagnostic = Diagnostic::new(Rule::Schedule, Span::UNKNOWN, message);
        found.push(diagnostic.help(help));
    };
    if !(1..=2).contains(&program.split_k) {
        let message = format!("expected `split_k` 1 or 2, found {}", program.split_k);
        refuse(message, "split_k = 2 gives each tile to a cluster of two multiprocessors");
        return;
    }
    let balance = program.balance.name();
    if program.accumulators() == 0 && (program.split_k > 1 || program.balance != Balance::Tiles) {
        let message = "expected neither `split_k` nor `balance` in a kernel without a product";
        refuse(message.to_owned(), "leave them out: they divide the steps of products");
        return;
    }
    if program.balance != Balance::Tiles && program.communicates() {
        let message = format!("expected no `balance = {balance}` in a kernel that communicates");
        refuse(message, "leave it out: waits and signals belong to the tiles of one CTA");
    }
    if program.balance == Balance::Pairs && !program.tile.n.is_multiple_of(16) {
        let message = format!(
            "expected tile columns in multiples of 16 for `balance = pairs`, found {}",
            program.tile.n
        );
        refuse(message, "each of the two multiprocessors loads half of the right operand");
    }
    if program.balance == Balance::Pairs
        && let Some(product) = abi::products(program).iter().find(|product| !product.transposed.b)
    {
        let name = &program.buffers[product.b.buffer].name;
        let message = format!("expected `%{name}` transposed for `balance = pairs`");
        refuse(message, "leave it out, or store the right operand as [n, k]");
    }
    if program.split_k == 1 {
        return;
    }
    if program.balance != Balance::Tiles {
        let message = format!("expected `split_k` or `balance = {balance}`, found both");
        refuse(message, "each of them says what the CTAs of a tile do");
    }
    if program.communicates() {
        let message = "expected no `split_k` in a kernel that communicates".to_owned();
        refuse(message, "leave `split_k` out: waits and signals are counted per multiprocessor");
    }
    if program.consumers == Consumers::PingPong {
        let message =
            "expected consumers that share tiles for `split_k`, found ping_pong".to_owned();
        refuse(message, "write `consumers = single` or `cooperative`");
    }
    if !program.tile.n.is_multiple_of(16) {
        let message = format!(
            "expected tile columns in multiples of 16 for `split_k`, found {}",
            program.tile.n
        );
        refuse(message, "each of the two multiprocessors stores half of the columns");
    }
}

fn rows(program: &Program, found: &mut Diagnostics) {
    // A wgmma has 64 rows (PTX ISA, "wgmma.mma_async"); cooperative warpgroups halve the tile.
    let unit = 64 * program.consumers.sharing();
    let m = program.tile.m;
    // A left operand that is transposed is loaded in boxes as wide as the swizzle.
    let turned = abi::products(program).iter().any(|product| product.transposed.a);
    // One warpgroup may load fewer rows than it multiplies: the others come to nothing.
    if !turned && program.consumers == Consumers::Single && FEW_ROWS.contains(&m) {
        return;
    }
    if !m.is_multiple_of(unit) || m > BOX_LIMIT {
        let message = format!(
            "expected tile rows in multiples of {unit} up to {BOX_LIMIT} for {} consumers, found {m}",
            program.consumers.name()
        );
        found.push(Diagnostic::new(Rule::Schedule, Span::UNKNOWN, message));
    }
}

fn columns(program: &Program, found: &mut Diagnostics) {
    let n = program.tile.n;
    // A right operand that is not transposed is loaded in boxes as wide as the swizzle.
    let boxes = abi::products(program).iter().find(|product| !product.transposed.b);
    let unit = boxes.map_or(8, |p| SWIZZLE_BYTES / program.buffers[p.b.buffer].element.bytes());
    if !n.is_multiple_of(unit) || n > BOX_LIMIT {
        let message =
            format!("expected tile columns in multiples of {unit} up to {BOX_LIMIT}, found {n}");
        found.push(Diagnostic::new(Rule::Schedule, Span::UNKNOWN, message));
    }
}

fn accumulators(program: &Program, span: Span, found: &mut Diagnostics) {
    let rows = program.tile.m.div_ceil(program.consumers.sharing());
    // 64 × n accumulators of a warpgroup are n / 2 registers of each of its 128 threads.
    let registers = |n: u32| {
        u64::from(n) / 2 * u64::from(program.accumulators()) * u64::from(rows.div_ceil(64))
    };
    let needed = registers(program.tile.n);
    if needed > ACCUMULATOR_REGISTERS.into() {
        let message = format!(
            "{} accumulators of tile {} need {needed} registers of a thread, sm_90a has {ACCUMULATOR_REGISTERS} for them",
            program.accumulators(),
            program.tile
        );
        let fits = (1..=BOX_LIMIT / 8).map(|unit| 8 * unit).rev();
        let fits = fits.into_iter().find(|&n| registers(n) <= ACCUMULATOR_REGISTERS.into());
        let mut diagnostic = Diagnostic::new(Rule::Resources, span, message);
        if let Some(n) = fits {
            diagnostic = diagnostic.help(format!("use at most {n} tile columns"));
        }
        found.push(diagnostic);
    }
}

fn shared(program: &Program, found: &mut Diagnostics) {
    let Some(available) = program.target.shared_bytes() else { return };
    let needed = |stages| {
        let program = Program { stages, ..program.clone() };
        Abi::of(&program).shared.total
    };
    let total = needed(program.stages);
    if total <= available {
        return;
    }
    // Where it is the ring that does not fit, its first copy is at fault.
    let ring = abi::ring_slots(program) * (abi::RING_SLOT_BYTES + 8);
    let (rest, stages, target) = (total - ring, program.stages, program.target);
    let copies = program.agents.values().filter(|agent| agent.engine == Engine::Tma);
    let mut copies = copies.flat_map(Agent::statements);
    let copy = copies.find(|stmt| matches!(stmt.op, Op::Copy { .. }) && rest <= available);
    let message = match copy {
        Some(_) => format!(
            "transport = tma needs {ring} bytes of shared memory beside {rest} for stages = {stages}, {target} has {available}"
        ),
        None => format!(
            "stages = {stages} needs {total} bytes of shared memory, {target} has {available}"
        ),
    };
    let span = copy.map_or(Span::UNKNOWN, |copy| copy.span);
    let help = match (2..program.stages).rev().find(|&stages| needed(stages) <= available) {
        Some(stages) => format!("at most {stages} stages fit with tile = {}", program.tile),
        None => format!("2 stages do not fit either: make tile = {} smaller", program.tile),
    };
    found.push(Diagnostic::new(Rule::Resources, span, message).help(help));
}
