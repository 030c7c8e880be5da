//! Kernels whose parameters are known when the program runs.

use crate::definition::Definition;
use crate::error::Error;
use crate::kernel::Loaded;
use crate::tensor::{Arg, Data, TensorArg};
use crate::world::Rank;
use flux_ir::Schedule;
use flux_ir::kernel::{Param, ParamType};

/// A kernel loaded on one rank from its [`Definition`], that of a [`Bundle`](crate::Bundle) say. The
/// struct that the macro makes has the user's parameters; here they are checked as a kernel is
/// launched.
///
/// ```
/// use flux::prelude::*;
/// use flux::{AnyKernel, Arg};
///
/// World::host(1)?.run(|rank| {
///     let kernel = AnyKernel::load(flux::kernels::gemm_bf16::definition(), rank, None)?;
///     let names: Vec<_> = kernel.parameters().map(|param| param.name.as_str()).collect();
///     assert_eq!(names, ["a", "b", "c"]);
///     let a = rank.zeros::<f32>(4, 8)?;
///     let error = kernel.launch(&mut [Arg::input(&a)]).expect_err("one of three");
///     assert_eq!(error.to_string(), "`gemm_bf16` has 3 parameters, found 1 arguments");
///     Ok(())
/// })?;
/// # Ok::<(), flux::Error>(())
/// ```
#[derive(Debug)]
pub struct AnyKernel {
    kernel: Loaded,
}

impl AnyKernel {
    /// Loads a kernel on `rank`, under the schedules it was compiled with or under another one. Every
    /// rank of the world loads the same kernels in the same order.
    ///
    /// # Errors
    /// Where the rank's device cannot run it, or the schedule does not fit the kernel.
    pub fn load(
        definition: &'static Definition,
        rank: &Rank,
        schedule: Option<&Schedule>,
    ) -> Result<AnyKernel, Error> {
        Ok(AnyKernel { kernel: Loaded::new(definition, rank, schedule)? })
    }

    /// Its parameters, in the order of arguments.
    pub fn parameters(&self) -> impl Iterator<Item = &Param> {
        self.kernel.kernel().params.values()
    }

    /// Runs the kernel once. Every rank of the world launches it with the same shape.
    ///
    /// # Errors
    /// [`Error::ArgumentCount`], [`Error::ArgumentType`]; shapes that do not fit, ranks that disagree,
    /// and what goes wrong on the way: an output is then not to be used.
    pub fn launch(&self, args: &mut [Arg<'_>]) -> Result<(), Error> {
        self.accepts(args)?;
        self.kernel.launch(args)
    }

    /// As [`AnyKernel::launch`], over ranks that own so many rows each, in the order of ranks.
    ///
    /// # Errors
    /// As [`AnyKernel::launch`]; rows that are not those of the tensors; a kernel whose tiles are of
    /// all rows.
    pub fn launch_with_rows(&self, rows: &[usize], args: &mut [Arg<'_>]) -> Result<(), Error> {
        self.accepts(args)?;
        self.kernel.launch_with_rows(rows, args)
    }

    /// Whether the arguments of all ranks, in their order, make one launch, over ranks that own so many
    /// `rows` each where it says so: for whoever launches all of them. One that has other extents than its peers would be waited for until the limit, where these
    /// know their shape already.
    ///
    /// # Errors
    /// As of [`AnyKernel::accepts`]; shapes that do not fit together.
    pub fn accepts_all(&self, rows: Option<&[usize]>, ranks: &[Vec<Arg<'_>>]) -> Result<(), Error> {
        ranks.iter().try_for_each(|args| self.accepts(args))?;
        self.kernel.fit(rows, ranks)
    }

    /// Whether arguments are as many as the parameters, and of their types: what rustc checks of a launch
    /// whose parameters it knows.
    ///
    /// # Errors
    /// [`Error::ArgumentCount`], [`Error::ArgumentType`].
    pub fn accepts(&self, args: &[Arg<'_>]) -> Result<(), Error> {
        let kernel = self.kernel.kernel();
        let (expected, found) = (kernel.params.len(), args.len());
        if expected != found {
            return Err(Error::ArgumentCount { kernel: kernel.name.clone(), expected, found });
        }
        for (param, arg) in kernel.params.values().zip(args) {
            if !fits(param.ty, arg) {
                return Err(Error::ArgumentType {
                    kernel: kernel.name.clone(),
                    param: param.name.clone(),
                    expected: described(param.ty),
                    found: given(arg),
                });
            }
        }
        Ok(())
    }
}

fn fits(ty: ParamType, arg: &Arg<'_>) -> bool {
    match (ty, arg) {
        (ParamType::Scalar, Arg::Scalar(_)) => true,
        (ParamType::Tensor { element, written, .. }, Arg::Tensor(tensor)) => {
            element == tensor.element && written == is_output(tensor)
        }
        (ParamType::Scalar, Arg::Tensor(_)) | (ParamType::Tensor { .. }, Arg::Scalar(_)) => false,
    }
}

fn is_output(tensor: &TensorArg<'_>) -> bool {
    match tensor.data {
        Data::Write(_) | Data::Target(_) => true,
        Data::Read(_) | Data::Device(_) => false,
    }
}

fn described(ty: ParamType) -> String {
    match ty {
        ParamType::Scalar => "a number".into(),
        ParamType::Tensor { element, written: true, .. } => format!("an output of {element}"),
        ParamType::Tensor { element, written: false, .. } => format!("a tensor of {element}"),
    }
}

fn given(arg: &Arg<'_>) -> String {
    match arg {
        Arg::Scalar(_) => "a number".into(),
        Arg::Tensor(tensor) if is_output(tensor) => format!("an output of {}", tensor.element),
        Arg::Tensor(tensor) => format!("a tensor of {}", tensor.element),
    }
}
