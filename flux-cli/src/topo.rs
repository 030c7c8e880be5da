//! `flux topo`: the GPUs of this machine, what links them, and which part of the host is near each.
//!
//! NVML says what there is of GPUs, sysfs what there is of the host. What neither says is left out.

use nvml_wrapper::enum_wrappers::device::{P2pCapabilitiesIndex, P2pStatus, TopologyLevel};
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};
use std::fmt::Write;
use std::fs;
use std::path::Path;

/// NVLinks that are asked about: no GPU has so many.
const MOST_LINKS: u32 = 64;

/// What is known of this machine.
#[derive(Debug, Default, PartialEq, Eq)]
struct Topology {
    nodes: Vec<Node>,
    gpus: Vec<Gpu>,
    /// Between GPU i and GPU j.
    pairs: Vec<Vec<Pair>>,
}

/// Memory of the host, and the cores near it.
#[derive(Debug, PartialEq, Eq)]
struct Node {
    name: String,
    cores: String,
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Gpu {
    name: String,
    uuid: String,
    mib: Option<u64>,
    bus: Option<String>,
    /// Generation and lanes.
    pcie: Option<(u32, u32)>,
    node: Option<String>,
    /// NVLinks that are up.
    links: u32,
}

#[derive(Debug, Default, Clone, PartialEq, Eq)]
struct Pair {
    /// Whether NVLink leads to the other one, through whatever switches.
    is_linked: bool,
    /// NVLinks that end at the other one itself.
    links: u32,
    path: Option<&'static str>,
    /// Read, write, atomic operations: whether one reaches the other's memory so.
    reach: Vec<(&'static str, bool)>,
}

/// What is to be printed.
pub(crate) fn run() -> String {
    let mut topology = Topology { nodes: nodes(Path::new("/sys")), ..Topology::default() };
    let missing = Nvml::init().and_then(|nvml| topology.fill(&nvml)).err();
    topology.text(missing.map(|error| error.to_string()).as_deref())
}

impl Topology {
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
                    pair.is_linked = status.is_ok_and(|status| status == P2pStatus::Ok);
                    pair.reach = reach(device, &other);
                    pair.path = device.topology_common_ancestor(other).ok().map(words);
                }
                pair
            };
            self.pairs.push(self.gpus.iter().zip(0..).map(pair).collect());
        }
        Ok(())
    }

    fn text(&self, missing: Option<&str>) -> String {
        let mut text = String::new();
        for Node { name, cores } in &self.nodes {
            let _ = writeln!(text, "{name}: cores {cores}");
        }
        if let Some(reason) = missing {
            let _ = writeln!(text, "no GPU is seen: {reason}");
        }
        for (gpu, index) in self.gpus.iter().zip(0..) {
            let _ = writeln!(text, "GPU {index}: {}", gpu.text());
        }
        for (row, from) in self.pairs.iter().zip(0usize..) {
            for (pair, to) in row.iter().zip(0usize..).filter(|(_, to)| from != *to) {
                let _ = writeln!(text, "GPU {from} to GPU {to}: {}", pair.text());
            }
        }
        text
    }
}

impl Gpu {
    fn of(device: &Device<'_>) -> Result<Gpu, NvmlError> {
        let bus = device.pci_info().ok().map(|pci| pci.bus_id.to_lowercase());
        let pcie = device.max_pcie_link_gen().ok().zip(device.max_pcie_link_width().ok());
        Ok(Gpu {
            name: device.name()?,
            uuid: device.uuid()?,
            mib: device.memory_info().ok().map(|memory| memory.total >> 20),
            node: bus.as_deref().and_then(|bus| near(Path::new("/sys"), bus)),
            links: up(device).count() as u32,
            bus,
            pcie,
        })
    }

    fn text(&self) -> String {
        let Gpu { name, uuid, mib, bus, pcie, node, links } = self;
        let mut parts = vec![name.clone(), uuid.clone()];
        parts.extend(mib.map(|mib| format!("{mib} MiB")));
        parts.extend(bus.clone());
        parts.extend(pcie.map(|(generation, lanes)| format!("PCIe {generation}.0 x{lanes}")));
        parts.push(
            node.as_ref().map_or("no NUMA node is said".into(), |node| format!("near {node}")),
        );
        parts.push(if *links > 0 { format!("{links} NVLinks") } else { "no NVLink".into() });
        parts.join(", ")
    }
}

impl Pair {
    fn text(&self) -> String {
        let mut parts = Vec::new();
        match (self.links, self.is_linked) {
            (0, false) => {}
            (0, true) => parts.push("linked by NVLink, through switches".into()),
            (links, _) => parts.push(format!("linked by {links} NVLinks")),
        }
        parts.extend(self.path.map(|path| format!("on PCIe {path}")));
        let can: Vec<_> =
            self.reach.iter().filter(|(_, can)| *can).map(|(what, _)| *what).collect();
        parts.push(match (self.reach.as_slice(), can.as_slice()) {
            ([], _) => "what it reaches is not said".into(),
            (_, []) => "reaches nothing of its memory".into(),
            (_, can) => format!("reaches its memory to {}", can.join(", ")),
        });
        parts.join("; ")
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
fn nodes(root: &Path) -> Vec<Node> {
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
    let node = |(number, cores)| Node { name: format!("NUMA node {number}"), cores };
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

    #[test]
    fn what_is_known_is_said_and_what_is_not_left_out() {
        let gpu = |bus: &str, node: Option<&str>| Gpu {
            name: "NVIDIA H200".into(),
            uuid: "GPU-1".into(),
            mib: Some(143_771),
            bus: Some(bus.into()),
            pcie: Some((5, 16)),
            node: node.map(Into::into),
            links: 18,
        };
        let all = vec![("read", true), ("write", true), ("add", false)];
        let path = Some("across NUMA nodes");
        let apart = Pair { path, reach: all, ..Pair::default() };
        let topology = Topology {
            nodes: vec![Node { name: "NUMA node 0".into(), cores: "0-31".into() }],
            gpus: vec![gpu("00000000:04:00.0", Some("NUMA node 0")), Gpu::default()],
            pairs: vec![
                vec![Pair::default(), apart],
                vec![Pair { links: 2, ..Pair::default() }, Pair::default()],
            ],
        };
        let said = "\
NUMA node 0: cores 0-31
GPU 0: NVIDIA H200, GPU-1, 143771 MiB, 00000000:04:00.0, PCIe 5.0 x16, near NUMA node 0, 18 NVLinks
GPU 1: , , no NUMA node is said, no NVLink
GPU 0 to GPU 1: on PCIe across NUMA nodes; reaches its memory to read, write
GPU 1 to GPU 0: linked by 2 NVLinks; what it reaches is not said
";
        assert_eq!(topology.text(None), said);
        assert!(topology.text(Some("none")).contains("no GPU is seen: none\n"));
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
