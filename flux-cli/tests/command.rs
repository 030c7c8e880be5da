//! The `flux` command as a user runs it.

use std::process::{Command, Output};

fn flux(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_flux"));
    command.current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/..")).args(arguments);
    command.output().expect("the command starts")
}

fn said(output: &Output) -> String {
    let text = [output.stdout.as_slice(), output.stderr.as_slice()].concat();
    String::from_utf8(text).expect("the command speaks UTF-8")
}

#[test]
fn show_without_a_kernel_lists_the_library() {
    let output = flux(&["show"]);
    assert!(output.status.success(), "{}", said(&output));
    for kernel in flux::kernels::all() {
        assert!(said(&output).contains(kernel.name));
    }
}

#[test]
fn what_is_not_there_is_no_error_of_topo() {
    let output = flux(&["topo"]);
    assert!(output.status.success(), "{}", said(&output));
    assert!(said(&output).contains("GPU"), "{}", said(&output));
}

#[test]
fn this_machine_is_described_or_what_is_missing_is_said() {
    for arguments in [&["topo", "--machine"][..], &["sim", "gemm_rs", "--machine", "here"]] {
        let output = flux(arguments);
        if output.status.success() {
            assert!(said(&output).contains("nvidia"), "{}", said(&output));
        } else {
            let error = String::from_utf8_lossy(&output.stderr);
            assert!(error.contains("no machine can be described here"), "{error}");
        }
    }
}

#[test]
fn a_kernel_of_the_library_shows_as_ir_program_and_ptx() {
    for (flag, mark) in [
        ("--ir", "kernel @gemm_rs("),
        ("--program", "program @gemm_rs"),
        ("--ptx", ".target sm_90a"),
    ] {
        let output = flux(&["show", "gemm_rs", flag]);
        assert!(output.status.success(), "{}", said(&output));
        assert!(said(&output).contains(mark), "{flag}: {}", said(&output));
    }
}

#[test]
fn the_order_is_a_grid_of_steps() {
    let output = flux(&[
        "show", "gemm_rs", "--order", "--m", "512", "--n", "512", "--world", "2", "--rank", "1",
    ]);
    assert!(output.status.success(), "{}", said(&output));
    let grid: Vec<_> = said(&output).lines().skip(1).map(str::to_owned).collect();
    assert_eq!(
        grid,
        [" 0 2  | rank 0", " 1 3  | rank 0", " 4 6  | rank 1 (own)", " 5 7  | rank 1 (own)"]
    );
}

#[test]
fn another_order_is_drawn_on_request() {
    let output = flux(&["show", "gemm_bf16", "--order", "--by", "column_major", "--m", "256"]);
    assert!(said(&output).contains("order column_major"), "{}", said(&output));
    let output = flux(&["show", "gemm_bf16", "--order", "--by", "spiral"]);
    assert!(!output.status.success());
    assert!(said(&output).contains("no built-in order `spiral`; there are: row_major"));
}

#[test]
fn a_kernel_of_a_rust_file_shows_without_being_built() {
    let output = flux(&["show", "examples/tp_mlp.rs:gemm_rs_residual", "--program"]);
    assert!(output.status.success(), "{}", said(&output));
    assert!(said(&output).contains("agent gemm on ctas"));
}

#[test]
fn unknown_names_are_answered_with_those_there_are() {
    for (name, known) in
        [("gemm", "gemm_bf16"), ("examples/tp_mlp.rs:gemm", "kernels::ag_gemm_gelu")]
    {
        let output = flux(&["show", name]);
        assert!(!output.status.success());
        assert!(said(&output).contains(known), "{}", said(&output));
    }
    let output = flux(&["show", "gemm_rs", "--program", "--schedule", "99"]);
    assert!(said(&output).contains("has schedules 0 to 9, found --schedule 99"));
    let output = flux(&["show", "no/such/file.rs:kernel"]);
    assert!(said(&output).contains("cannot read no/such/file.rs"));
}

