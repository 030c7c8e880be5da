//! The LLVM target: `sm_90a` and the passes a module goes through.

use crate::error::Error;
use inkwell::OptimizationLevel;
use inkwell::module::Module;
use inkwell::passes::PassBuilderOptions;
use inkwell::targets::{
    FileType, InitializationConfig, Target, TargetMachine, TargetMachineOptions, TargetTriple,
};
use std::sync::Once;

const TRIPLE: &str = "nvptx64-nvidia-cuda";

/// PTX ISA 8.3 is the first with every instruction of [`crate::nvvm`].
const FEATURES: &str = "+ptx83";

/// Variables become registers, and repeated index arithmetic is done once. Nothing here moves
/// convergent calls.
const PASSES: &str = "function(mem2reg,early-cse,instcombine<no-verify-fixpoint>,simplifycfg,dce)";

/// PTX ISA 8.6 is the first with every instruction of NCCL's device API (`fence.acquire.sync_restrict`, 128-bit
/// atomics at system scope).
const NETWORK_FEATURES: &str = "+ptx86";

pub(crate) fn target_machine(networked: bool) -> Result<TargetMachine, String> {
    static INITIALIZED: Once = Once::new();
    INITIALIZED.call_once(|| Target::initialize_nvptx(&InitializationConfig::default()));
    let triple = TargetTriple::create(TRIPLE);
    let target = Target::from_triple(&triple).map_err(|error| error.to_string())?;
    let options = TargetMachineOptions::new()
        .set_cpu("sm_90a")
        .set_features(if networked { NETWORK_FEATURES } else { FEATURES })
        .set_level(OptimizationLevel::Default);
    target
        .create_target_machine_from_options(&triple, options)
        .ok_or_else(|| "no target machine for sm_90a".to_owned())
}

/// Verifies `module`, runs the passes and prints PTX.
pub(crate) fn assemble(module: &Module, machine: &TargetMachine) -> Result<String, String> {
    module.verify().map_err(|error| error.to_string())?;
    module
        .run_passes(PASSES, machine, PassBuilderOptions::create())
        .map_err(|error| error.to_string())?;
    print(module, machine)
}

/// The PTX of `module` as it is.
pub(crate) fn print(module: &Module, machine: &TargetMachine) -> Result<String, String> {
    let buffer = machine
        .write_to_memory_buffer(module, FileType::Assembly)
        .map_err(|error| error.to_string())?;
    let text = buffer.as_slice();
    let text = text.strip_suffix(&[0]).unwrap_or(text);
    String::from_utf8(text.to_vec()).map_err(|error| error.to_string())
}

/// The error of a module that LLVM refused.
pub(crate) fn refused(kernel: &str, message: String) -> Error {
    Error::Llvm { kernel: kernel.to_owned(), message }
}
