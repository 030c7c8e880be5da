//! The loading thread: waits for what the mainloop reads, and keeps the ring full.

use super::Kernel;
use super::statement::Role;
use crate::context::{Cell, Int, Is};
use crate::error::Error;
use crate::nvvm::wgmma::Major;
use crate::nvvm::{fence, mbarrier, tma};
use crate::plan::PANEL;
use flux_ir::abi::{self, MapParam, SWIZZLE_BYTES, Stamp};
use flux_ir::program::{BufferKind, Op, Place, Range, Stmt};
use flux_ir::{Balance, Cache};

impl<'c> Kernel<'c, '_> {
    pub(super) fn produce(&self) -> Result<(), Error> {
        let cx = &self.cx;
        if self.plan.products.is_empty() {
            return Ok(());
        }
        for &map in &self.maps {
            tma::prefetch_map(cx, map);
        }
        // A fence in the prologue says that its waits guard what goes by TMA: loads, if any of them are
        // of workspace, and else stores of consumers.
        let fences = |stmt: &Stmt| matches!(stmt.op, Op::FenceProxyAsync);
        let shares = |place: &Place| self.program.buffers[place.buffer].kind != BufferKind::Input;
        let mut loads = self.plan.products.iter().flat_map(|product| [&product.a, &product.b]);
        let guards = loads.any(shares) && self.plan.prologue.iter().any(fences);
        let role = if guards { Role::Producer } else { Role::Silent };
        self.statements(self.plan.prologue, role)?;
        let stage = cx.cell_of(cx.int(0));
        let parity = cx.cell_of(cx.int(1));
        let tiles = &self.plan.tiles;
        let k_first = self.k_first()?;
        if self.program.balance != Balance::Tiles {
            self.items(|_, item| {
                self.define(tiles.var, item.tile);
                let before = cx.mul(item.first, cx.uint(self.program.tile.k));
                self.produce_part((stage, parity), cx.add(k_first, before), item.steps)
            })?;
            return self.outlast_peer((stage, parity));
        }
        let (to, step) = (self.expr(tiles.to)?, self.step(tiles.step)?);
        self.define(tiles.var, self.expr(tiles.from)?);
        let steps = self.k_steps()?;
        cx.count(self.vars[crate::plan::index(tiles.var)], to, step, || {
            self.stamp_cta();
            self.stamp(Stamp::Waits);
            self.statements(self.plan.head, Role::Producer)?;
            if self.plan.slices.is_none() {
                self.stamp(Stamp::Arrived);
            }
            if unfenced(self.plan.head) {
                // Its loads follow every wait of this thread, also one that guards other data.
                fence::proxy_async(cx);
            }
            let loads = self.loads()?;
            let k = cx.cell_of(cx.int(0));
            let taken = cx.cell_of(cx.int(0));
            let ring = (stage, parity);
            if let Some(slices) = &self.plan.slices {
                let (to, step) = (self.expr(slices.to)?, self.step(slices.step)?);
                self.define(slices.var, self.expr(slices.from)?);
                cx.count(self.vars[crate::plan::index(slices.var)], to, step, || {
                    self.statements(slices.head, Role::Producer)?;
                    self.stamp_first_slice(slices.var, slices.from)?;
                    if unfenced(slices.head) {
                        fence::proxy_async(cx);
                    }
                    // Slices go around: the next one may begin anywhere.
                    let Range { lo, hi } = self.plan.products[0].left().1;
                    let (lo, hi) = (self.expr(lo)?, self.expr(hi)?);
                    let from = cx.udiv(lo, cx.uint(self.program.tile.k));
                    let upto = cx.min(self.steps_to(hi), steps);
                    let some = cx.is(lo, Is::Lt, hi);
                    let count = cx.select(some, cx.sub(upto, from), cx.int(0));
                    let room = cx.sub(steps, cx.get(taken));
                    let count = cx.min(count, room);
                    cx.set(k, from);
                    cx.set(taken, cx.add(cx.get(taken), count));
                    self.fill(&loads, ring, (k, cx.add(from, count), k_first))
                })?;
                cx.set(k, cx.get(taken));
            }
            // Consumers take all steps of a tile, whatever slices there were.
            self.fill(&loads, ring, (k, steps, k_first))
        })
    }

    /// Loads the k-steps from the one in `k` up to `upto`, stage by stage.
    fn fill(
        &self,
        loads: &[Load<'c>],
        (stage, parity): (Cell<'c>, Cell<'c>),
        (k, upto, k_first): (Cell<'c>, Int<'c>, Int<'c>),
    ) -> Result<(), Error> {
        let cx = &self.cx;
        cx.count(k, upto, cx.int(1), || {
            let slot = cx.get(stage);
            mbarrier::wait_parity(cx, self.empty(slot), cx.get(parity));
            let full = self.full(slot);
            let shared = &self.plan.abi.shared;
            mbarrier::arrive_expect_tx(cx, full, cx.uint(shared.a_stage + shared.b_stage));
            let k_at = cx.add(k_first, cx.mul(cx.get(k), cx.uint(self.program.tile.k)));
            for load in loads {
                self.load(load, slot, k_at, full);
            }
            self.next_stage((stage, parity));
            Ok(())
        })
    }

    /// Loads `steps` k-steps of the tile at hand, from column `k_first` of the left operand on.
    fn produce_part(
        &self,
        ring: (Cell<'c>, Cell<'c>),
        k_first: Int<'c>,
        steps: Int<'c>,
    ) -> Result<(), Error> {
        self.statements(self.plan.head, Role::Producer)?;
        let loads = self.loads()?;
        let k = self.cx.cell_of(self.cx.int(0));
        self.fill(&loads, ring, (k, steps, k_first))
    }

    /// Steps of the k-loop that this multiprocessor takes: the same on every tile.
    pub(super) fn k_steps(&self) -> Result<Int<'c>, Error> {
        let cx = &self.cx;
        let all = self.all_k_steps()?;
        Ok(match self.program.split_k {
            1 => all,
            _ => {
                // The first part is the longer one.
                let (longer, shorter) = (cx.shr(cx.add(all, cx.int(1)), 1), cx.shr(all, 1));
                cx.select(cx.nonzero(self.part()), shorter, longer)
            }
        })
    }

    /// The column of the left operand that the k-loop of this multiprocessor begins with.
    fn k_first(&self) -> Result<Int<'c>, Error> {
        let cx = &self.cx;
        let first = self.expr(&self.plan.depth.lo)?;
        Ok(match self.program.split_k {
            1 => first,
            _ => {
                let longer = cx.shr(cx.add(self.all_k_steps()?, cx.int(1)), 1);
                let steps = cx.mul(self.part(), longer);
                cx.add(first, cx.mul(steps, cx.uint(self.program.tile.k)))
            }
        })
    }

    fn all_k_steps(&self) -> Result<Int<'c>, Error> {
        let cx = &self.cx;
        let depth = &self.plan.depth;
        let length = cx.max(cx.sub(self.expr(&depth.hi)?, self.expr(&depth.lo)?), cx.int(0));
        Ok(self.steps_to(length))
    }

    /// k-steps of so many columns.
    fn steps_to(&self, columns: Int<'c>) -> Int<'c> {
        let (cx, k) = (&self.cx, self.program.tile.k);
        cx.udiv(cx.add(columns, cx.uint(k - 1)), cx.uint(k))
    }

    /// The boxes of one k-step.
    fn loads(&self) -> Result<Vec<Load<'c>>, Error> {
        let (tile, shared) = (self.program.tile, &self.plan.abi.shared);
        let once = self.program.cache == Cache::StreamB;
        let to = match abi::loaders(self.program) {
            1 if once => To::OwnOnce,
            1 => To::Own,
            _ => To::Both,
        };
        let mut loads = Vec::new();
        let a = &self.plan.products[0].a;
        let (stage, major) = (shared.a_stage, self.plan.a_major);
        loads.extend(self.operand(a, major, tile.m, [shared.a, stage], To::Own)?);
        for (index, product) in self.plan.products.iter().enumerate() {
            let base = shared.b + index as u32 * tile.n * tile.k * 2;
            let (stage, major) = (shared.b_stage, self.plan.b_major);
            loads.extend(self.operand(&product.b, major, tile.n, [base, stage], to)?);
        }
        Ok(loads)
    }

    /// The boxes of one operand of a k-step: `extent` rows or columns of the tile. Of stage 0 they
    /// lie at `base` in shared memory, of the next one `stage` bytes behind.
    fn operand(
        &self,
        place: &Place,
        major: Major,
        extent: u32,
        [base, stage]: [u32; 2],
        to: To,
    ) -> Result<Vec<Load<'c>>, Error> {
        let (cx, depth) = (&self.cx, self.program.tile.k);
        let (panels, height) = match major {
            Major::K => (depth / PANEL, extent),
            Major::Mn => (extent / PANEL, depth),
        };
        // Of what both CTAs of a pair get, each loads half of the rows of a panel.
        let (own, part) = match (to, major) {
            (To::Own | To::OwnOnce, _) => (height, cx.int(0)),
            (To::Both, Major::K) => (height / 2, self.part()),
            (To::Both, Major::Mn) => {
                let name = &self.program.buffers[place.buffer].name;
                let message = format!("`{name}` is not transposed, and a pair of CTAs shares it");
                return Err(self.unsupported(message, "leave out `balance = pairs`"));
            }
        };
        self.all_columns(place.buffer)?;
        let map = self.map_at(place, own, PANEL)?;
        let first = match major {
            Major::K => self.memory_row(place, self.expr(&place.rows.lo)?)?,
            Major::Mn => self.expr(&place.cols.lo)?,
        };
        let first = cx.add(first, cx.mul(part, cx.uint(own)));
        let shift = cx.mul(part, cx.uint(own * SWIZZLE_BYTES));
        let load = |panel: u32| {
            let at = match major {
                Major::K => At::Along { row: first, k: panel * PANEL },
                Major::Mn => At::Across { column: cx.add(first, cx.uint(panel * PANEL)) },
            };
            Load { map, offset: base + panel * height * SWIZZLE_BYTES, shift, stage, to, at }
        };
        Ok((0..panels).map(load).collect())
    }

    /// Waits until both CTAs of a pair have read all that was loaded: none leaves while the other
    /// still writes to its shared memory, or arrives at its barriers.
    fn outlast_peer(&self, (stage, parity): (Cell<'c>, Cell<'c>)) -> Result<(), Error> {
        if abi::loaders(self.program) == 1 {
            return Ok(());
        }
        let cx = &self.cx;
        let turn = cx.cell_of(cx.int(0));
        cx.count(turn, cx.uint(self.program.stages), cx.int(1), || {
            mbarrier::wait_parity(cx, self.empty(cx.get(stage)), cx.get(parity));
            self.next_stage((stage, parity));
            Ok(())
        })
    }

    fn next_stage(&self, (stage, parity): (Cell<'c>, Cell<'c>)) {
        let cx = &self.cx;
        let next = cx.add(cx.get(stage), cx.int(1));
        let wraps = cx.is(next, Is::Eq, cx.uint(self.program.stages));
        cx.set(stage, cx.select(wraps, cx.int(0), next));
        cx.set(parity, cx.xor(cx.get(parity), cx.bit(wraps)));
    }

    fn load(&self, load: &Load<'c>, slot: Int<'c>, k_at: Int<'c>, full: Int<'c>) {
        let cx = &self.cx;
        let coordinates = match load.at {
            At::Along { row, k } => [cx.add(k_at, cx.uint(k)), row],
            At::Across { column } => [column, k_at],
        };
        let to = cx.add(self.shared_at(load.offset, slot, load.stage), load.shift);
        match load.to {
            To::Own => tma::load_2d(cx, to, load.map, coordinates, full),
            To::OwnOnce => tma::load_2d_evict_first(cx, to, load.map, coordinates, full),
            To::Both => tma::load_2d_both(cx, to, load.map, coordinates, full),
        }
    }

    /// The address of the tensor map of the plane that `place` lies in.
    pub(super) fn map_at(
        &self,
        place: &Place,
        box_rows: u32,
        box_cols: u32,
    ) -> Result<Int<'c>, Error> {
        let cx = &self.cx;
        let of = |plane| {
            let map = MapParam { buffer: place.buffer, plane, box_rows, box_cols };
            self.plan.abi.maps.iter().position(|&found| found == map).map(|index| self.maps[index])
        };
        let first = of(0).expect("the parameter list has every operand and own output");
        let plane = self.plane(place)?;
        let others = (1..).map_while(|plane| of(plane).map(|map| (plane, map)));
        Ok(others.fold(first, |found, (number, map)| {
            cx.select(cx.is(plane, Is::Eq, cx.uint(number)), map, found)
        }))
    }
}

