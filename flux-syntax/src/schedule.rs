//! `#[schedule(…)]`.

use crate::function::is_attribute;
use crate::position::{at, position};
use crate::signature::text_of;
use crate::suggest::{did_you_mean, listed};
use flux_ir::kernel::{Kernel, Op, OpEntry};
use flux_ir::{
    AllGather, AllReduce, Arrival, Balance, Cache, Consumers, Departure, Diagnostic, Diagnostics,
    Element, Order, ReduceScatter, Rule, Schedule, Span, Target, Transport,
};
use proc_macro2::TokenStream;
use quote::ToTokens;
use syn::parse::{Parse, ParseStream};
use syn::punctuated::Punctuated;
use syn::{Attribute, Expr, Ident, Lit, Meta, Token};

/// A schedule as it was written.
#[derive(Debug, Clone)]
pub struct ScheduleSyntax {
    /// Its value. A user's own order is not in it: it runs on the host, not here.
    pub schedule: Schedule,
    /// The tile order.
    pub order: OrderSyntax,
    /// The target's token.
    pub span: Span,
    /// Names of the choices that were written, each with the place of its value.
    pub written: Vec<(&'static str, Span)>,
}

impl ScheduleSyntax {
    /// The schedule of a kernel that has no `#[schedule]`; `span` is the kernel's name. Tiles of a
    /// kernel with several products are narrower, so that their accumulators fit the registers.
    pub fn default_for(kernel: Option<&Kernel>, span: Span) -> Self {
        let is_gemm = |entry: &&OpEntry| matches!(entry.op, Op::Gemm { .. });
        let products = kernel.map_or(1, |kernel| kernel.ops.values().filter(is_gemm).count());
        let schedule = match products {
            0 | 1 => Schedule::sm_90a(),
            _ => Schedule::sm_90a().tile(128, 128, 64),
        };
        ScheduleSyntax { schedule, order: OrderSyntax::Default, span, written: Vec::new() }
    }
}

/// A tile order as it was written.
#[derive(Debug, Clone)]
pub enum OrderSyntax {
    /// None: the one that fits the kernel's distribution types.
    Default,
    /// A built-in one.
    BuiltIn(Order),
    /// The user's own.
    Custom {
        /// The function's name, or `closure`.
        name: String,
        /// A path or a closure.
        tokens: TokenStream,
        /// Where it was written.
        span: Span,
    },
}

/// The choices of a schedule besides its target.
const CHOICES: [&str; 18] = [
    "tile",
    "stages",
    "consumers",
    "split_k",
    "balance",
    "cache",
    "order",
    "transport",
    "all_gather",
    "all_reduce",
    "reduce_scatter",
    "partials",
    "chunk_rows",
    "head",
    "tail",
    "ctas",
    "jitter",
    "node",
];

struct Arguments {
    target: Option<Ident>,
    choices: Punctuated<Choice, Token![,]>,
}

struct Choice {
    name: Ident,
    value: Expr,
}

impl Parse for Arguments {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        let mut target = None;
        if input.peek(Ident) && !input.peek2(Token![=]) {
            target = Some(input.parse()?);
            if !input.is_empty() {
                input.parse::<Token![,]>()?;
            }
        }
        Ok(Arguments { target, choices: Punctuated::parse_terminated(input)? })
    }
}

impl Parse for Choice {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        let name = input.parse()?;
        input.parse::<Token![=]>()?;
        Ok(Choice { name, value: input.parse()? })
    }
}

/// The schedules among `attrs`, in order.
///
/// # Errors
/// Unknown names, values of the wrong form. Whether the values fit together and on the target is
/// the checker's to say.
pub fn parse_schedules(attrs: &[Attribute]) -> Result<Vec<ScheduleSyntax>, Diagnostics> {
    let mut errors = Diagnostics::new();
    let mut schedules = Vec::new();
    for attr in attrs.iter().filter(|attr| is_attribute(attr, "schedule")) {
        match parse_schedule(attr, &mut errors) {
            Ok(schedule) => schedules.push(schedule),
            Err(error) => errors.push(error),
        }
    }
    errors.into_result(schedules)
}

fn schedule_error(span: Span, message: impl Into<String>) -> Diagnostic {
    Diagnostic::new(Rule::Schedule, span, message)
}

fn parse_schedule(
    attr: &Attribute,
    errors: &mut Diagnostics,
) -> Result<ScheduleSyntax, Diagnostic> {
    let usage = "write `#[schedule(sm_90a, tile = (128, 256, 64), stages = 4)]`";
    let Meta::List(list) = &attr.meta else {
        return Err(schedule_error(position(attr.path()), "expected a target").help(usage));
    };
    let arguments: Arguments = list
        .parse_args()
        .map_err(|error| schedule_error(at(error.span()), error.to_string()).help(usage))?;
    let (target, span) = match &arguments.target {
        Some(name) => {
            let span = at(name.span());
            let target = name.to_string().parse().map_err(|()| {
                let names = Target::ALL.map(Target::name);
                schedule_error(span, format!("there is no target `{name}`"))
                    .help(did_you_mean(&name.to_string(), &names))
            })?;
            (target, span)
        }
        None => {
            return Err(schedule_error(position(attr.path()), "expected a target").help(usage));
        }
    };
    let mut syntax = ScheduleSyntax {
        schedule: Schedule::for_target(target),
        order: OrderSyntax::Default,
        span,
        written: Vec::new(),
    };
    for choice in &arguments.choices {
        if let Err(error) = set(&mut syntax, choice) {
            errors.push(error);
        }
    }
    Ok(syntax)
}

