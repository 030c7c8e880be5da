//! Finds the parts of the CTA agent, and says what they must look like.

use crate::error::Error;
use crate::nvvm::wgmma::Major;
use flux_ir::abi::Abi;
use flux_ir::arena::Handle;
use flux_ir::program::{
    Agent, At, Engine, Expr, Op, Product, Program, Range, Statements, Stmt, Transposed, ValueOp,
    VarId,
};
use flux_ir::{Consumers, Element, Span, Target};

/// Columns of a panel: a swizzled row of 128 bytes of a 16-bit type.
pub(crate) const PANEL: u32 = 64;

/// Depth of one `wgmma`.
pub(crate) const MMA_K: u32 = 16;

/// Rows of one `wgmma`.
pub(crate) const MMA_M: u32 = 64;

/// Accumulator registers a thread can hold beside what the epilogue needs: 208 were seen to fit,
/// 224 not.
const MAX_ACCUMULATORS: u32 = 208;

/// The tile loop.
pub(crate) struct TileLoop<'p> {
    pub(crate) var: VarId,
    pub(crate) from: &'p Expr,
    pub(crate) to: &'p Expr,
    pub(crate) step: &'p Expr,
}

/// The loop over slices of a tile's reduction. Loads follow it; tensor cores take the same steps
/// one behind the other, so consumers see one mainloop.
pub(crate) struct SliceLoop<'p> {
    pub(crate) var: VarId,
    pub(crate) from: &'p Expr,
    pub(crate) to: &'p Expr,
    pub(crate) step: &'p Expr,
    /// What stands in it before the mainloop.
    pub(crate) head: &'p [Stmt],
}

/// What copies beside the tiles of a CTA.
#[derive(Clone, Copy)]
pub(crate) struct Beside<'p> {
    pub(crate) engine: Engine,
    pub(crate) body: &'p [Stmt],
}

/// The CTA agent in parts, and the numbers that follow from its tile.
pub(crate) struct Plan<'p> {
    pub(crate) abi: Abi,
    /// Before the tile loop.
    pub(crate) prologue: &'p [Stmt],
    pub(crate) tiles: TileLoop<'p>,
    /// The first row and column of the tile at hand.
    pub(crate) origin: [Expr; 2],
    /// In the tile loop, before the mainloop or the loop over its slices.
    pub(crate) head: &'p [Stmt],
    pub(crate) slices: Option<SliceLoop<'p>>,
    pub(crate) products: &'p [Product],
    /// What a tile sums over in all: columns of a left operand that is not transposed.
    pub(crate) depth: Range,
    /// The mainloop's token.
    pub(crate) span: Span,
    /// In the tile loop, after the mainloop.
    pub(crate) tail: &'p [Stmt],
    pub(crate) exit: &'p [Stmt],
    /// What is copied beside all that.
    pub(crate) beside: Option<Beside<'p>>,
    /// Type of both operands.
    pub(crate) element: Element,
    pub(crate) a_major: Major,
    pub(crate) b_major: Major,
    /// Blocks of 64 rows that one warpgroup holds.
    pub(crate) m_blocks: u32,
    /// Columns of a tile that one multiprocessor stores.
    pub(crate) columns: u32,
}

