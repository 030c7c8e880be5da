//! One rank's part of one (kernel, shape) on a GPU: what it needs, and the launch itself.

use super::arguments::Operand;
use super::feed::{When, engines};
use super::inbound::Inbound;
use super::outbox::Stock;
use super::ready::{Ready, ReadyList};
use super::record::Record;
use super::watch::Watch;
use super::workspace::GpuWorkspace;
use super::{Copier, Gpu, Passive};
use crate::error::Error;
use crate::session::{Members, Session};
use crate::source::{Member, Source, rejected_order};
use crate::tensor::{Arg, Data, TensorArg};
use flux_ir::Balance;
use flux_ir::abi::{self, Abi};
use flux_ir::eval::{Launch, RankView};
use flux_ir::program::{BufferKind, Engine, Program, SignalId};
use flux_ir::stream;
use flux_runtime::{
    Device, DeviceBuffer, Event, Function, Joined, Residency, StallReport, Stream, TensorMap,
    Timing,
};
use flux_sim::{GivenUp, TileRanges};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// What one rank needs to launch one shape.
#[derive(Debug)]
pub(crate) struct GpuInstance {
    pub(super) launch: Launch,
    /// Among the members.
    pub(super) rank: u32,
    pub(super) members: Members,
    pub(super) session: Arc<Session>,
    /// Where peers are processes.
    pub(super) joined: Option<Arc<Joined>>,
    pub(super) program: Program,
    pub(super) workspace: Arc<GpuWorkspace>,
    function: Function,
    /// Of the grid, and of each of its CTAs.
    pub(super) ctas: u32,
    threads: u32,
    shared_bytes: u32,
    pub(super) abi: Abi,
    pub(super) tables: Vec<DeviceBuffer>,
    /// Rows of the longest shard, and the first row of every rank where shards have lengths of their own.
    pub(super) shard: u32,
    pub(super) firsts: Option<DeviceBuffer>,
    /// Values of the Program's variables: those of its definitions count.
    pub(super) definitions: Vec<i64>,
    /// Epoch, retired CTAs and abort: one word each, 256 bytes apart.
    pub(super) state: DeviceBuffer,
    /// Where CTAs share tiles.
    pub(super) sharing: Option<Sharing>,
    pub(super) watch: Watch,
    /// Launches so far, and those of them that are known to have ended well.
    epoch: AtomicU32,
    settled: AtomicU32,
    /// Copies of operands whose rows TMA cannot load where they lie, by buffer.
    pub(super) padded: Vec<Option<DeviceBuffer>>,
    fork: Event,
    /// What the copy engines' agents did ahead of the kernel.
    pub(super) ahead: Event,
    pub(super) join: Event,
    /// Parameters of launches.
    ready: Mutex<ReadyList>,
    /// The stream of the latest launch.
    pub(super) last: Mutex<Option<Arc<Stream>>>,
    /// How many copy engines work for this kernel at once.
    pub(super) copiers: usize,
    /// Whether streams wait for CTAs: they are let go when a launch gives up.
    pub(super) waiting: bool,
    /// What passive peers send.
    pub(super) inbound: Option<Inbound>,
    /// Where an instrumented kernel writes.
    pub(super) record: Option<Record>,
}

/// A word of the state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
pub(super) enum State {
    Epoch = 0,
    Retired = 1,
    Abort = 2,
}

/// Bytes between the state words, so that they share no cache line.
pub(super) const STATE_STRIDE: u64 = 256;

