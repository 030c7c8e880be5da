//! NCCL's device API, linked into the modules of kernels that reach other nodes.
//!
//! It comes as LLVM bitcode, `libnccl_device.bc` of the package `nvidia-nccl-cu13` (2.32 or later, Apache-2.0).
//! What a kernel calls of it stands in `network/calls.ll`; both are optimized together before they are linked, which leaves
//! four functions of what were some three hundred.

use crate::error::Error;
use inkwell::attributes::{Attribute, AttributeLoc};
use inkwell::context::Context;
use inkwell::memory_buffer::MemoryBuffer;
use inkwell::module::{Linkage, Module};
use inkwell::passes::PassBuilderOptions;
use inkwell::targets::TargetMachine;
use inkwell::values::{BasicValueEnum, CallSiteValue, InstructionOpcode, InstructionValue};
use std::path::{Path, PathBuf};

/// Puts a region; its arguments stand in `network/calls.ll`, as those of the others do.
pub const PUT: &str = "flux_network_put";
/// Raises a signal behind what was put.
pub const SIGNAL: &str = "flux_network_signal";
/// Reads a signal.
pub const SEEN: &str = "flux_network_seen";
/// Waits until sources have been read.
pub const FLUSH: &str = "flux_network_flush";

/// The variable that names the file.
pub const VARIABLE: &str = "FLUX_NCCL_DEVICE";

/// Passes over the calls and what they need.
const PASSES: &str = "default<O2>";

const CALLS: &str = include_str!("network/calls.ll");

/// The bitcode: the file that [`VARIABLE`] names, or the one that `scripts/setup --network` puts in place.
pub fn library() -> Option<PathBuf> {
    let named = std::env::var_os(VARIABLE).map(PathBuf::from);
    let fetched =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/tools/nccl/libnccl_device.bc");
    named.or(Some(fetched)).filter(|file| file.is_file())
}

/// Where the bitcode is.
///
/// # Errors
/// [`Error::NoNetwork`] where there is none.
pub(crate) fn found(kernel: &str) -> Result<PathBuf, Error> {
    library().ok_or_else(|| Error::NoNetwork { kernel: kernel.to_owned() })
}

/// Links the calls, and what they need of the bitcode in `file`, into `module`.
pub(crate) fn link<'c>(
    context: &'c Context,
    module: &Module<'c>,
    machine: &TargetMachine,
    file: &Path,
) -> Result<(), String> {
    // Assembly text is read up to a terminating zero.
    let text = CALLS.to_owned() + "\0";
    let text =
        MemoryBuffer::create_from_memory_range_copy(&text.as_bytes()[..CALLS.len()], "calls");
    let calls = context.create_module_from_ir(text).map_err(|error| error.to_string())?;
    let device = Module::parse_bitcode_from_path(file, context)
        .map_err(|error| format!("{}: {error}", file.display()))?;
    for part in [&calls, &device] {
        part.set_triple(&module.get_triple());
        part.set_data_layout(&module.get_data_layout());
    }
    let missing = calls.get_functions().find(|function| {
        let name = function.get_name().to_string_lossy();
        let defined = |module: &Module<'c>| {
            module.get_function(&name).is_some_and(|f| f.count_basic_blocks() > 0)
        };
        !name.starts_with("llvm.") && !defined(&calls) && !defined(&device)
    });
    if let Some(missing) = missing {
        let name = missing.get_name().to_string_lossy();
        return Err(format!("{} has no `{name}`: expected NCCL 2.32 or later", file.display()));
    }
    calls.link_in_module(device).map_err(|error| error.to_string())?;
    for function in calls.get_functions().filter(|function| function.count_basic_blocks() > 0) {
        let name = function.get_name().to_string_lossy();
        if ![PUT, SIGNAL, SEEN, FLUSH].contains(&&*name) {
            function.set_linkage(Linkage::Internal);
        }
    }
    let run = |module: &Module<'c>, passes: &str| {
        let options = PassBuilderOptions::create();
        module.run_passes(passes, machine, options).map_err(|error| error.to_string())
    };
    run(&calls, "globaldce")?;
    of_one_thread(context, &calls);
    run(&calls, PASSES)?;
    module.link_in_module(calls).map_err(|error| error.to_string())?;
    for name in [PUT, SIGNAL, SEEN, FLUSH] {
        if let Some(function) = module.get_function(name) {
            function.set_linkage(Linkage::Internal);
            let inline = Attribute::get_named_enum_kind_id("alwaysinline");
            function
                .add_attribute(AttributeLoc::Function, context.create_enum_attribute(inline, 0));
        }
    }
    run(module, "always-inline,globaldce")
}

/// Says of every call through a table of functions what holds of it here. The library's functions are for any
/// group of threads, and ask a table what to do (`ncclCoopAny`); the group here is one thread, which knows its number
/// and its size, and waits for nobody. Left alone, such calls would keep the assembler from giving registers to warps by role.
fn of_one_thread<'c>(context: &'c Context, module: &Module<'c>) {
    let kind = Attribute::get_named_enum_kind_id;
    // `captures(none)` and `memory(none)` are encoded as 0.
    let attribute = |name| context.create_enum_attribute(kind(name), 0);
    for block in module.get_functions().flat_map(|function| function.get_basic_block_iter()) {
        for instruction in block.get_instructions().filter(is_indirect_call) {
            let Ok(call) = CallSiteValue::try_from(instruction) else { continue };
            for name in ["nounwind", "willreturn", "memory"] {
                call.add_attribute(AttributeLoc::Function, attribute(name));
            }
            call.add_attribute(AttributeLoc::Param(0), attribute("captures"));
        }
    }
}

/// Whether a call asks memory whom to call.
fn is_indirect_call(instruction: &InstructionValue<'_>) -> bool {
    if instruction.get_opcode() != InstructionOpcode::Call {
        return false;
    }
    let callee = instruction.get_num_operands().checked_sub(1);
    let callee = callee.and_then(|last| instruction.get_operand(last)?.value());
    let Some(BasicValueEnum::PointerValue(callee)) = callee else { return false };
    callee.as_instruction().is_some_and(|of| of.get_opcode() == InstructionOpcode::Load)
}
