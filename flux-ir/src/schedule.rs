//! A schedule: every choice that changes speed and never results (up to the rounding of sums
//! whose order the kernel leaves open). A plain value.

use crate::element::Element;
use crate::order::Order;
use crate::target::Target;
use crate::tile::TileShape;
use std::fmt;

/// How the consumer warpgroups of a CTA divide tiles.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Consumers {
    /// Both share one tile, half of its rows each.
    Cooperative,
    /// Each has its own tile; one's epilogue hides behind the other's mainloop.
    PingPong,
    /// There is one, and it does whole tiles: for outputs of few rows, which memory bounds.
    Single,
}

impl Consumers {
    /// Every form.
    pub const ALL: [Consumers; 3] =
        [Consumers::Cooperative, Consumers::PingPong, Consumers::Single];

    /// Consumer warpgroups of a CTA.
    pub const fn warpgroups(self) -> u32 {
        match self {
            Consumers::Cooperative | Consumers::PingPong => 2,
            Consumers::Single => 1,
        }
    }

    /// Consumer warpgroups that share one tile.
    pub const fn sharing(self) -> u32 {
        match self {
            Consumers::Cooperative => 2,
            Consumers::PingPong | Consumers::Single => 1,
        }
    }

    /// The name in schedules and in the text form.
    pub const fn name(self) -> &'static str {
        match self {
            Consumers::Cooperative => "cooperative",
            Consumers::PingPong => "ping_pong",
            Consumers::Single => "single",
        }
    }
}

/// What the L2 cache is told of the operands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Cache {
    /// Nothing: both may be read again.
    Normal,
    /// The right operand is read once, so it goes first: where all rows of the output lie in one
    /// row of tiles, or few.
    StreamB,
}

impl Cache {
    /// Every policy.
    pub const ALL: [Cache; 2] = [Cache::Normal, Cache::StreamB];

    /// The name in schedules and in the text form.
    pub const fn name(self) -> &'static str {
        match self {
            Cache::Normal => "normal",
            Cache::StreamB => "stream_b",
        }
    }
}

/// How CTAs divide the tiles of an output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Balance {
    /// Whole tiles, wave after wave.
    Tiles,
    /// The tiles that do not fill a wave are cut along k, so that every CTA takes as many k-steps
    /// as the others ("stream-K"). Sums are added in a fixed order.
    StreamK,
    /// The two CTAs of a cluster take two tiles below each other. Each loads half of the right
    /// operand, for both.
    Pairs,
}

impl Balance {
    /// Every form.
    pub const ALL: [Balance; 3] = [Balance::Tiles, Balance::StreamK, Balance::Pairs];

    /// The name in schedules and in the text form.
    pub const fn name(self) -> &'static str {
        match self {
            Balance::Tiles => "tiles",
            Balance::StreamK => "stream_k",
            Balance::Pairs => "pairs",
        }
    }
}

/// How bytes move between ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Transport {
    /// Copy engines push them into the peers' memory: shards ahead of the tiles that need them,
    /// contributions out of memory of their own rank, where tiles leave them.
    CopyEngine,
    /// The same copies, with nothing beside them: the kernel starts when those of its rank are
    /// through. For shapes that overlap does not pay for. Of gathered tensors alone.
    CopyFirst,
    /// The kernel stores them into the peers' memory: contributions out of its tiles, shards by the
    /// warps that copy beside them.
    Put,
    /// As [`Transport::Put`], but what copy warps move goes through shared memory by bulk copies, of
    /// which one warp of a CTA feeds the TMA unit.
    Tma,
}

impl Transport {
    /// Every transport.
    pub const ALL: [Transport; 4] =
        [Transport::CopyEngine, Transport::CopyFirst, Transport::Put, Transport::Tma];

    /// The name in schedules and in the text form.
    pub const fn name(self) -> &'static str {
        match self {
            Transport::CopyEngine => "copy_engine",
            Transport::CopyFirst => "copy_first",
            Transport::Put => "put",
            Transport::Tma => "tma",
        }
    }

    /// Whether the kernel itself moves what copy engines would.
    pub const fn is_in_kernel(self) -> bool {
        match self {
            Transport::CopyEngine | Transport::CopyFirst => false,
            Transport::Put | Transport::Tma => true,
        }
    }
}