#[test]
fn check_accepts_the_library_and_the_examples() {
    for arguments in [&["check"][..], &["check", "examples"], &["check", "gemm_rs", "--exact"]] {
        let output = flux(arguments);
        assert!(output.status.success(), "{}", said(&output));
        assert!(said(&output).contains(" 0 rejected"));
    }
}

#[test]
fn check_points_at_the_token() {
    let output = flux(&["check", "flux-cli/tests/kernels/rejected.rs"]);
    assert!(!output.status.success());
    let text = said(&output);
    assert!(text.contains("rows of `a` may still be in flight"), "{text}");
    assert!(text.contains("c.store(tile, gemm(a, b.t(), tile));"), "{text}");
    assert!(text.contains("--> flux-cli/tests/kernels/rejected.rs:7:"), "{text}");
    assert!(text.contains("0 accepted, 1 rejected"), "{text}");
}

#[test]
fn an_order_of_the_programs_own_is_named_and_not_tried() {
    let file = "flux-cli/tests/kernels/own_order.rs";
    let output = flux(&["check", file]);
    assert!(output.status.success(), "{}", said(&output));
    assert!(said(&output).contains("order `backwards` is a function and was not tried"));
    let output = flux(&["show", &format!("{file}:reversed"), "--program"]);
    assert!(said(&output).contains("custom(backwards)"), "{}", said(&output));
    let output = flux(&["show", &format!("{file}:reversed"), "--order"]);
    assert!(!output.status.success());
    assert!(said(&output).contains("order `backwards` is a function of the program"));
}

#[test]
fn grids_that_no_launch_can_have_are_refused() {
    let most = u32::MAX.to_string();
    for (arguments, expected) in [
        (["--m", &most, "--world", "4"], "over the limit of 2147483647"),
        (["--m", "2147483647", "--n", "2147483647"], "tiles are too many to draw"),
        (["--m", "64", "--world", "65"], "a world has 1 to 64 ranks"),
    ] {
        let output = flux(&[&["show", "gemm_rs", "--order"][..], &arguments[..]].concat());
        assert!(!output.status.success());
        assert!(said(&output).contains(expected), "{}", said(&output));
    }
}

#[test]
fn what_holds_no_kernels_is_said_to_hold_none() {
    let output = flux(&["check", "Makefile"]);
    assert!(said(&output).contains("Makefile is no folder, no .rs file and no .flux file"));
    let output = flux(&["show", "examples/tp_mlp.rs"]);
    assert!(said(&output).contains("holds several kernels: name one of kernels::ag_gemm_gelu"));
}

#[test]
fn check_rejects_an_order_that_deadlocks() {
    let output = flux(&["check", "gemm_rs", "--by", "own_shard_first"]);
    assert!(!output.status.success());
    assert!(said(&output).contains("error[deadlock]"), "{}", said(&output));
}

const FILES: &str = "flux-ir/tests/filetests";

#[test]
fn a_program_is_checked_and_shown_from_its_text() {
    let good = format!("{FILES}/faults/gather_push_passes.flux");
    let output = flux(&["check", &good, "--exact", "--m", "64", "--n", "8", "--k", "8"]);
    assert!(output.status.success(), "{}", said(&output));
    assert!(said(&output).contains("gather_push_passes.flux (a Program)"), "{}", said(&output));
    let output = flux(&["check", &format!("{FILES}/verify/deadlock.flux")]);
    assert!(!output.status.success());
    assert!(said(&output).contains("error[deadlock]"), "{}", said(&output));
    let output = flux(&["show", &good]);
    assert!(said(&output).starts_with("program @gather_push for host {"), "{}", said(&output));
    let output = flux(&["show", &good, "--ir"]);
    assert!(!output.status.success());
    assert!(said(&output).contains("is a Program: its kernel is not in it"), "{}", said(&output));
    for verb in [&["check"][..], &["check", "--explain"], &["show", "--program"]] {
        let output = flux(&[verb, &[good.as_str(), "--by", "xor"]].concat());
        assert!(!output.status.success());
        assert!(said(&output).contains("of a Program") || said(&output).contains("is a Program"));
    }
    let output = flux(&["check", &format!("{FILES}/verify/syntax.flux")]);
    assert!(!output.status.success());
    assert!(said(&output).contains("--> flux-ir/tests/filetests/verify/syntax.flux:"));
}

