//! What links ranks, as launches are weighed for it.

use super::outbox::Peers;
use super::{Gpu, Passive};
use flux_runtime::topology::Way;

/// What ranks are linked by.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Link {
    /// Bytes a microsecond, in one direction.
    pub(super) bytes: f64,
    /// Bytes a microsecond that stores of CTAs reach: over PCIe 7 to 19 thousand, the more they are.
    pub(super) stores: f64,
    /// Microseconds that each further copy of a stream takes.
    pub(super) gap: f64,
    /// Microseconds from the begin of a launch to its first byte, and from a chunk's last byte to
    /// its first product.
    pub(super) latency: f64,
    /// Bytes a microsecond in each direction, where nothing runs beside.
    pub(super) alone: f64,
    /// What the product takes beside copies that arrive, in parts of what it takes alone.
    pub(super) beside: f64,
    /// As `beside`, where copies leave with what its tiles have stored.
    pub(super) beside_sends: f64,
    /// Microseconds that a launch beside copies takes beyond what is counted here.
    pub(super) exposed: f64,
    /// Bytes a microsecond that pieces of copy warps arrive with, their signals included.
    pub(super) pushes: f64,
    /// Bytes a microsecond of bulk copies.
    pub(super) bulk: f64,
    /// As `beside`, where copy warps push.
    pub(super) beside_pushes: f64,
    /// As `beside`, where bulk copies push.
    pub(super) beside_bulk: f64,
    /// As `beside`, where bulk copies of those who need the rows pull.
    pub(super) beside_pulls: f64,
    /// As `beside_pushes`, where every tile sums over what is pushed.
    pub(super) beside_summed: f64,
    /// Of the time that contributions take on the link, what the product does not hide.
    pub(super) exposed_part: ExposedPart,
}

/// By what moves contributions.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct ExposedPart {
    /// Stores of the epilogue: multiprocessors that end tiles at one time wait for the link together.
    pub(super) stores: f64,
    /// The same, where every rank gets all contributions.
    pub(super) one_shot: f64,
    /// Loads of the owner's copy warps.
    pub(super) pulls: f64,
    /// The owner's bulk copies.
    pub(super) bulk_pulls: f64,
    /// Stores of what is summed, which every rank brings afterwards by copy warps.
    pub(super) brought: f64,
    /// The same by bulk copies.
    pub(super) bulk_brought: f64,
}

/// What is assumed of links over which nothing was measured: all is hidden but what pulls move, which is
/// slower there than stores are.
const ASSUMED: ExposedPart = ExposedPart {
    stores: 0.0,
    one_shot: 0.0,
    pulls: 1.0,
    bulk_pulls: 1.5,
    brought: 1.0,
    bulk_brought: 2.0,
};

/// PCIe 5, 16 lanes, both directions busy (measured: `docs/machines.md`).
pub(super) const PCIE: Link = Link {
    bytes: 50_000.0,
    stores: 15_000.0,
    gap: 2.6,
    latency: 10.0,
    alone: 50_000.0,
    beside: 1.0,
    beside_sends: 1.0,
    exposed: 5.0,
    // 0.4 µs for each of three atomic additions to a piece's signal.
    pushes: 4500.0,
    // Not measured: no better than copy warps.
    bulk: 4500.0,
    beside_pushes: 1.0,
    beside_bulk: 1.05,
    beside_pulls: 1.05,
    beside_summed: 1.4,
    exposed_part: ASSUMED,
};

/// Copies within an H200: by its copy engines beside a kernel, both directions busy, and by all of
/// it (`docs/notes/overlap.md`).
pub(super) const DEVICE: Link = Link {
    bytes: 90_000.0,
    stores: 2_000_000.0,
    gap: 2.6,
    latency: 6.0,
    alone: 1_000_000.0,
    beside: 1.15,
    beside_sends: 1.15,
    exposed: 35.0,
    pushes: 2_000_000.0,
    bulk: 2_000_000.0,
    beside_pushes: 1.04,
    beside_bulk: 1.15,
    beside_pulls: 1.15,
    beside_summed: 1.0,
    exposed_part: ASSUMED,
};

