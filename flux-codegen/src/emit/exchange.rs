//! The two multiprocessors of a cluster hold sums over different parts of k of one tile. Each sends
//! the other the half of the columns that the other stores, register by register: thread t sends
//! to thread t, so that nothing changes its place.

use super::Kernel;
use super::consumer::Fragment;
use crate::context::{Cell, Float, Int, Is};
use crate::nvvm::{cluster, mbarrier, memory, special, sync};
use flux_ir::abi::{self, WARPGROUP, epilogue_warps};

/// Bytes of one access.
const PIECE: u32 = 16;

/// The exchange as a consumer thread sees it.
pub(super) struct Exchange<'c> {
    /// Completes once the other's half of a tile has come.
    received: Int<'c>,
    /// Completes once the other has taken what was sent.
    taken: Int<'c>,
    /// Parity of the phase of `received` that is waited for next; `taken` is one behind.
    parity: Cell<'c>,
    /// Where the other lies.
    peer: Int<'c>,
}

impl<'c> Kernel<'c, '_> {
    /// This multiprocessor's place in its cluster.
    pub(super) fn part(&self) -> Int<'c> {
        self.cx.urem(special::ctaid(&self.cx), self.cx.uint(abi::cluster(self.program)))
    }

    fn exchange_barrier(&self, index: u32) -> Int<'c> {
        let shared = &self.plan.abi.shared;
        let offset = shared.full() + 16 * self.program.stages + 8 * index;
        self.cx.add(self.shared, self.cx.uint(offset))
    }

    pub(super) fn init_exchange(&self) {
        // Each warpgroup says how much will come for it; each warp, that it has taken its part.
        let consumers = self.program.consumers;
        mbarrier::init(&self.cx, self.exchange_barrier(0), consumers.sharing());
        mbarrier::init(&self.cx, self.exchange_barrier(1), epilogue_warps(consumers));
    }

    /// `None` where a tile is one multiprocessor's.
    pub(super) fn exchange(&self) -> Option<Exchange<'c>> {
        if self.program.split_k == 1 {
            return None;
        }
        let cx = &self.cx;
        // The other's barriers are ready.
        cluster::wait_acquire(cx);
        Some(Exchange {
            received: self.exchange_barrier(0),
            taken: self.exchange_barrier(1),
            parity: cx.cell_of(cx.int(0)),
            peer: cx.xor(self.part(), cx.int(1)),
        })
    }

    /// Half of the columns, summed over all of k.
    pub(super) fn swap_halves(
        &self,
        exchange: &Exchange<'c>,
        fragment: &Fragment<'c>,
    ) -> Fragment<'c> {
        let cx = &self.cx;
        let first = cx.is(self.part(), Is::Eq, cx.int(0));
        let halves = |list: &Vec<Float<'c>>| {
            let (low, high) = list.split_at(list.len() / 2);
            let pairs = || low.iter().zip(high);
            let kept: Vec<_> = pairs().map(|(&l, &h)| cx.select_f(first, l, h)).collect();
            let sent: Vec<_> = pairs().map(|(&l, &h)| cx.select_f(first, h, l)).collect();
            (kept, sent)
        };
        let (kept, sent): (Vec<_>, Vec<_>) = fragment.iter().map(halves).unzip();
        let sent: Vec<Float> = sent.concat();
        let thread = self.sharer();
        let threads = self.program.consumers.sharing() * WARPGROUP;
        let own = cx.add(self.shared, cx.uint(self.plan.abi.shared.exchange));
        let own = cx.add(own, cx.mul(thread, cx.uint(PIECE)));
        let at = |base, piece: usize| cx.add(base, cx.uint(piece as u32 * threads * PIECE));
        let leader = cx.is(cx.and(thread, cx.uint(WARPGROUP - 1)), Is::Eq, cx.int(0));
        let parity = cx.get(exchange.parity);
        // The bytes may come before this says how many there will be.
        let bytes = 4 * sent.len() as u32 * WARPGROUP;
        mbarrier::arrive_expect_tx_if(cx, exchange.received, bytes, cx.bit(leader));
        cluster::wait_parity(cx, exchange.taken, cx.xor(parity, cx.int(1)));
        let there = cluster::mapa(cx, own, exchange.peer);
        let received_there = cluster::mapa(cx, exchange.received, exchange.peer);
        for (piece, values) in sent.chunks_exact(4).enumerate() {
            let values = [values[0], values[1], values[2], values[3]];
            cluster::st_async_v4(cx, at(there, piece), values, received_there);
        }
        cluster::wait_parity(cx, exchange.received, parity);
        let mut come = Vec::new();
        for piece in 0..sent.len() / 4 {
            let bits = memory::ld_shared_v4(cx, at(own, piece));
            come.extend(bits.map(|bits| cx.bits_f32(bits)));
        }
        let mut come = come.into_iter();
        let summed = kept
            .into_iter()
            .map(|list| list.into_iter().zip(&mut come).map(|(x, y)| cx.fadd(x, y)).collect())
            .collect();
        sync::bar_warp_sync(cx);
        let lane = cx.is(self.lane, Is::Eq, cx.int(0));
        cluster::arrive_if(cx, cluster::mapa(cx, exchange.taken, exchange.peer), cx.bit(lane));
        cx.set(exchange.parity, cx.xor(parity, cx.int(1)));
        summed
    }

    /// Shared memory stays until the other has sent and taken everything.
    pub(super) fn end_exchange(&self, exchange: &Exchange<'c>) {
        let cx = &self.cx;
        let last = cx.xor(cx.get(exchange.parity), cx.int(1));
        cluster::wait_parity(cx, exchange.taken, last);
    }
}