fn set(syntax: &mut ScheduleSyntax, choice: &Choice) -> Result<(), Diagnostic> {
    let name = choice.name.to_string();
    let span = at(choice.name.span());
    let Some(known) = CHOICES.into_iter().find(|known| *known == name) else {
        return Err(schedule_error(span, format!("a schedule has no `{name}`"))
            .help(did_you_mean(&name, &CHOICES)));
    };
    if let Some((_, first)) = syntax.written.iter().find(|(written, _)| *written == known) {
        return Err(schedule_error(span, format!("`{name}` is given twice"))
            .note(*first, "first given here")
            .help("keep one; a second `#[schedule(…)]` adds another member of the family"));
    }
    syntax.written.push((known, position(&choice.value)));
    let value = &choice.value;
    let schedule = syntax.schedule.clone();
    syntax.schedule = match known {
        "tile" => {
            let [m, n, k] = extents(value)?;
            schedule.tile(m, n, k)
        }
        "stages" => schedule.stages(number(known, value)?),
        "chunk_rows" => schedule.chunk_rows(number(known, value)?),
        "head" => {
            let [rows, copies] = head(value)?;
            schedule.head(rows, copies)
        }
        "tail" => {
            let [rows, slices] = tail(value)?;
            schedule.tail(rows, slices)
        }
        "ctas" => schedule.ctas(number(known, value)?),
        "jitter" => schedule.jitter(number(known, value)?),
        "node" => schedule.node(number(known, value)?),
        "consumers" => {
            let names = Consumers::ALL.map(Consumers::name);
            schedule.consumers(Consumers::ALL[word(known, value, &names)?])
        }
        "split_k" => schedule.split_k(number(known, value)?),
        "balance" => {
            let names = Balance::ALL.map(Balance::name);
            schedule.balance(Balance::ALL[word(known, value, &names)?])
        }
        "cache" => {
            let names = Cache::ALL.map(Cache::name);
            schedule.cache(Cache::ALL[word(known, value, &names)?])
        }
        "all_gather" => {
            let names = AllGather::ALL.map(AllGather::name);
            schedule.all_gather(AllGather::ALL[word(known, value, &names)?])
        }
        "all_reduce" => {
            let names = AllReduce::ALL.map(AllReduce::name);
            schedule.all_reduce(AllReduce::ALL[word(known, value, &names)?])
        }
        "reduce_scatter" => {
            let names = ReduceScatter::ALL.map(ReduceScatter::name);
            schedule.reduce_scatter(ReduceScatter::ALL[word(known, value, &names)?])
        }
        "partials" => {
            let names = Element::ALL.map(Element::name);
            schedule.partials(Element::ALL[word(known, value, &names)?])
        }
        "transport" => {
            let names = Transport::ALL.map(Transport::name);
            schedule.transport(Transport::ALL[word(known, value, &names)?])
        }
        _ => {
            syntax.order = order(value)?;
            match &syntax.order {
                OrderSyntax::BuiltIn(order) => schedule.order(order.clone()),
                OrderSyntax::Default | OrderSyntax::Custom { .. } => schedule,
            }
        }
    };
    Ok(())
}

fn number(name: &str, value: &Expr) -> Result<u32, Diagnostic> {
    let span = position(value);
    let wrong = || {
        let found = text_of(value);
        schedule_error(
            span,
            format!("expected a whole number above 0 for `{name}`, found `{found}`"),
        )
        .help(match name {
            "jitter" => {
                "leave `jitter` out for no pauses, or write `jitter = 30`, in µs".to_owned()
            }
            "node" => {
                "leave `node` out where all ranks are of one node, or write `node = 8`".to_owned()
            }
            _ => format!("write `{name} = 4`"),
        })
    };
    let Expr::Lit(literal) = value else {
        return Err(wrong());
    };
    let Lit::Int(number) = &literal.lit else {
        return Err(wrong());
    };
    if !matches!(number.suffix(), "" | "u32") {
        return Err(wrong());
    }
    match number.base10_parse::<u32>() {
        Ok(number) if number > 0 => Ok(number),
        Ok(_) => Err(wrong()),
        Err(_) => Err(schedule_error(span, format!("`{name}` is below 4294967296"))),
    }
}

fn extents(value: &Expr) -> Result<[u32; 3], Diagnostic> {
    numbers("tile", "rows, columns and k-step of a tile", "tile = (128, 256, 64)", value)
}

