//! The library's kernels by the format of their operands.

pub mod epilogues;

pub use flux_runtime::blas::Layout;

use flux::__private::{Arg, Loaded};
use flux::{Definition, Departure, Error, Head, Order, Rank, Schedule, Tail, Tensor};
use half::{bf16, f16};
use std::fmt;
use std::str::FromStr;

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

fn load(rank: &Rank, definition: &'static Definition, choice: &Choice) -> Result<Loaded, Error> {
    Loaded::new(definition, rank, choice.of(definition)?.as_ref())
}

impl<T: flux::Element> PlainKernel<T> {
    /// Loads a kernel a → c of any definition; what is passed as b is not looked at.
    ///
    /// # Errors
    /// Those of a kernel's own `load`; a schedule that it has not.
    pub(crate) fn of_collective(
        rank: &Rank,
        definition: &'static Definition,
        choice: &Choice,
    ) -> Result<PlainKernel<T>, Error> {
        let kernel = load(rank, definition, choice)?;
        Ok(PlainKernel(Box::new(move |a, _, c| {
            kernel.launch(&mut [Arg::input(a), Arg::output(c)])
        })))
    }

    /// Loads a kernel (a, b) → c of any definition.
    ///
    /// # Errors
    /// Those of a kernel's own `load`; a schedule that it has not.
    pub(crate) fn of_definition(
        rank: &Rank,
        definition: &'static Definition,
        choice: &Choice,
    ) -> Result<PlainKernel<T>, Error> {
        let kernel = load(rank, definition, choice)?;
        Ok(PlainKernel(Box::new(move |a, b, c| {
            kernel.launch(&mut [Arg::input(a), Arg::input(b), Arg::output(c)])
        })))
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
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Choice {
    /// Which of the kernel's schedules, from 0.
    pub schedule: Option<usize>,
    /// Rows of a communication chunk.
    pub chunk_rows: Option<u32>,
    /// How the first rows of a scattered output travel.
    pub head: Option<Head>,
    /// What the last rows are sliced into, where the schedule has a tail.
    pub tail: Option<Tail>,
    /// The order of tiles.
    pub order: Option<Order>,
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Choice::default() {
            return f.write_str("as the library chooses");
        }
        write!(f, "{}", self.schedule.unwrap_or(0))?;
        if let Some(rows) = self.chunk_rows {
            write!(f, ",chunk={rows}")?;
        }
        if let Some(Head { rows, copies }) = self.head {
            write!(f, ",head={rows}/{copies}")?;
        }
        if let Some(Tail { rows, slices }) = self.tail {
            write!(f, ",tail={rows}/{slices}")?;
        }
        match &self.order {
            Some(Order::Departure(Departure { rows, shards })) => {
                write!(f, ",departure={rows}/{shards}")
            }
            Some(order) => write!(f, ",order={}", order.name()),
            None => Ok(()),
        }
    }
}

impl FromStr for Choice {
    type Err = String;

