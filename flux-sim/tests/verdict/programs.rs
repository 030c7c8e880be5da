//! Small Programs: protocols that are sound, and statements drawn from a pool.

use crate::protocols::{PROTOCOLS, Protocol};
use crate::random::Random;
use flux_ir::eval::Launch;
use flux_ir::program::{Agent, Engine, Program};
use flux_ir::target::Target;
use flux_ir::{Shape, Span};

/// The launch of every Program here: one tile of two rows.
pub(crate) const SHAPE: Shape = Shape { m: 2, n: 1, k: 1 };

/// What every Program declares: `%x` has a plane for each parity and rank, `%y` two; `%s` is added
/// to, `%t` and `%h` are set.
const DECLARATIONS: &str = "
  tile (2, 1, 1) stages 2 consumers cooperative
  buffer %a : f32[2, 1] in
  buffer %w : f32[1, 1] in
  buffer %x : f32[2, world][2, 1] symmetric
  buffer %y : f32[2][2, 1] symmetric
  signal %s[2 * world] device
  signal %t[2 * world] device
  signal %h[2 * world] host
  table %tiles[1] order next_rank_first (%tm, %tn) -> (0, 0)
  %e0 = acc 0
  %e1 = acc 0
  %e2 = sum
";

/// What every grid does first: it takes the tile and has an accumulator to store.
const OPENING: &str = "
    row (%tr, %tc, %f0, %f1) = %tiles[0]
    mainloop %a[0..2, 0..1] * %w[0..1, 0..1]^T
";

/// A Program with the launch it is asked about.
#[derive(Debug, Clone)]
pub(crate) struct Case {
    pub(crate) program: Program,
    pub(crate) launch: Launch,
}

/// A Program whose grid takes the tile before it does `body`.
pub(crate) fn parse(declarations: &str, agents: &str, body: &str, exit: &str) -> Program {
    let text = format!(
        "program @small for host {{\n{DECLARATIONS}\n{declarations}\n{agents}
  agent grid on ctas {{{OPENING}{body}\n  }} exit {{\n{exit}\n  }}\n}}"
    );
    text.parse().unwrap_or_else(|e| panic!("{e}\n{text}"))
}

fn launch(random: &mut Random, min_world: u32) -> Launch {
    let world =
        if min_world == 1 && random.one_in(12) { 1 } else { random.between(min_world.max(2), 3) };
    // Three ranks with two CTAs each have many orders; they come less often.
    let ctas = if random.one_in(if world == 3 { 6 } else { 3 }) { 2 } else { 1 };
    Launch { shape: SHAPE, world, ctas }
}

/// Runs a Program with copy engines on the device now and then: there the host does their waits
/// first.
pub(crate) fn somewhere(case: &mut Case, random: &mut Random) {
    let copies = |agent: &Agent| agent.engine == Engine::CopyEngine;
    if case.program.agents.values().any(copies) && random.one_in(4) {
        case.program.target = Target::Sm90a;
    }
}

/// One of the sound protocols.
pub(crate) fn sound(random: &mut Random) -> Case {
    let protocol = &PROTOCOLS[random.below(PROTOCOLS.len())];
    let Protocol { body, exit, agents, declarations, min_world } = protocol;
    Case { program: parse(declarations, agents, body, exit), launch: launch(random, *min_world) }
}

/// Every protocol, on every launch.
pub(crate) fn all() -> Vec<Case> {
    let mut cases = Vec::new();
    for Protocol { body, exit, agents, declarations, min_world } in &PROTOCOLS {
        for world in *min_world..=3 {
            for ctas in 1..=2 {
                let program = parse(declarations, agents, body, exit);
                cases.push(Case { program, launch: Launch { shape: SHAPE, world, ctas } });
            }
        }
    }
    cases
}

/// Statements drawn from a pool.
pub(crate) fn drawn(random: &mut Random) -> Case {
    let launch = launch(random, 2);
    let grid = |random: &mut Random, from, to| -> String {
        (0..random.between(from, to)).map(|_| grid_statement(random, launch)).collect()
    };
    let mut body = grid(random, 2, 5);
    if random.one_in(2) {
        // A protocol has more to break where its parts are on different ranks.
        let other = grid(random, 1, 3);
        body = format!("if rank == 0 {{ {body} }} if rank == 1 {{ {other} }}");
    }
    let exit = match random.below(4) {
        0 => format!("{OPENING} {}", grid(random, 1, 2)),
        1 => signal(random, launch, "device"),
        _ => String::new(),
    };
    let mut agents = String::new();
    if random.one_in(3) {
        let body: String =
            (0..random.between(1, 3)).map(|_| engine_statement(random, launch)).collect();
        agents = format!("agent push on copy_engine {{ {body} }}");
    } else if random.one_in(4) {
        agents = format!("agent side on ctas {{ {OPENING} {} }}", grid(random, 1, 2));
    }
    Case { program: parse("", &agents, &body, &exit), launch }
}

