//! Random kernels and Programs: handles in range and names unique, otherwise without sense.

use flux_ir::arena::{Arena, Handle};
use flux_ir::kernel::{
    Binary, Distribution, Lhs, Op as KernelOp, OpEntry, Param, ParamId, ParamType, Unary, Value,
};
use flux_ir::order::{Arrival, CustomOrder, Departure};
use flux_ir::program::{
    Agent, At, BinOp, Buffer, BufferId, BufferKind, Completion, Cond, Engine, Expr, Home, Op,
    Place, Product, Range, Scope, SignalArray, SignalId, Stmt, Sym, Table, TableId, Transposed,
    Update, ValueEntry, ValueId, ValueOp, Var, VarId,
};
use flux_ir::{
    Balance, Cache, Consumers, Element, Kernel, Order, Program, Span, Target, TileShape,
};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

const COUNT: u32 = 4;

fn span() -> impl Strategy<Value = Span> {
    prop_oneof![
        Just(Span::UNKNOWN),
        (1u32.., any::<u32>()).prop_map(|(line, column)| Span::new(line, column)),
    ]
}

/// Names that need quotes and names that do not.
fn name() -> impl Strategy<Value = String> {
    prop_oneof![4 => "[a-z_][a-zA-Z0-9_]{0,6}", 1 => "\\PC{0,6}", 1 => select(NAMES).prop_map(str::to_owned)]
}

const NAMES: &[&str] = &["e0", "a\nb", "\"", "\\", "7", "scope", "", "größe", "after", "peer"];

/// `COUNT` different names.
fn names() -> impl Strategy<Value = Vec<String>> {
    prop::collection::hash_set(name(), COUNT as usize).prop_map(|names| names.into_iter().collect())
}

fn number() -> impl Strategy<Value = f32> {
    prop_oneof![
        any::<u32>()
            .prop_map(f32::from_bits)
            .prop_filter("NaN is not equal to itself", |x| !x.is_nan()),
        Just(f32::INFINITY),
        Just(f32::NEG_INFINITY),
        Just(-0.0),
        Just(0.1),
    ]
}

fn element() -> impl Strategy<Value = Element> {
    select(&Element::ALL[..])
}

fn handle<H: Handle + 'static>() -> impl Strategy<Value = H> {
    (0..COUNT as usize).prop_map(H::new)
}

pub(crate) fn kernel() -> impl Strategy<Value = Kernel> {
    let ty = prop_oneof![
        Just(ParamType::Scalar),
        (select(&Distribution::ALL[..]), element(), any::<bool>()).prop_map(
            |(distribution, element, written)| ParamType::Tensor { distribution, element, written }
        ),
    ];
    let params = (names(), vec((ty, span()), COUNT as usize)).prop_map(|(names, types)| {
        names.into_iter().zip(types).map(|(name, (ty, span))| Param { name, ty, span }).collect()
    });
    let ops = vec((kernel_op(), span()), 0..12)
        .prop_map(|ops| ops.into_iter().map(|(op, span)| OpEntry { op, span }).collect());
    (name(), params, handle(), span(), ops, span()).prop_map(
        |(name, params, tiles_of, loop_span, ops, span)| Kernel {
            name,
            params,
            tiles_of,
            loop_span,
            ops,
            protocol: None,
            span,
        },
    )
}

fn kernel_op() -> impl Strategy<Value = KernelOp> {
    let param = handle::<ParamId>;
    let value = || any::<u32>().prop_map(Value);
    prop_oneof![
        param().prop_map(|tensor| KernelOp::Wait { tensor }),
        (
            prop_oneof![
                param().prop_map(Lhs::Param),
                param().prop_map(Lhs::Transposed),
                value().prop_map(Lhs::Ready)
            ],
            param(),
            any::<bool>()
        )
            .prop_map(|(a, b, transposed)| KernelOp::Gemm { a, b, transposed }),
        param().prop_map(|tensor| KernelOp::Cols { tensor }),
        param().prop_map(|tensor| KernelOp::Rows { tensor }),
        param().prop_map(|tensor| KernelOp::Load { tensor }),
        value().prop_map(|ready| KernelOp::LoadReady { ready }),
        number().prop_map(KernelOp::Const),
        param().prop_map(|param| KernelOp::Scalar { param }),
        (select(&Unary::ALL[..]), value()).prop_map(|(op, x)| KernelOp::Unary { op, x }),
        (select(&Binary::ALL[..]), value(), value()).prop_map(|(op, x, y)| KernelOp::Binary {
            op,
            x,
            y
        }),
        (value(), element()).prop_map(|(x, to)| KernelOp::Cast { x, to }),
        (param(), value()).prop_map(|(output, x)| KernelOp::Reduce { output, x }),
        (param(), value()).prop_map(|(output, x)| KernelOp::Store { output, x }),
        (param(), value()).prop_map(|(output, rows)| KernelOp::Keep { output, rows }),
    ]
}

