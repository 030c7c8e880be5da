//! Sizes and names of worlds, devices that are not there, limits.

use super::*;

#[test]
fn a_world_has_1_to_64_ranks() {
    for ranks in [0, 65, u32::MAX] {
        let says = format!("a world has 1 to 64 ranks, found {ranks}");
        let passive = World::passive(0, ranks, flux::Peers::Host);
        for world in [World::host(ranks), World::virtual_ranks(0, ranks), passive] {
            assert_eq!(world.expect_err("no such world").to_string(), says);
        }
    }
    for gpus in [&[][..], &[0; 65]] {
        let says = format!("a world has 1 to 64 ranks, found {}", gpus.len());
        assert_eq!(World::devices(gpus).expect_err("no such world").to_string(), says);
    }
    let ranks = World::host(64).and_then(|world| world.run(|rank| Ok(rank.index())));
    assert_eq!(ranks.expect("the largest world"), (0..64).collect::<Vec<_>>());
}

#[test]
fn a_name_that_is_no_world_is_quoted() {
    for name in [
        "",
        "host",
        "host:",
        ":4",
        "host:four",
        "host:-1",
        "tpu:4",
        "host:4:2",
        "4",
        "host: 4",
        "host:4294967296",
        "devices",
        "devices:",
        "devices:0,",
        "devices:0;1",
        "devices:0, 1",
        "devices:-1",
    ] {
        let error = name.parse::<World>().expect_err("no such world");
        let says = format!(
            "expected a world such as `host:8`, `gpu:4`, `devices:0,1` or `env`, found `{name}`"
        );
        assert_eq!(error.to_string(), says);
    }
    for name in ["host:0", "gpu:0", "host:65", "gpu:65"] {
        let error = name.parse::<World>().expect_err("no such world");
        assert!(matches!(error, Error::WorldSize(0 | 65)), "{error}");
    }
    assert_eq!("host:8".parse::<World>().expect("a world").to_string(), "host:8");
}

#[test]
fn a_device_that_is_not_there_is_an_error() {
    // Without a driver it says so; with one, that there are not so many devices.
    let named = "devices:99".parse();
    for world in [World::virtual_ranks(99, 1), World::devices(&[99, 99]), named] {
        let error = world.expect_err("no machine has so many");
        let says = error.to_string();
        let expected = ["CUDA driver", "device 99 does not exist, the driver sees"];
        assert!(expected.iter().any(|part| says.contains(part)), "{says}");
        assert!(matches!(error, Error::Runtime(_)), "{error:?}");
    }
}

#[test]
fn a_limit_can_be_nothing_or_for_ever_and_is_set_at_any_time() -> Result<(), Error> {
    let world = World::host(2)?;
    let ranks = world.ranks();
    let (hasty, patient) =
        (world.clone().with_limit(Duration::ZERO), world.with_limit(Duration::MAX));
    drop(ranks);
    patient.run(|rank| scatter(rank, &gemm_rs::load(rank)?, [4, 8, 3]))?;
    // Whoever comes first waits for nobody: an error or, with luck, a result.
    let (ended, took) = outcomes(&hasty, |rank| {
        std::thread::sleep(Duration::from_millis(20 * u64::from(rank.index())));
        gemm_rs::load(rank)
    });
    assert!(ended.iter().any(Result::is_err) && took < Duration::from_secs(1), "{took:?}");
    Ok(())
}
