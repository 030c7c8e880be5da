//! Small Programs: protocols that are sound, and statements drawn from a pool.

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

/// A protocol in text: the grid's body and exit, and what else there is.
struct Protocol {
    body: &'static str,
    exit: &'static str,
    agents: &'static str,
    declarations: &'static str,
    min_world: u32,
}

const PLAIN: Protocol = Protocol { body: "", exit: "", agents: "", declarations: "", min_world: 1 };

const PROTOCOLS: [Protocol; 18] = [
    // One rank produces, one consumes, with one buffer and a credit.
    Protocol {
        body: "
    if rank == 0 {
      if cta == 0 {
        wait %t[1..2] >= epoch - 1 scope sys
        store peer(1).%y{0}[0..2, 0..1] <- %e0
        signal peer(1).%t[0] = epoch scope sys after performed
      }
    }
    if rank == 1 {
      if cta == 0 {
        wait %t[0..1] >= epoch scope sys
        fence proxy.async
        mainloop %y{0}[0..2, 0..1] * %w[0..1, 0..1]^T
        signal peer(0).%t[1] = epoch scope sys after read
      }
    }",
        min_world: 2,
        ..PLAIN
    },
    // To the next rank, two buffers, a credit two launches back from the exit.
    Protocol {
        body: "
    let %next = (rank + 1) % world
    if cta == 0 {
      wait %t[1..2] >= epoch - 2 scope sys
      store peer(%next).%y{epoch % 2}[0..2, 0..1] <- %e0
      signal peer(%next).%t[0] = epoch scope sys after performed
    }
    wait %t[0..1] >= epoch scope sys
    fence proxy.async
    mainloop %y{epoch % 2}[0..2, 0..1] * %w[0..1, 0..1]^T",
        exit: "signal peer((rank + world - 1) % world).%t[1] = epoch scope sys after performed",
        ..PLAIN
    },
    // Each to each, summed; each CTA has its rows.
    Protocol {
        body: "
    wait %t[0..world] >= epoch - 2 scope sys
    for %r in cta..2 step ctas {
      for %o in 0..world {
        if %o != rank {
          store peer(%o).%x{epoch % 2, rank}[%r..%r + 1, 0..1] <- %e0
          signal peer(%o).%s[rank * 2 + %r] += 2 scope sys after performed
        }
      }
      for %f in 0..world {
        if %f != rank {
          wait %s[%f * 2 + %r] >= 2 * epoch scope sys
        }
      }
      sum %i own %e0 from %x{epoch % 2, %i}[%r..%r + 1, 0..1]
    }",
        exit: "for %p in 0..world { signal peer(%p).%t[rank] = epoch scope sys after performed }",
        ..PLAIN
    },
    // Everyone writes at home, meets, reads at the peers, and meets again.
    Protocol {
        body: "
    if cta == 0 {
      store %y{0}[0..2, 0..1] <- %e0
    }
    for %p in 0..world { signal peer(%p).%s[0] += 1 scope sys after performed }
    wait %s[0..1] >= epoch * world * ctas scope sys
    sum %i own %e0 from peer(%i).%y{0}[0..2, 0..1]
    for %p in 0..world { signal peer(%p).%s[1] += 1 scope sys after performed }
    wait %s[1..2] >= epoch * world * ctas scope sys",
        ..PLAIN
    },
    // A copy engine pushes to every rank; the grid waits for all.
    Protocol {
        body: "
    wait %t[0..world] >= epoch scope sys
    fence proxy.async
    mainloop %x{epoch % 2, 0}[0..2, 0..1] * %w[0..1, 0..1]^T
    mainloop %x{epoch % 2, world - 1}[0..2, 0..1] * %w[0..1, 0..1]^T",
        exit: "for %p in 0..world { signal peer(%p).%h[rank] = epoch scope sys after performed }",
        agents: "
  agent push on copy_engine {
    for %j in 0..world {
      let %to = (rank + %j) % world
      wait %h[%to] >= epoch - 2 scope sys
      copy peer(%to).%x{epoch % 2, rank}[0..2, 0..1] <- %a[0..2, 0..1]
      signal peer(%to).%t[rank] = epoch scope sys after performed
    }
  }",
        ..PLAIN
    },
    // The first CTA writes for the last one.
    Protocol {
        body: "
    if cta == 0 {
      store %y{0}[0..2, 0..1] <- %e0
      signal %t[0] = epoch scope gpu after performed
    }
    if cta == ctas - 1 {
      wait %t[0..1] >= epoch scope gpu
      fence proxy.async
      mainloop %y{0}[0..2, 0..1] * %w[0..1, 0..1]^T
    }",
        ..PLAIN
    },
    // A copy engine pulls tensors that peers expose; the exit stays until all have.
    Protocol {
        declarations: "buffer %e : f32[2, 1] exposed",
        body: "
    if cta == 0 {
      for %p in 0..world { signal peer(%p).%h[rank] = epoch scope sys after performed }
    }
    wait %t[0..world] >= epoch scope sys
    fence proxy.async
    mainloop %x{0, 0}[0..2, 0..1] * %w[0..1, 0..1]^T",
        exit: "wait %t[world..2 * world] >= epoch scope sys",
        agents: "
  agent pull on copy_engine {
    for %j in 0..world {
      let %from = (rank + %j) % world
      wait %h[%from] >= epoch scope sys
      copy %x{0, %from}[0..2, 0..1] <- peer(%from).%e[0..2, 0..1]
      signal peer(%from).%t[world + rank] = epoch scope sys after read
      signal %t[%from] = epoch scope sys after performed
    }
  }",
        ..PLAIN
    },
    // A grid reads what the next rank exposes.
    Protocol {
        declarations: "buffer %e : f32[2, 1] exposed",
        body: "
    if cta == 0 {
      let %next = (rank + 1) % world
      let %last = (rank + world - 1) % world
      signal peer(%last).%t[0] = epoch scope sys after performed
      wait %t[0..1] >= epoch scope sys
      fence proxy.async
      mainloop peer(%next).%e[0..2, 0..1] * %w[0..1, 0..1]^T
      signal peer(%next).%t[1] = epoch scope sys after read
      wait %t[1..2] >= epoch scope sys
    }",
        ..PLAIN
    },
    // Word of what the first rank wrote comes by the middle one.
    Protocol {
        body: "
    if cta == 0 {
      if rank == 0 {
        wait %t[0..1] >= epoch - 1 scope sys
        store peer(world - 1).%y{1}[0..2, 0..1] <- %e0
        signal peer(1 % world).%s[0] += 3 scope sys after performed
      }
      if rank == 1 % world {
        wait %s[0..1] >= 3 * epoch scope sys
        signal peer(world - 1).%s[1] += 1 scope sys after read
      }
      if rank == world - 1 {
        wait %s[1..2] >= epoch scope sys
        fence proxy.async
        mainloop %y{1}[0..2, 0..1] * %w[0..1, 0..1]^T
        signal peer(0).%t[0] = epoch scope sys after performed
      }
    }",
        min_world: 3,
        ..PLAIN
    },
    // Two copy engines, the second of which forwards what the first brought.
    Protocol {
        body: "
    if cta == 0 {
      wait %t[0..1] >= epoch scope sys
      fence proxy.async
      mainloop %y{1}[0..2, 0..1] * %w[0..1, 0..1]^T
      signal peer((rank + world - 1) % world).%h[1] = epoch scope sys after performed
    }",
        agents: "
  agent bring on copy_engine {
    wait %h[2 % (2 * world)] >= epoch - 1 scope sys
    copy %y{0}[0..2, 0..1] <- %a[0..2, 0..1]
    signal %h[0] = epoch scope sys after performed
  }
  agent forward on copy_engine {
    wait %h[0] >= epoch scope sys
    wait %h[1] >= epoch - 1 scope sys
    copy peer((rank + 1) % world).%y{1}[0..2, 0..1] <- %y{0}[0..2, 0..1]
    signal peer((rank + 1) % world).%t[0] = epoch scope sys after performed
    signal %h[2 % (2 * world)] = epoch scope sys after read
  }",
        min_world: 2,
        ..PLAIN
    },
    // Halves of a buffer from two ranks, counted together.
    Protocol {
        body: "
    if cta == 0 {
      if rank < 2 {
        wait %t[0..1] >= epoch - 1 scope sys
        store peer(0).%y{0}[rank..rank + 1, 0..1] <- %e0
        store peer(0).%y{1}[rank..rank + 1, 0..1] <- %e1
        signal peer(0).%s[0] += 1 scope sys after performed
      }
      if rank == 0 {
        wait %s[0] >= 2 * epoch scope sys
        fence proxy.async
        mainloop %y{0}[0..2, 0..1] * %w[0..1, 0..1]^T, %y{1}[0..2, 0..1] * %w[0..1, 0..1]^T
        signal peer(0).%t[0] = epoch scope sys after performed
        signal peer(1).%t[0] = epoch scope sys after performed
      }
    }",
        min_world: 2,
        ..PLAIN
    },
    // Everybody counts at the first rank, which lets them go on.
    Protocol {
        body: "
    if rank != 0 {
      signal peer(0).%s[0] += 1 scope sys after performed
    }
    if rank == 0 {
      if cta == 0 {
        wait %s[0] >= epoch * (world - 1) * ctas scope sys
        for %p in 1..world { signal peer(%p).%t[0] = epoch scope sys after performed }
      }
    }
    if rank != 0 {
      wait %t[0] >= epoch scope sys
    }",
        ..PLAIN
    },
    // The same buffer twice in one launch: written, read, written again, read again.
    Protocol {
        body: "
    if cta == 0 {
      if rank == 0 {
        for %j in 0..2 {
          wait %t[1] >= 2 * epoch - 2 + %j scope sys
          store peer(1).%y{0}[0..2, 0..1] <- %e0
          signal peer(1).%t[0] = 2 * epoch - 1 + %j scope sys after performed
        }
      }
      if rank == 1 {
        for %j in 0..2 {
          wait %t[0] >= 2 * epoch - 1 + %j scope sys
          fence proxy.async
          mainloop %y{0}[0..2, 0..1] * %w[0..1, 0..1]^T
          signal peer(0).%t[1] = 2 * epoch - 1 + %j scope sys after read
        }
      }
    }",
        min_world: 2,
        ..PLAIN
    },
    // A contribution that is corrected before it is summed.
    Protocol {
        body: "
    if cta == 0 {
      wait %t[0..world] >= epoch - 2 scope sys
      for %o in 0..world {
        if %o != rank {
          store peer(%o).%x{epoch % 2, rank}[0..2, 0..1] <- %e1
          signal peer(%o).%s[rank] += 1 scope sys after performed
          store peer(%o).%x{epoch % 2, rank}[0..2, 0..1] <- %e0
          signal peer(%o).%s[rank] += 1 scope sys after performed
        }
      }
      for %f in 0..world {
        if %f != rank {
          wait %s[%f] >= 2 * epoch scope sys
        }
      }
      sum %i own %e0 from %x{epoch % 2, %i}[0..2, 0..1]
    }",
        exit: "for %p in 0..world { signal peer(%p).%t[rank] = epoch scope sys after performed }",
        ..PLAIN
    },
    // One engine brings a tensor and passes it on.
    Protocol {
        body: "
    wait %t[0] >= epoch scope sys
    fence proxy.async
    mainloop %x{epoch % 2, 1 % world}[0..2, 0..1] * %w[0..1, 0..1]^T",
        exit: "signal peer((rank + world - 1) % world).%h[0] = epoch scope sys after performed",
        agents: "
  agent push on copy_engine {
    copy %y{epoch % 2}[0..2, 0..1] <- %a[0..2, 0..1]
    wait %h[0] >= epoch - 2 scope sys
    copy peer((rank + 1) % world).%x{epoch % 2, 1 % world}[0..2, 0..1] <- %y{epoch % 2}[0..2, 0..1]
    signal peer((rank + 1) % world).%t[0] = epoch scope sys after performed
  }",
        ..PLAIN
    },
    // The exit of one agent tells another what its bodies wrote, without asking for completions.
    Protocol {
        body: "
    wait %t[0] >= epoch scope gpu
    fence proxy.async
    mainloop %y{epoch % 2}[0..2, 0..1] * %w[0..1, 0..1]^T",
        agents: "
  agent write on ctas {
    row (%tr, %tc, %f0, %f1) = %tiles[0]
    mainloop %a[0..2, 0..1] * %w[0..1, 0..1]^T
    for %r in cta..2 step ctas {
      store %y{epoch % 2}[%r..%r + 1, 0..1] <- %e0
    }
  } exit {
    signal %t[0] = epoch scope gpu after read
  }",
        ..PLAIN
    },
    // Every CTA counts, one goes on for all of a rank, and hears of the peers.
    Protocol {
        body: "
    for %r in cta..2 step ctas {
      store %y{0}[%r..%r + 1, 0..1] <- %e0
      signal %s[0] += 1 scope gpu after performed
    }
    if cta == 0 {
      wait %s[0] >= 2 * epoch scope gpu
      for %p in 0..world { signal peer(%p).%t[rank] = epoch scope sys after read }
    }
    wait %t[0..world] >= epoch scope sys
    sum %i own %e0 from peer(%i).%y{0}[0..2, 0..1]
    for %p in 0..world { signal peer(%p).%s[1] += 1 scope sys after read }",
        exit: "wait %s[1] >= epoch * world * ctas scope sys",
        ..PLAIN
    },
    // Round the ring, one hop behind the other: each rank passes on what it got.
    Protocol {
        body: "
    if cta == 0 {
      let %next = (rank + 1) % world
      if rank == 0 {
        store peer(%next).%x{epoch % 2, 0}[0..2, 0..1] <- %e0
        signal peer(%next).%t[0] = epoch scope sys after performed
      }
      wait %t[0] >= epoch scope sys
      fence proxy.async
      mainloop %x{epoch % 2, 0}[0..2, 0..1] * %w[0..1, 0..1]^T
      if rank != 0 {
        store peer(%next).%x{epoch % 2, 0}[0..2, 0..1] <- %e0
        signal peer(%next).%t[0] = epoch scope sys after performed
      }
    }",
        ..PLAIN
    },
];

/// A Program with the launch it is asked about.
#[derive(Debug, Clone)]
pub(crate) struct Case {
    pub(crate) program: Program,
    pub(crate) launch: Launch,
}

fn parse(declarations: &str, agents: &str, body: &str, exit: &str) -> Program {
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