fn expr() -> impl Strategy<Value = Expr> {
    let leaf = prop_oneof![
        any::<i64>().prop_map(Expr::Int),
        (0i64..9).prop_map(Expr::Int),
        select(&Sym::ALL[..]).prop_map(Expr::Sym),
        handle().prop_map(Expr::Var),
    ];
    let ops = [
        BinOp::Add,
        BinOp::Sub,
        BinOp::Mul,
        BinOp::Div,
        BinOp::CeilDiv,
        BinOp::Rem,
        BinOp::Min,
        BinOp::Max,
    ];
    leaf.prop_recursive(4, 12, 2, move |inner| {
        let pair = (select(ops.to_vec()), inner.clone(), inner.clone());
        prop_oneof![
            4 => pair.prop_map(|(op, a, b)| Expr::Bin(op, Box::new(a), Box::new(b))),
            1 => inner.prop_map(Expr::first),
        ]
    })
}

fn range() -> impl Strategy<Value = Range> {
    prop_oneof![(expr(), expr()).prop_map(|(lo, hi)| Range { lo, hi }), expr().prop_map(Range::one)]
}

fn at() -> impl Strategy<Value = At> {
    prop_oneof![Just(At::Own), expr().prop_map(At::Peer), expr().prop_map(At::Remote)]
}

fn place() -> impl Strategy<Value = Place> {
    (at(), handle(), vec(expr(), 0..3), range(), range())
        .prop_map(|(at, buffer, planes, rows, cols)| Place { at, buffer, planes, rows, cols })
}

fn value_id() -> impl Strategy<Value = ValueId> {
    any::<u32>().prop_map(ValueId)
}

fn simple() -> impl Strategy<Value = Op> {
    let transposed = any::<[bool; 2]>().prop_map(|[a, b]| Transposed { a, b });
    let product = (place(), place(), transposed);
    let product = product.prop_map(|(a, b, transposed)| Product { a, b, transposed });
    let update = prop_oneof![expr().prop_map(Update::Add), expr().prop_map(Update::Set)];
    let scope = || select(&Scope::ALL[..]);
    prop_oneof![
        (handle(), expr()).prop_map(|(var, value)| Op::Let { var, value }),
        (handle::<TableId>(), expr(), [handle(), handle(), handle(), handle()])
            .prop_map(|(table, index, vars)| Op::Row { table, index, vars }),
        (handle::<SignalId>(), range(), expr(), scope())
            .prop_map(|(signal, slots, target, scope)| Op::Wait { signal, slots, target, scope }),
        Just(Op::FenceProxyAsync),
        vec(product, 1..3).prop_map(|products| Op::Mainloop { products }),
        (place(), value_id(), any::<bool>()).prop_map(|(to, value, adds)| Op::Store {
            to,
            value,
            adds
        }),
        (handle(), value_id(), place()).prop_map(|(var, own, from)| Op::Sum { var, own, from }),
        (any::<u32>(), place()).prop_map(|(index, from)| Op::Load { index, from }),
        (at(), handle(), expr(), update, scope(), select(&Completion::ALL[..])).prop_map(
            |(at, signal, slot, update, scope, after)| Op::Signal {
                at,
                signal,
                slot,
                update,
                scope,
                after
            }
        ),
        (place(), place(), any::<bool>()).prop_map(|(from, to, adds)| Op::Copy { from, to, adds }),
    ]
}

fn body() -> impl Strategy<Value = Vec<Stmt>> {
    let stmt = |op: BoxedStrategy<Op>| (op, span()).prop_map(|(op, span)| Stmt { op, span });
    let leaf = stmt(simple().boxed()).boxed();
    let nested = leaf.prop_recursive(3, 8, 3, move |inner| {
        let body = vec(inner.clone(), 0..3);
        let cond = (0..3, expr(), expr()).prop_map(|(kind, a, b)| match kind {
            0 => Cond::Eq(a, b),
            1 => Cond::Ne(a, b),
            _ => Cond::Lt(a, b),
        });
        let step = prop_oneof![Just(Expr::Int(1)), expr()];
        let blocks = prop_oneof![
            (handle(), expr(), expr(), step, body.clone())
                .prop_map(|(var, from, to, step, body)| Op::For { var, from, to, step, body }),
            (cond, body).prop_map(|(cond, body)| Op::If { cond, body }),
        ];
        prop_oneof![inner, stmt(blocks.boxed())].boxed()
    });
    vec(nested, 0..5)
}