fn head(value: &Expr) -> Result<[u32; 2], Diagnostic> {
    numbers("head", "rows and their number of copies", "head = (256, 2)", value)
}

fn tail(value: &Expr) -> Result<[u32; 2], Diagnostic> {
    numbers("tail", "rows and their number of slices", "tail = (512, 4)", value)
}

/// A tuple of numbers.
fn numbers<const N: usize>(
    name: &str,
    what: &str,
    example: &str,
    value: &Expr,
) -> Result<[u32; N], Diagnostic> {
    let help = format!("write `{example}`");
    let elements = match value {
        Expr::Tuple(tuple) => tuple.elems.iter().collect(),
        _ => Vec::new(),
    };
    let Ok(elements) = <[&Expr; N]>::try_from(elements) else {
        let found = text_of(value);
        let message = format!("expected {what}, found `{found}`");
        return Err(schedule_error(position(value), message).help(help));
    };
    let mut numbers = [0; N];
    for (number, element) in numbers.iter_mut().zip(elements) {
        *number = self::number(name, element).map_err(|error| error.help(&help))?;
    }
    Ok(numbers)
}

/// The index of the name that `value` is.
fn word(choice: &str, value: &Expr, names: &[&str]) -> Result<usize, Diagnostic> {
    let found = text_of(value);
    names.iter().position(|name| *name == found).ok_or_else(|| {
        schedule_error(position(value), format!("`{choice}` is {}, found `{found}`", listed(names)))
            .help(did_you_mean(&found, names))
    })
}

fn order(value: &Expr) -> Result<OrderSyntax, Diagnostic> {
    let span = position(value);
    match value {
        Expr::Path(path) => {
            let name = path.path.segments.last().map(|s| s.ident.to_string()).unwrap_or_default();
            let built_in = path.path.get_ident().and_then(|_| Order::built_in(&name));
            Ok(match built_in {
                Some(order) => OrderSyntax::BuiltIn(order),
                None => OrderSyntax::Custom { name, tokens: path.to_token_stream(), span },
            })
        }
        Expr::Closure(closure) => Ok(OrderSyntax::Custom {
            name: "closure".to_owned(),
            tokens: closure.to_token_stream(),
            span,
        }),
        Expr::Call(call) if text_of(&call.func) == "grouped" => {
            let rows = rows_of(call, "the rows of a group", "order = grouped(8)")?;
            Ok(OrderSyntax::BuiltIn(Order::Grouped(rows)))
        }
        Expr::Call(call) if text_of(&call.func) == "arrival" => {
            let [chunk, tail, pace] = arrival_of(call)?;
            Ok(OrderSyntax::BuiltIn(Order::Arrival(Arrival { chunk, tail, pace })))
        }
        Expr::Call(call) if text_of(&call.func) == "departure" => {
            let [rows, shards] = departure_of(call)?;
            Ok(OrderSyntax::BuiltIn(Order::Departure(Departure { rows, shards })))
        }
        _ => {
            let names: Vec<_> = Order::BUILT_IN.iter().map(|o| o.name().to_owned()).collect();
            Err(schedule_error(span, format!("expected a tile order, found `{}`", text_of(value)))
                .help(format!(
                    "there are {}; or give a function or closure `(step, grid, rank, world) -> \
                        TileCoord`",
                    listed(&names)
                )))
        }
    }
}

/// The arguments of a departure.
fn departure_of(call: &syn::ExprCall) -> Result<[u32; 2], Diagnostic> {
    let help = "write `order = departure(256, 1)`";
    let args: Vec<&Expr> = call.args.iter().collect();
    let Ok([rows, shards]) = <[&Expr; 2]>::try_from(args) else {
        let message = "expected the rows, and the shards, that are walked together";
        return Err(schedule_error(position(call), message).help(help));
    };
    let number = |value| number("departure", value).map_err(|error| error.help(help));
    Ok([number(rows)?, number(shards)?])
}

/// The arguments of an arrival: any of them may be 0.
fn arrival_of(call: &syn::ExprCall) -> Result<[u32; 3], Diagnostic> {
    let count = |value: &Expr| match value {
        Expr::Lit(syn::ExprLit { lit: syn::Lit::Int(number), .. }) => number.base10_parse().ok(),
        _ => None,
    };
    let counts: Option<Vec<u32>> = call.args.iter().map(count).collect();
    counts.and_then(|counts| counts.try_into().ok()).ok_or_else(|| {
        let message = "expected rows of a chunk, rows of the tail and the pace, whole numbers";
        schedule_error(position(call), message.to_owned())
            .help("write `order = arrival(512, 384, 150)`")
    })
}

/// The one argument of an order.
fn rows_of(call: &syn::ExprCall, what: &str, example: &str) -> Result<u32, Diagnostic> {
    let help = format!("write `{example}`");
    let mut args = call.args.iter();
    let (Some(rows), None) = (args.next(), args.next()) else {
        return Err(schedule_error(position(call), format!("expected {what}")).help(help));
    };
    number(&text_of(&call.func), rows).map_err(|error| error.help(help))
}
