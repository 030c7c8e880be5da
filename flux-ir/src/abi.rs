//! How a launch hands a Program's CTA agent its arguments, and how its shared memory is laid out.
//!
//! Code generation and the driver of a launch both derive this from the Program, so the order of
//! parameters and the sizes are written once.

use crate::element::Element;
use crate::program::{
    Agent, BufferId, Engine, Expr, Op, Place, Product, Program, SignalId, Stmt, Sym, TableId, VarId,
};
use crate::schedule::{Balance, Consumers};

/// Threads of a warpgroup.
pub const WARPGROUP: u32 = 128;

/// Threads of a CTA: one producer warpgroup and the consumer warpgroups.
pub const fn threads(consumers: Consumers) -> u32 {
    WARPGROUP * (1 + consumers.warpgroups())
}

/// Warps of the loading warpgroup that load nothing: they copy where an agent runs on copy warps.
/// Each raises that agent's signals for itself.
pub const COPY_WARPS: u32 = WARPGROUP / 32 - 1;

/// "Not yet", in the data of a buffer that carry their own flag: negative zero, as often as it fits a word.
pub const fn not_yet(element: Element) -> u32 {
    match element {
        Element::Bf16 | Element::F16 => 0x8000_8000,
        Element::F32 => 0x8000_0000,
    }
}

/// Slots of the shared-memory ring through which bulk copies go.
pub const RING_SLOTS: u32 = 4;

/// Bytes of a slot: 16 KiB in all are what 4 stages of the widest tile leave free.
pub const RING_SLOT_BYTES: u32 = 4096;

/// Warps that store a tile, and so the number of times each tile-level signal is raised.
pub const fn epilogue_warps(consumers: Consumers) -> u32 {
    4 * consumers.sharing()
}

/// A tensor map (PTX ISA, "Tensors"; `cuTensorMapEncodeTiled`) that the kernel takes by value:
/// two-dimensional, inner dimension the columns, 128-byte swizzle, zero fill.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MapParam {
    /// The buffer it describes: plane `plane` of it.
    pub buffer: BufferId,
    /// Flattened plane index.
    pub plane: u32,
    /// Rows of a box.
    pub box_rows: u32,
    /// Columns of a box.
    pub box_cols: u32,
}

/// An 8-byte word of the kernel's last parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Word {
    /// Address of a buffer on this rank.
    Address(BufferId),
    /// Bytes from one row of a buffer to the next; of a symmetric buffer a multiple of 16.
    Pitch(BufferId),
    /// Bytes from one plane of a symmetric buffer to the next, a multiple of 16.
    PlaneBytes(BufferId),
    /// Byte offset of a symmetric buffer in every rank's heap, a multiple of 16.
    BufferOffset(BufferId),
    /// Byte offset of a signal array: in the device heap or in the host heap, by its home.
    SignalOffset(SignalId),
    /// 1 where rows of an output may be written by 16-byte vectors and TMA (base and pitch are
    /// multiples of 16), else 0.
    Aligned(BufferId),
    /// Address of an array of addresses: every rank's device heap.
    DeviceHeaps,
    /// Address of an array of addresses: every rank's host heap.
    HostHeaps,
    /// A symbol of the launch: M, N, K, world, rank or ctas.
    Sym(Sym),
    /// A definition of a Program that communicates, in the low half: no number of a chunk plan is
    /// compiled in.
    Definition(VarId),
    /// Address of the first row of every rank and the end, a word (u32) each.
    Firsts,
    /// Address of a table's rows, 16 bytes each.
    Table(TableId),
    /// Bits of a scalar, in the low half.
    Scalar(u32),
    /// Address of the epoch word (u32): launches completed. The kernel advances it.
    Epoch,
    /// Address of what CTAs that share a tile hand each other: slots of `part_bytes`, one for each
    /// CTA, then a flag (u32) for each warp of each slot. Zero at first.
    Parts,
    /// Address of the items of all CTAs ([`crate::stream`]), 32 bytes each.
    Items,
    /// Rows of items that each CTA has.
    ItemsOfCta,
    /// Address of the word (u32) that counts CTAs that have finished.
    Retired,
    /// Address of the word (u32) that is nonzero once some wait of this launch gave up.
    Abort,
    /// Address of the [`Report`] in host memory.
    Report,
    /// Nanoseconds a wait may take.
    LimitNs,
    /// Address of NCCL's device communicator (`ncclDevComm`), where something goes over the network.
    NetworkComm,
    /// The window (`ncclWindow_t`) that the device heap of every rank is registered as.
    NetworkWindow,
    /// The number of the first of NCCL's signals that stand for an array.
    NetworkSignal(SignalId),
    /// Address of the tiles' times ([`Stamp`]), [`RECORD_BYTES`] for each row of the tile table. Only
    /// an instrumented kernel writes there.
    Record,
}

