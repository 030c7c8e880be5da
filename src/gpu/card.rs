//! The GPUs of a world: each once, however many ranks it has.

use crate::definition::Image;
use crate::error::Error;
use flux_runtime::{Architecture, Device, Module, Stream};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// One GPU.
#[derive(Debug)]
pub(super) struct Card {
    pub(super) device: Arc<Device>,
    /// Ranks that share it, and those of them that are of this process.
    pub(super) ranks: u32,
    pub(super) here: u32,
    /// Ends what other streams wait for in vain.
    pub(super) rescue: Stream,
    /// Loaded machine code, by the address of its PTX.
    modules: Mutex<HashMap<usize, Arc<Module>>>,
}

/// The GPUs of a world with a rank for each of these numbers, and the index of each rank's own.
/// Each reaches the memory of all others.
pub(super) fn cards(ordinals: &[u32]) -> Result<(Vec<Card>, Vec<usize>), Error> {
    let mut cards: Vec<Card> = Vec::new();
    let mut of_ranks = Vec::with_capacity(ordinals.len());
    for &ordinal in ordinals {
        let index = match cards.iter().position(|card| card.device.ordinal() == ordinal) {
            Some(index) => index,
            None => {
                cards.push(Card::open(ordinal)?);
                cards.len() - 1
            }
        };
        cards[index].ranks += 1;
        cards[index].here += 1;
        of_ranks.push(index);
    }
    for card in &cards {
        for peer in &cards {
            card.device.enable_peer(&peer.device)?;
        }
    }
    Ok((cards, of_ranks))
}

impl Card {
    /// The device of this number, which has to run what is compiled for Hopper.
    pub(super) fn open(ordinal: u32) -> Result<Card, Error> {
        let device = Device::open(ordinal)?;
        device.require_architecture(Architecture::Sm90a)?;
        let card = Card::over(&device)?;
        Ok(Card { ranks: 0, here: 0, ..card })
    }

    /// A GPU with one rank.
    pub(super) fn over(device: &Arc<Device>) -> Result<Card, Error> {
        let (device, rescue) = (Arc::clone(device), Stream::new(device)?);
        Ok(Card { device, ranks: 1, here: 1, rescue, modules: Mutex::default() })
    }

    /// The loaded code of an image.
    pub(super) fn module(&self, image: &'static Image) -> Result<Arc<Module>, Error> {
        let mut modules = self.modules.lock().unwrap_or_else(PoisonError::into_inner);
        let key = image.ptx.as_ptr() as usize;
        if let Some(module) = modules.get(&key) {
            return Ok(Arc::clone(module));
        }
        let module = Module::load(&self.device, image.ptx)?;
        modules.insert(key, Arc::clone(&module));
        Ok(module)
    }
}