impl<'p> Plan<'p> {
    pub(crate) fn of(program: &'p Program) -> Result<Self, Error> {
        if program.target != Target::Sm90a {
            return Err(Error::unsupported(
                Span::UNKNOWN,
                format!("PTX is made for sm_90a, this Program is for {}", program.target),
                "give the kernel a schedule for sm_90a",
            ));
        }
        let agent = cta_agent(program)?;
        let reads_products = program.values.values().any(|of| matches!(of.op, ValueOp::Acc(_)));
        let multiplies = program.accumulators() > 0 || reads_products;
        let (prologue, looped) =
            split(&agent.body, |op| matches!(op, Op::For { .. } if holds_mainloop(op)))
                .or_else(|| split(&agent.body, |op| !multiplies && reads_row(op)))
                .ok_or_else(|| {
                    let (what, within) = match multiplies {
                        true => ("loop with a mainloop", "one `gemm`"),
                        false => ("loop over tiles", "a row of the table"),
                    };
                    Error::unsupported(
                        agent.body.first().map_or(Span::UNKNOWN, |stmt| stmt.span),
                        format!("agent `{}` has no {what} directly inside", agent.name),
                        format!("write one `for` over the tiles with {within} in its body"),
                    )
                })?;
        let (looped, rest) = looped.split_first().expect("a split begins with what was found");
        if let Some(stmt) = rest.first() {
            return Err(Error::unsupported(
                stmt.span,
                "a statement stands behind the tile loop",
                "move it into the loop, or into what runs when all tiles are done",
            ));
        }
        let Op::For { var, from, to, step, body } = &looped.op else {
            unreachable!("only loops are looked for");
        };
        let tiles = TileLoop { var: *var, from, to, step };
        let Some((head, main)) = split(body, computes) else {
            return Plan::without_products(program, agent, prologue, tiles, body);
        };
        let (main, tail) = main.split_first().expect("a split begins with what was found");
        if let Some(second) = find_mainloop(tail) {
            return Err(Error::unsupported(
                second,
                "a second mainloop in one tile loop",
                "give both products to one loop over the tiles of the same output, or write two kernels",
            ));
        }
        let (slices, main) = slices(main)?;
        let Op::Mainloop { products } = &main.op else {
            unreachable!("only a mainloop is looked for");
        };
        let (element, [a_major, b_major]) = operands(program, products, main.span)?;
        let depth = match &slices {
            None => products[0].left().1.clone(),
            // The checker has seen that slices follow each other, once around all columns.
            Some(_) => {
                let a = &program.buffers[products[0].a.buffer];
                let turned = products[0].transposed;
                let (_, all) = turned.left(a.rows.clone(), a.cols.clone());
                Range::new(0i64, all)
            }
        };
        if !(is_constant(program, &depth.lo) && is_constant(program, &depth.hi)) {
            let message = "what is summed over differs from tile to tile";
            let help = "reduce over the same range on every tile";
            return Err(Error::unsupported(main.span, message, help));
        }
        let m_blocks = tile_blocks(program, products, [a_major, b_major], main.span)?;
        Ok(Plan {
            abi: Abi::of(program),
            prologue,
            tiles,
            origin: [products[0].left().0.lo.clone(), products[0].right().0.lo.clone()],
            head,
            slices,
            products,
            depth,
            span: main.span,
            tail,
            exit: &agent.exit,
            beside: beside_tiles(program)?,
            element,
            a_major,
            b_major,
            m_blocks,
            columns: program.tile.n / program.split_k.max(1),
        })
    }

    /// Of a loop over tiles that multiplies nothing: all that is done once a tile is epilogue.
    fn without_products(
        program: &'p Program,
        agent: &'p Agent,
        prologue: &'p [Stmt],
        tiles: TileLoop<'p>,
        body: &'p [Stmt],
    ) -> Result<Self, Error> {
        let row = body.iter().find_map(|stmt| match &stmt.op {
            Op::Row { vars, .. } => Some((vars, stmt.span)),
            _ => None,
        });
        let ([m, n, ..], span) = row.expect("the loop reads a row of the table");
        let names = |stmt: &Stmt| matches!(stmt.op, Op::Row { .. } | Op::Let { .. });
        let (head, tail) = split_at(body, |stmt| !names(stmt));
        let origin = [first_of(head, *m, span)?, first_of(head, *n, span)?];
        let majors = [Major::K, Major::K];
        Ok(Plan {
            abi: Abi::of(program),
            prologue,
            tiles,
            origin,
            head,
            slices: None,
            products: &[],
            depth: Range::new(0i64, 0i64),
            span,
            tail,
            exit: &agent.exit,
            beside: beside_tiles(program)?,
            element: Element::Bf16,
            a_major: majors[0],
            b_major: majors[1],
            m_blocks: tile_blocks(program, &[], majors, span)?,
            columns: program.tile.n,
        })
    }

    /// Accumulator registers of one thread.
    pub(crate) fn accumulators(&self, program: &Program) -> u32 {
        self.m_blocks * program.tile.n / 2 * self.products.len() as u32
    }

