//! The kernel function, from its parameters to its return.

mod bulk;
mod consumer;
mod copy;
mod epilogue;
mod exchange;
mod flags;
mod index;
mod jitter;
mod math;
mod network;
mod place;
mod prefetch;
mod producer;
mod record;
mod retire;
mod statement;
mod store;
mod stream;
mod value;
mod wait;

use crate::Times;
use crate::context::{Cell, Cx, Int, Is};
use crate::error::Error;
use crate::machine;
use crate::nvvm::{cluster, fence, mbarrier, memory, special, sync};
use crate::plan::{Beside, Plan};
use flux_ir::Span;
use flux_ir::abi::{self, Word};
use flux_ir::arena::Handle;
use flux_ir::program::{Engine, LOADS, Place, Program, Sym};
use inkwell::AddressSpace;
use inkwell::attributes::{Attribute, AttributeLoc};
use inkwell::context::Context;
use inkwell::values::{FunctionValue, PointerValue};
use statement::Role;
use std::cell::RefCell;
use std::path::Path;

/// Calling convention of a kernel (LLVM, `CallingConv::PTX_Kernel`).
const PTX_KERNEL: u32 = 71;

/// Address space of shared memory (NVPTX Usage, "Address Spaces").
const SHARED: u16 = 3;

/// A kernel being written.
pub(crate) struct Kernel<'c, 'p> {
    pub(crate) cx: Cx<'c>,
    pub(crate) program: &'p Program,
    pub(crate) plan: &'p Plan<'p>,
    words: PointerValue<'c>,
    /// Generic addresses of the tensor maps.
    maps: Vec<Int<'c>>,
    /// Base of shared memory.
    shared: Int<'c>,
    /// One for each variable of the Program.
    vars: Vec<Cell<'c>>,
    /// Not 0 once a wait of this launch gave up, as far as this thread knows.
    aborted: Cell<'c>,
    epoch: Int<'c>,
    /// Where pauses are made by chance: what is drawn next.
    chance: Option<Cell<'c>>,
    /// Offset of the warp's next staging box.
    staging: Cell<'c>,
    /// Where something is copied in bulk, slots of its ring that have been taken.
    ring: Option<Cell<'c>>,
    tile: RefCell<Option<epilogue::Tile<'c>>>,
    /// What each load named last.
    loads: RefCell<[Option<&'p Place>; LOADS as usize]>,
    /// The tile table's row of the item at hand.
    item_row: RefCell<Option<[Int<'c>; 4]>>,
    tid: Int<'c>,
    lane: Int<'c>,
    /// Warp of the CTA; the same in all lanes.
    warp: Int<'c>,
    /// In an instrumented kernel, when the CTA began.
    started: Option<Int<'c>>,
    /// The statement being emitted, for messages.
    span: std::cell::Cell<Span>,
}

/// PTX of a kernel.
pub(crate) struct Text {
    /// As this crate writes it.
    pub(crate) own: String,
    /// With what it calls of the network.
    pub(crate) linked: Option<String>,
}

/// PTX of the CTA agent, as a function called `entry`; linked with the network's functions, where a file of them is given.
pub(crate) fn kernel(
    program: &Program,
    plan: &Plan,
    entry: &str,
    (times, library): (Times, Option<&Path>),
) -> Result<Text, Error> {
    let refused = |message: String| machine::refused(&program.name, message);
    let machine = machine::target_machine(program.is_networked()).map_err(refused)?;
    let context = Context::create();
    let module = context.create_module(&program.name);
    module.set_triple(&machine.get_triple());
    module.set_data_layout(&machine.get_target_data().get_data_layout());
    let function = declare(&context, &module, program, plan, entry);
    let shared = module.add_global(
        context.i8_type().array_type(0),
        Some(AddressSpace::from(SHARED)),
        "dynamic_shared",
    );
    shared.set_alignment(1024);
    let cx = Cx::new(&context, module, function);
    let mut kernel = Kernel::enter(cx, program, plan, shared.as_pointer_value())?;
    if times == Times::Recorded {
        kernel.begin_record()?;
    }
    kernel.body()?;
    let module = &kernel.cx.module;
    let own = machine::assemble(module, &machine).map_err(refused)?;
    let linked = library.map(|file| {
        crate::network::link(&context, module, &machine, file)
            .map_err(|message| Error::Network { kernel: program.name.clone(), message })?;
        machine::print(module, &machine).map_err(refused)
    });
    Ok(Text { own, linked: linked.transpose()? })
}

/// The entry function with its parameters: tensor maps, then the words.
fn declare<'c>(
    context: &'c Context,
    module: &inkwell::module::Module<'c>,
    program: &Program,
    plan: &Plan,
    entry: &str,
) -> FunctionValue<'c> {
    let pointer = context.ptr_type(AddressSpace::default());
    let maps = plan.abi.maps.len();
    let types = vec![pointer.into(); maps + 1];
    let ty = context.void_type().fn_type(&types, false);
    let function = module.add_function(entry, ty, None);
    function.set_call_conventions(PTX_KERNEL);
    let text = |key: &str, value: &str| context.create_string_attribute(key, value);
    let kind = Attribute::get_named_enum_kind_id;
    let threads = abi::threads(program.consumers).to_string();
    for (key, value) in [("nvvm.maxntid", threads.as_str()), ("nvvm.minctasm", "1")] {
        function.add_attribute(AttributeLoc::Function, text(key, value));
    }
    if abi::cluster(program) > 1 {
        let cluster = format!("{},1,1", abi::cluster(program));
        function.add_attribute(AttributeLoc::Function, text("nvvm.cluster_dim", &cluster));
    }
    let nounwind = context.create_enum_attribute(kind("nounwind"), 0);
    function.add_attribute(AttributeLoc::Function, nounwind);
    for index in 0..=maps {
        let (of, align) = if index < maps {
            (context.i8_type().array_type(128), 64)
        } else {
            (context.i64_type().array_type(plan.abi.words.len() as u32), 8)
        };
        let loc = AttributeLoc::Param(index as u32);
        let by_value = context.create_type_attribute(kind("byval"), of.into());
        function.add_attribute(loc, by_value);
        function.add_attribute(loc, context.create_enum_attribute(kind("align"), align));
        function.add_attribute(loc, text("nvvm.grid_constant", ""));
    }
    function
}