/// How every rank gets the shards of a gathered tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum AllGather {
    /// Each rank sends its shard to every other one, the next one first.
    #[default]
    Push,
    /// Each rank fetches every other one's shard, once its owner says that it is there: who reads
    /// decides when bytes move.
    Pull,
    /// Each rank hands on what reached it, to the rank before it: data moves between neighbors alone.
    Ring,
}

impl AllGather {
    /// Every algorithm.
    pub const ALL: [AllGather; 3] = [AllGather::Push, AllGather::Pull, AllGather::Ring];

    /// The name in schedules.
    pub const fn name(self) -> &'static str {
        match self {
            AllGather::Push => "push",
            AllGather::Pull => "pull",
            AllGather::Ring => "ring",
        }
    }
}

/// How every rank gets the sum of a reduced output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum AllReduce {
    /// Every rank sends its contribution to every other, and each adds them up itself: one step, for
    /// outputs so small that its latency is what they take.
    OneShot,
    /// Contributions travel to the owner of their rows, who adds them up; the others bring the sum from
    /// there. Two steps, and `world / 2` times fewer bytes.
    #[default]
    TwoShot,
    /// One shot, and each element tells by itself that it has come: no signal travels behind the data, and
    /// what waits for it polls the data (NCCL's LL protocol and Lamport's flags, in a single element).
    Flagged,
}

impl AllReduce {
    /// Every algorithm.
    pub const ALL: [AllReduce; 3] = [AllReduce::OneShot, AllReduce::TwoShot, AllReduce::Flagged];

    /// The name in schedules.
    pub const fn name(self) -> &'static str {
        match self {
            AllReduce::OneShot => "one_shot",
            AllReduce::TwoShot => "two_shot",
            AllReduce::Flagged => "flagged",
        }
    }
}

/// How each rank gets its rows of the sum over ranks, of a scattered output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum ReduceScatter {
    /// Every contribution travels to the owner of its rows, who adds them up: at once, in as much
    /// workspace as there are ranks.
    #[default]
    LocalSum,
    /// Ranks add to memory of the owner, one behind the other, the owner last: workspace for one sum.
    Add,
    /// The sum so far travels from rank to rank, each of which adds its contribution, the owner last:
    /// data moves between neighbors alone.
    Ring,
    /// Contributions stay where they are computed, and copy warps of the owner of their rows bring
    /// them: who sums decides when bytes move. Sums are those of [`ReduceScatter::LocalSum`], bit by
    /// bit.
    Pull,
}

impl ReduceScatter {
    /// Every algorithm.
    pub const ALL: [ReduceScatter; 4] =
        [ReduceScatter::LocalSum, ReduceScatter::Add, ReduceScatter::Ring, ReduceScatter::Pull];

    /// The name in schedules.
    pub const fn name(self) -> &'static str {
        match self {
            ReduceScatter::LocalSum => "local_sum",
            ReduceScatter::Add => "add",
            ReduceScatter::Ring => "ring",
            ReduceScatter::Pull => "pull",
        }
    }
}

/// How the first rows of a scattered output travel: in small copies, so that the link starts when
/// few tiles are computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Head {
    /// Rows at the begin of the shard that is sent first.
    pub rows: u32,
    /// Copies.
    pub copies: u32,
}

/// How the last rows travel, in slices: so that when the last byte is there, little is left to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Tail {
    /// Rows at the end of the shard that travels last.
    pub rows: u32,
    /// Slices: of a gathered tensor along K, whole k-steps each, so that its tiles are computed as
    /// they arrive; of a scattered output along its rows, so that sums are.
    pub slices: u32,
}