    /// Registers that `setmaxnreg` leaves a producer and a consumer thread. All splits add up
    /// to what 384 threads start with; 256 threads start with as many as a thread can have.
    pub(crate) fn registers(&self, program: &Program) -> Option<(u32, u32)> {
        if program.consumers == Consumers::Single {
            return None;
        }
        let accumulators = self.accumulators(program);
        Some(match (self.slices.is_some(), self.beside.map(|beside| beside.engine)) {
            // Copies take more of the warps beside the loading thread.
            (_, Some(Engine::CopyWarps)) if accumulators <= 128 => (72, 216),
            (_, Some(Engine::CopyWarps)) if accumulators <= 176 => (56, 224),
            // One that feeds bulk copies holds addresses, and no data.
            (_, Some(Engine::Tma)) if accumulators <= 192 => (56, 224),
            // Slices take more of the loading thread.
            (true, _) if accumulators <= 176 => (40, 232),
            (false, _) if accumulators <= 128 => (40, 232),
            _ => (24, 240),
        })
    }
}

fn cta_agent(program: &Program) -> Result<&Agent, Error> {
    let mut agents = program.agents.values().filter(|agent| agent.engine == Engine::Ctas);
    let first = agents.next().ok_or_else(|| {
        Error::unsupported(
            Span::UNKNOWN,
            format!("`{}` has no agent on CTAs", program.name),
            "a Program without a mainloop needs no kernel",
        )
    })?;
    match agents.next() {
        None => Ok(first),
        Some(second) => Err(Error::unsupported(
            second.body.first().map_or(Span::UNKNOWN, |stmt| stmt.span),
            format!("agents `{}` and `{}` both run on CTAs", first.name, second.name),
            "one agent of a kernel runs on CTAs; leave copies to a copy engine",
        )),
    }
}

/// The one agent that copies beside the tiles, if there is one.
fn beside_tiles(program: &Program) -> Result<Option<Beside<'_>>, Error> {
    let mut agents = program.agents.values().filter(|agent| agent.engine.is_beside_tiles());
    let Some(agent) = agents.next() else { return Ok(None) };
    let behind = agents.find_map(|agent| agent.body.first()).or(agent.exit.first());
    if let Some(stmt) = behind {
        let message = format!("agent `{}` is not all that is copied beside tiles", agent.name);
        let help = "give copies to one agent, and what follows all of them to the one on CTAs";
        return Err(Error::unsupported(stmt.span, message, help));
    }
    Ok(Some(Beside { engine: agent.engine, body: &agent.body }))
}

/// What stands before the first statement that `found` accepts, and the rest; all where it accepts
/// none.
fn split_at(body: &[Stmt], found: impl Fn(&Stmt) -> bool) -> (&[Stmt], &[Stmt]) {
    body.split_at(body.iter().position(found).unwrap_or(body.len()))
}

/// What stands before the first statement that `found` accepts, and the rest.
fn split(body: &[Stmt], found: impl Fn(&Op) -> bool) -> Option<(&[Stmt], &[Stmt])> {
    body.iter().position(|stmt| found(&stmt.op)).map(|index| body.split_at(index))
}

/// Whether `op` is a loop with a mainloop, or a loop over slices of one, directly in its body.
fn holds_mainloop(op: &Op) -> bool {
    matches!(op, Op::For { .. }) && op.body().iter().any(|stmt| computes(&stmt.op))
}

/// Whether `op` is a loop that reads a row of a table directly in its body.
fn reads_row(op: &Op) -> bool {
    let is_row = |stmt: &Stmt| matches!(stmt.op, Op::Row { .. });
    matches!(op, Op::For { .. }) && op.body().iter().any(is_row)
}

/// Whether `op` is a mainloop or a loop with one directly in its body.
fn computes(op: &Op) -> bool {
    let is_mainloop = |op: &Op| matches!(op, Op::Mainloop { .. });
    let holds = matches!(op, Op::For { .. }) && op.body().iter().any(|stmt| is_mainloop(&stmt.op));
    is_mainloop(op) || holds
}