/// What an instrumented kernel writes of a tile, as 64-bit words in this order: but for the CTA,
/// ns of the device's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Stamp {
    /// When the CTA began.
    Started = 0,
    /// When the loading thread came to what the tile waits for.
    Waits = 1,
    /// When all that its first slice waits for was there.
    Arrived = 2,
    /// When the first operands of its products were loaded.
    Began = 3,
    /// When its accumulators were complete.
    Computed = 4,
    /// When its epilogue was through.
    Stored = 5,
    /// The number of the CTA.
    Cta = 6,
}

/// Bytes of a tile's record.
pub const RECORD_BYTES: u32 = 64;

/// What a wait that gives up leaves in host memory: eight 32-bit words, in this order. `state`
/// is written last, with release semantics at system scope; 0 means nothing happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Report {
    /// 1 once the other words are valid.
    State = 0,
    /// The CTA that waited.
    Cta = 1,
    /// Index of the signal array, or [`SHARED_SUMS`].
    Signal = 2,
    /// The slot.
    Slot = 3,
    /// The value last seen.
    Seen = 4,
    /// The value wanted.
    Wanted = 5,
    /// Line of the wait in the user's source.
    Line = 6,
    /// Column of the wait in the user's source.
    Column = 7,
}

/// What a [`Report`] names instead of a signal where the sums of a tile's other parts did not come
/// ([`Word::Parts`]); the slot is theirs.
pub const SHARED_SUMS: u32 = u32::MAX;

/// What a [`Report`] names instead of a signal where a bulk copy never reached shared memory; the
/// slot is that of the ring ([`RING_SLOTS`]).
pub const BULK_COPY: u32 = u32::MAX - 1;

/// What a [`Report`] names instead of a signal where the network never read what was put; what was seen is NCCL's answer.
pub const NETWORK_FLUSH: u32 = u32::MAX - 2;

/// Bytes of a report.
pub const REPORT_BYTES: u32 = 32;

/// Offsets into dynamic shared memory, in bytes from a base rounded up to 1024.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SharedMap {
    /// Stages of the left operand: `stages` times `a_stage` bytes.
    pub a: u32,
    /// Bytes of one stage of the left operand.
    pub a_stage: u32,
    /// Stages of the right operands: `stages` times `b_stage` bytes.
    pub b: u32,
    /// Bytes of one stage of all right operands together.
    pub b_stage: u32,
    /// Staging of the epilogue: each consumer warp's `staging` boxes of 16 rows × 128 bytes.
    pub c: u32,
    /// Staging boxes of each warp: 2, so that one is filled while the other leaves, or 1 where
    /// two do not fit.
    pub staging: u32,
    /// Accumulators that the other multiprocessor of a cluster sends: half of a tile's, or none.
    pub exchange: u32,
    /// What bulk copies are moving: [`RING_SLOTS`] slots, or none.
    pub ring: u32,
    /// mbarriers: `full[stages]`, then `empty[stages]`, then `received` and `taken` of the
    /// exchange.
    pub barriers: u32,
    /// mbarriers of the ring, one for each slot.
    pub ring_barriers: u32,
    /// All of it, the slack for rounding the base included.
    pub total: u32,
}

/// Bytes of one row of a staging box, and of a stage's rows: the 128-byte swizzle.
pub const SWIZZLE_BYTES: u32 = 128;

/// Rows of a staging box: those of one warp in an accumulator fragment.
pub const BOX_ROWS: u32 = 16;

/// CTAs of a cluster of `program`'s: those that share the k-steps of a tile, or a right operand.
pub fn cluster(program: &Program) -> u32 {
    program.split_k.max(loaders(program))
}

/// CTAs that load a right operand together, a part each.
pub fn loaders(program: &Program) -> u32 {
    match program.balance {
        Balance::Tiles | Balance::StreamK => 1,
        Balance::Pairs => 2,
    }
}

