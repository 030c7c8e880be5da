//! Where the ranks of a world compute, in whatever process.

use super::Inner;
use super::card::Card;
use crate::error::Error;
use crate::session::Members;
use flux_runtime::topology::{Pcie, Topology, Way};
use flux_runtime::{Device, Joined, Uuid};
use std::sync::Arc;

/// The GPU of a rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Site {
    pub(crate) uuid: Uuid,
    pub(crate) sms: u32,
    pub(crate) name: String,
    /// What leads from it to the machine's other GPUs, as far as that is known.
    pub(crate) ways: Vec<(Uuid, Way)>,
}

impl Site {
    pub(crate) fn of(device: &Device, topology: &Topology) -> Site {
        let properties = device.properties();
        let (uuid, sms, name) = (properties.uuid, properties.sms, properties.name.clone());
        let others = topology.gpus.iter().filter_map(|gpu| gpu.uuid).filter(|to| *to != uuid);
        let ways = others.filter_map(|to| Some((to, topology.way(uuid, to)?))).collect();
        Site { uuid, sms, name, ways }
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = [&self.uuid.0[..], &self.sms.to_le_bytes()].concat();
        bytes.extend((self.ways.len() as u32).to_le_bytes());
        for (to, way) in &self.ways {
            let words = match *way {
                Way::NvLink { links } => [0, links, 0],
                Way::Pcie(Some(Pcie { generation, lanes })) => [1, generation, lanes],
                Way::Pcie(None) => [2, 0, 0],
            };
            bytes.extend(to.0);
            bytes.extend(words.into_iter().flat_map(u32::to_le_bytes));
        }
        bytes.extend(self.name.as_bytes());
        bytes
    }

    /// `None` where it is something else.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Site> {
        let (uuid, mut rest) = bytes.split_first_chunk::<16>()?;
        let (sms, count) = (number(&mut rest)?, number(&mut rest)?);
        let mut ways = Vec::new();
        for _ in 0..count {
            let (to, after) = rest.split_first_chunk::<16>()?;
            rest = after;
            let words = [number(&mut rest)?, number(&mut rest)?, number(&mut rest)?];
            let way = match words {
                [0, links, _] => Way::NvLink { links },
                [1, generation, lanes] => Way::Pcie(Some(Pcie { generation, lanes })),
                [2, ..] => Way::Pcie(None),
                _ => return None,
            };
            ways.push((Uuid(*to), way));
        }
        let name = String::from_utf8(rest.to_vec()).ok()?;
        Some(Site { uuid: Uuid(*uuid), sms, name, ways })
    }
}

/// Takes the number that bytes begin with.
fn number(bytes: &mut &[u8]) -> Option<u32> {
    let (number, rest) = bytes.split_first_chunk::<4>()?;
    *bytes = rest;
    Some(u32::from_le_bytes(*number))
}

/// The weakest way between any two GPUs of ranks at `sites`, where all are known. What ranks have told
/// each other is the same on each, and so is what follows.
pub(super) fn weakest(sites: &[Site]) -> Option<Way> {
    let way = |from: &Site, to: &Site| {
        let found = from.ways.iter().find(|(uuid, _)| *uuid == to.uuid);
        found.map(|(_, way)| *way)
    };
    let pairs = sites.iter().flat_map(|from| sites.iter().map(move |to| (from, to)));
    let apart = pairs.filter(|(from, to)| from.uuid != to.uuid);
    Way::weakest(apart.map(|(from, to)| way(from, to)))
}

/// The GPUs of ranks that are threads, where they are several: what links one with itself is no question
/// for NVML.
pub(super) fn sites(cards: &[Card]) -> Vec<Site> {
    if cards.len() < 2 {
        return Vec::new();
    }
    let topology = Topology::of_this_machine();
    cards.iter().map(|card| Site::of(&card.device, &topology)).collect()
}

/// What ties the rank of this process to those of others.
#[derive(Debug)]
pub(super) struct Others {
    pub(super) joined: Arc<Joined>,
    /// By rank of the world.
    pub(super) sites: Vec<Site>,
}

impl Others {
    /// Which of `members` are on the GPU of this process.
    pub(super) fn near(&self, members: &Members) -> Vec<bool> {
        let own = self.sites.get(self.joined.rank() as usize).map(|site| site.uuid);
        let of = |rank: &u32| self.sites.get(*rank as usize).map(|site| site.uuid);
        members.ranks().iter().map(|rank| of(rank) == own).collect()
    }
}

/// A GPU of the world: its multiprocessors, and the ranks that share them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Shares {
    pub(super) sms: u32,
    pub(super) ranks: u32,
}

/// The GPUs of a world whose ranks are threads of this process.
pub(super) fn shares(cards: &[Card]) -> Vec<Shares> {
    let of = |card: &Card| Shares { sms: card.device.properties().sms, ranks: card.ranks };
    cards.iter().map(of).collect()
}