/// The mainloop, and the loop over its slices where `stmt` is one.
fn slices(stmt: &Stmt) -> Result<(Option<SliceLoop<'_>>, &Stmt), Error> {
    let Op::For { var, from, to, step, body } = &stmt.op else { return Ok((None, stmt)) };
    let Some((main, head)) = body.split_last() else { return Ok((None, stmt)) };
    let is_row = |stmt: &&Stmt| matches!(stmt.op, Op::Row { .. });
    let misplaced =
        if matches!(main.op, Op::Mainloop { .. }) { head.iter().find(is_row) } else { Some(main) };
    if let Some(other) = misplaced {
        return Err(Error::unsupported(
            other.span,
            "a loop inside the tile loop does more than to reduce slices of a tile",
            "let it wait and end in the mainloop; what is done once a tile stands around it",
        ));
    }
    Ok((Some(SliceLoop { var: *var, from, to, step, head }), main))
}

/// The token of a mainloop anywhere in `body`.
fn find_mainloop(body: &[Stmt]) -> Option<Span> {
    let found = |stmt: &&Stmt| matches!(stmt.op, Op::Mainloop { .. });
    Statements::of(body).find(found).map(|stmt| stmt.span)
}

/// The first row, or column, of the tile whose number a table's row has: the first that `head` makes of
/// it. That is no multiple of the tile where a rank's rows begin elsewhere.
fn first_of(head: &[Stmt], number: VarId, span: Span) -> Result<Expr, Error> {
    let made = head.iter().find_map(|stmt| match &stmt.op {
        Op::Let { var, value } if value.mentions(number) => Some(Expr::from(*var)),
        _ => None,
    });
    made.ok_or_else(|| {
        let message = "nothing is made of the number of a tile ahead of what is stored";
        Error::unsupported(span, message, "name the first row and the first column of the tile")
    })
}

/// Whether `expr` is the same number on every tile.
fn is_constant(program: &Program, expr: &Expr) -> bool {
    match expr {
        Expr::Int(_) | Expr::Sym(_) => true,
        Expr::Var(var) => program.lets.iter().any(|(defined, _)| defined == var),
        Expr::First(rank) => is_constant(program, rank),
        Expr::Bin(_, a, b) => is_constant(program, a) && is_constant(program, b),
    }
}

/// The operand type, and how left and right operands lie in memory.
fn operands(
    program: &Program,
    products: &[Product],
    span: Span,
) -> Result<(Element, [Major; 2]), Error> {
    let [first, others @ ..] = products else {
        return Err(Error::unsupported(span, "a mainloop without products", "write a `gemm`"));
    };
    if others.len() > 1 {
        let message = format!("{} products in one mainloop, it takes 1 or 2", products.len());
        return Err(Error::unsupported(span, message, "write another kernel for the others"));
    }
    let left = |product: &Product| (product.a.clone(), product.transposed.a);
    if others.iter().any(|other| left(other) != left(first)) {
        let help = "multiply one left operand by both right operands, or write two kernels";
        return Err(Error::unsupported(span, "two products with different left operands", help));
    }
    if others.iter().any(|other| other.transposed.b != first.transposed.b) {
        let help = "transpose both right operands or neither";
        return Err(Error::unsupported(span, "one right operand of two is transposed", help));
    }
    let element = program.buffers[first.a.buffer].element;
    for place in products.iter().flat_map(|product| [&product.a, &product.b]) {
        let buffer = &program.buffers[place.buffer];
        if buffer.element == Element::F32 {
            let message =
                format!("`{}` is f32, tensor cores multiply bf16 or f16 here", buffer.name);
            return Err(Error::unsupported(span, message, "cast the operands to bf16 or f16"));
        }
        if buffer.element != element {
            let message =
                format!("`{}` is {}, the other operand is {element}", buffer.name, buffer.element);
            return Err(Error::unsupported(span, message, "give both operands one element type"));
        }
        if place.at != At::Own {
            let message = format!("`{}` is multiplied out of a peer's memory", buffer.name);
            return Err(Error::unsupported(span, message, "copy it here first"));
        }
        if !buffer.planes.iter().all(|extent| matches!(extent, Expr::Int(_))) {
            let message = format!("the number of planes of `{}` is not a literal", buffer.name);
            return Err(Error::unsupported(
                span,
                message,
                "keep operands in buffers of one or two planes",
            ));
        }
    }
    let Transposed { a, b } = first.transposed;
    let majors = [if a { Major::Mn } else { Major::K }, if b { Major::K } else { Major::Mn }];
    Ok((element, majors))
}