#[test]
fn an_exact_launch_is_explained() {
    let output = flux(&[
        "check",
        "--explain",
        "gemm_rs",
        "--m",
        "4096",
        "--n",
        "4096",
        "--world",
        "8",
        "--rank",
        "3",
        "--launch",
        "2",
    ]);
    assert!(output.status.success(), "{}", said(&output));
    let text = said(&output);
    for line in [
        "gemm_rs, in a launch of 4096x4096x1024 on 8 ranks with 132 CTAs each",
        "  actors           1064  on all ranks, exits included",
        "%c_partial{0, 0}[1536, 0] on rank 3, launch 2",
        "How it arrives",
        "No launch that is run writes it again; the others are alike",
        "Counts of waits, for every shape, world, grid and launch",
        "  proved  wait %free[0..world] >= epoch - 2: ",
        "ok        gemm_rs",
    ] {
        assert!(text.contains(line), "{line} in\n{text}");
    }
    let output = flux(&["check", "--explain", "gemm_rs", "--element", "c[130, 3]"]);
    assert!(output.status.success(), "{}", said(&output));
    assert!(said(&output).contains("store %c[130, 3]"), "{}", said(&output));
    let mark = "What keeps the write of launch 3 away until launch 1 has read it";
    assert!(said(&output).contains(mark), "{}", said(&output));
}

#[test]
fn what_is_rejected_is_explained_on_its_smallest_launch() {
    let output = flux(&["check", "--explain", "gemm_rs", "--by", "own_shard_first"]);
    assert!(!output.status.success());
    let text = said(&output);
    for line in [
        "on 2 ranks with 1 CTA each",
        "error[deadlock]",
        "2 actors wait for each other; each raise below is the one above it waits for",
        "the first wait again: nobody can go on",
        "rejected  gemm_rs",
    ] {
        assert!(text.contains(line), "{line} in\n{text}");
    }
    let output = flux(&["check", "--explain", &format!("{FILES}/verify/bounds.flux")]);
    assert!(!output.status.success());
    assert!(said(&output).contains("error[bounds]"), "{}", said(&output));
    // No launch shows this one.
    let output = flux(&["check", "--explain", &format!("{FILES}/verify/resources.flux")]);
    assert!(!output.status.success());
    assert!(said(&output).contains("error[resources]"), "{}", said(&output));
}

#[test]
fn a_launch_is_drawn() {
    let file = "examples/tp_mlp.rs:gemm_rs_residual";
    let output = flux(&["check", "--explain", file, "--svg", "-"]);
    assert!(output.status.success(), "{}", said(&output));
    let text = said(&output);
    assert!(text.starts_with("<svg xmlns=") && text.ends_with("</svg>\n"), "{text}");
    let folder = env!("CARGO_TARGET_TMPDIR");
    let (dot, svg) = (format!("{folder}/drawn.dot"), format!("{folder}/drawn.svg"));
    let output = flux(&["check", "--explain", file, "--svg", &svg, "--dot", &dot]);
    assert!(said(&output).contains("Lines are those of examples/tp_mlp.rs"), "{}", said(&output));
    let drawn = std::fs::read_to_string(&svg).expect("it was written");
    assert_eq!(drawn, text);
    let drawn = std::fs::read_to_string(&dot).expect("it was written");
    assert!(drawn.starts_with("digraph launch {"), "{drawn}");
}