impl<'c, 'p> Kernel<'c, 'p> {
    /// What every thread does first.
    fn enter(
        cx: Cx<'c>,
        program: &'p Program,
        plan: &'p Plan<'p>,
        shared: PointerValue<'c>,
    ) -> Result<Self, Error> {
        let count = plan.abi.maps.len() as u32;
        let parameter = |index| {
            cx.function
                .get_nth_param(index)
                .expect("every parameter was declared")
                .into_pointer_value()
        };
        let words = parameter(count);
        let maps = (0..count).map(|index| cx.address_of(parameter(index))).collect();
        let tid = special::tid(&cx);
        let warp = sync::broadcast(&cx, cx.shr(tid, 5));
        let slack = cx.add(cx.shared_address(shared), cx.uint(1023));
        let vars = program.vars.values().map(|_| cx.cell(cx.i32)).collect();
        let mut kernel = Kernel {
            program,
            plan,
            words,
            maps,
            shared: cx.and(slack, cx.uint(!1023)),
            vars,
            aborted: cx.cell_of(cx.int(0)),
            epoch: cx.int(0),
            chance: None,
            staging: cx.cell_of(cx.int(0)),
            ring: (abi::ring_slots(program) > 0).then(|| cx.cell_of(cx.int(0))),
            tile: RefCell::new(None),
            loads: RefCell::new([None; LOADS as usize]),
            item_row: RefCell::new(None),
            tid,
            lane: cx.and(tid, cx.uint(31)),
            warp,
            started: None,
            span: std::cell::Cell::new(plan.span),
            cx,
        };
        if program.communicates() {
            let completed = memory::ld_relaxed_sys(&kernel.cx, kernel.word(Word::Epoch));
            kernel.epoch = kernel.cx.add(completed, kernel.cx.int(1));
        }
        kernel.draw_pauses();
        for (var, value) in &program.lets {
            let value = match program.communicates() {
                true => kernel.cx.truncate(kernel.word(Word::Definition(*var))),
                false => kernel.expr(value)?,
            };
            kernel.cx.set(kernel.vars[var.index()], value);
        }
        Ok(kernel)
    }

