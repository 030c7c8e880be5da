//! Recordings of tiles: written from a prediction, read, and drawn like one.

use crate::kernels::{cooperative, launch, ping_pong, predicted, program, round};
use flux_sim::time::{Kind, Recording, chrome_trace, draw};

fn recorded() -> (Recording, flux_sim::time::Report) {
    let program = program("ag_gemm_gelu", &cooperative(256));
    let asked = launch(512, 512, 1024, 2, 3);
    let report = predicted(&program, asked, &round());
    (Recording::of(&report.timeline, &program, asked, "predicted"), report)
}

#[test]
fn a_recording_survives_being_written() {
    let (recording, _) = recorded();
    let text = serde_json::to_string(&recording).expect("JSON");
    assert_eq!(Recording::read(&text).expect("a recording"), recording);
    assert_eq!(recording.ranks[0].tiles.len(), 8, "every tile of the rank");
}

#[test]
fn a_recording_says_of_each_tile_what_the_prediction_says() {
    for schedule in [cooperative(256), ping_pong(128)] {
        let program = program("ag_gemm_gelu", &schedule);
        let asked = launch(512, 512, 1024, 2, 3);
        let report = predicted(&program, asked, &round());
        let recording = Recording::of(&report.timeline, &program, asked, "predicted");
        let (read, timeline) = recording.timeline().expect("a timeline");
        assert_eq!(read, program);
        let spent = |timeline: &flux_sim::time::Timeline, kind| {
            let of_kind = timeline.ops.iter().filter(|op| op.kind == kind);
            of_kind.map(|op| op.end.since(op.start).us()).sum::<f64>()
        };
        for kind in [Kind::Mainloop, Kind::Epilogue] {
            let (recorded, said) = (spent(&timeline, kind), spent(&report.timeline, kind));
            assert!((recorded - said).abs() < 0.1, "{kind:?}: {recorded} and {said} µs");
        }
        let (of, said) = (timeline.longest_stall(), report.timeline.longest_stall());
        let (of, said) = (of.expect("a wait"), said.expect("a wait"));
        assert_eq!(
            (of.rank, of.cta, of.tile, of.peer),
            (said.rank, said.cta, said.tile, said.peer)
        );
        assert!((of.waited.us() - said.waited.us()).abs() < 0.01);
    }
}

#[test]
fn a_recording_is_drawn_and_traced() {
    let (recording, _) = recorded();
    let (program, timeline) = recording.timeline().expect("a timeline");
    let image = draw(&timeline, &program, 0, "recorded");
    assert_eq!(image.matches("<title>mainloop").count(), 8);
    assert!(image.contains(", for rank 1"), "{image}");
    let trace: serde_json::Value =
        serde_json::from_str(&chrome_trace(&timeline, &program)).expect("JSON");
    assert!(trace["traceEvents"].as_array().is_some_and(|events| events.len() > 16));
}

#[test]
fn what_contradicts_itself_is_refused_with_rank_tile_and_numbers() {
    let (good, _) = recorded();
    let refused = |change: &dyn Fn(&mut Recording)| {
        let mut recording = good.clone();
        change(&mut recording);
        let text = serde_json::to_string(&recording).expect("JSON");
        Recording::read(&text).expect_err("refused").to_string()
    };
    type Case = (&'static dyn Fn(&mut Recording), &'static str);
    let cases: [Case; 7] = [
        (&|r| r.version = 2, "expected version 1 of the format, found 2"),
        (&|r| r.program = "program".into(), "the Program of the recording"),
        (&|r| r.ranks[0].rank = 2, "expected each rank below 2 at most once, found 2"),
        (&|r| r.ranks.push(r.ranks[0].clone()), "at most once, found 0"),
        (&|r| r.ranks[0].tiles[3].cta = 3, "rank 0, tile 3: expected a CTA below 3, found 3"),
        (&|r| r.ranks[0].tiles[0].m = 4, "expected a tile of a grid of 4 x 2, found (4, 0)"),
        (&|r| r.ranks[0].tiles[0].stored_ns = 0, "expected `stored_ns` no earlier than"),
    ];
    for (change, expected) in cases {
        let message = refused(change);
        assert!(message.contains(expected), "{message}");
    }
    let error = Recording::read("{\n  \"version\": 1").expect_err("no JSON").to_string();
    assert!(error.contains("line 2 column"), "{error}");
}
