//! Programs about which the checker and the interleavings once disagreed.

use crate::programs::{Case, SHAPE, parse};
use flux_ir::eval::Launch;

/// Each with its number of ranks; what is wrong with it, or that it is sound.
pub(crate) fn all() -> Vec<(Case, &'static str)> {
    let case = |world, declarations, body, exit| Case {
        program: parse(declarations, "", body, exit),
        launch: Launch { shape: SHAPE, world, ctas: 1 },
    };
    let exposed = "buffer %e : f32[2, 1] exposed";
    vec![
        (
            case(
                2,
                exposed,
                "
    signal peer(1 - rank).%t[0] = epoch scope sys after performed
    wait %t[0] >= epoch scope sys
    mainloop peer(1 - rank).%e[0..2, 0..1] * %w[0..1, 0..1]^T
    signal peer(1 - rank).%t[1] = epoch scope sys after read
    wait %t[1] >= epoch scope sys",
                "",
            ),
            "a peer's tensor is read without a fence behind the wait",
        ),
        (
            case(
                1,
                "",
                "
    store %y{0}[0..2, 0..1] <- %e0
    signal %t[0] = epoch scope sys after performed
    fence proxy.async
    mainloop %y{0}[0..2, 0..1] * %w[0..1, 0..1]^T
    store %y{0}[0..2, 0..1] <- %e0",
                "",
            ),
            "sound",
        ),
        (
            case(
                2,
                "",
                "
    signal peer(1 - rank).%t[0] = epoch scope gpu after performed
    signal peer(1 - rank).%t[1] = epoch scope sys after performed
    wait %t[1] >= epoch scope sys
    wait %t[0] >= epoch scope sys",
                "",
            ),
            "a narrow signal behind a wide one",
        ),
        (
            case(
                2,
                "",
                "
    store peer(1 - rank).%x{epoch % 2, rank}[1..2, 0..1] <- %e1
    signal peer(1 - rank).%s[rank] += 1 scope sys after performed
    store peer(1 - rank).%x{epoch % 2, rank}[0..2, 0..1] <- %e0
    signal peer(1 - rank).%s[rank] += 1 scope sys after performed
    wait %s[1 - rank] >= 2 * epoch scope sys
    sum %i own %e0 from %x{epoch % 2, %i}[0..2, 0..1]",
                "",
            ),
            "sound",
        ),
        (
            case(
                2,
                "",
                "
    store peer(1 - rank).%x{epoch % 2, rank}[0..2, 0..1] <- %e0
    signal peer(1 - rank).%s[rank] += 1 scope sys after performed
    store peer(1 - rank).%x{epoch % 2, rank}[1..2, 0..1] <- %e1
    signal peer(1 - rank).%s[rank] += 1 scope sys after performed
    wait %s[1 - rank] >= 2 * epoch scope sys
    sum %i own %e0 from %x{epoch % 2, %i}[0..2, 0..1]",
                "",
            ),
            "another value in a part of a contribution",
        ),
        (
            case(
                2,
                "",
                "wait %t[1] >= epoch - 2 scope sys",
                "
    signal peer(1 - rank).%t[1] = epoch scope sys after performed
    signal peer(1 - rank).%t[1] = epoch scope cta after performed",
            ),
            "a narrow signal in the place of a wide one",
        ),
        (
            case(
                2,
                "",
                "
    if rank == 0 {
      for %j in 0..3 {
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
    }",
                "",
            ),
            "from the second launch on, a wait stands for the launch before",
        ),
    ]
}
