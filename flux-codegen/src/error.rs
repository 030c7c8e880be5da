//! What compiling a Program can end in.

use crate::lint::LintError;
use flux_ir::Span;

/// Why a Program did not become PTX.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The Program asks for something this target's code generation does not offer.
    #[error("{span}: {message}; {help}")]
    Unsupported {
        /// What was found, and what is offered.
        message: String,
        /// The user's token.
        span: Span,
        /// What to write instead.
        help: String,
    },
    /// A kernel that reaches other nodes, and no device API of NCCL to link.
    #[error(
        "`{kernel}` puts data to ranks of other nodes over the network, and NCCL's device API was not found; fetch it \
         with `scripts/setup --network`, or let `FLUX_NCCL_DEVICE` name `libnccl_device.bc` of the package \
         `nvidia-nccl-cu13` (2.32 or later)"
    )]
    NoNetwork {
        /// The kernel.
        kernel: String,
    },
    /// The device API of NCCL cannot be linked: it is none, or of another version.
    #[error("`{kernel}` cannot be linked with NCCL's device API: {message}")]
    Network {
        /// The kernel.
        kernel: String,
        /// What is wrong with it.
        message: String,
    },
    /// LLVM refused the module: a mistake of this crate.
    #[error("LLVM refused the module of `{kernel}`: {message}")]
    Llvm {
        /// The kernel.
        kernel: String,
        /// What LLVM said.
        message: String,
    },
    /// The PTX breaks a rule of the memory model: a mistake of this crate.
    #[error("the PTX of `{kernel}` breaks {} of the rules it is checked by, first: {first}", count)]
    Lint {
        /// The kernel.
        kernel: String,
        /// The first broken rule.
        first: LintError,
        /// How many were found broken.
        count: usize,
    },
}

impl Error {
    pub(crate) fn unsupported(
        span: Span,
        message: impl Into<String>,
        help: impl Into<String>,
    ) -> Self {
        Error::Unsupported { message: message.into(), span, help: help.into() }
    }
}
