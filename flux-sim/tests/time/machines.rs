//! Files that describe machines: what is wrong with one is said where it stands.

use crate::kernels::{ROUND, cooperative, launch, program, round};
use flux_sim::time::{Error, Machine, Options, simulate};

#[test]
fn every_machine_of_the_library_reads_and_has_a_source_for_every_number() {
    for name in Machine::names() {
        let machine = Machine::find(name).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(machine.name, name);
        for (path, source) in &machine.sources {
            assert!(source.len() > 10, "{path}: {source}");
        }
    }
}

#[test]
fn a_machine_survives_being_written() {
    let machine = round();
    let text = serde_json::to_string(&machine).expect("JSON");
    assert_eq!(Machine::read("again", &text).expect("a machine"), machine);
}

fn refused(find: &str, replace: &str) -> String {
    let text = ROUND.replace(find, replace);
    assert_ne!(text, ROUND, "{find} is there");
    Machine::read("m.json", &text).expect_err("a fault").to_string()
}

#[test]
fn what_is_out_of_range_is_said_with_unit_line_and_column() {
    let line = 1 + ROUND[..ROUND.find("\"copy_gap_us\"").expect("there")].matches('\n').count();
    let message = refused("\"copy_gap_us\": 2", "\"copy_gap_us\": -2");
    assert!(message.contains("expected 0 to 1000000 µs, found -2"), "{message}");
    assert!(message.starts_with("m.json: ") && message.contains(&format!("line {line} column")));
    for (find, replace, expected) in [
        ("\"sms\": 8", "\"sms\": 0", "found 0"),
        ("\"put_gbps\": 10", "\"put_gbps\": 0", "0.001 to 1000000 GB/s"),
        ("\"both_ways\": 1", "\"both_ways\": 0.5", "times, found 0.5"),
        ("\"mhz\": 1000", "\"mhz\": 0", "point 0: expected `mhz` from 1 to 100000 MHz, found 0"),
        ("\"flag_stream\": \"same\"", "\"flag_stream\": \"both\"", "expected `same` or `own`"),
        ("\"put_us\": 1", "\"put_us\": \"fast\"", "invalid type: string \"fast\""),
        ("\"put_us\"", "\"put_ms\"", "unknown field `put_ms`, expected one of"),
        ("\"name\": \"round\",", "", "missing field `name`"),
        ("\"copy_sms\": 0", "\"copy_sms\": 8", "expected `compute.copy_sms` below the 8"),
    ] {
        let message = refused(find, replace);
        assert!(message.contains(expected), "{message}");
    }
}

#[test]
fn tables_have_to_be_sorted_and_monotone() {
    let point = |bytes: u64, us: f64| format!("{{ \"bytes\": {bytes}, \"us\": {us} }}");
    let one = ROUND.find("\"copy_wire\": [").map(|at| at + "\"copy_wire\": [".len());
    let (start, end) = (one.expect("there"), ROUND[one.expect("there")..].find(']'));
    let with = |points: &[String]| {
        let rest = &ROUND[start + end.expect("there")..];
        format!("{}{}{rest}", &ROUND[..start], points.join(", "))
    };
    for (points, expected) in [
        (vec![], "expected at least one point"),
        (vec![point(10, 1.0), point(5, 2.0)], "points 0 and 1 are out of order: sort them"),
        (vec![point(10, 2.0), point(20, 1.0)], "point 1: more bytes take longer"),
        (vec![point(10, 0.0)], "point 0: expected `us` from"),
    ] {
        let error = Machine::read("m.json", &with(&points)).expect_err("a fault").to_string();
        assert!(error.contains(expected) && error.contains("line"), "{error}");
    }
}

#[test]
fn a_number_without_a_source_is_refused_and_so_is_the_reverse() {
    let message = refused("\"link.put_us\": \"chosen\",", "");
    assert!(message.contains("`link.put_us` has no source"), "{message}");
    let message = refused("\"link.put_us\":", "\"link.put_ms\":");
    assert!(message.contains("link.put"), "{message}");
}

#[test]
fn curves_are_linear_between_points_and_go_on() {
    let machine = Machine::find("h200-nvlink").expect("a machine");
    let wire = &machine.link.copy_wire;
    assert_eq!(wire.wire_us(0.0), 0.0);
    assert_eq!(wire.wire_us(16777216.0), 39.5);
    assert_eq!(wire.wire_us((16777216.0 + 25165824.0) / 2.0), 49.5);
    let beyond = wire.wire_us(2.0 * 268435456.0) - wire.wire_us(268435456.0);
    assert!((beyond - 704.0).abs() < 0.1, "at the rate of the last two: {beyond}");
    let clock = &machine.compute.clock;
    assert_eq!(clock.at(0.0), clock.at(-1.0));
    assert_eq!(clock.at(1e9), clock.at(6000.0));
}

#[test]
fn unknown_machines_and_files_that_are_not_there() {
    let error = Machine::find("h100").expect_err("no such machine").to_string();
    assert!(error.contains("there are: h200-nvlink, h200-pcie"), "{error}");
    let error = Machine::find("no/such.json").expect_err("no such file").to_string();
    assert!(error.contains("cannot read no/such.json"), "{error}");
}

#[test]
fn launches_that_cannot_be_predicted_are_refused_with_the_numbers() {
    let gemm = program("gemm", &cooperative(256));
    let ask = |m, n, k, world, ctas| {
        let asked = launch(m, n, k, world, ctas);
        simulate(&gemm, asked, &round(), Options::default()).expect_err("refused")
    };
    assert!(ask(0, 1, 1, 1, 1).to_string().contains("expected M of 1 to 2147483647, found 0"));
    assert!(ask(1, 1, 1, 0, 1).to_string().contains("a world of 1 to 4096"));
    assert!(ask(1, 1, 1, 1, 0).to_string().contains("expected CTAs of 1"));
    let huge = ask(i32::MAX as u32, i32::MAX as u32, 1, 1, 1);
    assert!(matches!(huge, Error::TooLarge { what: "tiles", .. }), "{huge}");
}

#[test]
fn an_element_without_a_rate_is_named() {
    let text = ROUND.replace("\"bf16\": 2048,", "");
    let machine = Machine::read("m.json", &text).expect("a machine");
    let gemm = program("gemm", &cooperative(256));
    let error = simulate(&gemm, launch(1, 1, 1, 1, 1), &machine, Options::default());
    let error = error.expect_err("no rate").to_string();
    assert!(error.contains("no rate for products of bf16"), "{error}");
}