#[test]
fn what_cannot_be_explained_is_said() {
    for (arguments, expected) in [
        (&["--explain"][..], "--explain takes one kernel"),
        (&["--explain", "gemm_rs", "ag_gemm"], "--explain takes one kernel"),
        (
            &["--explain", "gemm_rs", "--element", "c[1"],
            "expected an element as BUFFER[ROW,COLUMN]",
        ),
        (&["--explain", "gemm_rs", "--element", "d[1,1]"], "no buffer `d`; there are: a, b, c,"),
        (&["--explain", "gemm_rs", "--launch", "7"], "expected a launch 1 to 3, found 7"),
        (&["--explain", "gemm_rs", "--rank", "2"], "expected a rank 0 to 1, found 2"),
        (&["--explain", "gemm_rs", "--svg", "no/such/folder/x.svg"], "cannot write no/such/folder"),
        (&["--svg", "x.svg", "gemm_rs"], "--explain"),
    ] {
        let output = flux(&[&["check"], arguments].concat());
        assert!(!output.status.success(), "{}", said(&output));
        assert!(said(&output).contains(expected), "{expected} in {}", said(&output));
    }
}

#[test]
fn the_bench_checks_results_anywhere_and_times_nothing() {
    for operator in ["gemm", "ag-gemm", "gemm-rs"] {
        let output = flux(&["bench", operator, "--quick"]);
        assert!(output.status.success(), "{}", said(&output));
        assert!(said(&output).lines().count() >= 5, "{}", said(&output));
        assert!(said(&output).lines().all(|line| line.starts_with("ok  ")), "{}", said(&output));
    }
}

#[test]
fn the_bench_reads_shapes_and_refuses_what_is_none() {
    let output = flux(&["bench", "gemm", "--shape", "1,2"]);
    assert!(!output.status.success());
    assert!(said(&output).contains("expected M,N,K"), "{}", said(&output));
    let output = flux(&["bench", "ag-gemm", "--peers", "nowhere"]);
    assert!(!output.status.success());
    assert!(said(&output).contains("host, device"), "{}", said(&output));
}

#[test]
fn sim_predicts_a_launch_and_names_what_was_waited_for() {
    let launch = ["--m", "2048", "--n", "2048", "--k", "4096", "--world", "8"];
    let output = flux(&[&["sim", "ag_gemm", "--machine", "h200-pcie"], &launch[..]].concat());
    assert!(output.status.success(), "{}", said(&output));
    let text = said(&output);
    for line in [
        "ag_gemm 2048 x 2048 x 4096, world 8, h200-pcie",
        "tile (128, 256, 64), cooperative, 128 CTAs; simulated 1 of 8 ranks",
        "  GEMM alone  ",
        "  comm alone  ",
        "  bound ratio  ",
        "critical path",
        "waited 0.",
        " for rank 1, until ",
    ] {
        assert!(text.contains(line), "{line} in\n{text}");
    }
    let every = flux(
        &[&["sim", "ag_gemm", "--machine", "h200-pcie", "--every-rank"], &launch[..]].concat(),
    );
    assert_eq!(said(&every).replace("simulated 8 of 8", "simulated 1 of 8"), text);
}

/// Ranks of several nodes: one of each place in a node stands for all.
#[test]
fn sim_divides_ranks_into_nodes() {
    let launch = ["--m", "4096", "--n", "1024", "--k", "1024", "--world", "16", "--node", "8"];
    let output = flux(&[&["sim", "ag_gemm", "--machine", "h200-ib"], &launch[..]].concat());
    assert!(output.status.success(), "{}", said(&output));
    assert!(said(&output).contains("simulated 8 of 16 ranks"), "{}", said(&output));
    let output = flux(&[&["sim", "ag_gemm", "--machine", "h200-pcie"], &launch[..]].concat());
    assert!(!output.status.success());
    let text = said(&output);
    assert!(text.contains("machine `h200-pcie` has no network between nodes"), "{text}");
    let output = flux(&[&["sim", "gemm_rs", "--machine", "h200-ib"], &launch[..]].concat());
    assert!(said(&output).contains("found the scattered `c`"), "{}", said(&output));
}

