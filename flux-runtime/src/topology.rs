//! What links the GPUs of this machine, and which part of the host is near each.
//!
//! NVML says what there is of GPUs (NVML API Reference, "Device Queries" and "NvLink Methods"), sysfs what
//! there is of the host. What neither says is left out.

use crate::device::Uuid;
use nvml_wrapper::enum_wrappers::device::{P2pCapabilitiesIndex, P2pStatus, TopologyLevel};
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};
use std::fmt;
use std::fs;
use std::path::Path;

/// NVLinks that are asked about: no GPU has so many.
const MOST_LINKS: u32 = 64;

/// What is known of this machine.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Topology {
    /// The parts of the host, by number.
    pub nodes: Vec<NumaNode>,
    /// As NVML numbers them: `CUDA_VISIBLE_DEVICES` hides none.
    pub gpus: Vec<Gpu>,
    /// Between GPU i and GPU j, as i sees it. An entry of a GPU with itself says nothing.
    pub pairs: Vec<Vec<Pair>>,
    /// Why no GPU is seen, where NVML could not be asked.
    pub missing: Option<String>,
}

/// Memory of the host, and the cores near it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NumaNode {
    /// As `NUMA node 0`.
    pub name: String,
    /// As `0-31`.
    pub cores: String,
}

/// A GPU of the machine.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Gpu {
    /// Its name.
    pub name: String,
    /// What tells it from all others.
    pub uuid: Option<Uuid>,
    /// MiB of its memory.
    pub mib: Option<u64>,
    /// Its address on PCIe: domain, bus, device and function.
    pub bus: Option<String>,
    /// The most that it and its place in the machine can do.
    pub pcie: Option<Pcie>,
    /// The name of the [`NumaNode`] that is near it.
    pub node: Option<String>,
    /// NVLinks that are up.
    pub links: u32,
}

/// A connection of PCIe.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Pcie {
    /// 5 for PCIe 5.0.
    pub generation: u32,
    /// Lanes: 16 for x16.
    pub lanes: u32,
}

impl fmt::Display for Pcie {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PCIe {}.0 x{}", self.generation, self.lanes)
    }
}

/// What is known of two GPUs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pair {
    /// Whether NVLink leads to the other one, through whatever switches.
    pub is_linked: Option<bool>,
    /// NVLinks that end at the other one itself.
    pub links: u32,
    /// Where they meet on PCIe, in words.
    pub path: Option<&'static str>,
    /// Read, write, add: whether one reaches the other's memory so.
    pub reach: Vec<(&'static str, bool)>,
}

/// What data takes from one GPU to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Way {
    /// So many NVLinks, all of them to the other GPU or to switches.
    NvLink {
        /// NVLinks, in each direction.
        links: u32,
    },
    /// PCIe: the weaker connection of both.
    Pcie(Option<Pcie>),
}

impl Way {
    /// NVLinks of the GPU on which rates over NVLink were measured (`docs/machines.md`).
    pub const MEASURED_LINKS: u32 = 18;
    /// The connection on which rates over PCIe were measured (`docs/machines.md`).
    pub const MEASURED_PCIE: Pcie = Pcie { generation: 5, lanes: 16 };

    /// Its bytes in a time over those of what was measured of its kind: [`Way::MEASURED_LINKS`] or
    /// [`Way::MEASURED_PCIE`]. Every NVLink counts as much as one of an H200, a lane of PCIe twice as much
    /// as one of the generation before; 1 where the connection is not known.
    pub fn over_measured(self) -> f64 {
        match self {
            Way::NvLink { links } => f64::from(links) / f64::from(Way::MEASURED_LINKS),
            Way::Pcie(None) => 1.0,
            Way::Pcie(Some(Pcie { generation, lanes })) => {
                let Pcie { generation: than, lanes: of } = Way::MEASURED_PCIE;
                let doubled = generation.clamp(1, 16) as i32 - than as i32;
                2f64.powi(doubled) * f64::from(lanes.max(1)) / f64::from(of)
            }
        }
    }

