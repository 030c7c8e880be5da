//! `#[schedule(…)]`: values, and what is said where they are none.

use flux_ir::{Balance, Cache, Consumers, Order, Schedule, Transport};
use flux_syntax::{Function, OrderSyntax, ScheduleSyntax, parse_schedules};

fn parse(attributes: &str) -> Result<Vec<ScheduleSyntax>, String> {
    let function: Function = syn::parse_str(&format!("{attributes} fn k() {{}}")).expect("a fn");
    parse_schedules(&function.attrs).map_err(|errors| errors.to_string())
}

fn one(arguments: &str) -> ScheduleSyntax {
    let mut schedules =
        parse(&format!("#[schedule({arguments})]")).unwrap_or_else(|e| panic!("{e}"));
    schedules.pop().expect("one schedule")
}

#[test]
fn every_choice_is_read() {
    let read = one(
        "sm_90a, tile = (128, 128, 32), stages = 3, consumers = ping_pong, order = grouped(8), \
         transport = copy_engine, chunk_rows = 512, head = (256, 2), ctas = 64, \
         jitter = 30,
         node = 8,",
    );
    let expected = Schedule::sm_90a()
        .tile(128, 128, 32)
        .stages(3)
        .consumers(Consumers::PingPong)
        .order(Order::Grouped(8))
        .transport(Transport::CopyEngine)
        .chunk_rows(512)
        .head(256, 2)
        .ctas(64)
        .jitter(30)
        .node(8);
    assert_eq!(read.schedule, expected);
    assert_eq!(read.written[1], ("stages", flux_ir::Span::new(1, 52)));
    assert_eq!(read.span, flux_ir::Span::new(1, 12));
}

#[test]
fn choices_that_share_tiles_are_read() {
    let read = one("sm_90a, consumers = single, split_k = 2, cache = stream_b");
    let single = Schedule::sm_90a().consumers(Consumers::Single);
    assert_eq!(read.schedule, single.split_k(2).cache(Cache::StreamB));
    let read = one("sm_90a, balance = stream_k");
    assert_eq!(read.schedule, Schedule::sm_90a().balance(Balance::StreamK));
}

#[test]
fn a_family_keeps_its_order_and_defaults() {
    let family = parse("#[schedule(host)] /** docs */ #[flux::schedule(sm_90a, order = xor)]")
        .unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(family[0].schedule, Schedule::host());
    assert_eq!(family[1].schedule, Schedule::sm_90a().order(Order::Xor));
    assert!(parse("#[inline]").is_ok_and(|schedules| schedules.is_empty()));
}

#[test]
fn a_users_order_is_kept_as_tokens() {
    let OrderSyntax::Custom { name, tokens, .. } = one("host, order = orders::snake").order else {
        panic!("a user's order");
    };
    assert_eq!((name.as_str(), tokens.to_string().as_str()), ("snake", "orders :: snake"));
    let closure = one("host, order = |step, grid, _, _| TileCoord { m: step, n: 0 }");
    assert!(matches!(closure.order, OrderSyntax::Custom { name, .. } if name == "closure"));
    assert_eq!(closure.schedule.order, None);
}

#[test]
fn mistakes_are_named_with_what_to_write() {
    for (arguments, message, help) in [
        ("", "expected a target", "write `#[schedule(sm_90a, tile = (128, 256, 64), stages = 4)]`"),
        ("sm_90", "there is no target `sm_90`", "did you mean `sm_90a`?"),
        ("tile = (1, 2, 3)", "expected a target", "write `#[schedule("),
        ("host, stage = 4", "a schedule has no `stage`", "did you mean `stages`?"),
        ("host, colour = 4", "a schedule has no `colour`", "there are `tile`, `stages`,"),
        (
            "host, stages = 0",
            "expected a whole number above 0 for `stages`, found `0`",
            "write `stages = 4`",
        ),
        (
            "host, stages = four",
            "expected a whole number above 0 for `stages`, found `four`",
            "write",
        ),
        (
            "host, stages = 4.0",
            "expected a whole number above 0 for `stages`, found `4.0`",
            "write",
        ),
        ("host, stages = 99999999999", "`stages` is below 4294967296", ""),
        (
            "host, tile = 128",
            "expected rows, columns and k-step of a tile, found `128`",
            "write `tile = (128, 256, 64)`",
        ),
        (
            "host, tile = (128, 0, 64)",
            "expected a whole number above 0 for `tile`, found `0`",
            "write `tile = (128, 256, 64)`",
        ),
        (
            "host, consumers = pingpong",
            "`consumers` is `cooperative`, `ping_pong` and `single`, found `pingpong`",
            "did you mean `ping_pong`?",
        ),
        (
            "host, transport = nccl",
            "`transport` is `copy_engine`, `copy_first`, `put` and `tma`, found `nccl`",
            "",
        ),
        ("host, head = 2", "expected rows and their number of copies", "write `head = (256, 2)`"),
        ("host, order = departure(1)", "expected the rows, and the shards,", "departure(256, 1)`"),
        ("host, order = grouped()", "expected the rows of a group", "write `order = grouped(8)`"),
        ("host, balance = 4", "`balance` is `tiles`, `stream_k` and `pairs`, found `4`", ""),
        ("host, order = 4", "expected a tile order, found `4`", "there are `row_major`,"),
        ("host, stages = 4, stages = 5", "`stages` is given twice", "keep one"),
        ("host, stages = ", "unexpected end of input", "write `#[schedule("),
    ] {
        let error = parse(&format!("#[schedule({arguments})]")).expect_err(arguments);
        assert!(error.starts_with("error[schedule]: ") && error.contains(message), "{error}");
        assert!(error.contains(help), "{error}");
    }
}

#[test]
fn all_mistakes_of_a_family_are_reported() {
    let error =
        parse("#[schedule(host, stages = 0, ctas = 0)] #[schedule(gpu)]").expect_err("three");
    assert_eq!(error.matches("error[schedule]").count(), 3, "{error}");
}