#[test]
fn sim_writes_json_a_drawing_and_a_trace() {
    let folder = env!("CARGO_TARGET_TMPDIR");
    let (svg, trace) = (format!("{folder}/sim.svg"), format!("{folder}/sim.json"));
    let launch = ["sim", "gemm_rs", "--m", "1024", "--world", "4"];
    let output = flux(&[&launch[..], &["--json", "--svg", &svg, "--trace", &trace]].concat());
    assert!(output.status.success(), "{}", said(&output));
    let figures: serde_json::Value = serde_json::from_str(&said(&output)).expect("JSON");
    assert_eq!(figures["kernel"], "gemm_rs");
    assert!(figures["total_ms"].as_f64() >= figures["gemm_ms"].as_f64());
    let read = |path: &str| std::fs::read_to_string(path).expect("it was written");
    assert!(read(&svg).starts_with("<svg ") && read(&svg).contains("gemm_rs 1024 x 2048 x 1024"));
    let events: serde_json::Value = serde_json::from_str(&read(&trace)).expect("JSON");
    assert!(events["traceEvents"].as_array().is_some_and(|events| events.len() > 100));
    let drawn = flux(&[&launch[..], &["--svg", "-"]].concat());
    assert_eq!(said(&drawn), read(&svg));
}

#[test]
fn sim_ranks_the_schedules_of_a_kernel() {
    let output = flux(&["sim", "gemm_bf16", "--schedules", "--m", "8192", "--n", "8192"]);
    assert!(output.status.success(), "{}", said(&output));
    let rows: Vec<_> = said(&output).lines().skip(3).map(str::to_owned).collect();
    let schedules = (flux::kernels::gemm_bf16::definition().schedules)().len();
    assert_eq!(rows.len(), schedules, "{rows:?}");
    let total = |row: &String| row.split_whitespace().next().and_then(|total| total.parse().ok());
    let totals: Vec<f64> = rows.iter().filter_map(total).collect();
    assert_eq!(totals.len(), schedules);
    assert!(totals.is_sorted(), "{totals:?}");
}

#[test]
fn sim_takes_chunks_tails_and_orders_in_place_of_the_schedules() {
    let launch = "sim ag_gemm --machine h200-pcie --m 4096 --n 6144 --k 12288 --world 8";
    let launch: Vec<_> = launch.split(' ').collect();
    let total = |more: &[&str]| {
        let output = flux(&[&launch[..], more, &["--json"]].concat());
        assert!(output.status.success(), "{}", said(&output));
        let figures: serde_json::Value = serde_json::from_str(&said(&output)).expect("JSON");
        figures["total_ms"].as_f64().expect("a number")
    };
    let whole = total(&[]);
    assert!(total(&["--tail", "256,4"]) < whole);
    assert!(total(&["--chunk-rows", "16"]) > whole);
    assert!(total(&["--by", "next_rank_first"]) > whole);
    for wrong in ["256", "256,0", "a,4"] {
        let output = flux(&[&launch[..], &["--tail", wrong]].concat());
        assert!(!output.status.success());
        assert!(said(&output).contains("expected ROWS,SLICES, as 256,4"), "{}", said(&output));
    }
}

#[test]
fn sim_takes_a_machine_of_ones_own_and_says_what_is_wrong_with_it() {
    let folder = env!("CARGO_TARGET_TMPDIR");
    let own = format!("{folder}/own.json");
    let nvlink = std::fs::read_to_string(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../machines/h200-nvlink.json"
    ))
    .expect("the machine is there");
    std::fs::write(&own, nvlink.replace("h200-nvlink", "mine")).expect("it is written");
    let output = flux(&["sim", "gemm_rs", "--machine", &own]);
    assert!(said(&output).contains(", mine\n"), "{}", said(&output));
    std::fs::write(&own, nvlink.replace("\"sms\": 132", "\"sms\": 0")).expect("it is written");
    let output = flux(&["sim", "gemm_rs", "--machine", &own]);
    assert!(!output.status.success());
    assert!(said(&output).contains("own.json: expected 1 to"), "{}", said(&output));
    assert!(said(&output).contains("found 0 at line 5 column"), "{}", said(&output));
}

