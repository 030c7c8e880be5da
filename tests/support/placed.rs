//! Ranks on the GPUs that tests are given.

use flux::{Error, World};

/// The GPUs that ranks are placed on in turn, such as `0,1`; where it is not set, ranks are virtual ones
/// of GPU 0.
const GPUS: &str = "FLUX_TEST_GPUS";

/// So many ranks.
pub(crate) fn world(ranks: u32) -> Result<World, Error> {
    let Ok(gpus) = std::env::var(GPUS) else { return World::virtual_ranks(0, ranks) };
    let gpus: Vec<&str> = gpus.split(',').collect();
    let of_ranks: Vec<&str> = gpus.iter().copied().cycle().take(ranks as usize).collect();
    format!("devices:{}", of_ranks.join(",")).parse()
}
