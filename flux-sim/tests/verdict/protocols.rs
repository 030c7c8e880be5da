//! Protocols that are sound, in the text form.

/// A protocol in text: the grid's body and exit, and what else there is.
pub(crate) struct Protocol {
    pub(crate) body: &'static str,
    pub(crate) exit: &'static str,
    pub(crate) agents: &'static str,
    pub(crate) declarations: &'static str,
    /// Ranks it needs.
    pub(crate) min_world: u32,
}

const PLAIN: Protocol = Protocol { body: "", exit: "", agents: "", declarations: "", min_world: 1 };

/// Every protocol. What is declared for all of them stands in `programs.rs`.
pub(crate) const PROTOCOLS: [Protocol; 22] = [
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
    // The same with two planes in turn, and credit of those who read for who stores in bulk.
    Protocol {
        body: "
    wait %t[world..2 * world] >= epoch - 2 scope sys
    fence proxy.async
    if cta == 0 {
      store %y{epoch % 2}[0..2, 0..1] <- %e0
      for %p in 0..world { signal peer(%p).%t[rank] = epoch scope sys after performed }
    }
    wait %t[0..world] >= epoch scope sys
    sum %i own %e0 from peer(%i).%y{epoch % 2}[0..2, 0..1]",
        exit: "
    for %p in 0..world { signal peer(%p).%t[world + rank] = epoch scope sys after performed }",
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
    // A copy engine waits for the grid, sends what that left to every other rank, and tells it.
    Protocol {
        body: "
    wait %t[world..2 * world] >= epoch - 2 scope sys
    if cta == 0 {
      store %y{0}[0..2, 0..1] <- %e0
      signal %s[0] += 1 scope sys after performed
    }
    for %p in 0..world {
      if %p != rank { wait %t[%p..%p + 1] >= epoch scope sys }
    }
    sum %i own %e0 from %x{epoch % 2, %i}[0..2, 0..1]",
        exit: "
    for %p in 0..world { signal peer(%p).%t[world + rank] = epoch scope sys after performed }",
        agents: "
  agent send on copy_engine {
    wait %s[0..1] >= epoch scope sys
    for %j in 1..world {
      let %to = (rank + %j) % world
      copy peer(%to).%x{epoch % 2, rank}[0..2, 0..1] <- %y{0}[0..2, 0..1]
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
    // A rank is told twice.
    Protocol {
        body: "
    if cta == 0 {
      let %next = (rank + 1) % world
      wait %s[0] >= epoch - 2 scope sys
      store peer(%next).%y{epoch % 2}[0..2, 0..1] <- %e0
      signal peer(%next).%t[0] = epoch scope sys after performed
      signal peer(%next).%t[1] = epoch scope sys after read
      wait %t[1] >= epoch scope sys
      wait %t[0] >= epoch scope sys
      fence proxy.async
      mainloop %y{epoch % 2}[0..2, 0..1] * %w[0..1, 0..1]^T
    }",
        exit: "signal peer((rank + world - 1) % world).%s[0] += 1 scope sys after performed",
        ..PLAIN
    },
    // The middle rank's exit passes on what one of its CTAs heard.
    Protocol {
        body: "
    if rank == 0 {
      if cta == 0 {
        wait %t[0] >= epoch - 1 scope sys
        store peer(world - 1).%y{0}[0..2, 0..1] <- %e0
        signal peer(1).%t[0] = epoch scope sys after performed
      }
    }
    if rank == 1 {
      if cta == ctas - 1 {
        wait %t[0] >= epoch scope sys
      }
    }
    if rank == 2 {
      wait %t[1] >= epoch scope sys
      fence proxy.async
      mainloop %y{0}[0..2, 0..1] * %w[0..1, 0..1]^T
    }",
        exit: "
    if rank == 1 {
      signal peer(world - 1).%t[1] = epoch scope sys after read
    }
    if rank == 2 {
      signal peer(0).%t[0] = epoch scope sys after read
    }",
        min_world: 3,
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