#[test]
fn what_cannot_be_predicted_is_said() {
    for (arguments, expected) in [
        (&["gemm_rs", "--machine", "h100"][..], "there are: h200-nvlink, h200-pcie"),
        (&["gemm_rs", "--schedule", "99"], "has schedules 0 to 9, found --schedule 99"),
        (&["gemm_rs", "--by", "spiral"], "no built-in order `spiral`"),
        (&["gemm_rs", "--by", "own_shard_first"], "error[deadlock]"),
        (&["gemm_rs", "--m", "0"], "expected M of 1 to 2147483647, found 0"),
        (&["gemm_rs", "--m", "2147483647", "--n", "2147483647"], "tiles on 1 ranks"),
        (&["gemm_rs", "--schedules", "--svg", "x.svg"], "cannot be used with"),
        (&["gemm_rs", "--trace", "no/such/folder/x.json"], "cannot write no/such/folder"),
        (&["flux-cli/tests/kernels/own_order.rs:reversed"], "order `backwards`"),
    ] {
        let output = flux(&[&["sim"], arguments].concat());
        assert!(!output.status.success(), "{}", said(&output));
        assert!(said(&output).contains(expected), "{expected} in {}", said(&output));
    }
}

#[test]
fn an_instrumented_kernel_records_its_tiles_on_a_device() {
    let tiles = format!("{}/device.json", env!("CARGO_TARGET_TMPDIR"));
    let launch = ["--world", "4", "--shape", "512,1024,1024", "--record", &tiles];
    for (operator, count) in [("ag-gemm", 4), ("gemm-rs", 4)] {
        let output = flux(&[&["bench", operator], &launch[..]].concat());
        let text = said(&output);
        assert!(output.status.success(), "{text}");
        if text.contains("skipped: no CUDA device") {
            println!("{text}");
            return;
        }
        let output = flux(&["trace", &tiles]);
        let text = said(&output);
        assert!(output.status.success(), "{text}");
        assert!(text.contains(" 512 x 1024 x 1024, world 4"), "{text}");
        let of_rank = text.lines().find(|line| line.trim_start().starts_with("0 "));
        let tiles: u32 = of_rank
            .and_then(|line| line.split_whitespace().nth(1)?.parse().ok())
            .unwrap_or_else(|| panic!("{text}"));
        assert!(tiles >= count, "{text}");
    }
}

#[test]
fn a_recording_is_read_back_and_drawn() {
    let folder = env!("CARGO_TARGET_TMPDIR");
    let (tiles, svg) = (format!("{folder}/tiles.json"), format!("{folder}/tiles.svg"));
    let output =
        flux(&["sim", "ag_gemm", "--m", "1024", "--n", "1024", "--world", "4", "--record", &tiles]);
    assert!(output.status.success(), "{}", said(&output));
    let output = flux(&["trace", &tiles, "--svg", &svg]);
    assert!(output.status.success(), "{}", said(&output));
    let text = said(&output);
    for line in [
        "ag_gemm 1024 x 1024 x 1024, world 4, predicted, h200-nvlink",
        "     0      32  ",
        "last wait on the critical path\n  tile (3, 3) of rank 0 (cta 31)",
        " waited 0.",
        " for rank 1, until ",
    ] {
        assert!(text.contains(line), "{line} in\n{text}");
    }
    let drawn = std::fs::read_to_string(&svg).expect("it was written");
    assert_eq!(drawn.matches("<title>mainloop").count(), 32);
    for (file, expected) in [
        ("no/such/file.json", "cannot read no/such/file.json"),
        ("machines/h200-pcie.json", "machines/h200-pcie.json: unknown field `name`"),
    ] {
        let output = flux(&["trace", file]);
        assert!(!output.status.success());
        assert!(said(&output).contains(expected), "{}", said(&output));
    }
}

/// A folder of its own for a test.
fn folder(name: &str) -> std::path::PathBuf {
    let folder = std::path::PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).expect("a writable folder");
    folder
}

#[test]
fn a_bundle_is_what_the_macro_embeds_by_whatever_way_its_kernel_is_named() {
    let folder = folder("bundles");
    let embedded = flux::Bundle::encode(flux::kernels::gemm_rs::definition()).expect("a kernel");
    for (name, file) in [("gemm_rs", "library"), ("src/kernels.rs:gemm_rs", "file")] {
        let path = folder.join(file);
        let output = flux(&["build", "--bundle", name, "-o", &path.display().to_string()]);
        assert!(output.status.success(), "{}", said(&output));
        assert!(said(&output).contains("gemm_rs"), "{}", said(&output));
        assert!(std::fs::read(&path).expect("the bundle") == embedded, "{name} differs");
        let bundle = flux::Bundle::open(&path).expect("what was just written");
        assert_eq!(bundle.definition().name, "gemm_rs");
    }
    assert_eq!(std::fs::read_dir(&folder).expect("the folder").count(), 2, "no draft is left");
}

