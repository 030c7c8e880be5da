//! Where the ranks of a world compute, in whatever process.

use super::Inner;
use super::card::Card;
use crate::error::Error;
use crate::session::Members;
use flux_runtime::{Device, Joined, Uuid};
use std::sync::Arc;

/// The GPU of a rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Site {
    pub(crate) uuid: Uuid,
    pub(crate) sms: u32,
    pub(crate) name: String,
}

impl Site {
    pub(crate) fn of(device: &Device) -> Site {
        let properties = device.properties();
        let (uuid, sms, name) = (properties.uuid, properties.sms, properties.name.clone());
        Site { uuid, sms, name }
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        [&self.uuid.0[..], &self.sms.to_le_bytes(), self.name.as_bytes()].concat()
    }

    /// `None` where it is something else.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Site> {
        let (uuid, rest) = bytes.split_first_chunk::<16>()?;
        let (sms, name) = rest.split_first_chunk::<4>()?;
        let name = String::from_utf8(name.to_vec()).ok()?;
        Some(Site { uuid: Uuid(*uuid), sms: u32::from_le_bytes(*sms), name })
    }
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
    use super::{Shares, Site, Uuid, alike, shares_of};

    fn site(id: u8, sms: u32) -> Site {
        Site { uuid: Uuid([id; 16]), sms, name: "NVIDIA H200".into() }
    }

    #[test]
    fn sites_come_back_as_they_were_told() {
        let told = site(7, 132).encode();
        assert_eq!(Site::decode(&told), Some(site(7, 132)));
        assert_eq!(Site::decode(&told[..19]), None);
        assert_eq!(Site::decode(&[&told[..], &[0xff]].concat()), None);
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