/// Everything a launch of the CTA agent has to supply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Abi {
    /// Tensor maps, each a parameter of 128 bytes: loads of the left operand by plane, loads of
    /// the right operands, then stores.
    pub maps: Vec<MapParam>,
    /// Words of the last parameter.
    pub words: Vec<Word>,
    /// Shared memory.
    pub shared: SharedMap,
    /// Bytes of the sums that one CTA hands to another; 0 where tiles are not shared.
    pub part_bytes: u32,
}

impl Abi {
    /// The arguments of `program`'s CTA agent.
    pub fn of(program: &Program) -> Abi {
        let (maps, words, shared) = (maps(program), words(program), shared(program));
        let part_bytes = match program.balance {
            Balance::Tiles | Balance::Pairs => 0,
            Balance::StreamK => sum_bytes(program),
        };
        Abi { maps, words, shared, part_bytes }
    }

    /// Bytes of what the CTAs of a launch hand each other.
    pub fn parts_bytes(&self, program: &Program, ctas: u32) -> u64 {
        let flags = 4 * epilogue_warps(program.consumers);
        u64::from(ctas) * u64::from(self.part_bytes + flags)
    }

    /// Position of a word.
    pub fn word(&self, word: Word) -> Option<u32> {
        self.words.iter().position(|&w| w == word).map(|index| index as u32)
    }

    /// Position of the map that loads or stores `plane` of `buffer`.
    pub fn map(&self, buffer: BufferId, plane: u32) -> Option<u32> {
        let found = |map: &MapParam| map.buffer == buffer && map.plane == plane;
        self.maps.iter().position(found).map(|index| index as u32)
    }
}

/// Every statement of the CTA agents, nested ones included.
fn statements(program: &Program) -> impl Iterator<Item = &Stmt> {
    let on_ctas = program.agents.values().filter(|agent| agent.engine == Engine::Ctas);
    on_ctas.flat_map(Agent::statements)
}

/// The products of the (one) mainloop.
pub fn products(program: &Program) -> &[Product] {
    statements(program)
        .find_map(|stmt| match &stmt.op {
            Op::Mainloop { products } => Some(products.as_slice()),
            _ => None,
        })
        .unwrap_or(&[])
}

/// The number of planes of a buffer whose leading dimensions are literals (1 without any).
fn literal_planes(program: &Program, buffer: BufferId) -> u32 {
    let extent = |expr: &Expr| match expr {
        Expr::Int(value) => *value as u32,
        Expr::Sym(_) | Expr::Var(_) | Expr::First(_) | Expr::Bin(..) => 1,
    };
    program.buffers[buffer].planes.iter().map(extent).product()
}

fn maps(program: &Program) -> Vec<MapParam> {
    let tile = program.tile;
    let mut maps: Vec<MapParam> = Vec::new();
    let mut add = |buffer: BufferId, box_rows: u32, box_cols: u32| {
        for plane in 0..literal_planes(program, buffer) {
            let map = MapParam { buffer, plane, box_rows, box_cols };
            if !maps.contains(&map) {
                maps.push(map);
            }
        }
    };
    // A swizzled row is a panel of columns: a tile wider than that takes several boxes.
    let panel = |buffer: BufferId| SWIZZLE_BYTES / program.buffers[buffer].element.bytes();
    let products = products(program);
    for product in products {
        let rows = if product.transposed.a { tile.k } else { tile.m };
        add(product.a.buffer, rows, panel(product.a.buffer));
    }
    for product in products {
        let rows = if product.transposed.b { tile.n / loaders(program) } else { tile.k };
        add(product.b.buffer, rows, panel(product.b.buffer));
    }
    for place in stores(program) {
        let buffer = &program.buffers[place.buffer];
        let own = matches!(place.at, crate::program::At::Own);
        if own && buffer.element != Element::F32 {
            add(place.buffer, BOX_ROWS, panel(place.buffer));
        }
    }
    maps
}

/// Where the CTA agent stores, in order.
fn stores(program: &Program) -> Vec<&Place> {
    statements(program)
        .filter_map(|stmt| match &stmt.op {
            Op::Store { to, .. } => Some(to),
            _ => None,
        })
        .collect()
}

