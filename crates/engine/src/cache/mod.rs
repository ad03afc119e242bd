//! The caches of a batch: each layer of each sequence goes from empty to active
//! (all K/V of the prompt) to retained (what the selector kept).
//!
//! The single-active-layer invariant of the paper is a rule of
//! [`LayerCaches::open`]: a layer-major schedule owns room for one active layer,
//! and opening a second is an error, not an allocation. The one allocation has
//! room for the longest prompt and serves all layers and sequences in turn, so
//! that each page is touched for the first time once per run. Where more layers
//! may be active, each has room for its own prompt and is released at its end.

mod active;
mod observation;
mod retained;

pub use active::ActiveKv;
pub use observation::Observation;
pub use retained::{DecodeTail, RetainedKv};

use crate::backend::Backend;
use crate::error::Error;
use crate::memory::Accountant;
use crate::schedule::longest;

/// State of one layer's cache.
enum LayerState<B: Backend + ?Sized> {
    Empty,
    Active(ActiveKv<B>),
    Retained(RetainedKv<B>),
}

/// What active caches of a run look like, and how many may exist.
#[derive(Debug, Clone)]
pub struct ActiveRoom {
    /// Layers that may be active at the same time, over all sequences.
    pub layers: usize,
    /// Storage type.
    pub element: crate::element::Element,
    /// S of every sequence.
    pub n_tokens: Vec<usize>,
}

impl ActiveRoom {
    /// Tokens that the active cache of a sequence's layer has room for.
    fn tokens(&self, seq: usize) -> usize {
        match self.layers {
            1 => longest(&self.n_tokens),
            _ => self.n_tokens[seq],
        }
    }
}

/// A layer of a sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheOf {
    /// Sequence of the batch.
    pub seq: usize,
    /// Layer.
    pub layer: usize,
}

/// The caches of all layers of all sequences.
pub struct LayerCaches<B: Backend + ?Sized> {
    /// `[B][N]`.
    sequences: Vec<Vec<LayerState<B>>>,
    room: ActiveRoom,
    /// Layers that are active.
    active: usize,
    /// Layers that are still empty.
    empty: usize,
    /// The one allocation, between two layers.
    spare: Option<ActiveKv<B>>,
}

impl<B: Backend> LayerCaches<B> {
    /// Empty caches of sequences of `n_layers` layers each.
    pub fn new(n_layers: usize, room: ActiveRoom) -> Self {
        let n_seqs = room.n_tokens.len();
        let layers = || (0..n_layers).map(|_| LayerState::Empty).collect();
        LayerCaches {
            sequences: (0..n_seqs).map(|_| layers()).collect(),
            room,
            active: 0,
            empty: n_seqs * n_layers,
            spare: None,
        }
    }

    /// The active cache of a layer, opened if the layer is still empty.
    ///
    /// # Errors
    /// [`Error::ActiveLayers`] when the schedule has no room for another active
    /// layer or the layer has been compressed already; otherwise the memory
    /// limit or the system's refusal.
    pub fn open(
        &mut self,
        (backend, accountant): (&B, &Accountant),
        shape: &crate::model::Shape,
        CacheOf { seq, layer }: CacheOf,
    ) -> Result<&mut ActiveKv<B>, Error> {
        let refused = self.no_room(layer);
        let state = &mut self.sequences[seq][layer];
        if matches!(state, LayerState::Empty) {
            if self.active >= self.room.layers {
                return Err(refused);
            }
            let (element, n_tokens) = (self.room.element, self.room.tokens(seq));
            let cache = match self.spare.take() {
                Some(cache) => cache,
                None => ActiveKv::new((backend, accountant), shape, element, n_tokens)?,
            };
            *state = LayerState::Active(cache);
            self.active += 1;
            self.empty -= 1;
        }
        match state {
            LayerState::Active(cache) => Ok(cache),
            LayerState::Empty | LayerState::Retained(_) => Err(refused),
        }
    }

    /// The active cache of a layer.
    ///
    /// # Errors
    /// [`Error::ActiveLayers`] when the layer is not active.
    pub fn active(&self, CacheOf { seq, layer }: CacheOf) -> Result<&ActiveKv<B>, Error> {
        match &self.sequences[seq][layer] {
            LayerState::Active(cache) => Ok(cache),
            LayerState::Empty | LayerState::Retained(_) => Err(self.no_room(layer)),
        }
    }

    /// Ends an active layer: `retained` takes its place and the full K/V are
    /// released, where there is one allocation to the next layer to come.
    pub fn commit(&mut self, CacheOf { seq, layer }: CacheOf, retained: RetainedKv<B>) {
        let state = &mut self.sequences[seq][layer];
        let previous = std::mem::replace(state, LayerState::Retained(retained));
        if let LayerState::Active(cache) = previous {
            self.active -= 1;
            if self.room.layers == 1 && self.empty > 0 {
                self.spare = Some(cache.emptied());
            }
        }
    }

    /// The retained caches of all layers, `[B][N]`.
    ///
    /// # Errors
    /// [`Error::ActiveLayers`] when a layer has not been compressed.
    pub fn into_retained(self) -> Result<Vec<Vec<RetainedKv<B>>>, Error> {
        let LayerCaches { sequences, room, active, .. } = self;
        let retained = |(layer, state)| match state {
            LayerState::Retained(cache) => Ok(cache),
            LayerState::Empty | LayerState::Active(_) => {
                Err(Error::ActiveLayers { layer, active, room: room.layers })
            }
        };
        let of_sequence = |layers: Vec<_>| layers.into_iter().enumerate().map(retained).collect();
        sequences.into_iter().map(of_sequence).collect()
    }

    fn no_room(&self, layer: usize) -> Error {
        Error::ActiveLayers { layer, active: self.active, room: self.room.layers }
    }
}