impl Gpu {
    /// Makes what `rank` needs, once every rank has come and none is spinning.
    pub(crate) fn instance(
        &self,
        source: &Source,
        member: &Member,
        launch: Launch,
        rank: u32,
        workspace: Arc<GpuWorkspace>,
        limit: Duration,
    ) -> Result<Arc<GpuInstance>, Error> {
        let program = member.verified.program();
        if program.is_networked() {
            // Heaps are no windows of a communicator yet (docs/multi-node.md).
            let problem = "ranks of other nodes are reached by no launch yet: leave `node` out of the schedule, \
                           or run it on `World::host`";
            let (kernel, problem) = (source.definition.name.into(), problem.into());
            return Err(Error::Unsupported { kernel, problem });
        }
        let image = member.image.expect("a member of a GPU family has an image");
        let abi = Abi::of(program);
        let card = self.card(rank);
        let device = &card.device;
        let function = card.module(image)?.function(image.entry, image.shared_bytes)?;
        // What the Program calls a CTA is a cluster of so many.
        let (ctas, threads) = (launch.ctas * program.split_k, abi::threads(program.consumers));
        function.require_resident(card.ranks, ctas, threads, image.shared_bytes)?;
        let view =
            RankView::new(program, launch, rank).map_err(rejected_order(source.definition))?;
        let (tables, padded) = (tables(device, &view)?, padded(device, &view, &abi)?);
        let sharing = match program.balance {
            Balance::Tiles => None,
            Balance::StreamK | Balance::Pairs => Some(Sharing::new(device, &view, &abi)?),
        };
        workspace.lower_flags(program, rank, &card.rescue)?;
        let watch = Watch::new(device, source, program, rank, limit)?;
        let beside = engines(program, When::WithGrid).count();
        if beside > self.lane(rank).copiers.len() {
            // What a lane with fewer streams was refused.
            device.require_connections((1 + beside as u32) * card.here + 1)?;
        }
        let inbound = match self.passive() {
            Some(Passive { peers, .. }) if program.communicates() => {
                let program = (program, member.copies_first());
                Some(Inbound::new(self, *peers, program, launch, rank, &workspace)?)
            }
            Some(_) | None => None,
        };
        let instance = Arc::new(GpuInstance {
            launch,
            rank,
            members: self.members.clone(),
            session: Arc::clone(&self.session),
            joined: self.inner.others.as_ref().map(|others| Arc::clone(&others.joined)),
            program: program.clone(),
            workspace,
            function,
            ctas,
            threads,
            shared_bytes: image.shared_bytes,
            abi,
            tables,
            shard: program.longest_shard(launch.shape.m, launch.world),
            firsts: firsts(device, program, launch)?,
            definitions: program.vars.handles().map(|var| view.constant(&var.into())).collect(),
            state: DeviceBuffer::alloc_zeroed(device, 3 * STATE_STRIDE)?,
            sharing,
            watch,
            epoch: AtomicU32::new(0),
            settled: AtomicU32::new(0),
            padded,
            fork: Event::new(device, Timing::Off)?,
            ahead: Event::new(device, Timing::Off)?,
            join: Event::new(device, Timing::Off)?,
            ready: Mutex::default(),
            last: Mutex::default(),
            copiers: match program.agents.values().any(|of| of.engine == Engine::CopyEngine) {
                true => beside.max(1),
                false => 0,
            },
            waiting: engines(program, When::WithGrid).next().is_some(),
            inbound,
            record: image.recorded.then(|| Record::new(device, &view)).transpose()?,
        });
        self.keep(Arc::clone(&instance));
        Ok(instance)
    }
}

/// What CTAs that share tiles read, and hand each other.
#[derive(Debug)]
pub(super) struct Sharing {
    pub(super) items: DeviceBuffer,
    pub(super) items_of_cta: u64,
    pub(super) parts: DeviceBuffer,
}

impl Sharing {
    fn new(device: &Arc<Device>, view: &RankView<'_>, abi: &Abi) -> Result<Sharing, Error> {
        let (program, launch) = (view.program, view.launch);
        let table = program.tables.handles().next();
        let table = table.map_or(&[][..], |table| view.table(table));
        let steps = launch.shape.k.div_ceil(program.tile.k);
        let (table, dealt) = match program.balance {
            Balance::Pairs => stream::deal_pairs(table, steps, launch.ctas),
            Balance::Tiles | Balance::StreamK => {
                (table.to_vec(), stream::deal(table.len() as u32, steps, launch.ctas))
            }
        };
        let (rows, width) = stream::encode(&dealt, &table);
        let items = DeviceBuffer::alloc(device, (size_of_val(&rows[..])) as u64)?;
        items.copy_from(0, rows.as_flattened())?;
        let parts = DeviceBuffer::alloc_zeroed(device, abi.parts_bytes(program, launch.ctas))?;
        Ok(Sharing { items, items_of_cta: width.into(), parts })
    }
}

/// The first row of every rank and the end, on a device, where shards have lengths of their own.
fn firsts(
    device: &Arc<Device>,
    program: &Program,
    launch: Launch,
) -> Result<Option<DeviceBuffer>, Error> {
    if !program.has_own_lengths() {
        return Ok(None);
    }
    let Launch { shape, world, .. } = launch;
    let first = |rank: u32| program.first_row(shape.m, world, rank.into()) as u32;
    let rows: Vec<u32> = (0..=world).map(first).collect();
    let buffer = DeviceBuffer::alloc(device, size_of_val(&rows[..]) as u64)?;
    buffer.copy_from(0, &rows)?;
    Ok(Some(buffer))
}