    /// `SCHEDULE[,chunk=ROWS][,head=ROWS/COPIES][,tail=ROWS/SLICES]`, and `,order=NAME` or `,departure=ROWS/SHARDS`.
    fn from_str(text: &str) -> Result<Choice, String> {
        let mut parts = text.split(',');
        let number = |text: &str| match text.parse::<u32>() {
            Ok(number) if number > 0 => Ok(number),
            _ => Err(format!("expected a whole number above 0, found `{text}`")),
        };
        let pair = |text: &str, form: &str| {
            let (a, b) = text.split_once('/').ok_or_else(|| format!("expected {form}"))?;
            Ok::<_, String>([number(a)?, number(b)?])
        };
        let first = parts.next().unwrap_or_default();
        let schedule =
            first.parse().map_err(|_| format!("expected a schedule's number, found `{first}`"))?;
        let mut choice = Choice { schedule: Some(schedule), ..Choice::default() };
        for part in parts {
            match part.split_once('=') {
                Some(("chunk", rows)) => choice.chunk_rows = Some(number(rows)?),
                Some(("head", of)) => {
                    let [rows, copies] = pair(of, "head=ROWS/COPIES")?;
                    choice.head = Some(Head { rows, copies });
                }
                Some(("tail", of)) => {
                    let [rows, slices] = pair(of, "tail=ROWS/SLICES")?;
                    choice.tail = Some(Tail { rows, slices });
                }
                Some(("departure", of)) => {
                    let [rows, shards] = pair(of, "departure=ROWS/SHARDS")?;
                    choice.order = Some(Order::Departure(Departure { rows, shards }));
                }
                Some(("order", name)) => {
                    let order = Order::built_in(name);
                    choice.order = Some(order.ok_or_else(|| format!("no order `{name}`"))?);
                }
                _ => {
                    return Err(format!(
                        "expected chunk=, head=, tail=, departure= or order=, found `{part}`"
                    ));
                }
            }
        }
        Ok(choice)
    }
}

impl Choice {
    /// The schedule of a kernel; `None` where the library chooses.
    ///
    /// # Errors
    /// A number that no schedule of the kernel has.
    fn of(&self, definition: &Definition) -> Result<Option<Schedule>, Error> {
        if *self == Choice::default() {
            return Ok(None);
        }
        let known = (definition.schedules)();
        let (index, count) = (self.schedule.unwrap_or(0), known.len());
        let Some(mut schedule) = known.into_iter().nth(index) else {
            let problem = format!("it has schedules 0 to {}, found {index}", count - 1);
            return Err(Error::Unsupported { kernel: definition.name.into(), problem });
        };
        schedule.chunk_rows = self.chunk_rows.or(schedule.chunk_rows);
        schedule.head = self.head.or(schedule.head);
        schedule.tail = self.tail.or(schedule.tail);
        schedule.order = self.order.clone().or(schedule.order);
        Ok(Some(schedule))
    }
}

/// A format with operators over ranks.
pub trait Fused: Sized {
    /// Loads `C[m, n] = all_gather(A)[m, k] · B[n, k]ᵀ`, A a row shard.
    ///
    /// # Errors
    /// Those of the kernel's own `load`; a schedule that it has not.
    fn gather(rank: &Rank, choice: &Choice) -> Result<PlainKernel<Self>, Error>;

    /// Loads `C = reduce_scatter(A[m, k] · B[n, k]ᵀ)`, C a row shard.
    ///
    /// # Errors
    /// Those of the kernel's own `load`; a schedule that it has not.
    fn scatter(rank: &Rank, choice: &Choice) -> Result<PlainKernel<Self>, Error>;
}

impl Fused for bf16 {
    fn gather(rank: &Rank, choice: &Choice) -> Result<PlainKernel<Self>, Error> {
        use flux::kernels::ag_gemm;
        let kernel = match choice.of(ag_gemm::definition())? {
            Some(schedule) => ag_gemm::load_with(rank, &schedule)?,
            None => ag_gemm::load(rank)?,
        };
        Ok(PlainKernel(Box::new(move |a, b, c| kernel.launch(a, b, c))))
    }

    fn scatter(rank: &Rank, choice: &Choice) -> Result<PlainKernel<Self>, Error> {
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
        let choice = |schedule, chunk_rows| {
            Choice { schedule, chunk_rows, ..Choice::default() }.of(definition)
        };
        let known = (definition.schedules)();
        assert_eq!(choice(Some(1), None).unwrap(), Some(known[1].clone()));
        let chunked = choice(None, Some(512)).unwrap().unwrap();
        assert_eq!(chunked, known[0].clone().chunk_rows(512));
        let error = choice(Some(99), None).unwrap_err().to_string();
        assert!(error.contains("found 99"), "{error}");
    }

    #[test]
    fn a_choice_is_read_as_it_is_printed() {
        for text in [
            "3",
            "0,chunk=512",
            "4,chunk=640,tail=384/4",
            "4,tail=1/1,order=arrival",
            "3,head=512/2,departure=256/1",
        ] {
            assert_eq!(text.parse::<Choice>().unwrap().to_string(), text);
        }
        for wrong in ["", "x", "1,chunk=0", "1,tail=4", "1,order=none", "1,rows=4"] {
            assert!(wrong.parse::<Choice>().is_err(), "{wrong}");
        }
    }
}