fn words(program: &Program) -> Vec<Word> {
    use crate::program::BufferKind;
    let mut words = Vec::new();
    for (id, buffer) in program.buffers.iter() {
        words.extend([Word::Address(id), Word::Pitch(id)]);
        match buffer.kind {
            BufferKind::Input | BufferKind::Exposed => {}
            BufferKind::Output => words.push(Word::Aligned(id)),
            BufferKind::Symmetric => {
                words.extend([Word::PlaneBytes(id), Word::BufferOffset(id), Word::Aligned(id)]);
            }
        }
    }
    words.extend(program.signals.handles().map(Word::SignalOffset));
    words.extend(program.tables.handles().map(Word::Table));
    words.extend((0..program.scalars.len() as u32).map(Word::Scalar));
    let syms = [Sym::M, Sym::N, Sym::K, Sym::World, Sym::Rank, Sym::Ctas];
    words.extend(syms.map(Word::Sym));
    if program.has_own_lengths() {
        words.extend([Word::Sym(Sym::Shard), Word::Firsts]);
    }
    if program.communicates() {
        words.extend(program.lets.iter().map(|(var, _)| Word::Definition(*var)));
    }
    words.extend([Word::DeviceHeaps, Word::HostHeaps, Word::Epoch, Word::Retired]);
    words.extend([Word::Abort, Word::Report, Word::LimitNs, Word::Record]);
    match program.balance {
        Balance::Tiles => {}
        Balance::Pairs => words.extend([Word::Items, Word::ItemsOfCta]),
        Balance::StreamK => words.extend([Word::Parts, Word::Items, Word::ItemsOfCta]),
    }
    if program.is_networked() {
        words.extend([Word::NetworkComm, Word::NetworkWindow]);
        let remote = program.signals.handles().filter(|&id| program.is_raised_remotely(id));
        words.extend(remote.map(Word::NetworkSignal));
    }
    words
}

/// Bytes of a tile's accumulators: no fewer rows than a `wgmma` has.
fn sum_bytes(program: &Program) -> u32 {
    4 * program.tile.m.max(64) * program.tile.n * program.accumulators().max(1)
}

/// Slots of the ring through which bulk copies go; none where nothing is copied so.
pub fn ring_slots(program: &Program) -> u32 {
    let copies = program.agents.values().any(|agent| agent.engine == Engine::Tma);
    if copies { RING_SLOTS } else { 0 }
}

fn shared(program: &Program) -> SharedMap {
    let tile = program.tile;
    let accumulators = program.accumulators().max(1);
    let element =
        products(program).first().map_or(2, |p| program.buffers[p.a.buffer].element.bytes());
    let operands = u32::from(!products(program).is_empty());
    let a_stage = operands * tile.m * tile.k * element;
    let b_stage = operands * tile.n * tile.k * element * accumulators;
    let a = 0;
    let b = a + a_stage * program.stages;
    let c = b + b_stage * program.stages;
    let warps = 4 * program.consumers.warpgroups();
    let (exchanged, exchange_barriers) = match program.split_k {
        0 | 1 => (0, 0),
        _ => (sum_bytes(program) / 2, 16),
    };
    let slots = ring_slots(program);
    let map = |staging: u32| {
        let exchange = c + warps * staging * BOX_ROWS * SWIZZLE_BYTES;
        let ring = exchange + exchanged;
        let barriers = ring + slots * RING_SLOT_BYTES;
        let ring_barriers = barriers + 16 * program.stages + exchange_barriers;
        let total = ring_barriers + 8 * slots + 1024;
        SharedMap {
            a,
            a_stage,
            b,
            b_stage,
            c,
            staging,
            exchange,
            ring,
            barriers,
            ring_barriers,
            total,
        }
    };
    let limit = program.target.shared_bytes().unwrap_or(u32::MAX);
    if map(2).total <= limit { map(2) } else { map(1) }
}

impl SharedMap {
    /// Offset of `full[0]`; `empty[0]` lies `8 * stages` bytes behind it.
    pub const fn full(&self) -> u32 {
        self.barriers
    }
}

#[cfg(test)]
mod tests {
    use super::{
        Abi, BOX_ROWS, RING_SLOT_BYTES, RING_SLOTS, SWIZZLE_BYTES, SharedMap, Word, ring_slots,
    };
    use crate::kernel::Kernel;
    use crate::program::{Program, Sym};
    use crate::schedule::{Consumers, Schedule, Transport};

    fn program(kernel: &str, schedule: &Schedule) -> Program {
        let kernel: Kernel = kernel.parse().expect("the text is a kernel");
        crate::lower::lower(&kernel, schedule).expect("the kernel can be lowered")
    }