/// The tables of a rank, on its device.
fn tables(device: &Arc<Device>, view: &RankView<'_>) -> Result<Vec<DeviceBuffer>, Error> {
    let tables = view.program.tables.handles().map(|table| {
        let rows = view.table(table);
        let buffer = DeviceBuffer::alloc(device, (16 * rows.len()) as u64)?;
        buffer.copy_from(0, rows.as_flattened())?;
        Ok(buffer)
    });
    tables.collect()
}

/// Memory for copies of the inputs that a mainloop loads and whose rows do not begin at multiples
/// of 16 bytes, by buffer.
fn padded(
    device: &Arc<Device>,
    view: &RankView<'_>,
    abi: &Abi,
) -> Result<Vec<Option<DeviceBuffer>>, Error> {
    let padded = view.program.buffers.iter().map(|(id, buffer)| {
        let extent = view.extent(id);
        let row_bytes = extent.cols * u64::from(buffer.element.bytes());
        let needed = buffer.kind == BufferKind::Input && abi.map(id, 0).is_some();
        let pitch = row_bytes.next_multiple_of(16);
        (needed && pitch != row_bytes)
            .then(|| DeviceBuffer::alloc_zeroed(device, pitch * extent.rows))
            .transpose()
            .map_err(Error::from)
    });
    padded.collect()
}