/// The GPUs of ranks at `sites`.
pub(super) fn shares_of(sites: &[Site]) -> Vec<Shares> {
    let mut found: Vec<(Uuid, Shares)> = Vec::new();
    for site in sites {
        match found.iter_mut().find(|(uuid, _)| *uuid == site.uuid) {
            Some((_, shares)) => shares.ranks += 1,
            None => found.push((site.uuid, Shares { sms: site.sms, ranks: 1 })),
        }
    }
    found.into_iter().map(|(_, shares)| shares).collect()
}

impl Inner {
    /// The first of `members` whose process has ended in the middle of something, and why.
    pub(super) fn lost(&self, members: &Members) -> Option<(u32, String)> {
        let (rank, reason) = self.others.as_ref()?.joined.lost()?;
        Some((members.position(rank)?, reason))
    }
}

/// Refuses ranks on GPUs of several kinds: a launch is the same on each.
pub(crate) fn alike(sites: &[Site]) -> Result<(), Error> {
    let Some(first) = sites.first() else { return Ok(()) };
    let kind = |site: &Site| format!("{} with {} multiprocessors", site.name, site.sms);
    let differs = |site: &Site| site.name != first.name || site.sms != first.sms;
    let others = || sites.iter().zip(0u32..).filter(|(site, _)| differs(site));
    let Some((other, _)) = others().next() else { return Ok(()) };
    let ranks = others().map(|(_, rank)| rank).collect();
    let what = format!("the kind of GPU ({}, and {} there)", kind(first), kind(other));
    Err(flux_runtime::Error::RanksDisagree { what, ranks }.into())
}

#[cfg(test)]
mod tests {
    use super::{Pcie, Shares, Site, Uuid, Way, alike, shares_of, weakest};

    fn site(id: u8, sms: u32) -> Site {
        Site { uuid: Uuid([id; 16]), sms, name: "NVIDIA H200".into(), ways: Vec::new() }
    }

    /// Sites on GPUs from 0 on, with what leads from one to another.
    fn linked(count: u8, way: impl Fn(u8, u8) -> Option<Way>) -> Vec<Site> {
        let from = |from| {
            let to = (0..count).filter(|to| *to != from);
            let ways = to.filter_map(|to| Some((Uuid([to; 16]), way(from, to)?))).collect();
            Site { ways, ..site(from, 132) }
        };
        (0..count).map(from).collect()
    }

    #[test]
    fn sites_come_back_as_they_were_told() {
        let told = site(7, 132).encode();
        assert_eq!(Site::decode(&told), Some(site(7, 132)));
        assert_eq!(Site::decode(&told[..23]), None);
        assert_eq!(Site::decode(&[&told[..], &[0xff]].concat()), None);
        let pcie = Way::Pcie(Some(Pcie { generation: 4, lanes: 8 }));
        let ways = [Way::NvLink { links: 12 }, pcie, Way::Pcie(None)];
        let all = linked(4, |from, to| ways.get(usize::from(from ^ to) - 1).copied());
        for site in all {
            let told = site.encode();
            assert_eq!(Site::decode(&told), Some(site));
            assert_eq!(Site::decode(&told[..50]), None);
        }
    }

    #[test]
    fn the_weakest_way_of_all_ranks_is_the_worlds() {
        let (twelve, six) = (Way::NvLink { links: 12 }, Way::NvLink { links: 6 });
        let of = |way: &dyn Fn(u8, u8) -> Option<Way>| weakest(&linked(4, way));
        assert_eq!(of(&|_, _| Some(twelve)), Some(twelve));
        let narrow = |from, to| Some(if (from, to) == (2, 3) { six } else { twelve });
        assert_eq!(of(&narrow), Some(six), "also where it is none of rank 0's");
        let apart = |from, _| Some(if from == 3 { Way::Pcie(None) } else { six });
        assert_eq!(of(&apart), Some(Way::Pcie(None)));
        assert_eq!(of(&|from, _| (from != 1).then_some(six)), None, "a rank without NVML");
        assert_eq!(weakest(&[]), None);
        let mut shared = linked(2, |_, _| Some(six));
        shared.push(shared[0].clone());
        assert_eq!(weakest(&shared), Some(six), "two ranks of a GPU are no pair");
    }

    #[test]
    fn a_gpu_is_shared_by_all_ranks_that_are_on_it() {
        let sites = [site(1, 132), site(2, 132), site(1, 132)];
        let (twice, alone) = (Shares { sms: 132, ranks: 2 }, Shares { sms: 132, ranks: 1 });
        assert_eq!(shares_of(&sites), [twice, alone]);
        assert!(alike(&sites).is_ok());
    }

    #[test]
    fn gpus_of_two_kinds_are_told_apart() {
        let error = alike(&[site(1, 132), site(2, 132), site(3, 114)]).unwrap_err().to_string();
        let said = "ranks [2] disagree with rank 0 on the kind of GPU (NVIDIA H200 with 132 \
                    multiprocessors, and NVIDIA H200 with 114 multiprocessors there)";
        assert_eq!(error, said);
    }
}