fn value_op() -> impl Strategy<Value = ValueOp> {
    prop_oneof![
        any::<u32>().prop_map(ValueOp::Acc),
        Just(ValueOp::Sum),
        number().prop_map(ValueOp::Const),
        (0..COUNT).prop_map(ValueOp::Scalar),
        handle().prop_map(ValueOp::Cols),
        handle().prop_map(ValueOp::Rows),
        handle().prop_map(ValueOp::Load),
        any::<u32>().prop_map(ValueOp::Loaded),
        (select(&Unary::ALL[..]), value_id()).prop_map(|(op, x)| ValueOp::Unary(op, x)),
        (select(&Binary::ALL[..]), value_id(), value_id())
            .prop_map(|(op, x, y)| ValueOp::Binary(op, x, y)),
        (value_id(), element()).prop_map(|(x, to)| ValueOp::Cast(x, to)),
    ]
}

fn order() -> impl Strategy<Value = Order> {
    prop_oneof![
        select(Order::BUILT_IN.to_vec()),
        any::<u32>().prop_map(Order::Grouped),
        any::<[u32; 3]>().prop_map(|[chunk, tail, pace]| Order::Arrival(Arrival {
            chunk,
            tail,
            pace
        })),
        any::<[u32; 2]>().prop_map(|[rows, shards]| Order::Departure(Departure { rows, shards })),
        name().prop_map(|name| Order::Custom(CustomOrder { name, function: None })),
    ]
}

fn arena<H: Handle, T>(
    entry: impl Strategy<Value = T>,
    set_name: fn(&mut T, String),
) -> impl Strategy<Value = Arena<H, T>>
where
    T: std::fmt::Debug,
{
    (names(), vec(entry, COUNT as usize)).prop_map(move |(names, entries)| {
        let named = names.into_iter().zip(entries).map(|(name, mut entry)| {
            set_name(&mut entry, name);
            entry
        });
        named.collect()
    })
}

fn buffer() -> impl Strategy<Value = Buffer> {
    let kinds =
        vec![BufferKind::Input, BufferKind::Exposed, BufferKind::Output, BufferKind::Symmetric];
    let first = || prop_oneof![Just(Expr::Int(0)), expr()];
    let kind = (select(kinds), any::<bool>());
    (kind, element(), vec(expr(), 0..3), expr(), [first(), first()], expr(), span()).prop_map(
        |((kind, sums), element, planes, rows, [first_row, first_col], cols, span)| Buffer {
            name: String::new(),
            kind,
            sums,
            element,
            planes,
            rows,
            first_row,
            cols,
            first_col,
            span,
        },
    )
}

pub(crate) fn program() -> impl Strategy<Value = Program> {
    let carrier = proptest::option::of(handle());
    let signal = (expr(), select(vec![Home::Device, Home::Host]), carrier)
        .prop_map(|(len, home, carrier)| SignalArray { name: String::new(), len, home, carrier });
    let tiled = prop_oneof![Just(Range::new(0i64, Sym::M)), range()];
    let table = (expr(), order(), (tiled, any::<bool>()), handle(), handle(), [expr(), expr()])
        .prop_map(|(len, order, (tiled, by_shard), m, n, fields)| {
            let name = String::new();
            Table { name, len, order, tiled, by_shard, m, n, fields }
        });
    let agent = (name(), select(vec![Engine::CopyEngine, Engine::Ctas]), body(), body())
        .prop_map(|(name, engine, body, exit)| Agent { name, engine, body, exit });
    let head = (
        name(),
        select(&Target::ALL[..]),
        any::<[u32; 4]>(),
        (
            select(&Consumers::ALL[..]),
            1..4_u32,
            select(&Balance::ALL[..]),
            select(&Cache::ALL[..]),
            (0..3_u32, 0..3_u32),
        ),
        names(),
        (vec((handle(), expr()), 0..4), vec(any::<u32>(), 0..4)),
    );
    let values = vec((value_op(), span()), 0..6)
        .prop_map(|ops| ops.into_iter().map(|(op, span)| ValueEntry { op, span }).collect());
    let sections = (
        arena::<BufferId, _>(buffer(), |buffer, name| buffer.name = name),
        arena::<SignalId, _>(signal, |signal, name| signal.name = name),
        arena::<VarId, _>(Just(Var { name: String::new() }), |var, name| var.name = name),
        arena::<TableId, _>(table, |table, name| table.name = name),
        values,
        vec(agent, 0..3).prop_map(|agents| agents.into_iter().collect()),
    );
    (head, sections).prop_map(|(head, sections)| {
        let (name, target, [m, n, k, stages], choices, scalars, (lets, lengths)) = head;
        let (consumers, split_k, balance, cache, (jitter, node)) = choices;
        let (buffers, signals, vars, tables, values, agents) = sections;
        Program {
            name,
            target,
            tile: TileShape { m, n, k },
            stages,
            consumers,
            split_k,
            balance,
            cache,
            jitter,
            node,
            buffers,
            scalars,
            signals,
            vars,
            lets,
            lengths,
            tables,
            values,
            agents,
        }
    })
}