    /// The weakest of some, where there is one and all are known. PCIe is weaker than any NVLink.
    pub fn weakest(ways: impl IntoIterator<Item = Option<Way>>) -> Option<Way> {
        let all = ways.into_iter().collect::<Option<Vec<_>>>()?;
        let rank = |way: &Way| (matches!(way, Way::NvLink { .. }), way.over_measured());
        all.into_iter().min_by(|a, b| {
            let ((a, of_a), (b, of_b)) = (rank(a), rank(b));
            a.cmp(&b).then(of_a.total_cmp(&of_b))
        })
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Way::NvLink { links: 1 } => f.write_str("1 NVLink"),
            Way::NvLink { links } => write!(f, "{links} NVLinks"),
            Way::Pcie(Some(pcie)) => write!(f, "{pcie}"),
            Way::Pcie(None) => f.write_str("PCIe"),
        }
    }
}

impl Topology {
    /// Asks NVML and sysfs. This takes milliseconds.
    pub fn of_this_machine() -> Topology {
        let mut topology = Topology { nodes: nodes(Path::new("/sys")), ..Topology::default() };
        let asked = Nvml::init().and_then(|nvml| topology.fill(&nvml));
        topology.missing = asked.err().map(|error| error.to_string());
        topology
    }

    fn fill(&mut self, nvml: &Nvml) -> Result<(), NvmlError> {
        let count = nvml.device_count()?;
        let devices = (0..count).map(|index| nvml.device_by_index(index));
        let devices = devices.collect::<Result<Vec<_>, _>>()?;
        self.gpus = devices.iter().map(Gpu::of).collect::<Result<_, _>>()?;
        for (device, index) in devices.iter().zip(0..) {
            let ends = ends(device);
            let pair = |(other, to): (&Gpu, u32)| {
                let Some(bus) = &other.bus else { return Pair::default() };
                let links = ends.iter().filter(|end| end.eq_ignore_ascii_case(bus)).count() as u32;
                let mut pair = Pair { links, ..Pair::default() };
                // Handles are no values that could be kept.
                if let (true, Ok(other)) = (index != to, nvml.device_by_index(to)) {
                    let status = device.p2p_status(&other, P2pCapabilitiesIndex::NvLink);
                    let known = status.ok().filter(|status| *status != P2pStatus::Unknown);
                    pair.is_linked = known.map(|status| status == P2pStatus::Ok);
                    pair.reach = reach(device, &other);
                    pair.path = device.topology_common_ancestor(other).ok().map(words);
                }
                pair
            };
            self.pairs.push(self.gpus.iter().zip(0..).map(pair).collect());
        }
        Ok(())
    }

    /// What leads from each GPU to a different one, as far as it is known: `None` where NVML knows one of
    /// both not, or does not say what links them.
    pub fn way(&self, from: Uuid, to: Uuid) -> Option<Way> {
        let index = |uuid| self.gpus.iter().position(|gpu| gpu.uuid == Some(uuid));
        let (from, to) = (index(from)?, index(to)?);
        let pair = self.pairs.get(from)?.get(to)?;
        let ends = [&self.gpus[from], &self.gpus[to]];
        match (pair.links, pair.is_linked) {
            (0, None) => None,
            (0, Some(false)) => Some(Way::Pcie(weaker(ends.map(|gpu| gpu.pcie)))),
            // Through switches all links that are up lead to everyone.
            (0, Some(true)) => {
                let links = ends.map(|gpu| gpu.links).into_iter().min()?;
                (links > 0).then_some(Way::NvLink { links })
            }
            (links, _) => Some(Way::NvLink { links }),
        }
    }

    /// The weakest [`Topology::way`] between any two of `gpus`. `None` where they are fewer than two, or
    /// one of the ways is not known.
    pub fn weakest(&self, gpus: &[Uuid]) -> Option<Way> {
        let pairs = gpus.iter().flat_map(|from| gpus.iter().map(move |to| (*from, *to)));
        let apart = pairs.filter(|(from, to)| from != to);
        Way::weakest(apart.map(|(from, to)| self.way(from, to)))
    }
}

/// The connection with less of both, where both are known.
fn weaker([a, b]: [Option<Pcie>; 2]) -> Option<Pcie> {
    let rate = |pcie: Pcie| Way::Pcie(Some(pcie)).over_measured();
    let (a, b) = (a?, b?);
    Some(if rate(b) < rate(a) { b } else { a })
}

