//! A consumer warpgroup: multiplies what the ring holds, and runs the epilogue.

use super::statement::Role;
use super::{Kernel, ORDER_BARRIER};
use crate::context::{Cell, Float, Int, Is};
use crate::error::Error;
use crate::nvvm::wgmma::{self, Major};
use crate::nvvm::{cluster, mbarrier, memory, sync};
use crate::plan::{MMA_K, MMA_M, PANEL, index};
use flux_ir::abi::{self, SWIZZLE_BYTES, Stamp, WARPGROUP, Word};
use flux_ir::{Balance, Consumers};

/// Bits 62–63 of a matrix descriptor: 128-byte swizzle (PTX ISA, "Matrix Descriptor Format").
const SWIZZLE_128: i64 = 1 << 62;

/// Bytes between groups of 8 swizzled rows.
const EIGHT_ROWS: u32 = 8 * SWIZZLE_BYTES;

/// Accumulators of one thread: a list of N/2 registers for each block of 64 rows, product by
/// product.
pub(super) type Fragment<'c> = Vec<Vec<Float<'c>>>;

/// The ring as a consumer sees it.
struct Ring<'c> {
    stage: Cell<'c>,
    parity: Cell<'c>,
    /// Whether this thread frees stages for its warpgroup, on one of the CTAs that load them.
    leader: Int<'c>,
}