impl GpuInstance {
    /// Enqueues one launch: copies first (the signaller goes before the waiter), then the kernel.
    /// The rank's stream goes on when both are done.
    pub(crate) fn launch(
        self: &Arc<Self>,
        gpu: &Gpu,
        source: &Source,
        member: &Member,
        args: &[Arg<'_>],
    ) -> Result<(), Error> {
        let lane = gpu.lane(self.rank);
        let rescue = &gpu.card(self.rank).rescue;
        self.require_sound(lane, rescue)?;
        let _enqueuing = gpu.enqueuing();
        // Whatever refuses the arguments comes first: no peer has been told of this launch yet.
        let main = gpu.stream(self.rank);
        let is_captured = self.note_capture(lane, &main, args)?;
        if !is_captured {
            self.queue(lane, &main)?;
        }
        let given = self.operands(source, args);
        let loaded = self.pad(&main, &given)?;
        let mut ready = self.ready.lock().unwrap_or_else(PoisonError::into_inner);
        let Ready { maps, words, .. } = ready.of(&loaded, args, || {
            let maps = self.maps(gpu.device(self.rank), source, member, &loaded)?;
            Ok((maps, self.words(&loaded, args)))
        })?;
        // The kernel counts its launches itself; the host counts along for the copies it feeds.
        let epoch = self.epoch.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        let number = gpu.count_launch(self.rank);
        for arg in args {
            if let Arg::Tensor(TensorArg { data: Data::Target(target), .. }) = arg {
                target.memory().mark(number);
            }
        }
        let launched = self.enqueue(gpu, source, member, epoch, (&given, maps, words));
        if let Err(error) = &launched {
            self.watch.poison();
            lane.spoil(error.clone());
            // What was launched before waits for the same rank, and memory is freed behind it.
            self.end_for_gone(lane, rescue)?;
        }
        launched
    }

    /// What passive peers send.
    pub(super) fn stocks(&self) -> &[Stock] {
        self.inbound.as_ref().map_or(&[], |inbound| &inbound.stocks)
    }

    /// Notes that what passive peers send has changed.
    pub(super) fn send_anew(&self) {
        if let Some(inbound) = &self.inbound {
            inbound.send_anew();
        }
    }

    /// The number of the latest launch.
    pub(super) fn launched(&self) -> u32 {
        self.epoch.load(Ordering::Relaxed)
    }

    /// Notes that every launch so far has ended well.
    pub(super) fn settle(&self) {
        self.settled.store(self.launched(), Ordering::Relaxed);
    }

    /// Whether there are launches that are not known to have ended well.
    pub(super) fn is_unsettled(&self) -> bool {
        self.launched() != self.settled.load(Ordering::Relaxed)
    }

    /// The first launch that may have given up.
    pub(super) fn unsettled(&self) -> u32 {
        self.settled.load(Ordering::Relaxed).wrapping_add(1)
    }

    /// As if it had been launched so many times.
    pub(super) fn reset(&self, launches: u32) {
        self.epoch.store(launches, Ordering::Relaxed);
        self.settled.store(launches, Ordering::Relaxed);
        self.watch.clear();
    }

    /// The stall, the first time it is asked for.
    pub(super) fn take_stall(&self) -> Option<Error> {
        self.watch.take_stall(|report| self.stalled_tile(report))
    }

    /// The role that left this report, and its tile.
    fn stalled_tile(&self, report: &StallReport) -> (String, Option<TileRanges>) {
        let StallReport { signal, slot, wanted, line, column, .. } = *report;
        // What the Program calls a CTA is a cluster of so many.
        let cta = report.cta / self.program.split_k;
        let wait = GivenUp { cta, signal, slot, wanted, at: (line, column) };
        flux_sim::stalled_at(&self.program, self.launch, self.rank, self.launched(), wait)
    }

    /// That a peer gave up a launch of this rank's as well, the first time it is asked for.
    pub(super) fn take_abandoned(&self) -> Option<Error> {
        // Launches are compared as signals are: their numbers may pass 2³¹.
        let took_part = |epoch| self.launched().wrapping_sub(epoch).cast_signed() >= 0;
        let concerns = |&(peer, epoch): &(u32, u32)| peer != self.rank && took_part(epoch);
        let (peer, _) = self.workspace.abandoned().find(concerns)?;
        (!self.watch.is_poisoned()).then(|| {
            self.watch.poison();
            Error::PeerGaveUp { rank: self.rank, kernel: self.watch.kernel.clone(), peer }
        })
    }

    /// Ends what passive peers wait for in vain.
    pub(super) fn release_peers(&self, rescue: &Stream) -> Result<(), Error> {
        match &self.inbound {
            Some(inbound) => inbound.release(&self.workspace, rescue),
            None => Ok(()),
        }
    }

    /// Whether a launch has given up.
    pub(super) fn has_stalled(&self) -> bool {
        self.watch.is_stalled()
    }

    /// Enqueues launch `epoch`, given its tensors where they lie, its tensor maps and its words.
    fn enqueue(
        &self,
        gpu: &Gpu,
        source: &Source,
        member: &Member,
        epoch: u32,
        (given, maps, words): (&[Operand<'_>], &[TensorMap], &[u64]),
    ) -> Result<(), Error> {
        let lane = gpu.lane(self.rank);
        let main = gpu.stream(self.rank);
        let inbound = self.inbound.as_ref().zip(gpu.passive());
        let copies_first = member.copies_first();
        if let Some((inbound, Passive { senders, .. })) = inbound {
            let view = RankView::definitions(member.verified.program(), self.launch, self.rank);
            // Where copies come first nothing runs beside them: signals go behind them.
            let senders = senders.each_ref();
            let senders =
                senders.map(|(copies, words)| [copies, if copies_first { copies } else { words }]);
            inbound.play(&view, &self.workspace, (&main, senders), epoch, self.watch.limit)?;
        }
        let copiers = &lane.copiers[..self.copiers];
        if !copiers.is_empty() {
            main.record(&self.fork)?;
            for copier in copiers {
                copier.copies.wait(&self.fork)?;
            }
            self.feed(source, member, (lane, &main), (epoch, When::Before), given)?;
        }
        let inbound = inbound.map(|(inbound, _)| inbound);
        if copies_first {
            let ends = copiers.iter().map(|copier| Ok(&copier.copies));
            self.join(&main, ends, inbound, epoch)?;
        }
        let launch = flux_runtime::Launch {
            function: &self.function,
            ctas: self.ctas,
            threads: self.threads,
            shared_bytes: self.shared_bytes,
            residency: Residency::Independent,
            maps,
            words,
        };
        // SAFETY: the code was compiled from this very Program (its fingerprint was compared),
        // the Program was verified for this launch, and maps and words are those its ABI names,
        // over memory that the tensors and this instance keep alive until the stream has passed.
        unsafe { launch.enqueue(&main) }?;
        if !copies_first {
            self.feed(source, member, (lane, &main), (epoch, When::WithGrid), given)?;
            self.join(&main, copiers.iter().map(Copier::signals), inbound, epoch)?;
        }
        Ok(())
    }

    /// Lets the rank's stream go on when the copies of launch `epoch` are through, of which its own
    /// end in the streams `ends`.
    fn join<'l>(
        &self,
        main: &Stream,
        ends: impl Iterator<Item = Result<&'l Stream, Error>>,
        inbound: Option<&Inbound>,
        epoch: u32,
    ) -> Result<(), Error> {
        for end in ends {
            // A recorded point is taken when a wait for it is enqueued.
            end?.record(&self.join)?;
            main.wait(&self.join)?;
        }
        inbound.map_or(Ok(()), |inbound| inbound.join(main, epoch))
    }

    /// Whether a peer has raised a signal of this rank's, on the host.
    pub(super) fn has_come(&self, signal: SignalId, slot: u32, target: i64) -> Result<bool, Error> {
        let wanted = target as u32;
        let index = self.workspace.signal(signal) / 4 + u64::from(slot);
        let words = self.workspace.heaps.host(self.rank)?.words();
        let seen = words.get(index as usize).map(|word| word.load(Ordering::Acquire));
        Ok(seen.is_some_and(|seen| seen.wrapping_sub(wanted).cast_signed() >= 0))
    }

    /// Waits on the host until a peer has raised a signal of this rank's.
    pub(super) fn wait_on_host(
        &self,
        source: &Source,
        (signal, slot, target): (SignalId, u32, i64),
        limit: Duration,
    ) -> Result<(), Error> {
        let wanted = target as u32;
        let index = self.workspace.signal(signal) / 4 + u64::from(slot);
        let stop = || self.watch.is_stalled() || self.is_gone();
        let host = self.workspace.heaps.host(self.rank)?;
        match host.wait_at_least(index, wanted, limit, stop) {
            Ok(_) => Ok(()),
            Err(flux_runtime::Error::WordTimeout { seen, .. }) => {
                if let Some(gone) = self.gone() {
                    return Err(gone);
                }
                Err(self.take_stall().unwrap_or(Error::PeerBehind {
                    rank: self.rank,
                    kernel: source.definition.name.into(),
                    peer: slot,
                    wanted,
                    seen,
                    limit_ms: self.watch.limit.as_millis() as u64,
                }))
            }
            Err(error) => Err(error.into()),
        }
    }

    pub(super) fn unsupported(&self, problem: &str) -> Error {
        Error::Unsupported { kernel: self.watch.kernel.clone(), problem: problem.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::Sharing;
    use crate::prelude::*;
    use crate::world::Backend;
    use crate::{Error, Schedule};
    use flux_ir::Balance;
    use flux_ir::stream::{self, Part};
    use std::time::Duration;

    /// Eight CTAs share one tile, and one of them is told to send nothing.
    #[test]
    fn sums_that_do_not_come_are_a_sentence() -> Result<(), Error> {
        let world = match World::virtual_ranks(0, 1) {
            Ok(world) => world.with_limit(Duration::from_millis(300)),
            Err(reason) => {
                println!("skipped: no CUDA device ({reason})");
                return Ok(());
            }
        };
        let ranks = world.ranks();
        let rank = &ranks[0];
        let schedules = (crate::kernels::gemm_bf16::definition().schedules)();
        let shares = |schedule: &&Schedule| schedule.balance == Balance::StreamK;
        let schedule = schedules.iter().find(shares).expect("a shipped schedule shares tiles");
        let kernel = crate::kernels::gemm_bf16::load_with(rank, schedule)?;
        let (m, n, steps) = (100, 100, 64);
        let (a, b) = (rank.zeros(m, steps * 64)?, rank.zeros(n, steps * 64)?);
        let mut c = rank.zeros::<bf16>(m, n)?;
        kernel.launch(&a, &b, &mut c)?;
        rank.synchronize()?;
        let Backend::Gpu(gpu) = &rank.shared.backend else { unreachable!("a world of a GPU") };
        {
            let instances = gpu.instances();
            let instance = instances.last().expect("the launch made one");
            let Some(Sharing { items, .. }) = &instance.sharing else {
                unreachable!("its schedule shares tiles")
            };
            let mut dealt = stream::deal(1, steps as u32, instance.launch.ctas);
            let (silent, slot) = dealt
                .iter()
                .enumerate()
                .find_map(|(cta, items)| match items[..] {
                    [stream::Item { part: Part::Sent(slot), .. }] => Some((cta, slot)),
                    _ => None,
                })
                .expect("more than one CTA");
            dealt[silent][0].part = Part::Stored(0..0);
            let (rows, _) = stream::encode(&dealt, &[[0; 4]]);
            items.copy_from(0, rows.as_flattened())?;
            println!("CTA {silent} keeps slot {slot}");
        }
        kernel.launch(&a, &b, &mut c)?;
        let Err(Error::Stalled { signal, slot, seen, wanted, .. }) = rank.synchronize() else {
            panic!("a launch whose sums do not come must stall");
        };
        assert_eq!((&*signal, slot, seen, wanted), ("shared_sums", 0, 0, 1));
        assert!(matches!(kernel.launch(&a, &b, &mut c), Err(Error::Poisoned { .. })));
        Ok(())
    }
}
