//! The caches of one sequence: each layer goes from empty to active (all K/V of
//! the prompt) to retained (what the selector kept).
//!
//! The single-active-layer invariant of the paper is a rule of
//! [`LayerCaches::open`]: a layer-major schedule owns room for one active layer,
//! and opening a second is an error, not an allocation.

mod active;
mod observation;
mod retained;

pub use active::ActiveKv;
pub use observation::Observation;
pub use retained::{DecodeTail, RetainedKv};

use crate::backend::Backend;
use crate::error::Error;
use crate::memory::Accountant;

/// State of one layer's cache.
enum LayerState<B: Backend + ?Sized> {
    Empty,
    Active(ActiveKv<B>),
    Retained(RetainedKv<B>),
}

/// What active caches of a run look like, and how many may exist.
#[derive(Debug, Clone, Copy)]
pub struct ActiveRoom {
    /// Layers that may be active at the same time.
    pub layers: usize,
    /// Storage type.
    pub element: crate::element::Element,
    /// Prompt tokens a cache has room for.
    pub n_tokens: usize,
}

/// The caches of all layers of one sequence.
pub struct LayerCaches<B: Backend + ?Sized> {
    layers: Vec<LayerState<B>>,
    room: ActiveRoom,
    // A layer-major run reuses one allocation for all layers, so that each page
    // is touched for the first time once per run and not once per layer.
    spare: Option<ActiveKv<B>>,
}

impl<B: Backend> LayerCaches<B> {
    /// Caches of `n_layers` empty layers.
    pub fn new(n_layers: usize, room: ActiveRoom) -> Self {
        let layers = (0..n_layers).map(|_| LayerState::Empty).collect();
        LayerCaches { layers, room, spare: None }
    }

    /// The active cache of `layer`, opened if the layer is still empty.
    ///
    /// # Errors
    /// [`Error::ActiveLayers`] when the schedule has no room for another active
    /// layer or the layer has been compressed already; otherwise the memory
    /// limit or the system's refusal.
    pub fn open(
        &mut self,
        (backend, accountant): (&B, &Accountant),
        shape: &crate::model::Shape,
        layer: usize,
    ) -> Result<&mut ActiveKv<B>, Error> {
        let active = self.active_layers();
        let refused = Error::ActiveLayers { layer, active, room: self.room.layers };
        if matches!(self.layers[layer], LayerState::Empty) {
            if active >= self.room.layers {
                return Err(refused);
            }
            let cache = match self.spare.take() {
                Some(cache) => cache,
                None => ActiveKv::new((backend, accountant), shape, self.room)?,
            };
            self.layers[layer] = LayerState::Active(cache);
        }
        match &mut self.layers[layer] {
            LayerState::Active(cache) => Ok(cache),
            LayerState::Empty | LayerState::Retained(_) => Err(refused),
        }
    }

    /// The active cache of `layer`.
    ///
    /// # Errors
    /// [`Error::ActiveLayers`] when the layer is not active.
    pub fn active(&self, layer: usize) -> Result<&ActiveKv<B>, Error> {
        match &self.layers[layer] {
            LayerState::Active(cache) => Ok(cache),
            LayerState::Empty | LayerState::Retained(_) => Err(Error::ActiveLayers {
                layer,
                active: self.active_layers(),
                room: self.room.layers,
            }),
        }
    }

    /// Ends an active layer: `retained` takes its place and the full K/V are
    /// released, to the next layer if there is one to build in their room.
    pub fn commit(&mut self, layer: usize, retained: RetainedKv<B>) {
        let previous = std::mem::replace(&mut self.layers[layer], LayerState::Retained(retained));
        let more = self.layers.iter().any(|state| matches!(state, LayerState::Empty));
        if let (LayerState::Active(cache), true) = (previous, more) {
            self.spare = Some(cache.emptied());
        }
    }

    /// The retained caches of all layers.
    ///
    /// # Errors
    /// [`Error::ActiveLayers`] when a layer has not been compressed.
    pub fn into_retained(self) -> Result<Vec<RetainedKv<B>>, Error> {
        let active = self.active_layers();
        let room = self.room.layers;
        self.layers
            .into_iter()
            .enumerate()
            .map(|(layer, state)| match state {
                LayerState::Retained(cache) => Ok(cache),
                LayerState::Empty | LayerState::Active(_) => {
                    Err(Error::ActiveLayers { layer, active, room })
                }
            })
            .collect()
    }

    fn active_layers(&self) -> usize {
        self.layers.iter().filter(|state| matches!(state, LayerState::Active(_))).count()
    }
}
