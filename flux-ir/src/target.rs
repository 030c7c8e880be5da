//! What a target can do: data handed to the checker, so that a limit is an ordinary rule.

use std::fmt;
use std::str::FromStr;

/// An architecture a Program is made for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Target {
    /// Threads of the host.
    Host,
    /// NVIDIA Hopper with its architecture-specific instructions (`wgmma`, `setmaxnreg`).
    Sm90a,
}

impl Target {
    /// Every target.
    pub const ALL: [Target; 2] = [Target::Host, Target::Sm90a];

    /// The name in schedules and in the text form.
    pub const fn name(self) -> &'static str {
        match self {
            Target::Host => "host",
            Target::Sm90a => "sm_90a",
        }
    }

    /// Dynamic shared memory one CTA can have, in bytes (CUDA C++ Programming Guide, table of
    /// compute capabilities: 227 KiB for 9.0). The host has none to run out of.
    pub const fn shared_bytes(self) -> Option<u32> {
        match self {
            Target::Host => None,
            Target::Sm90a => Some(232_448),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Target {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        Target::ALL.into_iter().find(|t| t.name() == text).ok_or(())
    }
}