/// Whether a wait stands behind the last proxy fence.
fn unfenced(body: &[Stmt]) -> bool {
    body.iter().fold(false, |waited, stmt| match &stmt.op {
        Op::Wait { .. } => true,
        Op::FenceProxyAsync => false,
        Op::For { body, .. } | Op::If { body, .. } => waited || unfenced(body),
        Op::Let { .. }
        | Op::Row { .. }
        | Op::Mainloop { .. }
        | Op::Store { .. }
        | Op::Sum { .. }
        | Op::Load { .. }
        | Op::Signal { .. }
        | Op::Copy { .. } => waited,
    })
}

/// One box of a k-step.
struct Load<'c> {
    map: Int<'c>,
    /// In shared memory, of stage 0.
    offset: u32,
    /// Bytes from one stage to the next.
    stage: u32,
    /// Bytes to the part of it that this CTA loads.
    shift: Int<'c>,
    to: To,
    at: At<'c>,
}

/// Whose shared memory a box goes to.
#[derive(Clone, Copy)]
enum To {
    /// This CTA's.
    Own,
    /// This CTA's, and nobody reads it again.
    OwnOnce,
    /// That of both CTAs of a pair.
    Both,
}

/// Where a box lies in its matrix.
enum At<'c> {
    /// Rows of `[rows, k]`, the k-step's columns from `k` on.
    Along { row: Int<'c>, k: u32 },
    /// Columns of `[k, cols]`, the k-step's rows.
    Across { column: Int<'c> },
}