impl Gpu {
    fn of(device: &Device<'_>) -> Result<Gpu, NvmlError> {
        let bus = device.pci_info().ok().map(|pci| pci.bus_id.to_lowercase());
        let pcie = device.max_pcie_link_gen().ok().zip(device.max_pcie_link_width().ok());
        Ok(Gpu {
            name: device.name()?,
            uuid: Uuid::parse(&device.uuid()?),
            mib: device.memory_info().ok().map(|memory| memory.total >> 20),
            node: bus.as_deref().and_then(|bus| near(Path::new("/sys"), bus)),
            links: up(device).count() as u32,
            bus,
            pcie: pcie.map(|(generation, lanes)| Pcie { generation, lanes }),
        })
    }
}

/// The NVLinks of a GPU that are up.
fn up(device: &Device<'_>) -> impl Iterator<Item = u32> {
    (0..MOST_LINKS).filter(|&link| device.link_wrapper_for(link).is_active().unwrap_or(false))
}

/// Where the NVLinks of a GPU end.
fn ends(device: &Device<'_>) -> Vec<String> {
    let end = |link| device.link_wrapper_for(link).remote_pci_info().ok();
    up(device).filter_map(end).map(|pci| pci.bus_id).collect()
}

fn reach(device: &Device<'_>, other: &Device<'_>) -> Vec<(&'static str, bool)> {
    let kinds = [
        ("read", P2pCapabilitiesIndex::Read),
        ("write", P2pCapabilitiesIndex::Write),
        ("add", P2pCapabilitiesIndex::Atomics),
    ];
    let asked = kinds.into_iter().filter_map(|(what, kind)| {
        let status = device.p2p_status(other, kind).ok()?;
        Some((what, status == P2pStatus::Ok))
    });
    asked.collect()
}

fn words(level: TopologyLevel) -> &'static str {
    match level {
        TopologyLevel::Internal => "on one board",
        TopologyLevel::Single => "behind one switch",
        TopologyLevel::Multiple => "behind several switches",
        TopologyLevel::HostBridge => "behind one host bridge",
        TopologyLevel::Node => "on one NUMA node",
        TopologyLevel::System => "across NUMA nodes",
    }
}

/// The nodes of the host that sysfs at `root` lists.
fn nodes(root: &Path) -> Vec<NumaNode> {
    let Ok(folder) = fs::read_dir(root.join("devices/system/node")) else { return Vec::new() };
    let mut found: Vec<(u32, String)> = Vec::new();
    for entry in folder.flatten() {
        let name = entry.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix("node")?.parse().ok());
        let cores = fs::read_to_string(entry.path().join("cpulist"));
        if let (Some(number), Ok(cores)) = (number, cores) {
            found.push((number, cores.trim().into()));
        }
    }
    found.sort_unstable();
    let node = |(number, cores)| NumaNode { name: format!("NUMA node {number}"), cores };
    found.into_iter().map(node).collect()
}

