//! Paths: by which raises and waits, ends of bodies and ends of launches one step is known to come
//! before another.
//!
//! The search goes backward from the later step, breadth first, so a path has the fewest edges.

use super::super::happens::Scene;
use super::super::machine::Raise;
use super::super::trace::{Act, Actor};

/// Why the steps of a [`Place`] come before those of the next one.
#[derive(Debug, Clone, Copy)]
pub(super) enum Edge {
    /// It is where the search began.
    Here,
    /// The raise is among those that the next place's wait (its stamp) stands for.
    Raise { raise: Raise, wait: u32 },
    /// The next place is of the exit, which begins when all bodies are through.
    Bodies,
    /// The next place is of a later launch of the rank.
    Launch,
}

/// The steps of an actor up to a stamp.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    pub(super) actor: u32,
    pub(super) upto: u32,
    pub(super) epoch: u32,
    /// The stamp up to which its puts and copies are performed.
    pub(super) performed: u32,
    pub(super) edge: Edge,
    /// The place that this one comes before.
    next: Option<u32>,
}

impl Place {
    pub(super) fn new(actor: u32, upto: u32, epoch: u32, performed: u32) -> Self {
        Place { actor, upto, epoch, performed, edge: Edge::Here, next: None }
    }
}

/// What comes before some place.
#[derive(Debug)]
pub(super) struct Past {
    places: Vec<Place>,
    /// By actor: the stamp up to which its steps come before.
    pub(super) issued: Vec<u32>,
    /// By actor: the stamp up to which its puts and copies are performed before.
    pub(super) performed: Vec<u32>,
    /// Steps looked at.
    pub(super) cost: u64,
}

impl Past {
    /// Everything that comes before the steps at `from`, themselves included; ends with the first
    /// place that is a `goal`.
    pub(super) fn search(
        scene: &Scene<'_, '_>,
        from: impl IntoIterator<Item = Place>,
        mut goal: impl FnMut(&Place) -> bool,
    ) -> (Past, Option<Vec<Place>>) {
        let layout = scene.layout;
        let mut past = Past {
            places: Vec::new(),
            issued: vec![0; layout.actors.len()],
            performed: vec![0; layout.actors.len()],
            cost: 0,
        };
        let mut over = vec![0; layout.launch.world as usize];
        for place in from {
            if past.add(place, &mut goal) {
                let path = past.path();
                return (past, Some(path));
            }
        }
        let mut at = 0;
        // The stamps up to which waits have been followed.
        let mut followed = vec![0; layout.actors.len()];
        while at < past.places.len() {
            for place in past.before(scene, at as u32, &mut followed, &mut over) {
                if past.add(place, &mut goal) {
                    let path = past.path();
                    return (past, Some(path));
                }
            }
            at += 1;
        }
        (past, None)
    }

    /// Everything that comes before.
    pub(super) fn all(scene: &Scene<'_, '_>, from: impl IntoIterator<Item = Place>) -> Past {
        Past::search(scene, from, |_| false).0
    }

    /// Adds a place that says something new; whether it is the goal.
    fn add(&mut self, place: Place, goal: &mut impl FnMut(&Place) -> bool) -> bool {
        let at = place.actor as usize;
        if self.issued[at] >= place.upto && self.performed[at] >= place.performed && place.upto > 0
        {
            return false;
        }
        self.issued[at] = self.issued[at].max(place.upto);
        self.performed[at] = self.performed[at].max(place.performed);
        self.places.push(place);
        goal(&place)
    }

    /// The places that come directly before the one numbered `number`.
    fn before(
        &mut self,
        scene: &Scene<'_, '_>,
        number: u32,
        followed: &mut [u32],
        over: &mut [u32],
    ) -> Vec<Place> {
        let (layout, traces) = (scene.layout, scene.traces);
        let Place { actor, upto, epoch, .. } = self.places[number as usize];
        let Actor { rank, cta, .. } = layout.actor(actor);
        let mut found = Vec::new();
        let (from, trace) = (followed[actor as usize], &traces[actor as usize]);
        if from < upto {
            followed[actor as usize] = upto;
            self.cost += u64::from(upto - from);
        }
        // Waits close by first: of paths of one length that is the one a reader expects.
        for at in (from..upto).rev() {
            let Act::Wait { slot, len, target } = trace.steps[at as usize].act else { continue };
            for slot in slot..slot + len {
                let raises = scene.history.stands_for(slot, target);
                self.cost += raises.len() as u64;
                found.extend(raises.iter().rev().map(|&raise| Place {
                    actor: raise.actor,
                    upto: raise.stamp,
                    epoch: raise.epoch,
                    performed: raise.performed,
                    edge: Edge::Raise { raise, wait: at + 1 },
                    next: Some(number),
                }));
            }
        }
        let end = |actor: u32, epoch: u32, edge| {
            let upto = traces[actor as usize].end(epoch);
            Place { actor, upto, epoch, performed: upto, edge, next: Some(number) }
        };
        if cta.is_none() && upto > trace.starts[epoch as usize - 1] {
            found.extend(layout.bodies(actor).map(|body| end(body, epoch, Edge::Bodies)));
        }
        if epoch > 1 && over[rank as usize] < epoch - 1 {
            over[rank as usize] = epoch - 1;
            let all = layout.of_rank(rank);
            found.extend(all.map(|actor| end(actor, epoch - 1, Edge::Launch)));
        }
        found
    }

    /// From the place added last to where the search began.
    fn path(&self) -> Vec<Place> {
        let mut path = Vec::new();
        let mut at = self.places.len().checked_sub(1);
        while let Some(place) = at {
            let place = self.places[place];
            path.push(place);
            at = place.next.map(|next| next as usize);
        }
        path
    }
}
