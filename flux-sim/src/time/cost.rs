//! What the ops of a Program cost on a machine.

use super::instant::Time;
use super::machine::{Gbps, Machine};
use super::{Error, Peers};
use flux_ir::Consumers;
use flux_ir::eval::Region;
use flux_ir::program::{BufferId, Engine, Program, Transposed, ValueId, ValueOp};
use std::collections::BTreeMap;

/// The costs of one Program on one machine.
#[derive(Debug)]
pub(super) struct Cost<'a> {
    pub(super) machine: &'a Machine,
    program: &'a Program,
    /// Multiply-adds of an SM a cycle, by element of the left operand.
    rates: BTreeMap<&'static str, f64>,
    /// Mainloop time over tensor-core time for this tile.
    narrow: f64,
    both_ways: f64,
    /// Whether tiles are products: what an epilogue reads hides behind them then.
    pub(super) multiplies: bool,
    /// The rate of what is copied beside tiles.
    beside_gbps: Gbps,
    /// What a further copy takes of a link that is loaded both ways, beyond its bytes.
    pub(super) both_ways_us: Option<f64>,
}

impl<'a> Cost<'a> {
    pub(super) fn new(
        machine: &'a Machine,
        program: &'a Program,
        peers: Peers,
    ) -> Result<Self, Error> {
        let mut rates = BTreeMap::new();
        for stmt in program.statements() {
            let flux_ir::program::Op::Mainloop { products } = &stmt.op else { continue };
            for product in products {
                let element = program.buffers[product.a.buffer].element.name();
                let rate = machine.compute.mac_per_cycle.get(element).ok_or_else(|| {
                    let machine = machine.name.clone();
                    Error::NoRate { machine, element }
                })?;
                rates.insert(element, rate.get());
            }
        }
        if program.is_networked() && machine.network.is_none() {
            return Err(Error::NoNetwork { machine: machine.name.clone() });
        }
        let narrow = machine.compute.narrow_tiles.at(program.tile.n.into());
        let link = &machine.link;
        let (both_ways, both_ways_us) = match peers {
            Peers::Active => (link.both_ways.get(), Some(link.both_ways_us.get())),
            Peers::Passive => (1.0, None),
        };
        let multiplies = program.accumulators() > 0;
        let in_bulk = program.agents.values().any(|agent| agent.engine == Engine::Tma);
        let beside_gbps = link.bulk_gbps.filter(|_| in_bulk).unwrap_or(link.put_gbps);
        Ok(Cost {
            machine,
            program,
            rates,
            narrow,
            both_ways,
            multiplies,
            beside_gbps,
            both_ways_us,
        })
    }

    /// The clock of an SM whose tensor cores have been busy for so long.
    pub(super) fn mhz(&self, busy: Time) -> f64 {
        self.machine.compute.clock.at(busy.us())
    }

    fn ping_pong(&self) -> bool {
        self.program.consumers == Consumers::PingPong
    }

    /// From the launch of a grid to its first loads.
    pub(super) fn start(&self) -> Time {
        let compute = &self.machine.compute;
        let cycles =
            if self.ping_pong() { compute.start_cycles_ping_pong } else { compute.start_cycles };
        Time::from_cycles(cycles.get(), self.mhz(Time::ZERO))
    }

    /// What the tensor cores are busy with one product. A tile at an edge takes as long as a
    /// whole one.
    pub(super) fn product(&self, (a, turned): (&Region, Transposed), busy: Time) -> Time {
        let tile = self.program.tile;
        let element = self.program.buffers[a.buffer].element.name();
        let (_, depth) = turned.left(&a.rows, &a.cols);
        let steps = extent(depth).div_ceil(tile.k.max(1));
        let macs = f64::from(tile.m) * f64::from(tile.n) * f64::from(tile.k) * f64::from(steps);
        let rate = self.rates.get(element).copied().unwrap_or(f64::INFINITY);
        Time::from_cycles(macs / rate * self.narrow, self.mhz(busy))
    }

    /// Between two tiles of a ping-pong CTA.
    pub(super) fn turn(&self, busy: Time) -> Time {
        let cycles = if self.ping_pong() { self.machine.compute.turn_cycles.get() } else { 0.0 };
        Time::from_cycles(cycles, self.mhz(busy))
    }

    /// The epilogue of a part of a tile.
    pub(super) fn epilogue(&self, part: f64, busy: Time) -> Time {
        Time::from_cycles(self.machine.compute.epilogue_cycles.get() * part, self.mhz(busy))
    }

    /// Reading and adding contributions of so many bytes.
    pub(super) fn sum(&self, bytes: u64) -> Time {
        Time::of_bytes(bytes, self.machine.compute.sum_gbps_per_sm.get())
    }

    /// What a copy to or from a peer takes on its link.
    pub(super) fn wire(&self, region: &Region, columns: u64) -> Time {
        let bytes = self.bytes(region);
        let row = bytes as f64 / f64::from(extent(&region.rows).max(1));
        let whole = u64::from(extent(&region.cols)) >= columns;
        let link = &self.machine.link;
        let apart = if whole { 1.0 } else { link.copy_rows.at(row) };
        Time::from_us(link.copy_wire.wire_us(bytes as f64) * apart * self.both_ways)
    }

    /// What a copy within the device takes.
    pub(super) fn local_copy(&self, bytes: u64) -> Time {
        Time::of_bytes(bytes, self.machine.memory.local_copy_gbps.get())
    }

    /// What the bytes of a put take on the link.
    pub(super) fn put(&self, bytes: u64) -> Time {
        self.on_link(bytes, self.machine.link.put_gbps)
    }

    /// What the bytes take on the link that are copied beside tiles.
    pub(super) fn copied_beside(&self, bytes: u64) -> Time {
        self.on_link(bytes, self.beside_gbps)
    }

    /// What a put to another node takes on both adapters: `messages` of them, so many bytes in all.
    pub(super) fn put_over_network(&self, bytes: u64, messages: u32) -> Time {
        let Some(network) = &self.machine.network else { return Time::ZERO };
        let each = network.message_us.get() * f64::from(messages);
        Time::from_us(each + bytes as f64 / (network.put_gbps.get() * 1e3))
    }

    fn on_link(&self, bytes: u64, rate: Gbps) -> Time {
        Time::from_us(bytes as f64 / (rate.get() * 1e3) * self.both_ways)
    }

    /// The matrices of the launch that a value reads.
    pub(super) fn reads(&self, value: ValueId) -> Vec<BufferId> {
        match &self.program.values[value].op {
            ValueOp::Load(buffer) => vec![*buffer],
            ValueOp::Unary(_, x) | ValueOp::Cast(x, _) => self.reads(*x),
            ValueOp::Binary(_, x, y) => [self.reads(*x), self.reads(*y)].concat(),
            ValueOp::Acc(_)
            | ValueOp::Sum
            | ValueOp::Const(_)
            | ValueOp::Scalar(_)
            | ValueOp::Cols(_)
            | ValueOp::Rows(_)
            | ValueOp::Loaded(_) => Vec::new(),
        }
    }

    /// Bytes of a region.
    pub(super) fn bytes(&self, region: &Region) -> u64 {
        let element = self.program.buffers[region.buffer].element.bytes();
        u64::from(extent(&region.rows)) * u64::from(extent(&region.cols)) * u64::from(element)
    }
}

/// The length of a range that may be empty.
pub(super) fn extent(range: &std::ops::Range<u32>) -> u32 {
    range.end.saturating_sub(range.start)
}
