//! This machine, as the time model has machines: what the driver and NVML say of it, and for the rest
//! what was measured on the nearest machine that comes with the library.

use flux_runtime::topology::{Topology, Way};
use flux_runtime::{DeviceProperties, Uuid, probe};
use flux_sim::time::Machine;
use serde_json::{Value, json};
use std::error::Error;

/// What `--machine` calls this machine.
const HERE: &str = "here";

/// The numbers of a machine's link that are rates.
const RATES: [&str; 3] = ["link.copy_wire", "link.put_gbps", "link.bulk_gbps"];

/// What was read of the GPUs.
struct Found {
    /// The name of the first.
    name: String,
    sms: u32,
    l2_bytes: u64,
    linked: Linked,
}

/// What is known of how GPUs are linked.
enum Linked {
    /// The weakest way between any two of several.
    By(Way),
    /// There is one GPU: what leads out of it.
    Out(Way),
    /// NVML does not say.
    Unknown,
}

/// The machine called `name`, the one here, or that of a file.
///
/// # Errors
/// There is no such machine, or here no GPU.
pub(crate) fn find(name: &str) -> Result<Machine, Box<dyn Error>> {
    if name == HERE { machine() } else { Ok(Machine::find(name)?) }
}

/// The machine here as JSON, for a file that `flux sim --machine` takes.
///
/// # Errors
/// There is no GPU here.
pub(crate) fn json() -> Result<String, Box<dyn Error>> {
    Ok(serde_json::to_string_pretty(&machine()?)? + "\n")
}

fn machine() -> Result<Machine, Box<dyn Error>> {
    let missing = |reason: flux_runtime::Error| {
        format!("no machine can be described here, as no GPU can be asked: {reason}")
    };
    let count = probe().map_err(missing)?.devices;
    let gpus = (0..count).map(DeviceProperties::of).collect::<Result<Vec<_>, _>>();
    let gpus = gpus.map_err(missing)?;
    let Some(first) = gpus.first() else {
        return Err("no machine can be described here: the driver shows no GPU".into());
    };
    let uuids: Vec<_> = gpus.iter().map(|gpu| gpu.uuid).collect();
    let linked = linked(&Topology::of_this_machine(), &uuids);
    let DeviceProperties { name, sms, l2_bytes, .. } = first.clone();
    describe(&Found { name, sms, l2_bytes, linked })
}

/// What links GPUs, or leads out of the only one.
fn linked(topology: &Topology, uuids: &[Uuid]) -> Linked {
    let [lone] = uuids else {
        return topology.weakest(uuids).map_or(Linked::Unknown, Linked::By);
    };
    match topology.gpus.iter().find(|gpu| gpu.uuid == Some(*lone)) {
        None => Linked::Unknown,
        Some(gpu) if gpu.links > 0 => Linked::Out(Way::NvLink { links: gpu.links }),
        Some(gpu) => Linked::Out(Way::Pcie(gpu.pcie)),
    }
}

/// The nearest machine that comes with the library, with what was read in the place of what it has.
fn describe(found: &Found) -> Result<Machine, Box<dyn Error>> {
    let Found { name, sms, l2_bytes, linked } = found;
    let (way, how) = match linked {
        Linked::By(way) => (Some(*way), format!("the weakest pair is linked by {way}")),
        Linked::Out(way) => {
            (Some(*way), format!("one GPU, taken to reach its peers by its own {way}"))
        }
        Linked::Unknown => (None, "what links GPUs is not said: NVLink is assumed".to_owned()),
    };
    let (base, of) = match way {
        Some(Way::Pcie(_)) => ("h200-pcie", Way::Pcie(Some(Way::MEASURED_PCIE))),
        Some(Way::NvLink { .. }) | None => {
            ("h200-nvlink", Way::NvLink { links: Way::MEASURED_LINKS })
        }
    };
    let factor = way.map_or(1.0, Way::over_measured);
    let mut machine = Machine::find(base)?.with_link_speed(factor)?;
    for (path, source) in &mut machine.sources {
        *source = if RATES.contains(&&**path) && way.is_some() {
            format!("scaled by {factor:.3} from {base}, of {of}; {how} (NVML). There: {source}")
        } else {
            format!("taken over from {base}, not measured here. There: {source}")
        };
    }
    machine.name = slug(name);
    machine.about = format!("{name} ({sms} SMs), {how}; the rest as {base}");
    let mut read = |path: &str, what: &str| {
        machine.sources.insert(path.into(), format!("read: {what} (CUDA driver)"));
    };
    read("compute.sms", "multiprocessors");
    read("memory.l2_bytes", "size of the L2 cache");
    let kept = machine.compute.copy_sms.min(sms.saturating_sub(1));
    let mut json = serde_json::to_value(machine)?;
    replace(&mut json, "compute", "sms", json!(sms));
    replace(&mut json, "compute", "copy_sms", json!(kept));
    replace(&mut json, "memory", "l2_bytes", json!(l2_bytes));
    Ok(Machine::read(HERE, &json.to_string())?)
}