    /// Barriers, then one branch for each role: `setmaxnreg` takes effect only so.
    fn body(&self) -> Result<(), Error> {
        let cx = &self.cx;
        let first = cx.is(self.tid, Is::Eq, cx.int(0));
        cx.when(first, || {
            self.init_barriers();
            Ok::<(), Error>(())
        })?;
        if abi::cluster(self.program) > 1 {
            // The peer's barriers are ready before anything is sent there.
            cluster::arrive_relaxed(cx);
        }
        let group = cx.shr(self.warp, 2);
        let (producer, consumer, end) =
            (cx.block("producer"), cx.block("consumer"), cx.block("end"));
        cx.branch(cx.nonzero(group), consumer, producer);
        let split = self.plan.registers(self.program);
        let threads = abi::threads(self.program.consumers);

        cx.at(producer);
        sync::bar_arrive(cx, START_BARRIER, threads);
        if let Some((fewer, _)) = split {
            sync::setmaxnreg_dec(cx, fewer);
        }
        if abi::loaders(self.program) > 1 {
            cluster::wait_acquire(cx);
        }
        cx.when(first, || self.produce())?;
        self.copy_beside()?;
        cx.jump(end);

        cx.at(consumer);
        sync::bar_sync(cx, START_BARRIER, threads);
        if let Some((_, more)) = split {
            sync::setmaxnreg_inc(cx, more);
        }
        if abi::loaders(self.program) > 1 {
            cluster::wait_acquire(cx);
        }
        self.consume(cx.sub(group, cx.int(1)))?;
        self.retire()?;
        cx.jump(end);

        cx.at(end);
        cx.ret();
        Ok(())
    }

    /// What warps do that neither load operands nor compute.
    fn copy_beside(&self) -> Result<(), Error> {
        let cx = &self.cx;
        let Some(Beside { engine, body }) = self.plan.beside else { return Ok(()) };
        if engine != Engine::Tma {
            return cx.when(cx.nonzero(self.warp), || {
                self.statements(body, Role::Copy)?;
                self.end_of_puts(body)
            });
        }
        let feeds = cx.is(self.warp, Is::Eq, cx.uint(bulk::FEEDER));
        cx.when(feeds, || {
            self.begin_ring();
            self.statements(body, Role::Copy)?;
            self.end_ring();
            Ok(())
        })
    }

    fn init_barriers(&self) {
        let cx = &self.cx;
        // One thread of every warpgroup that reads a stage frees it, on every CTA that loads it.
        let readers = self.program.consumers.sharing() * abi::loaders(self.program);
        for stage in 0..self.program.stages {
            mbarrier::init(cx, self.full(cx.uint(stage)), 1);
            mbarrier::init(cx, self.empty(cx.uint(stage)), readers);
        }
        if self.program.split_k > 1 {
            self.init_exchange();
        }
        if abi::cluster(self.program) > 1 {
            fence::mbarrier_init_cluster(cx);
        }
        fence::proxy_async_shared(cx);
    }

    /// The mbarrier that says a stage holds its operands.
    fn full(&self, stage: Int<'c>) -> Int<'c> {
        self.shared_at(self.plan.abi.shared.full(), stage, 8)
    }

    /// The mbarrier that says a stage may be loaded again.
    fn empty(&self, stage: Int<'c>) -> Int<'c> {
        let offset = self.plan.abi.shared.full() + 8 * self.program.stages;
        self.shared_at(offset, stage, 8)
    }

    /// The address of entry `index` of an array at `offset` in shared memory.
    fn shared_at(&self, offset: u32, index: Int<'c>, bytes: u32) -> Int<'c> {
        let cx = &self.cx;
        cx.add(cx.add(self.shared, cx.mul(index, cx.uint(bytes))), cx.uint(offset))
    }

    /// A word of the last parameter.
    fn word(&self, word: Word) -> Int<'c> {
        let index = self.plan.abi.word(word).expect("the parameter list is made from the Program");
        self.cx.word(self.words, index)
    }

    fn sym(&self, sym: Sym) -> Int<'c> {
        match sym {
            Sym::Epoch => self.epoch,
            Sym::Cta if self.program.split_k == 1 => special::ctaid(&self.cx),
            Sym::Cta => self.cx.udiv(special::ctaid(&self.cx), self.cx.uint(self.program.split_k)),
            Sym::M | Sym::N | Sym::K | Sym::Shard | Sym::World | Sym::Rank | Sym::Ctas => {
                self.cx.truncate(self.word(Word::Sym(sym)))
            }
        }
    }

    fn unsupported(&self, message: impl Into<String>, help: impl Into<String>) -> Error {
        Error::unsupported(self.span.get(), message, help)
    }
}

/// Every thread of the CTA, once mbarriers are ready.
const START_BARRIER: u32 = 0;
/// Every consumer warpgroup, when they are through.
const END_BARRIER: u32 = 1;
/// Ping-pong order: consumer 0 waits here, consumer 1 on the next.
const ORDER_BARRIER: u32 = 2;
/// The copy warps, ahead of a signal over the network.
const SEND_BARRIER: u32 = 4;
