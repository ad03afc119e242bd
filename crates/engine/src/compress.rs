//! Layer-end compression (Algorithm 2): what a finished layer keeps.
//!
//! Two passes over key blocks: the backend first finds maximum and normaliser of
//! every window query over all keys, then hands over scores block by block,
//! which pooling and heaps consume as they come. Nothing of size W x S or S
//! exists. Next hop of a prompt: [`crate::cache`].

use crate::backend::{Backend, ScoreBlock, Workspace};
use crate::cache::{ActiveKv, Observation, RetainedKv};
use crate::config::RunConfig;
use crate::error::Error;
use crate::memory::{Accountant, Charged, Component};
use crate::model::Shape;
use crate::select::{Kept, Selection, SelectionLayout};

/// One layer to compress.
pub(crate) struct LayerEnd<'a, B: Backend> {
    pub backend: &'a B,
    pub accountant: &'a Accountant,
    pub shape: &'a Shape,
    pub config: &'a RunConfig,
    pub selection: &'a SelectionLayout,
    pub active: &'a ActiveKv<B>,
}

impl<B: Backend> LayerEnd<'_, B> {
    /// Chooses the rows to keep and gathers them, with their positions.
    ///
    /// # Errors
    /// A score that is not finite, the memory limit, or the backend's.
    pub(crate) fn compress(
        &self,
        observation: Option<&mut Observation<B>>,
        work: &mut Workspace<B>,
    ) -> Result<RetainedKv<B>, Error> {
        let LayerEnd { backend, accountant, shape, config, .. } = *self;
        let kept = self.select(observation, work)?;
        let mut retained = RetainedKv::new((backend, accountant), shape, config.kv, kept)?;
        backend.gather(self.active, &mut retained)?;
        // The full K/V may be overwritten or freed once this returns.
        backend.sync()?;
        Ok(retained)
    }

    fn select(
        &self,
        observation: Option<&mut Observation<B>>,
        work: &mut Workspace<B>,
    ) -> Result<Charged<Kept>, Error> {
        let LayerEnd { accountant, selection: layout, .. } = *self;
        let scratch = accountant.charge(Component::Scratch, layout.bytes())?;
        let positions = accountant.charge(Component::Positions, layout.positions_bytes())?;
        let mut selection = Selection::new(*layout);
        if let Some(observation) = observation {
            self.score(observation, work, &mut selection)?;
        }
        let kept = Charged::with(positions, selection.finish());
        drop(scratch);
        Ok(kept)
    }

    /// Streams scores into `selection`.
    fn score(
        &self,
        observation: &mut Observation<B>,
        work: &mut Workspace<B>,
        selection: &mut Selection,
    ) -> Result<(), Error> {
        let LayerEnd { backend, accountant, shape, config, active, .. } = *self;
        let Some(rows) = self.selection.score_rows() else { return Ok(()) };
        backend.score_stats(observation, active, work)?;
        let bytes = crate::memory::score_block_bytes(shape, config, self.selection);
        let mut scores = Charged::new(accountant, Component::Scratch, bytes, || {
            Ok(vec![0f32; bytes as usize / size_of::<f32>()])
        })?;
        let keys = self.selection.scored_keys();
        let n_rows = scores.len() / keys.len().min(config.score_block.get()).max(1);
        for start in keys.clone().step_by(config.score_block.get()) {
            let keys = start..keys.end.min(start + config.score_block.get());
            let block = ScoreBlock { observation, active, keys: keys.clone(), rows };
            let out = &mut scores[..n_rows * keys.len()];
            backend.score_block(block, work, out)?;
            selection.push(keys, out)?;
        }
        Ok(())
    }
}