/// Blocks of 64 rows of one warpgroup, once the tile is known to fit.
fn tile_blocks(
    program: &Program,
    products: &[Product],
    [a_major, b_major]: [Major; 2],
    span: Span,
) -> Result<u32, Error> {
    let tile = program.tile;
    let refuse = |message: String, help: &str| Err(Error::unsupported(span, message, help));
    let (rows, form) = (MMA_M * program.consumers.sharing(), program.consumers.name());
    // A warpgroup alone may load fewer rows than it multiplies: the others come to nothing.
    let few = program.consumers == Consumers::Single && matches!(tile.m, 8 | 16 | 32);
    if !few && (tile.m == 0 || !tile.m.is_multiple_of(rows) || tile.m > 256) {
        let message = format!(
            "tile rows of {form} consumers must be a multiple of {rows} up to 256, found {}",
            tile.m
        );
        return refuse(message, "take tile = (128, 256, 64)");
    }
    if tile.n == 0 || !tile.n.is_multiple_of(8) || tile.n > 256 {
        let message = format!("tile columns must be a multiple of 8 up to 256, found {}", tile.n);
        return refuse(message, "take tile = (128, 256, 64)");
    }
    if a_major == Major::Mn && !tile.m.is_multiple_of(PANEL) {
        let name = &program.buffers[products[0].a.buffer].name;
        let message = format!(
            "tile rows must be a multiple of {PANEL} where `{name}` is transposed, found {}",
            tile.m
        );
        return refuse(message, &format!("take such a tile, or store `{name}` as [m, k]"));
    }
    if tile.k == 0 || !tile.k.is_multiple_of(PANEL) {
        let message = format!("the k-step must be a multiple of {PANEL}, found {}", tile.k);
        return refuse(message, "take tile = (128, 256, 64)");
    }
    if program.stages < 2 {
        let message = format!("stages must be at least 2, found {}", program.stages);
        return refuse(message, "take stages = 4");
    }
    if b_major == Major::Mn && !tile.n.is_multiple_of(PANEL) {
        let name = &program.buffers[products[0].b.buffer].name;
        let message = format!(
            "tile columns must be a multiple of {PANEL} where `{name}` is not transposed, found {}",
            tile.n
        );
        return refuse(
            message,
            &format!("take such a tile, or store `{name}` as [n, k] and write `{name}.t()`"),
        );
    }
    let m_blocks = tile.m.div_ceil(rows);
    let accumulators = m_blocks * tile.n / 2 * products.len() as u32;
    if accumulators > MAX_ACCUMULATORS {
        let message = format!(
            "tile {tile} with {} product(s) needs {accumulators} accumulators a thread, {MAX_ACCUMULATORS} fit",
            products.len()
        );
        return refuse(message, "take fewer tile columns, or cooperative consumers");
    }
    let (needed, limit) = (Abi::of(program).shared.total, Target::Sm90a.shared_bytes());
    if let Some(limit) = limit
        && needed > limit
    {
        let message = format!(
            "stages = {} needs {needed} bytes of shared memory, sm_90a has {limit}",
            program.stages
        );
        return refuse(message, "take fewer stages");
    }
    Ok(m_blocks)
}

/// The index of a variable.
pub(crate) fn index(var: VarId) -> usize {
    var.index()
}

#[cfg(test)]
mod tests {
    use super::Plan;
    use flux_ir::program::{Expr, Op};
    use flux_ir::{Kernel, Schedule, lower};

    /// Tiles of own rows begin where the rows of the rank do.
    #[test]
    fn a_tile_that_multiplies_nothing_begins_where_its_window_does() {
        for shared in ["sharded", "global"] {
            let text = format!(
                "kernel @k(%x: &{shared}<bf16>, %c: &mut {shared}<bf16>) {{ for tile in %c {{ \
                 %0 = load %x store %c, %0 }} }}"
            );
            let kernel: Kernel = text.parse().expect("a kernel");
            let program = lower::lower(&kernel, &Schedule::sm_90a()).expect("a Program");
            let windows = program.statements().filter_map(|stmt| match &stmt.op {
                Op::Store { to, .. } => Some([to.rows.lo.clone(), to.cols.lo.clone()]),
                _ => None,
            });
            let windows: Vec<[Expr; 2]> = windows.collect();
            assert_eq!(windows, [Plan::of(&program).expect("a plan").origin], "{program}");
        }
    }
}
