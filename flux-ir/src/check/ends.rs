//! What happened before the exits of grids: worked out once, for all who wait for them.
//!
//! Ranks tell each other at the end of a launch that they are through with it, and who overwrites what
//! they read waits for that. Everything of the launch is behind such a word, mostly by a path over other
//! actors, which each actor of the next launch would follow anew: with CTAs and copy warps of a whole device, all steps
//! of all ranks once for each of some hundred actors of each.

use super::happens::{Known, Past, Scene};
use super::machine::Raise;
use super::memory::Access;
use super::trace::{Act, Layout};
use rustc_hash::FxHashMap;
use std::sync::OnceLock;

/// Words that are kept, at most.
const LIMIT: usize = 1 << 24;

/// The exits that raise something.
#[derive(Debug)]
pub(super) struct Ends {
    exits: Vec<Exit>,
    /// By actor.
    numbers: FxHashMap<u32, u32>,
}

#[derive(Debug)]
struct Exit {
    actor: u32,
    rank: u32,
    /// Raises ahead of which something was waited for, and the first of each launch: stamp and launch.
    raises: Vec<(u32, u32)>,
    /// What happened before each of them; made where it is asked for.
    pasts: OnceLock<Vec<Known>>,
}

/// By exit: how many of its raises an actor knows of.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Heard(Vec<u32>);

impl Ends {
    pub(super) fn new(scene: &Scene<'_, '_>) -> Self {
        let layout = scene.layout;
        let mut exits = Vec::new();
        for (actor, found) in (0..).zip(&layout.actors).filter(|(_, found)| found.cta.is_none()) {
            let raises = raises(scene, actor);
            if !raises.is_empty() {
                let pasts = OnceLock::new();
                exits.push(Exit { actor, rank: found.rank, raises, pasts });
            }
        }
        let words = 2 * layout.actors.len() + layout.launch.world as usize;
        if exits.iter().map(|exit| exit.raises.len()).sum::<usize>() > LIMIT / words {
            exits.clear();
        }
        let numbers = (0..).zip(&exits).map(|(number, exit)| (exit.actor, number)).collect();
        Ends { exits, numbers }
    }

    /// Nothing is known.
    pub(super) fn unheard(&self) -> Heard {
        Heard(vec![0; self.exits.len()])
    }

    /// Learns of a raise, if it is an exit's.
    pub(super) fn hear(&self, layout: &Layout<'_>, heard: &mut Heard, raise: &Raise) {
        // Most are not: nothing is looked up for them.
        if layout.actor(raise.actor).cta.is_none()
            && let Some(&number) = self.numbers.get(&raise.actor)
        {
            let known = self.exits[number as usize].upto(raise.stamp);
            let heard = &mut heard.0[number as usize];
            *heard = (*heard).max(known);
        }
    }

    /// Learns that launches of `rank` ahead of launch `epoch` are over.
    pub(super) fn over(&self, heard: &mut Heard, rank: u32, epoch: u32) {
        for (exit, heard) in
            self.exits.iter().zip(&mut heard.0).filter(|(exit, _)| exit.rank == rank)
        {
            let known = exit.raises.partition_point(|&(_, of)| of < epoch) as u32;
            *heard = (*heard).max(known);
        }
    }

    /// Whether what was heard of says that an access has been issued, and its source read.
    pub(super) fn has_issued(&self, scene: &Scene<'_, '_>, heard: &Heard, access: &Access) -> bool {
        self.any(scene, heard, access, |known| known.has_issued(scene, access))
    }

    /// Whether it says that a write has been performed.
    pub(super) fn has_performed(
        &self,
        scene: &Scene<'_, '_>,
        heard: &Heard,
        access: &Access,
    ) -> bool {
        self.any(scene, heard, access, |known| known.has_performed(scene, access))
    }

    /// The rank that did it knows most about it, so it is asked first.
    fn any(
        &self,
        scene: &Scene<'_, '_>,
        heard: &Heard,
        access: &Access,
        says: impl Fn(&Known) -> bool,
    ) -> bool {
        let rank = scene.layout.actor(access.actor).rank;
        let asked = |own: bool| {
            let exits = self.exits.iter().zip(&heard.0).filter(|(_, heard)| **heard > 0);
            exits.filter(move |(exit, _)| (exit.rank == rank) == own)
        };
        let mut asked = asked(true).chain(asked(false));
        asked.any(|(exit, &heard)| says(&exit.pasts(scene)[heard as usize - 1]))
    }
}

impl Exit {
    /// How many of the raises come no later than `stamp`.
    fn upto(&self, stamp: u32) -> u32 {
        self.raises.partition_point(|&(raise, _)| raise <= stamp) as u32
    }

    fn pasts(&self, scene: &Scene<'_, '_>) -> &[Known] {
        self.pasts.get_or_init(|| {
            let mut past = Past::new(scene.layout);
            let upto = |&(stamp, epoch): &(u32, u32)| {
                past.extend(scene, self.actor, stamp, epoch);
                past.known.clone()
            };
            self.raises.iter().map(upto).collect()
        })
    }
}

/// The raises of an exit that tell more than the ones before them.
fn raises(scene: &Scene<'_, '_>, actor: u32) -> Vec<(u32, u32)> {
    let trace = &scene.traces[actor as usize];
    let mut raises = Vec::new();
    for epoch in 1..=scene.layout.epochs {
        let mut is_new = true;
        for at in trace.launch(epoch) {
            match trace.steps[at].act {
                Act::Wait { .. } => is_new = true,
                Act::Raise { .. } if is_new => {
                    raises.push((at as u32 + 1, epoch));
                    is_new = false;
                }
                _ => {}
            }
        }
    }
    raises
}
