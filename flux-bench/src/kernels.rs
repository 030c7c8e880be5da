//! The library's kernels by the format of their operands.

pub mod epilogues;

pub use flux_runtime::blas::Layout;

use flux::{Definition, Error, Rank, Schedule, Tensor};
use half::{bf16, f16};

/// The launch of a kernel (a, b) → c.
type Launch<T> = dyn Fn(&Tensor<T>, &Tensor<T>, &mut Tensor<T>) -> Result<(), Error>;

/// A kernel of two operands and a result, loaded on a rank.
pub struct PlainKernel<T>(Box<Launch<T>>);

impl<T> PlainKernel<T> {
    /// Launches it.
    ///
    /// # Errors
    /// Those of the kernel's own launch.
    pub fn launch(&self, a: &Tensor<T>, b: &Tensor<T>, c: &mut Tensor<T>) -> Result<(), Error> {
        (self.0)(a, b, c)
    }
}

impl<T> std::fmt::Debug for PlainKernel<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PlainKernel").finish_non_exhaustive()
    }
}

/// A format with products of its own.
pub trait Plain: Sized {
    /// Loads `C[m, n] = A[m, k] · B[n, k]ᵀ`.
    ///
    /// # Errors
    /// Those of the kernel's own `load`.
    fn load(rank: &Rank) -> Result<PlainKernel<Self>, Error> {
        Self::load_as(rank, Layout::Nt, None)
    }

    /// Loads the product of operands that lie as `layout` says, with one of its schedules; the
    /// library chooses where none is named.
    ///
    /// # Errors
    /// Those of the kernel's own `load`; a layout that the library has not in this format.
    fn load_as(
        rank: &Rank,
        layout: Layout,
        schedule: Option<&Schedule>,
    ) -> Result<PlainKernel<Self>, Error>;

    /// The schedules of that product; none where the library has it not in this format.
    fn schedules(layout: Layout) -> Vec<Schedule>;
}

/// How an operator runs; as the library chooses where nothing is said.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Choice {
    /// Which of the kernel's schedules, from 0.
    pub schedule: Option<usize>,
    /// Rows of a communication chunk.
    pub chunk_rows: Option<u32>,
}

impl Choice {
    /// The schedule of a kernel; `None` where the library chooses.
    ///
    /// # Errors
    /// A number that no schedule of the kernel has.
    fn of(self, definition: &Definition) -> Result<Option<Schedule>, Error> {
        if self == Choice::default() {
            return Ok(None);
        }
        let known = (definition.schedules)();
        let (index, count) = (self.schedule.unwrap_or(0), known.len());
        let Some(mut schedule) = known.into_iter().nth(index) else {
            let problem = format!("it has schedules 0 to {}, found {index}", count - 1);
            return Err(Error::Unsupported { kernel: definition.name.into(), problem });
        };
        schedule.chunk_rows = self.chunk_rows.or(schedule.chunk_rows);
        Ok(Some(schedule))
    }
}

/// A format with operators over ranks.
pub trait Fused: Sized {
    /// Loads `C[m, n] = all_gather(A)[m, k] · B[n, k]ᵀ`, A a row shard.
    ///
    /// # Errors
    /// Those of the kernel's own `load`; a schedule that it has not.
    fn gather(rank: &Rank, choice: Choice) -> Result<PlainKernel<Self>, Error>;

    /// Loads `C = reduce_scatter(A[m, k] · B[n, k]ᵀ)`, C a row shard.
    ///
    /// # Errors
    /// Those of the kernel's own `load`; a schedule that it has not.
    fn scatter(rank: &Rank, choice: Choice) -> Result<PlainKernel<Self>, Error>;
}

impl Fused for bf16 {
    fn gather(rank: &Rank, choice: Choice) -> Result<PlainKernel<Self>, Error> {
        use flux::kernels::ag_gemm;
        let kernel = match choice.of(ag_gemm::definition())? {
            Some(schedule) => ag_gemm::load_with(rank, &schedule)?,
            None => ag_gemm::load(rank)?,
        };
        Ok(PlainKernel(Box::new(move |a, b, c| kernel.launch(a, b, c))))
    }

    fn scatter(rank: &Rank, choice: Choice) -> Result<PlainKernel<Self>, Error> {
        use flux::kernels::gemm_rs;
        let kernel = match choice.of(gemm_rs::definition())? {
            Some(schedule) => gemm_rs::load_with(rank, &schedule)?,
            None => gemm_rs::load(rank)?,
        };
        Ok(PlainKernel(Box::new(move |a, b, c| kernel.launch(a, b, c))))
    }
}

macro_rules! plain {
    ($type:ty, $($layout:ident: $kernel:path),+) => {
        impl Plain for $type {
            fn load_as(
                rank: &Rank,
                layout: Layout,
                schedule: Option<&Schedule>,
            ) -> Result<PlainKernel<Self>, Error> {
                Ok(PlainKernel(match layout {
                    $(Layout::$layout => {
                        use $kernel as product;
                        let kernel = match schedule {
                            Some(schedule) => product::load_with(rank, schedule)?,
                            None => product::load(rank)?,
                        };
                        Box::new(move |a, b, c| kernel.launch(a, b, c))
                    })+
                    #[allow(unreachable_patterns, reason = "of a format with every layout")]
                    _ => {
                        let kernel = format!("gemm of {}", stringify!($type));
                        let problem = format!("the library has no product of layout {layout:?}");
                        return Err(Error::Unsupported { kernel, problem });
                    }
                }))
            }

            fn schedules(layout: Layout) -> Vec<Schedule> {
                match layout {
                    $(Layout::$layout => {
                        use $kernel as product;
                        (product::definition().schedules)()
                    })+
                    #[allow(unreachable_patterns, reason = "of a format with every layout")]
                    _ => Vec::new(),
                }
            }
        }
    };
}

plain!(
    bf16,
    Nt: flux::kernels::gemm_bf16,
    Nn: flux::kernels::gemm_nn_bf16,
    Tn: flux::kernels::gemm_tn_bf16
);
plain!(f16, Nt: flux::kernels::gemm_f16);

#[cfg(test)]
mod tests {
    use super::Choice;

    #[test]
    fn a_choice_names_a_schedule_that_is_there() {
        let definition = flux::kernels::ag_gemm::definition();
        assert_eq!(Choice::default().of(definition).unwrap(), None);
        let choice = |schedule, chunk_rows| Choice { schedule, chunk_rows }.of(definition);
        let known = (definition.schedules)();
        assert_eq!(choice(Some(1), None).unwrap(), Some(known[1].clone()));
        let chunked = choice(None, Some(512)).unwrap().unwrap();
        assert_eq!(chunked, known[0].clone().chunk_rows(512));
        let error = choice(Some(99), None).unwrap_err().to_string();
        assert!(error.contains("found 99"), "{error}");
    }
}
