//! Timelines as traces and drawings, and predictions as tables.

use crate::kernels::{cooperative, launch, ping_pong, predicted, program, round};
use flux_sim::time::{Kind, Summary, chrome_trace, draw};
use serde_json::Value;
use std::collections::BTreeMap;

#[test]
fn a_trace_has_every_op_once_inside_of_the_launch() {
    for schedule in [cooperative(256), ping_pong(128)] {
        let program = program("ag_gemm_gelu", &schedule);
        let report = predicted(&program, launch(512, 512, 512, 2, 3), &round());
        let trace: Value =
            serde_json::from_str(&chrome_trace(&report.timeline, &program)).expect("JSON");
        let events = trace["traceEvents"].as_array().expect("events");
        let complete: Vec<_> = events.iter().filter(|event| event["ph"] == "X").collect();
        assert_eq!(complete.len(), report.timeline.ops.len());
        let mut threads: BTreeMap<u64, Vec<(f64, f64, String)>> = BTreeMap::new();
        for event in &complete {
            let number = |field: &str| event[field].as_f64().expect("a number");
            let (start, end) = (number("ts"), number("ts") + number("dur"));
            // The credit of the exit is seen after the end.
            let name = event["name"].as_str().expect("a name").to_owned();
            assert!(start >= 0.0 && (end <= report.total.us() + 1e-6 || name == "signal"));
            let thread = event["tid"].as_u64().expect("a thread");
            threads.entry(thread).or_default().push((start, end, name));
        }
        for ops in threads.values_mut().filter(|ops| ops.iter().any(|op| op.2 != "signal")) {
            ops.sort_by(|a, b| a.0.total_cmp(&b.0));
            for pair in ops.windows(2).filter(|pair| pair[1].2 != "signal") {
                assert!(pair[0].1 <= pair[1].0 + 1e-6, "ops of one lane overlap: {pair:?}");
            }
        }
    }
}

#[test]
fn a_wait_has_an_arrow_from_what_raised_it() {
    let program = program("ag_gemm_gelu", &cooperative(256));
    let report = predicted(&program, launch(256, 256, 1024, 2, 1), &round());
    let trace: Value =
        serde_json::from_str(&chrome_trace(&report.timeline, &program)).expect("JSON");
    let events = trace["traceEvents"].as_array().expect("events");
    let phase = |phase: &str| events.iter().filter(|event| event["ph"] == phase).count();
    assert!(phase("s") > 0 && phase("s") == phase("f"));
    let waits: Vec<_> = events.iter().filter(|event| event["name"] == "wait").collect();
    assert!(waits.iter().any(|wait| wait["args"]["waited_for_rank"] == 1), "{waits:?}");
}

#[test]
fn a_drawing_has_a_bar_for_each_op_of_its_rank() {
    let program = program("gemm_rs", &cooperative(256));
    let report = predicted(&program, launch(512, 512, 512, 2, 3), &round());
    let image = draw(&report.timeline, &program, 1, "a < b & \"c\"");
    assert!(image.starts_with("<svg ") && image.ends_with("</svg>\n"));
    assert!(image.contains("a &lt; b &amp; &quot;c&quot;"));
    let main = report
        .timeline
        .ops
        .iter()
        .filter(|op| op.lane == flux_sim::time::Lane::Main && op.kind == Kind::Mainloop);
    assert_eq!(image.matches("<title>mainloop").count(), main.count());
    assert_eq!(image.matches("<title>").count(), image.matches("</title></rect>").count());
}

#[test]
fn a_table_names_the_tile_and_the_peer_that_was_waited_for() {
    let program = program("ag_gemm_gelu", &cooperative(256));
    let report = predicted(&program, launch(256, 256, 1024, 2, 1), &round());
    let summary = Summary::new(&report, &program, "round");
    let text = summary.to_string();
    assert!(text.contains("tile (1, 0) of rank 0 (cta 0) waited"), "{text}");
    assert!(text.contains(" for rank 1, until"), "{text}");
    let json = serde_json::to_value(&summary).expect("JSON");
    assert_eq!(json["critical_wait"]["peer"], 1);
    assert_eq!(json["total_ms"].as_f64(), Some(report.total.ms()));
}
