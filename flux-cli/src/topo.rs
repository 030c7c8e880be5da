//! `flux topo`: the GPUs of this machine, what links them, and which part of the host is near each.

use flux_runtime::topology::{Gpu, NumaNode, Pair, Topology};
use std::fmt::Write;

/// What is to be printed.
pub(crate) fn run() -> String {
    text(&Topology::of_this_machine())
}

fn text(topology: &Topology) -> String {
    let mut text = String::new();
    for NumaNode { name, cores } in &topology.nodes {
        let _ = writeln!(text, "{name}: cores {cores}");
    }
    if let Some(reason) = &topology.missing {
        let _ = writeln!(text, "no GPU is seen: {reason}");
    }
    for (gpu, index) in topology.gpus.iter().zip(0..) {
        let _ = writeln!(text, "GPU {index}: {}", of_gpu(gpu));
    }
    for (row, from) in topology.pairs.iter().zip(0usize..) {
        for (pair, to) in row.iter().zip(0usize..).filter(|(_, to)| from != *to) {
            let _ = writeln!(text, "GPU {from} to GPU {to}: {}", of_pair(pair));
        }
    }
    text
}

fn of_gpu(gpu: &Gpu) -> String {
    let Gpu { name, uuid, mib, bus, pcie, node, links } = gpu;
    let mut parts = vec![name.clone()];
    parts.extend(uuid.map(|uuid| uuid.to_string()));
    parts.extend(mib.map(|mib| format!("{mib} MiB")));
    parts.extend(bus.clone());
    parts.extend(pcie.map(|pcie| pcie.to_string()));
    parts.push(node.as_ref().map_or("no NUMA node is said".into(), |node| format!("near {node}")));
    parts.push(if *links > 0 { format!("{links} NVLinks") } else { "no NVLink".into() });
    parts.join(", ")
}

fn of_pair(pair: &Pair) -> String {
    let mut parts = Vec::new();
    match (pair.links, pair.is_linked) {
        (0, Some(true)) => parts.push("linked by NVLink, through switches".into()),
        (0, Some(false) | None) => {}
        (links, _) => parts.push(format!("linked by {links} NVLinks")),
    }
    parts.extend(pair.path.map(|path| format!("on PCIe {path}")));
    let can: Vec<_> = pair.reach.iter().filter(|(_, can)| *can).map(|(what, _)| *what).collect();
    parts.push(match (pair.reach.as_slice(), can.as_slice()) {
        ([], _) => "what it reaches is not said".into(),
        (_, []) => "reaches nothing of its memory".into(),
        (_, can) => format!("reaches its memory to {}", can.join(", ")),
    });
    parts.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use flux_runtime::Uuid;
    use flux_runtime::topology::Pcie;

    #[test]
    fn what_is_known_is_said_and_what_is_not_left_out() {
        let gpu = |bus: &str, node: Option<&str>| Gpu {
            name: "NVIDIA H200".into(),
            uuid: Some(Uuid([0x1f; 16])),
            mib: Some(143_771),
            bus: Some(bus.into()),
            pcie: Some(Pcie { generation: 5, lanes: 16 }),
            node: node.map(Into::into),
            links: 18,
        };
        let all = vec![("read", true), ("write", true), ("add", false)];
        let path = Some("across NUMA nodes");
        let apart = Pair { path, reach: all, ..Pair::default() };
        let topology = Topology {
            nodes: vec![NumaNode { name: "NUMA node 0".into(), cores: "0-31".into() }],
            gpus: vec![gpu("00000000:04:00.0", Some("NUMA node 0")), Gpu::default()],
            pairs: vec![
                vec![Pair::default(), apart],
                vec![Pair { links: 2, ..Pair::default() }, Pair::default()],
            ],
            missing: None,
        };
        let said = "\
NUMA node 0: cores 0-31
GPU 0: NVIDIA H200, GPU-1f1f1f1f-1f1f-1f1f-1f1f-1f1f1f1f1f1f, 143771 MiB, 00000000:04:00.0, PCIe 5.0 x16, near NUMA node 0, 18 NVLinks
GPU 1: , no NUMA node is said, no NVLink
GPU 0 to GPU 1: on PCIe across NUMA nodes; reaches its memory to read, write
GPU 1 to GPU 0: linked by 2 NVLinks; what it reaches is not said
";
        assert_eq!(text(&topology), said);
        let topology = Topology { missing: Some("none".into()), ..topology };
        assert!(text(&topology).contains("no GPU is seen: none\n"));
    }
}