fn grid_statement(random: &mut Random, launch: Launch) -> String {
    let statement = match random.below(9) {
        0 | 1 => {
            let (at, rows) = (at(random, launch), rows(random));
            format!("store {at}{}[{rows}, 0..1] <- %e0", plane(random))
        }
        2 | 3 => {
            let home = if random.one_in(6) { "host" } else { "device" };
            signal(random, launch, home)
        }
        4 => wait(random, "%s"),
        5 => wait(random, "%t"),
        6 => "fence proxy.async".into(),
        7 if random.one_in(4) => {
            format!("mainloop %a[0..2, 0..1] * {}[0..1, 0..1]^T", plane(random))
        }
        7 => format!("mainloop {}[0..2, 0..1] * %w[0..1, 0..1]^T", plane(random)),
        _ => {
            let at = if random.one_in(3) { "peer(%i)." } else { "" };
            let plane = match random.below(3) {
                0 => "%x{epoch % 2, %i}".into(),
                _ => plane(random),
            };
            format!("sum %i own %e0 from {at}{plane}[{}, 0..1]", rows(random))
        }
    };
    guarded(random, launch, &statement)
}

fn engine_statement(random: &mut Random, launch: Launch) -> String {
    let statement = match random.below(3) {
        0 => {
            let (to, from, rows) = (at(random, launch), at(random, launch), rows(random));
            let source =
                if random.one_in(2) { "%a".into() } else { format!("{from}{}", plane(random)) };
            format!("copy {to}{}[{rows}, 0..1] <- {source}[{rows}, 0..1]", plane(random))
        }
        1 => {
            let home = if random.one_in(4) { "host" } else { "device" };
            signal(random, launch, home)
        }
        _ => wait(random, "%h"),
    };
    guarded(random, Launch { ctas: 1, ..launch }, &statement)
}

fn guarded(random: &mut Random, launch: Launch, statement: &str) -> String {
    if launch.ctas > 1 && random.one_in(2) {
        return format!("if cta == {} {{ {statement} }}\n", random.below(2));
    }
    match random.below(12) {
        0..3 => format!("if rank == {} {{ {statement} }}\n", random.below(launch.world as usize)),
        3 => format!("if epoch % 2 == {} {{ {statement} }}\n", random.below(2)),
        _ => format!("{statement}\n"),
    }
}

fn at(random: &mut Random, launch: Launch) -> String {
    match random.below(4) {
        0 => String::new(),
        1 => format!("peer({}).", random.below(launch.world as usize)),
        _ => "peer((rank + 1) % world).".into(),
    }
}

fn plane(random: &mut Random) -> String {
    let plane = ["%y{0}", "%y{1}", "%y{epoch % 2}", "%x{epoch % 2, rank}", "%x{epoch % 2, 0}"];
    plane[random.below(plane.len())].into()
}

fn rows(random: &mut Random) -> &'static str {
    ["0..2", "0..2", "0..1", "1..2"][random.below(4)]
}

fn signal(random: &mut Random, launch: Launch, home: &str) -> String {
    let at = at(random, launch);
    let slot = random.below(2);
    let value = ["epoch", "epoch", "epoch", "2 * epoch - 1", "2 * epoch"][random.below(5)];
    let raise = match home {
        "host" => format!("%h[{slot}] = {value}"),
        _ if random.one_in(2) => format!("%t[{slot}] = {value}"),
        _ => format!("%s[{slot}] += {}", random.between(1, 2)),
    };
    let scope = ["sys", "sys", "sys", "gpu"][random.below(4)];
    let after = ["performed", "performed", "read"][random.below(3)];
    format!("signal {at}{raise} scope {scope} after {after}\n")
}

fn wait(random: &mut Random, array: &str) -> String {
    let targets = [
        "epoch",
        "epoch",
        "epoch",
        "epoch - 1",
        "epoch - 2",
        "2 * epoch",
        "2 * epoch - 1",
        "world * epoch",
        "1",
    ];
    let target = targets[random.below(targets.len())];
    let slots = ["0", "0", "1", "1", "0..2"][random.below(5)];
    let scope = ["sys", "sys", "sys", "gpu"][random.below(4)];
    format!("wait {array}[{slots}] >= {target} scope {scope}\n")
}

/// Where nothing is known of a place in a text.
pub(crate) const NOWHERE: Span = Span::UNKNOWN;