/// All choices that leave results unchanged. Setters take and return the value; whether the
/// choices fit together is said by lowering and the checker, all at once.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use = "a schedule does nothing until a kernel is lowered with it"]
pub struct Schedule {
    /// The architecture.
    pub target: Target,
    /// Tile rows, columns and k-step.
    pub tile: TileShape,
    /// Slots of the shared-memory ring between the loads and the tensor cores.
    pub stages: u32,
    /// How consumer warpgroups divide tiles.
    pub consumers: Consumers,
    /// Multiprocessors that share the k-steps of a tile, as one cluster: 1 or 2. What a Program
    /// calls a CTA is then such a cluster.
    pub split_k: u32,
    /// How CTAs divide the tiles of an output.
    pub balance: Balance,
    /// What the L2 cache is told of the operands.
    pub cache: Cache,
    /// The tile order; `None` takes the one that fits the kernel's distribution types.
    pub order: Option<Order>,
    /// How bytes move between ranks; `None` takes copy engines for gathered tensors and puts for
    /// scattered ones.
    pub transport: Option<Transport>,
    /// How every rank gets the shards of a gathered tensor; `None` has their owners push them.
    pub all_gather: Option<AllGather>,
    /// How every rank gets the sum of a reduced output; `None` takes two steps.
    pub all_reduce: Option<AllReduce>,
    /// How each rank gets its rows of a scattered output; `None` sums them on their owner.
    pub reduce_scatter: Option<ReduceScatter>,
    /// What partial sums are rounded to as they travel; `None` takes the element type of the output.
    pub partials: Option<Element>,
    /// Rows of a communication chunk; `None` sends a shard whole.
    pub chunk_rows: Option<u32>,
    /// How the first rows of a scattered output travel, where copy engines send them; `None` sends
    /// them as the others.
    pub head: Option<Head>,
    /// How the last rows travel; `None` sends them as the others.
    pub tail: Option<Tail>,
    /// CTAs of the grid; `None` takes what the device (or the rank's share of it) holds at once.
    pub ctas: Option<u32>,
    /// For tests: the longest of the pauses, in µs, that every thread makes now and then; 0 for none.
    pub jitter: u32,
    /// Ranks of a node; those of other nodes are reached over the network. 0 where all ranks are of one node.
    pub node: u32,
}

impl Schedule {
    /// The default for `sm_90a`: 128 × 256 × 64 tiles in 4 stages, two consumer warpgroups that
    /// share a tile.
    pub const fn sm_90a() -> Self {
        Schedule {
            target: Target::Sm90a,
            tile: TileShape { m: 128, n: 256, k: 64 },
            stages: 4,
            consumers: Consumers::Cooperative,
            split_k: 1,
            balance: Balance::Tiles,
            cache: Cache::Normal,
            order: None,
            transport: None,
            all_gather: None,
            all_reduce: None,
            reduce_scatter: None,
            partials: None,
            chunk_rows: None,
            head: None,
            tail: None,
            ctas: None,
            jitter: 0,
            node: 0,
        }
    }

    /// The default for threads of the host.
    pub const fn host() -> Self {
        Schedule::sm_90a().target(Target::Host)
    }

    /// The default for `target`.
    pub const fn for_target(target: Target) -> Self {
        match target {
            Target::Host => Schedule::host(),
            Target::Sm90a => Schedule::sm_90a(),
        }
    }

    /// Sets the architecture and keeps every other choice.
    pub const fn target(mut self, target: Target) -> Self {
        self.target = target;
        self
    }

    /// Sets rows, columns and k-step of a tile.
    pub const fn tile(mut self, m: u32, n: u32, k: u32) -> Self {
        self.tile = TileShape { m, n, k };
        self
    }

    /// Sets the number of pipeline stages.
    pub const fn stages(mut self, stages: u32) -> Self {
        self.stages = stages;
        self
    }

    /// Sets how consumer warpgroups divide tiles.
    pub const fn consumers(mut self, consumers: Consumers) -> Self {
        self.consumers = consumers;
        self
    }

    /// Sets how many multiprocessors share the k-steps of a tile.
    pub const fn split_k(mut self, parts: u32) -> Self {
        self.split_k = parts;
        self
    }

    /// Sets how CTAs divide the tiles of an output.
    pub const fn balance(mut self, balance: Balance) -> Self {
        self.balance = balance;
        self
    }

    /// Sets what the L2 cache is told of the operands.
    pub const fn cache(mut self, cache: Cache) -> Self {
        self.cache = cache;
        self
    }

    /// Sets the tile order.
    pub fn order(mut self, order: Order) -> Self {
        self.order = Some(order);
        self
    }