#[test]
fn every_kernel_of_a_file_goes_to_a_folder() {
    let folder = folder("bundles-of-a-file");
    let path = folder.display().to_string();
    let output = flux(&["build", "--bundle", "examples/tp_mlp.rs", "-o", &path]);
    assert!(output.status.success(), "{}", said(&output));
    for name in ["ag_gemm_gelu", "gemm_rs_residual"] {
        let bundle = flux::Bundle::open(folder.join(format!("{name}.flux-bundle")));
        assert_eq!(bundle.expect("a bundle").definition().file, "examples/tp_mlp.rs");
    }
    let one = folder.join("one").display().to_string();
    let output = flux(&["build", "--bundle", "examples/tp_mlp.rs", "-o", &one]);
    assert!(!output.status.success());
    assert!(said(&output).contains("holds several kernels: name one of"), "{}", said(&output));
}

#[test]
fn two_kernels_of_one_name_do_not_share_a_file() {
    let folder = folder("bundles-of-one-name");
    let kernel = "#[flux::kernel]\n#[schedule(host, tile = (8, 8, 8))]\n\
        fn twin(a: &Global<bf16>, b: &Global<bf16>, c: &mut Global<bf16>) {\n\
        for tile in c.tiles() { c.store(tile, gemm(a, b.t(), tile)); }\n}\n";
    let [from, to] = ["from", "to"].map(|name| folder.join(name));
    std::fs::create_dir_all(&from).expect("a folder");
    std::fs::write(from.join("one.rs"), kernel).expect("a file");
    let build = || {
        let paths = [&from, &to].map(|path| format!("{}/", path.display()));
        flux(&["build", "--bundle", &paths[0], "-o", &paths[1]])
    };
    let output = build();
    assert!(output.status.success(), "{}", said(&output));
    assert!(said(&output).contains("`twin`, for the host alone"), "{}", said(&output));
    std::fs::remove_dir_all(&to).expect("a folder");
    std::fs::write(from.join("two.rs"), kernel).expect("a file");
    let output = build();
    assert!(!output.status.success());
    assert!(said(&output).contains("would both be twin.flux-bundle"), "{}", said(&output));
    // Broken for the host: told where it is written, and no bundle of it.
    std::fs::remove_file(from.join("two.rs")).expect("a file");
    let broken = kernel.replace("gemm(a, b.t(), tile)", "gemm(a, b.t(), tile) + a.load(tile)");
    std::fs::write(from.join("one.rs"), broken).expect("a file");
    let output = build();
    assert!(!output.status.success() && said(&output).contains("one.rs:"), "{}", said(&output));
    assert!(!to.exists(), "nothing is written");
}

#[test]
fn what_cannot_be_in_a_bundle_is_refused_and_nothing_is_written() {
    let path = folder("no-bundle").join("it");
    let own_order = "flux-cli/tests/kernels/own_order.rs:reversed";
    for (name, told) in [
        (own_order, "its order `backwards` is a function of the program"),
        ("flux-cli/tests/kernels/rejected.rs", "rejected.rs:"),
        ("no_such_kernel", "no kernel `no_such_kernel` in the library"),
    ] {
        let output = flux(&["build", "--bundle", name, "-o", &path.display().to_string()]);
        assert!(!output.status.success());
        assert!(said(&output).contains(told), "{}", said(&output));
        assert!(!path.exists());
    }
    let output = flux(&["build", "--bundle", "gemm_rs", "-o", "/proc/no/such/file"]);
    assert!(!output.status.success());
    assert!(said(&output).contains("cannot write /proc/no"), "{}", said(&output));
}