/// The same among passive peers, whose pushes are played by copies beside the kernel.
pub(super) const PASSIVE_DEVICE: Link = Link { pushes: 75_000.0, beside_pushes: 1.15, ..DEVICE };

/// 18 NVLinks of an H200, both directions busy (measured: `docs/machines.md`, Copies over NVLink). What
/// runs beside copies, and what stays exposed, is fitted to `flux bench ranks` on two GPUs
/// (`docs/performance.md`).
pub(super) const NVLINK: Link = Link {
    bytes: 390_000.0,
    stores: 390_000.0,
    gap: 2.1,
    latency: 5.5,
    alone: 390_000.0,
    beside: 1.0,
    beside_sends: 1.2,
    exposed: 5.0,
    pushes: 200_000.0,
    bulk: 390_000.0,
    beside_pushes: 1.1,
    beside_bulk: 1.07,
    beside_pulls: 1.005,
    beside_summed: 1.4,
    exposed_part: ExposedPart {
        stores: 2.8,
        one_shot: 1.6,
        pulls: 1.0,
        bulk_pulls: 0.4,
        brought: 3.0,
        bulk_brought: 0.8,
    },
};

/// Cycles a microsecond of a multiprocessor under load.
pub(super) const CLOCK: f64 = 1800.0;

impl Gpu {
    pub(super) fn link(&self) -> Link {
        match self.passive() {
            Some(Passive { peers: Peers::Host, .. }) => PCIE,
            Some(Passive { peers: Peers::Device, .. }) => PASSIVE_DEVICE,
            Some(Passive { peers: Peers::Resident, .. }) => DEVICE,
            None => match self.inner.shares.as_slice() {
                [] | [_] => DEVICE,
                gpus => {
                    let most = gpus.iter().map(|gpu| gpu.ranks).max().unwrap_or(1);
                    Link::over(self.inner.way).shared(most)
                }
            },
        }
    }
}

impl Link {
    /// What was measured over a way of the kind, at its rates. All of NVLink where no way is known.
    pub(super) fn over(way: Option<Way>) -> Link {
        match way {
            None => NVLINK,
            Some(way @ Way::NvLink { .. }) => NVLINK.times(way.over_measured()),
            Some(way @ Way::Pcie(_)) => PCIE.times(way.over_measured()),
        }
    }

    /// What is left for each of so many ranks that share it.
    pub(super) fn shared(self, ranks: u32) -> Link {
        self.times(1.0 / f64::from(ranks))
    }

    /// The same with all rates so many times as high.
    fn times(self, factor: f64) -> Link {
        Link {
            bytes: self.bytes * factor,
            stores: self.stores * factor,
            alone: self.alone * factor,
            pushes: self.pushes * factor,
            bulk: self.bulk * factor,
            ..self
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Link, NVLINK, PCIE, Way};
    use flux_runtime::topology::Pcie;

    #[test]
    fn rates_follow_what_links_gpus_and_latencies_do_not() {
        let links = |links| Link::over(Some(Way::NvLink { links }));
        assert_eq!(Link::over(None), NVLINK);
        assert_eq!(links(18), NVLINK);
        assert_eq!((links(9).bytes, links(9).pushes), (NVLINK.bytes / 2.0, NVLINK.pushes / 2.0));
        assert_eq!((links(9).latency, links(9).gap), (NVLINK.latency, NVLINK.gap));
        let pcie =
            |generation, lanes| Link::over(Some(Way::Pcie(Some(Pcie { generation, lanes }))));
        assert_eq!(pcie(5, 16), PCIE);
        assert_eq!(Link::over(Some(Way::Pcie(None))), PCIE);
        assert_eq!((pcie(4, 8).bytes, pcie(4, 8).alone), (PCIE.bytes / 4.0, PCIE.alone / 4.0));
    }
}
