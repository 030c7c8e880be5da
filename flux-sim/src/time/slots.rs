//! The signals of all simulated ranks. An array may have a slot for each tile of each rank of
//! which a rank uses few, so memory is taken where a slot is first raised.

use super::actor::Moment;

/// Slots that are made together.
const PAGE: u64 = 256;

/// A signal: its value, and when it was last seen to change.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Slot {
    pub(super) value: u32,
    pub(super) seen: Moment,
}

/// Every signal.
#[derive(Debug)]
pub(super) struct Slots {
    pages: Vec<Option<Box<[Slot]>>>,
}

impl Slots {
    pub(super) fn new(slots: u64) -> Self {
        Slots { pages: vec![None; slots.div_ceil(PAGE) as usize] }
    }

    pub(super) fn get(&self, slot: u64) -> Slot {
        let page = self.pages[(slot / PAGE) as usize].as_ref();
        page.map_or(Slot::default(), |page| page[(slot % PAGE) as usize])
    }

    pub(super) fn get_mut(&mut self, slot: u64) -> &mut Slot {
        let page = &mut self.pages[(slot / PAGE) as usize];
        let page = page.get_or_insert_with(|| vec![Slot::default(); PAGE as usize].into());
        &mut page[(slot % PAGE) as usize]
    }
}