fn replace(json: &mut Value, section: &str, field: &str, value: Value) {
    if let Some(place) = json.pointer_mut(&format!("/{section}/{field}")) {
        *place = value;
    }
}

/// A name as machines have: `nvidia-h200`.
fn slug(name: &str) -> String {
    let words = name.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    words.collect::<Vec<_>>().join("-").to_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Command, Verb};
    use clap::Parser;
    use flux_runtime::topology::{Gpu, Pcie};

    fn gpu(sms: u32, linked: Linked) -> Found {
        Found { name: "NVIDIA H78 (test)".into(), sms, l2_bytes: 30 << 20, linked }
    }

    /// What `flux sim` predicts of an all-gather + GEMM on the machine of a file, in ms.
    fn predicted(machine: &str) -> f64 {
        let launch = "flux sim ag_gemm --m 8192 --n 6144 --k 12288 --world 8 --json --machine";
        let command = Command::parse_from(launch.split(' ').chain([machine]));
        let Verb::Sim(options) = command.verb else { unreachable!("it says sim") };
        let said: Value = serde_json::from_str(&crate::sim::run(&options, false).unwrap()).unwrap();
        said["total_ms"].as_f64().unwrap()
    }

    #[test]
    fn a_gpu_of_any_name_and_size_is_described_by_a_file_that_sim_takes() {
        let links = Way::NvLink { links: 12 };
        let machine = describe(&gpu(78, Linked::By(links))).unwrap();
        assert_eq!((machine.sms(), &*machine.name), (78, "nvidia-h78-test"));
        assert_eq!(machine.memory.l2_bytes.get(), f64::from(30 << 20));
        let text = serde_json::to_string_pretty(&machine).unwrap();
        assert_eq!(Machine::read("again", &text).unwrap(), machine);
        let path = std::env::temp_dir().join(format!("flux-here-{}.json", std::process::id()));
        std::fs::write(&path, text).unwrap();
        let (here, h200) = (predicted(path.to_str().unwrap()), predicted("h200-nvlink"));
        std::fs::remove_file(path).unwrap();
        assert!(here > 1.3 * h200, "{here} ms on 78 multiprocessors, {h200} on 132");
    }

    #[test]
    fn every_number_says_whether_it_was_read_scaled_or_taken_over() {
        let machine = describe(&gpu(78, Linked::By(Way::NvLink { links: 12 }))).unwrap();
        let base = Machine::find("h200-nvlink").unwrap();
        for (path, source) in &machine.sources {
            let begins = match &**path {
                "compute.sms" | "memory.l2_bytes" => "read: ",
                "link.copy_wire" | "link.put_gbps" | "link.bulk_gbps" => {
                    "scaled by 0.667 from h200-nvlink, of 18 NVLinks; the weakest pair is linked by 12"
                }
                _ => "taken over from h200-nvlink, not measured here",
            };
            assert!(source.starts_with(begins), "{path}: {source}");
        }
        let scaled = base.link.put_gbps.get() * 12.0 / 18.0;
        assert!((machine.link.put_gbps.get() / scaled - 1.0).abs() < 1e-9);
        assert_eq!(machine.link.copy_start_us, base.link.copy_start_us);
        assert_eq!(machine.compute.mac_per_cycle, base.compute.mac_per_cycle);
    }

    #[test]
    fn the_nearest_machine_is_that_with_the_same_kind_of_link() {
        let pcie = Some(Pcie { generation: 4, lanes: 16 });
        let machine = describe(&gpu(132, Linked::By(Way::Pcie(pcie)))).unwrap();
        let base = Machine::find("h200-pcie").unwrap();
        assert_eq!(machine.link.put_gbps.get(), base.link.put_gbps.get() / 2.0);
        assert_eq!(machine.link.flag_us, base.link.flag_us);
        let unknown = describe(&gpu(132, Linked::Unknown)).unwrap();
        assert_eq!(unknown.link, Machine::find("h200-nvlink").unwrap().link);
        assert!(unknown.about.contains("NVLink is assumed"), "{unknown}");
        assert!(unknown.sources["link.put_gbps"].starts_with("taken over"), "nothing was scaled");
        // Of the smallest GPUs no copy takes all multiprocessors.
        for sms in [1, 2, 4, 5] {
            let machine = describe(&gpu(sms, Linked::Unknown)).unwrap();
            assert!(machine.compute.copy_sms < sms, "{sms}");
        }
    }

    #[test]
    fn a_lone_gpu_has_peers_like_itself() {
        let uuid = Uuid([1; 16]);
        let pcie = Some(Pcie { generation: 4, lanes: 8 });
        let of = |links| {
            let gpu = Gpu { uuid: Some(uuid), pcie, links, ..Gpu::default() };
            let topology = Topology { gpus: vec![gpu], ..Topology::default() };
            describe(&self::gpu(108, linked(&topology, &[uuid]))).unwrap().about
        };
        assert!(of(12).contains("by its own 12 NVLinks"), "{}", of(12));
        assert!(of(0).contains("PCIe 4.0 x8"), "{}", of(0));
        assert!(matches!(linked(&Topology::default(), &[uuid]), Linked::Unknown));
    }
}
