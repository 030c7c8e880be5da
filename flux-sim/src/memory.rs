//! Everything one rank can reach during a launch: its tensors, its workspace and its peers'.

use crate::epilogue::cast;
use crate::error::{Error, Fault};
use crate::given::Words;
use crate::sheet::{Held, Sheet};
use crate::tensor::{Input, Output, Values};
use crate::workspace::{Place, Workspace, band};
use flux_ir::Element;
use flux_ir::arena::Handle;
use flux_ir::eval::Region;
use flux_ir::program::{BufferId, BufferKind, Program};
use std::ops::Range;

/// The tensors and numbers of one rank's launch.
#[derive(Debug, Default)]
pub struct RankArgs<'a> {
    /// Every input of the Program, in any order: this rank's part, row-major.
    pub inputs: Vec<(BufferId, Input<'a>)>,
    /// Every output of the Program, in any order: this rank's part, row-major.
    pub outputs: Vec<(BufferId, Output<'a>)>,
    /// The scalars, in the order of [`Program::scalars`].
    pub scalars: Vec<f32>,
}

/// One rank's view of all memory.
#[derive(Debug)]
pub(crate) struct Memory<'a> {
    pub(crate) rank: u32,
    workspace: &'a Workspace,
    inputs: Vec<Option<Input<'a>>>,
    outputs: Vec<Option<Sheet<Output<'a>>>>,
    scalars: Vec<f32>,
}