    const PLAIN: &str = "
kernel @plain(%a: &global<bf16>, %b: &global<bf16>, %c: &mut global<bf16>) {
  for tile in %c {
    %0 = gemm %a, %b.t
    store %c, %0
  }
}";

    const SCATTER: &str = "
kernel @scatter(%a: &global<bf16>, %b: &global<bf16>, %s: f32, %c: &mut scattered<bf16>) {
  for tile in %c {
    %0 = gemm %a, %b.t
    %1 = scalar %s
    %2 = mul %0, %1
    %3 = reduce %c, %2
    store %c, %3
  }
}";

    #[test]
    fn operands_and_own_outputs_have_a_map() {
        let abi = Abi::of(&program(PLAIN, &Schedule::sm_90a()));
        let boxes: Vec<_> = abi.maps.iter().map(|m| (m.buffer.0, m.box_rows, m.box_cols)).collect();
        assert_eq!(boxes, [(0, 128, 64), (1, 256, 64), (2, 16, 64)]);
    }

    #[test]
    fn every_word_stands_once() {
        let abi = Abi::of(&program(SCATTER, &Schedule::sm_90a()));
        for (index, &word) in abi.words.iter().enumerate() {
            assert_eq!(abi.word(word), Some(index as u32), "{word:?}");
        }
        assert!(abi.word(Word::Scalar(0)).is_some() && abi.word(Word::Scalar(1)).is_none());
        assert!(abi.word(Word::Sym(Sym::Epoch)).is_none());
    }

    #[test]
    fn regions_of_shared_memory_follow_each_other() {
        for schedule in [
            Schedule::sm_90a(),
            Schedule::sm_90a().tile(128, 192, 64).consumers(Consumers::PingPong),
            Schedule::sm_90a().tile(128, 192, 64).consumers(Consumers::PingPong).stages(5),
            Schedule::sm_90a().tile(128, 8, 64).stages(2),
            Schedule::sm_90a().tile(64, 48, 64).consumers(Consumers::Single).stages(14),
            Schedule::sm_90a().tile(128, 96, 64).consumers(Consumers::Single).split_k(2).stages(6),
        ] {
            let map: SharedMap = Abi::of(&program(PLAIN, &schedule)).shared;
            let stages = schedule.stages;
            assert_eq!(map.b, map.a + stages * map.a_stage);
            assert_eq!(map.c, map.b + stages * map.b_stage);
            let warps = 4 * schedule.consumers.warpgroups();
            assert_eq!(map.exchange, map.c + warps * map.staging * BOX_ROWS * SWIZZLE_BYTES);
            let split = schedule.split_k - 1;
            assert_eq!(map.ring, map.exchange + split * 2 * schedule.tile.m * schedule.tile.n);
            assert_eq!(map.barriers, map.ring);
            assert_eq!(map.total, map.barriers + 16 * (stages + split) + 1024);
            // What the swizzle and the mbarriers ask for.
            assert!([map.a_stage, map.b, map.b_stage, map.c].iter().all(|at| at % 1024 == 0));
            assert_eq!(map.barriers % 8, 0);
            assert!(map.total <= 232_448, "{schedule}: {map:?}");
        }
    }

    #[test]
    fn bulk_copies_have_a_ring_that_the_widest_tile_leaves_room_for() {
        const GATHER: &str = "
kernel @gather(%a: &gathered<bf16>, %b: &global<bf16>, %c: &mut global<bf16>) {
  for tile in %c {
    %0 = wait %a
    %1 = gemm %0, %b.t
    store %c, %1
  }
}";
        for transport in [Transport::Put, Transport::Tma] {
            let slots = if transport == Transport::Tma { RING_SLOTS } else { 0 };
            let program = program(GATHER, &Schedule::sm_90a().transport(transport));
            assert_eq!(ring_slots(&program), slots);
            let map = Abi::of(&program).shared;
            assert_eq!(map.barriers, map.ring + slots * RING_SLOT_BYTES);
            assert_eq!(map.total, map.barriers + 16 * 4 + 8 * slots + 1024);
            // A bulk copy wants 16 bytes, and a lane of shared memory 128.
            assert_eq!([map.ring % 128, map.barriers % 8], [0, 0]);
            assert!(map.total <= 232_448, "{map:?}");
        }
    }
}