impl<'c> Kernel<'c, '_> {
    /// What consumer warpgroup `group` does, from 0.
    pub(super) fn consume(&self, group: Int<'c>) -> Result<(), Error> {
        let cx = &self.cx;
        let ping_pong = self.program.consumers == Consumers::PingPong;
        self.statements(self.plan.prologue, Role::Prologue)?;
        if ping_pong && !self.plan.products.is_empty() {
            let second = cx.nonzero(group);
            cx.when(second, || {
                sync::bar_arrive(cx, ORDER_BARRIER, 2 * WARPGROUP);
                Ok::<(), Error>(())
            })?;
        }
        let inside = cx.and(self.tid, cx.uint(WARPGROUP - 1));
        let ring = Ring {
            stage: cx.cell(cx.i32),
            parity: cx.cell(cx.i32),
            leader: cx.bit(cx.is(inside, Is::Lt, cx.uint(abi::loaders(self.program)))),
        };
        match self.program.balance {
            Balance::StreamK | Balance::Pairs => self.consume_items(group, &ring),
            Balance::Tiles => self.consume_tiles(group, &ring),
        }
    }

    /// Whole tiles, wave after wave.
    fn consume_tiles(&self, group: Int<'c>, ring: &Ring<'c>) -> Result<(), Error> {
        let cx = &self.cx;
        let ping_pong = self.program.consumers == Consumers::PingPong;
        let steps = self.k_steps()?;
        let tiles = &self.plan.tiles;
        let (to, one) = (self.expr(tiles.to)?, self.step(tiles.step)?);
        let from = self.expr(tiles.from)?;
        // Steps of the ring taken by all tiles before the next own one.
        let taken = cx.cell(cx.i32);
        let (first, step, ahead) = if ping_pong {
            cx.set(taken, cx.mul(group, steps));
            (cx.add(from, cx.mul(group, one)), cx.shl(one, 1), cx.shl(steps, 1))
        } else {
            cx.set(taken, cx.int(0));
            (from, one, steps)
        };
        self.define(tiles.var, first);
        let exchange = self.exchange();
        cx.count(self.vars[index(tiles.var)], to, step, || {
            self.statements(self.plan.head, Role::Silent)?;
            self.prefetch_inputs()?;
            let mut fragment = Fragment::new();
            if !self.plan.products.is_empty() {
                self.turn_ring(ring, cx.get(taken));
                cx.set(taken, cx.add(cx.get(taken), ahead));
                fragment = self.mainloop(group, steps, ring)?;
            }
            if let Some(exchange) = &exchange {
                fragment = self.swap_halves(exchange, &fragment);
            }
            // The loading thread may have given up: what it loaded is then no data.
            if self.program.communicates() {
                let others = memory::ld_relaxed_sys(cx, self.word(Word::Abort));
                // The warp must agree: it meets again behind every condition on this.
                let any = sync::any(cx, cx.or(cx.get(self.aborted), others));
                cx.set(self.aborted, any);
            }
            self.begin_tile(group, fragment)?;
            self.statements(self.plan.tail, Role::Epilogue)?;
            self.stamp_once(Stamp::Stored, None);
            Ok(())
        })?;
        if let Some(exchange) = &exchange {
            self.end_exchange(exchange);
        }
        Ok(())
    }

    /// Parts of tiles and whole ones, as they were dealt.
    fn consume_items(&self, group: Int<'c>, ring: &Ring<'c>) -> Result<(), Error> {
        let cx = &self.cx;
        let taken = cx.cell_of(cx.int(0));
        self.items(|turn, item| {
            let before = cx.get(taken);
            cx.set(taken, cx.add(before, item.steps));
            let alternate = self.program.consumers == Consumers::PingPong;
            let turn_of = if alternate { cx.and(turn, cx.int(1)) } else { group };
            cx.when(cx.is(turn_of, Is::Eq, group), || {
                self.define(self.plan.tiles.var, item.tile);
                self.statements(self.plan.head, Role::Silent)?;
                self.prefetch_inputs()?;
                self.turn_ring(ring, before);
                let fragment = self.mainloop(group, item.steps, ring)?;
                if self.program.balance == Balance::Pairs {
                    self.begin_tile(group, fragment)?;
                    return self.statements(self.plan.tail, Role::Epilogue);
                }
                cx.either(
                    self.is_sent(&item),
                    || {
                        self.send(&item, &fragment);
                        Ok(())
                    },
                    || {
                        let sums = self.add_parts(&item, &fragment)?;
                        self.begin_tile(group, sums)?;
                        self.statements(self.plan.tail, Role::Epilogue)
                    },
                )
            })
        })
    }

    /// Sets the ring to where it is once `taken` steps have been taken from it.
    fn turn_ring(&self, ring: &Ring<'c>, taken: Int<'c>) {
        let cx = &self.cx;
        let stages = cx.uint(self.program.stages);
        cx.set(ring.stage, cx.urem(taken, stages));
        cx.set(ring.parity, cx.and(cx.udiv(taken, stages), cx.int(1)));
    }

    fn mainloop(
        &self,
        group: Int<'c>,
        steps: Int<'c>,
        ring: &Ring<'c>,
    ) -> Result<Fragment<'c>, Error> {
        let cx = &self.cx;
        let ping_pong = self.program.consumers == Consumers::PingPong;
        let blocks = self.plan.products.len() * self.plan.m_blocks as usize;
        let registers = self.program.tile.n as usize / 2;
        let cells: Vec<Vec<Cell>> =
            (0..blocks).map(|_| (0..registers).map(|_| cx.cell(cx.f32)).collect()).collect();
        if ping_pong {
            // Needed for correctness: a parity is only told apart from the one before it, so no
            // warpgroup may wait two phases ahead.
            let own = cx.add(group, cx.uint(ORDER_BARRIER));
            sync::bar_sync_at(cx, own, 2 * WARPGROUP);
        }
        let fill =
            |value: Float<'c>| cells.iter().flatten().for_each(|&cell| cx.set_f(cell, value));
        let empty = cx.is(steps, Is::Eq, cx.int(0));
        cx.either(
            empty,
            || {
                fill(cx.float(0.0));
                Ok::<(), Error>(())
            },
            || {
                // The first product of a tile overwrites: nothing is carried over, and nothing
                // needs to be zeroed.
                fill(cx.f32.get_undef());
                let k = cx.cell_of(cx.int(0));
                cx.count(k, steps, cx.int(1), || {
                    self.k_step(group, cx.get(k), ring, &cells);
                    Ok(())
                })
            },
        )?;
        if ping_pong {
            let other = cx.sub(cx.uint(ORDER_BARRIER + 1), group);
            sync::bar_arrive_at(cx, other, 2 * WARPGROUP);
        }
        wgmma::wait_group(cx, 0);
        self.stamp_once(Stamp::Computed, None);
        let fragment = cells
            .iter()
            .map(|block| {
                let block: Vec<Float> = block.iter().map(|&cell| cx.get_f(cell)).collect();
                wgmma::settle(cx, &block)
            })
            .collect();
        let last = self.previous(cx.get(ring.stage));
        self.free(ring, last, cx.bit(cx.not(empty)));
        Ok(fragment)
    }

    /// The products of one stage; frees the stage before it.
    fn k_step(&self, group: Int<'c>, k: Int<'c>, ring: &Ring<'c>, cells: &[Vec<Cell<'c>>]) {
        let cx = &self.cx;
        let slot = cx.get(ring.stage);
        mbarrier::wait_parity(cx, self.full(slot), cx.get(ring.parity));
        self.stamp_once(Stamp::Began, Some(k));
        let (tile, shared) = (self.program.tile, &self.plan.abi.shared);
        // From one block of 64 rows to the next: rows of an operand that lies as it is multiplied,
        // else a panel of 64 columns.
        let a_block = match self.plan.a_major {
            Major::K => MMA_M * SWIZZLE_BYTES,
            Major::Mn => tile.k * SWIZZLE_BYTES,
        };
        let own = cx.mul(group, cx.uint(self.group_rows() / MMA_M * a_block));
        let a = cx.add(self.shared_at(shared.a, slot, shared.a_stage), own);
        let a = self.descriptor(a, 1);
        // Bytes between panels of 64 columns; a K-major operand has one panel a k-step, and the
        // hardware ignores the distance.
        let panels = match self.plan.b_major {
            Major::K => 1,
            Major::Mn => tile.k * SWIZZLE_BYTES / 16,
        };
        let b = self.descriptor(self.shared_at(shared.b, slot, shared.b_stage), panels);
        wgmma::fence(cx);
        for k_16 in 0..tile.k / MMA_K {
            let accumulate = if k_16 == 0 { k } else { cx.int(1) };
            let (panel, within) = (k_16 * MMA_K / PANEL, k_16 * MMA_K % PANEL);
            let a_k = match self.plan.a_major {
                Major::K => panel * tile.m * SWIZZLE_BYTES + within * 2,
                Major::Mn => k_16 * MMA_K * SWIZZLE_BYTES,
            };
            let b_k = match self.plan.b_major {
                Major::K => panel * tile.n * SWIZZLE_BYTES + within * 2,
                Major::Mn => k_16 * MMA_K * SWIZZLE_BYTES,
            };
            for product in 0..self.plan.products.len() as u32 {
                let b_at = self.along(b, product * tile.n * tile.k * 2 + b_k);
                for block in 0..self.plan.m_blocks {
                    let a_at = self.along(a, block * a_block + a_k);
                    let cells = &cells[(product * self.plan.m_blocks + block) as usize];
                    let acc: Vec<Float> = cells.iter().map(|&cell| cx.get_f(cell)).collect();
                    let (element, majors) =
                        (self.plan.element, [self.plan.a_major, self.plan.b_major]);
                    let acc = wgmma::mma_async(cx, element, &acc, [a_at, b_at], accumulate, majors);
                    for (&cell, value) in cells.iter().zip(acc) {
                        cx.set_f(cell, value);
                    }
                }
            }
        }
        wgmma::commit_group(cx);
        wgmma::wait_group(cx, 1);
        self.free(ring, self.previous(slot), cx.bit(cx.nonzero(k)));
        let next = cx.add(slot, cx.int(1));
        let wraps = cx.is(next, Is::Eq, cx.uint(self.program.stages));
        cx.set(ring.stage, cx.select(wraps, cx.int(0), next));
        cx.set(ring.parity, cx.xor(cx.get(ring.parity), cx.bit(wraps)));
    }

    /// Says that this warpgroup has read a stage, where `cond` is not 0: to each CTA that loads it.
    fn free(&self, ring: &Ring<'c>, stage: Int<'c>, cond: Int<'c>) {
        let cx = &self.cx;
        let (barrier, free) = (self.empty(stage), cx.and(ring.leader, cond));
        if abi::loaders(self.program) == 1 {
            return mbarrier::arrive_if(cx, barrier, free);
        }
        // Only the leaders do it: one for each of the two.
        let there = cluster::mapa(cx, barrier, cx.and(self.lane, cx.int(1)));
        cluster::arrive_read_if(cx, there, free);
    }

    /// Rows of a tile from one warpgroup that shares it to the next.
    pub(super) fn group_rows(&self) -> u32 {
        match self.program.consumers {
            Consumers::Cooperative => self.plan.m_blocks * MMA_M,
            Consumers::PingPong | Consumers::Single => 0,
        }
    }

    /// The stage before `stage`.
    fn previous(&self, stage: Int<'c>) -> Int<'c> {
        let cx = &self.cx;
        let last = cx.uint(self.program.stages - 1);
        cx.select(cx.is(stage, Is::Eq, cx.int(0)), last, cx.sub(stage, cx.int(1)))
    }

    /// The descriptor of a swizzled operand at `address`; `leading` is its leading-dimension
    /// offset in units of 16 bytes.
    fn descriptor(&self, address: Int<'c>, leading: u32) -> Int<'c> {
        let cx = &self.cx;
        let stride = i64::from(EIGHT_ROWS / 16) << 32;
        let fixed = SWIZZLE_128 | stride | i64::from(leading) << 16;
        cx.or(cx.widen(cx.shr(address, 4)), cx.long(fixed))
    }

    /// A descriptor moved by `bytes`.
    fn along(&self, descriptor: Int<'c>, bytes: u32) -> Int<'c> {
        self.cx.add(descriptor, self.cx.long(i64::from(bytes / 16)))
    }
}