/// Where the elements of a buffer are.
#[derive(Debug, Clone, Copy)]
enum Store<'m, 'a> {
    Input(Input<'a>),
    Output(&'m Sheet<Output<'a>>),
    Symmetric(&'m Sheet<Values>),
    Given(Words<'m>),
}

/// A region that was found to lie inside its buffer.
#[derive(Debug, Clone)]
pub(crate) struct Located<'m, 'a> {
    store: Store<'m, 'a>,
    buffer: BufferId,
    on: u32,
    element: Element,
    /// Columns of the buffer.
    pitch: usize,
    /// Rows in memory, planes one behind the other.
    rows: Range<usize>,
    cols: Range<usize>,
}

impl<'a> Memory<'a> {
    /// Binds the tensors of `rank`, checked against what the Program expects.
    pub(crate) fn bind(
        workspace: &'a Workspace,
        rank: u32,
        args: RankArgs<'a>,
    ) -> Result<Self, Error> {
        let program = workspace.program();
        let RankArgs { inputs, outputs, scalars } = args;
        let (expected, found) = (program.scalars.len(), scalars.len());
        if expected != found {
            return Err(Error::Scalars { rank, expected, found });
        }
        let mut memory = Memory {
            rank,
            workspace,
            inputs: vec![None; program.buffers.len()],
            outputs: (0..program.buffers.len()).map(|_| None).collect(),
            scalars,
        };
        for (id, input) in inputs {
            let taken = memory.inputs.get(id.index()).is_some_and(Option::is_some);
            memory.check(id, BufferKind::Input, taken, input.element(), input.len())?;
            memory.inputs[id.index()] = Some(input);
        }
        for (id, output) in outputs {
            let taken = memory.outputs.get(id.index()).is_some_and(Option::is_some);
            let extent =
                memory.check(id, BufferKind::Output, taken, output.element(), output.len())?;
            let sheet = Sheet::over(output, extent, band(program, workspace.launch(), id));
            memory.outputs[id.index()] = Some(sheet);
        }
        for (id, buffer) in program.buffers.iter() {
            let (bound, what) = match buffer.kind {
                BufferKind::Input | BufferKind::Exposed => {
                    (memory.inputs[id.index()].is_some(), "input")
                }
                BufferKind::Output => (memory.outputs[id.index()].is_some(), "output"),
                BufferKind::Symmetric => (true, "buffer"),
            };
            if !bound {
                return Err(Error::Missing { rank, what, buffer: buffer.name.clone() });
            }
        }
        Ok(memory)
    }

    /// Checks a tensor of the caller; gives its columns.
    fn check(
        &self,
        id: BufferId,
        kind: BufferKind,
        taken: bool,
        element: Element,
        found: usize,
    ) -> Result<usize, Error> {
        let rank = self.rank;
        let what = match kind {
            BufferKind::Input | BufferKind::Exposed => "input",
            BufferKind::Output => "output",
            BufferKind::Symmetric => "buffer",
        };
        let program = self.workspace.program();
        let extent = self.workspace.extent(rank, id);
        let (Some(buffer), Some(extent)) = (program.buffers.get(id), extent) else {
            return Err(Error::Unexpected { rank, what, buffer: format!("#{}", id.index()) });
        };
        let name = || buffer.name.clone();
        if buffer.kind != kind || taken {
            return Err(Error::Unexpected { rank, what, buffer: name() });
        }
        if buffer.element != element {
            let expected = buffer.element;
            return Err(Error::Element { rank, buffer: name(), expected, found: element });
        }
        let rows = extent.planes as u64 * extent.rows as u64;
        let (cols, found) = (extent.cols as u64, found as u64);
        let expected = rows.saturating_mul(cols);
        if expected != found {
            return Err(Error::Length { rank, buffer: name(), rows, cols, expected, found });
        }
        Ok(extent.cols)
    }

    pub(crate) fn program(&self) -> &'a Program {
        self.workspace.program()
    }

    /// The row of the whole tensor that this rank's part of `buffer` begins with.
    pub(crate) fn first_row(&self, buffer: BufferId) -> u32 {
        self.workspace.extent(self.rank, buffer).map_or(0, |extent| extent.first_row)
    }

    /// Rows and columns of the buffer that a region lies in.
    pub(crate) fn extent_of(&self, region: &Region) -> [usize; 2] {
        let extent = self.workspace.extent(region.rank, region.buffer);
        extent.map_or([0; 2], |extent| [extent.rows, extent.cols])
    }

    pub(crate) fn scalar(&self, index: u32) -> Option<f32> {
        self.scalars.get(index as usize).copied()
    }

    /// Finds a region, and that it lies inside its buffer.
    pub(crate) fn locate(&self, region: &Region) -> Result<Located<'_, 'a>, Fault> {
        let Region { rank: on, buffer, plane, rows, cols } = region;
        let extent = self.workspace.extent(*on, *buffer);
        let (Some(extent), Some(declared)) = (extent, self.program().buffers.get(*buffer)) else {
            return Err(Fault::Malformed(format!(
                "expected a buffer of a rank below {}, found buffer {} of rank {on}",
                self.workspace.launch().world,
                buffer.index(),
            )));
        };
        let index = buffer.index();
        let store = match declared.kind {
            BufferKind::Symmetric => {
                self.workspace.symmetric(*on, *buffer).map(|place| match place {
                    Place::Sheet(sheet) => Store::Symmetric(sheet),
                    Place::Words(words) => Store::Given(words),
                })
            }
            BufferKind::Input | BufferKind::Exposed | BufferKind::Output if *on != self.rank => {
                None
            }
            BufferKind::Input | BufferKind::Exposed => self.inputs[index].map(Store::Input),
            BufferKind::Output => self.outputs[index].as_ref().map(Store::Output),
        };
        let Some(store) = store else {
            return Err(Fault::Malformed(format!(
                "expected a symmetric buffer on rank {on}, found `{}`, a tensor of its own",
                declared.name
            )));
        };
        let empty = region.is_empty();
        let first = extent.first_row;
        let end = first as usize + extent.rows;
        let left = extent.first_col;
        let right = left as usize + extent.cols;
        let inside = rows.start >= first
            && rows.end as usize <= end
            && cols.start >= left
            && cols.end as usize <= right
            && (*plane as usize) < extent.planes;
        if !empty && !inside {
            return Err(Fault::Malformed(format!(
                "expected rows within {first}..{end}, columns within {left}..{right}, a plane below \
                 {} of `{}`, found rows {rows:?}, columns {cols:?}, plane {plane}",
                extent.planes, declared.name
            )));
        }
        let base = *plane as usize * extent.rows;
        let row = |row: u32| base + (row - first) as usize;
        Ok(Located {
            store,
            buffer: *buffer,
            on: *on,
            element: declared.element,
            pitch: extent.cols,
            rows: if empty { 0..0 } else { row(rows.start)..row(rows.end) },
            cols: if empty {
                0..0
            } else {
                (cols.start - left) as usize..(cols.end - left) as usize
            },
        })
    }

    /// A buffer of one dimension, whole: its elements one behind the other, as a single row.
    pub(crate) fn vector(&self, buffer: BufferId) -> Result<Located<'_, 'a>, Fault> {
        let id = buffer;
        match self.inputs.get(id.index()).copied().flatten() {
            Some(input) => Ok(Located {
                store: Store::Input(input),
                buffer,
                on: self.rank,
                element: input.element(),
                pitch: input.len(),
                rows: 0..1,
                cols: 0..input.len(),
            }),
            None => Err(Fault::Malformed(format!(
                "expected a vector among the inputs, found `{}`",
                self.program().buffers.get(id).map_or("nothing", |buffer| &buffer.name)
            ))),
        }
    }

    fn held(&self, place: &Located<'_, '_>, Held(row): Held) -> Fault {
        let buffer = self.program().buffers[place.buffer].name.clone();
        Fault::Race { buffer, on: place.on, row }
    }

    /// Reads columns `cols` (counted from the region's first) of the region's row `row`.
    pub(crate) fn load(
        &self,
        place: &Located<'_, '_>,
        row: usize,
        cols: Range<usize>,
        into: &mut [f32],
    ) -> Result<(), Fault> {
        let cols = place.cols.start + cols.start..place.cols.start + cols.end;
        let row = place.rows.start + row;
        let mut rest = into;
        let mut each = |part: Input<'_>| {
            let (here, behind) = std::mem::take(&mut rest).split_at_mut(part.len());
            part.load(here);
            rest = behind;
            Ok(())
        };
        let read = match place.store {
            Store::Input(input) => each(input.slice(place.at(row, &cols))),
            Store::Output(sheet) => sheet.read(row, cols, each),
            Store::Symmetric(sheet) => sheet.read(row, cols, each),
            Store::Given(words) => {
                words.load(row, cols, rest);
                Ok(())
            }
        };
        read.map_err(|held| self.held(place, held))
    }

    /// Writes the region's row `row`, whole.
    pub(crate) fn store(
        &self,
        place: &Located<'_, '_>,
        row: usize,
        from: &[f32],
    ) -> Result<(), Fault> {
        let row = place.rows.start + row;
        if let Store::Given(words) = place.store {
            words.store(row, place.cols.clone(), from);
            return Ok(());
        }
        let mut rest = from;
        self.write(place, row, place.cols.clone(), |part| {
            let (here, behind) = rest.split_at(part.len());
            part.store(here);
            rest = behind;
        })
    }

    /// Adds to the region's row `row`, whole. Others add to it before or behind, as signals say.
    pub(crate) fn add(
        &self,
        place: &Located<'_, '_>,
        row: usize,
        values: &[f32],
    ) -> Result<(), Fault> {
        let (mut sum, mut addend) = (vec![0.0; values.len()], vec![0.0; values.len()]);
        self.load(place, row, 0..values.len(), &mut sum)?;
        cast(place.element, values, &mut addend);
        sum.iter_mut().zip(addend).for_each(|(sum, addend)| *sum += addend);
        self.store(place, row, &sum)
    }

    fn write(
        &self,
        place: &Located<'_, '_>,
        row: usize,
        cols: Range<usize>,
        each: impl FnMut(Output<'_>),
    ) -> Result<(), Fault> {
        let written = match place.store {
            Store::Input(_) => {
                let name = &self.program().buffers[place.buffer].name;
                let reason = format!("expected an output or a workspace buffer, found `{name}`");
                return Err(Fault::Malformed(reason));
            }
            Store::Output(sheet) => sheet.write(row, cols, each),
            Store::Symmetric(sheet) => sheet.write(row, cols, each),
            // Written as numbers, one by one: `store`.
            Store::Given(_) => Ok(()),
        };
        written.map_err(|held| self.held(place, held))
    }

    /// Copies a region to another one of the same extents and element type, or adds it to that.
    pub(crate) fn copy(&self, from: &Region, to: &Region, adds: bool) -> Result<(), Fault> {
        let (from, to) = (self.locate(from)?, self.locate(to)?);
        if from.extent() != to.extent() || from.element != to.element {
            let ((rows, cols), (to_rows, to_cols)) = (from.extent(), to.extent());
            return Err(Fault::Malformed(format!(
                "expected a copy between equals, found {rows} x {cols} of {} to {to_rows} x \
                 {to_cols} of {}",
                from.element, to.element
            )));
        }
        if adds {
            let mut values = vec![0.0; from.cols.len()];
            return (0..from.rows.len()).try_for_each(|row| {
                self.load(&from, row, 0..values.len(), &mut values)?;
                self.add(&to, row, &values)
            });
        }
        if from.is_given() || to.is_given() {
            return self.copy_numbers(&from, &to);
        }
        for row in 0..from.rows.len() {
            let (source, target) = (from.rows.start + row, to.rows.start + row);
            let mut done = to.cols.start;
            let mut inner = Ok(());
            let mut each = |part: Input<'_>| {
                let cols = done..done + part.len();
                done = cols.end;
                let mut taken = 0;
                inner = self.write(&to, target, cols, |out| {
                    let range = taken..taken + out.len();
                    taken = range.end;
                    // The types were compared above, so nothing is skipped.
                    let same = out.copy_from(part.slice(range));
                    debug_assert!(same, "element types were compared");
                });
                if inner.is_ok() { Ok(()) } else { Err(Held(target)) }
            };
            let read = match from.store {
                Store::Input(input) => each(input.slice(from.at(source, &from.cols))),
                Store::Output(sheet) => sheet.read(source, from.cols.clone(), each),
                Store::Symmetric(sheet) => sheet.read(source, from.cols.clone(), each),
                Store::Given(_) => Ok(()),
            };
            inner?;
            read.map_err(|held| self.held(&from, held))?;
        }
        Ok(())
    }

    /// Copies as f32, which all element types are exactly.
    fn copy_numbers(&self, from: &Located<'_, '_>, to: &Located<'_, '_>) -> Result<(), Fault> {
        let (rows, cols) = from.extent();
        let mut values = vec![0.0; cols];
        for row in 0..rows {
            self.load(from, row, 0..cols, &mut values)?;
            self.store(to, row, &values)?;
        }
        Ok(())
    }
}

impl<'a> Located<'_, 'a> {
    /// Rows and columns.
    pub(crate) fn extent(&self) -> (usize, usize) {
        (self.rows.len(), self.cols.len())
    }

    /// Whether its elements cannot change during a launch.
    pub(crate) fn is_input(&self) -> bool {
        matches!(self.store, Store::Input(_))
    }

    /// Whether it lies in memory that the workspace was given.
    fn is_given(&self) -> bool {
        matches!(self.store, Store::Given(_))
    }

    /// The elements in place, from the region's first on, where they are f32 that nobody writes,
    /// and the elements from one row to the next.
    pub(crate) fn in_place(&self) -> Option<(&'a [f32], usize)> {
        match self.store {
            Store::Input(Input::F32(all)) => {
                let start = self.rows.start * self.pitch + self.cols.start;
                Some((all.get(start..)?, self.pitch))
            }
            Store::Input(_) | Store::Output(_) | Store::Symmetric(_) | Store::Given(_) => None,
        }
    }

    /// Where `cols` of a row lie in a tensor of the caller.
    fn at(&self, row: usize, cols: &Range<usize>) -> Range<usize> {
        row * self.pitch + cols.start..row * self.pitch + cols.end
    }
}