/// The node that is near a device of PCIe, where sysfs knows one.
fn near(root: &Path, bus: &str) -> Option<String> {
    // NVML writes domains of eight digits, sysfs of four.
    let (domain, rest) = bus.split_once(':')?;
    let domain = domain.get(domain.len().saturating_sub(4)..)?;
    let path = root.join("bus/pci/devices").join(format!("{domain}:{rest}")).join("numa_node");
    let node: i32 = fs::read_to_string(path).ok()?.trim().parse().ok()?;
    (node >= 0).then(|| format!("NUMA node {node}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uuid(id: u8) -> Uuid {
        Uuid([id; 16])
    }

    /// So many GPUs, each with so many NVLinks that are up, and `pair` between any two.
    fn alike(count: u8, links: u32, pair: &Pair) -> Topology {
        let pcie = Some(Way::MEASURED_PCIE);
        let gpu = |id| Gpu { uuid: Some(uuid(id)), links, pcie, ..Gpu::default() };
        let pairs = vec![vec![pair.clone(); count.into()]; count.into()];
        Topology { gpus: (0..count).map(gpu).collect(), pairs, ..Topology::default() }
    }

    fn linked(is_linked: Option<bool>, links: u32) -> Pair {
        Pair { is_linked, links, ..Pair::default() }
    }

    #[test]
    fn a_way_has_the_links_that_end_at_the_other_or_through_switches_all_that_are_up() {
        let all: Vec<_> = (0..8).map(uuid).collect();
        let direct = alike(2, 18, &linked(Some(true), 4));
        assert_eq!(direct.weakest(&all[..2]), Some(Way::NvLink { links: 4 }));
        let mut switched = alike(8, 18, &linked(Some(true), 0));
        assert_eq!(switched.weakest(&all), Some(Way::NvLink { links: 18 }));
        switched.gpus[5].links = 16;
        assert_eq!(switched.weakest(&all), Some(Way::NvLink { links: 16 }), "one has links down");
        assert_eq!(switched.weakest(&all[..5]), Some(Way::NvLink { links: 18 }));
        switched.gpus[5].links = 0;
        assert_eq!(switched.weakest(&all), None, "what NVML says does not fit together");
    }

    #[test]
    fn the_weakest_pair_counts() {
        let all: Vec<_> = (0..4).map(uuid).collect();
        let mut mixed = alike(4, 18, &linked(Some(true), 6));
        mixed.pairs[3][1] = linked(Some(false), 0);
        mixed.gpus[1].pcie = Some(Pcie { generation: 4, lanes: 16 });
        let weakest = Way::Pcie(Some(Pcie { generation: 4, lanes: 16 }));
        assert_eq!(mixed.weakest(&all), Some(weakest));
        assert_eq!(mixed.weakest(&all[..3]), Some(Way::NvLink { links: 6 }));
        mixed.gpus[1].pcie = None;
        assert_eq!(mixed.weakest(&all), Some(Way::Pcie(None)));
    }

    #[test]
    fn what_is_not_known_is_not_guessed() {
        let pair = [uuid(0), uuid(1)];
        assert_eq!(Topology::default().weakest(&pair), None, "no NVML");
        let silent = alike(2, 18, &linked(None, 0));
        assert_eq!(silent.weakest(&pair), None);
        let two = alike(2, 18, &linked(Some(true), 0));
        assert_eq!(two.weakest(&[uuid(0), uuid(9)]), None, "a GPU that NVML does not list");
        assert_eq!(two.weakest(&[uuid(0)]), None);
        assert_eq!(two.weakest(&[uuid(0), uuid(0)]), None);
    }

    #[test]
    fn rates_are_those_of_links_and_lanes() {
        let pcie = |generation, lanes| Way::Pcie(Some(Pcie { generation, lanes })).over_measured();
        assert_eq!(Way::NvLink { links: 18 }.over_measured(), 1.0);
        assert_eq!(Way::NvLink { links: 9 }.over_measured(), 0.5);
        assert_eq!((pcie(5, 16), pcie(4, 16), pcie(3, 8), pcie(6, 16)), (1.0, 0.5, 0.125, 2.0));
        assert_eq!(Way::Pcie(None).over_measured(), 1.0);
        assert!(pcie(0, 0) > 0.0);
    }

    #[test]
    fn the_host_is_read_from_sysfs() {
        let root = std::env::temp_dir().join(format!("flux-topo-{}", std::process::id()));
        for (node, cores) in [(10, "8-15\n"), (2, "0-7\n")] {
            let folder = root.join(format!("devices/system/node/node{node}"));
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("cpulist"), cores).unwrap();
        }
        for (bus, node) in [("0000:04:00.0", "2\n"), ("0000:05:00.0", "-1\n")] {
            let folder = root.join("bus/pci/devices").join(bus);
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("numa_node"), node).unwrap();
        }
        let found = nodes(&root);
        let names: Vec<_> = found.iter().map(|of| (&*of.name, &*of.cores)).collect();
        assert_eq!(names, [("NUMA node 2", "0-7"), ("NUMA node 10", "8-15")]);
        assert_eq!(near(&root, "00000000:04:00.0").as_deref(), Some("NUMA node 2"));
        assert_eq!(near(&root, "00000000:05:00.0"), None);
        assert_eq!(near(&root, "00000000:06:00.0"), None);
        assert_eq!(near(&root, "odd"), None);
        fs::remove_dir_all(root).unwrap();
    }
}