    /// Sets how bytes move between ranks.
    pub const fn transport(mut self, transport: Transport) -> Self {
        self.transport = Some(transport);
        self
    }

    /// Sets how every rank gets the shards of a gathered tensor.
    pub const fn all_gather(mut self, algorithm: AllGather) -> Self {
        self.all_gather = Some(algorithm);
        self
    }

    /// Sets how every rank gets the sum of a reduced output.
    pub const fn all_reduce(mut self, algorithm: AllReduce) -> Self {
        self.all_reduce = Some(algorithm);
        self
    }

    /// Sets how each rank gets its rows of a scattered output.
    pub const fn reduce_scatter(mut self, algorithm: ReduceScatter) -> Self {
        self.reduce_scatter = Some(algorithm);
        self
    }

    /// Sets what partial sums are rounded to as they travel.
    pub const fn partials(mut self, element: Element) -> Self {
        self.partials = Some(element);
        self
    }

    /// Sets the rows of a communication chunk.
    pub const fn chunk_rows(mut self, rows: u32) -> Self {
        self.chunk_rows = Some(rows);
        self
    }

    /// Sends the first `rows` rows of the shard that is sent first in `copies` copies.
    pub const fn head(mut self, rows: u32, copies: u32) -> Self {
        self.head = Some(Head { rows, copies });
        self
    }

    /// Sends the last `rows` rows of the shard that travels last in `slices` slices.
    pub const fn tail(mut self, rows: u32, slices: u32) -> Self {
        self.tail = Some(Tail { rows, slices });
        self
    }

    /// Sets the number of CTAs.
    pub const fn ctas(mut self, ctas: u32) -> Self {
        self.ctas = Some(ctas);
        self
    }

    /// Pauses now and then, for up to so many µs: an eighth of all waits, copies, stores and signals
    /// begin late, other ones in each launch, CTA and warp. Shakes a protocol on a device as the host
    /// executor's adversary does there; results are the same.
    pub const fn jitter(mut self, most: u32) -> Self {
        self.jitter = most;
        self
    }

    /// Sets how many ranks, in the order of ranks, a node has: data for ranks of other nodes are put over the
    /// network (`docs/multi-node.md`).
    pub const fn node(mut self, ranks: u32) -> Self {
        self.node = ranks;
        self
    }
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, tile = {}, stages = {}", self.target, self.tile, self.stages)?;
        write!(f, ", consumers = {}", self.consumers.name())?;
        if self.split_k != 1 {
            write!(f, ", split_k = {}", self.split_k)?;
        }
        if self.balance != Balance::Tiles {
            write!(f, ", balance = {}", self.balance.name())?;
        }
        if self.cache != Cache::Normal {
            write!(f, ", cache = {}", self.cache.name())?;
        }
        if let Some(order) = &self.order {
            write!(f, ", order = {order}")?;
        }
        if let Some(transport) = self.transport {
            write!(f, ", transport = {}", transport.name())?;
        }
        if let Some(algorithm) = self.all_gather {
            write!(f, ", all_gather = {}", algorithm.name())?;
        }
        if let Some(algorithm) = self.all_reduce {
            write!(f, ", all_reduce = {}", algorithm.name())?;
        }
        if let Some(algorithm) = self.reduce_scatter {
            write!(f, ", reduce_scatter = {}", algorithm.name())?;
        }
        if let Some(element) = self.partials {
            write!(f, ", partials = {element}")?;
        }
        if let Some(rows) = self.chunk_rows {
            write!(f, ", chunk_rows = {rows}")?;
        }
        if let Some(Head { rows, copies }) = self.head {
            write!(f, ", head = ({rows}, {copies})")?;
        }
        if let Some(Tail { rows, slices }) = self.tail {
            write!(f, ", tail = ({rows}, {slices})")?;
        }
        if let Some(ctas) = self.ctas {
            write!(f, ", ctas = {ctas}")?;
        }
        if self.jitter != 0 {
            write!(f, ", jitter = {}", self.jitter)?;
        }
        if self.node != 0 {
            write!(f, ", node = {}", self.node)?;
        }
        Ok(())
    }
}
