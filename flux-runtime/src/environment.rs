//! The two variables that the driver reads once, when it starts.

use std::env;

/// Hardware queues of a context that was made without `CUDA_DEVICE_MAX_CONNECTIONS`.
const DEFAULT_CONNECTIONS: u32 = 8;

/// The most the driver allows, and what is set here.
const MOST_CONNECTIONS: u32 = 32;

const CONNECTIONS: &str = "CUDA_DEVICE_MAX_CONNECTIONS";
const MODULE_LOADING: &str = "CUDA_MODULE_LOADING";

/// Sets what is unset, before the driver starts.
///
/// With the default of 8 queues, streams that wait for each other share queues and can deadlock;
/// with lazy loading, a kernel's first use may wait for a device that spins on that very kernel.
/// What the user has set stays as it is.
pub(crate) fn prepare() {
    let wanted = [(CONNECTIONS, MOST_CONNECTIONS.to_string()), (MODULE_LOADING, "EAGER".into())];
    for (name, value) in wanted {
        if env::var_os(name).is_none() {
            // SAFETY: every Rust reader of the environment takes the standard library's lock. Of
            // foreign code, the only reader that this crate brings along is the driver, which has
            // not been started: `probe` calls this once, in front of `cuInit`.
            unsafe { env::set_var(name, value) };
        }
    }
}

/// Hardware queues of a context made from now on.
pub(crate) fn connections() -> u32 {
    parse_connections(env::var(CONNECTIONS).ok().as_deref())
}

/// The driver ignores what is no number of 1…32 and then takes its default.
fn parse_connections(value: Option<&str>) -> u32 {
    value
        .and_then(|text| text.trim().parse().ok())
        .filter(|queues| (1..=MOST_CONNECTIONS).contains(queues))
        .unwrap_or(DEFAULT_CONNECTIONS)
}

#[cfg(test)]
mod tests {
    use super::parse_connections;

    #[test]
    fn nonsense_counts_as_the_default() {
        let cases = [
            (None, 8),
            (Some("32"), 32),
            (Some(" 16 "), 16),
            (Some("1"), 1),
            (Some("0"), 8),
            (Some("33"), 8),
            (Some("many"), 8),
        ];
        for (text, queues) in cases {
            assert_eq!(parse_connections(text), queues, "{text:?}");
        }
    }
}
