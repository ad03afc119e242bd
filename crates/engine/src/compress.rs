//! Layer-end compression (Algorithm 2): what a finished layer keeps.
//!
//! Two passes over key blocks: the backend first finds maximum and normaliser of
//! every window query over all keys, then hands over scores block by block,
//! which pooling and heaps consume as they come. A scorer from outside the crate
//! has its two passes over keys and values instead. Nothing of size W x S or S
//! exists. Next hop of a prompt: [`crate::cache`].

use crate::backend::{Backend, ScoreBlock, Workspace};
use crate::cache::{ActiveKv, Observation, RetainedKv};
use crate::config::RunConfig;
use crate::error::Error;
use crate::memory::{Accountant, Charged, Component, layout, score_block_bytes};
use crate::model::Shape;
use crate::select::{
    Kept, KeyBlock, KeyScorer, LayerContext, ScoreRows, ScoreSource, SelectError, Selection,
    SelectionLayout,
};
use std::ops::Range;

/// One layer to compress.
pub(crate) struct LayerEnd<'a, B: Backend> {
    pub backend: &'a B,
    pub accountant: &'a Accountant,
    pub shape: &'a Shape,
    pub config: &'a RunConfig,
    pub layer: usize,
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
        let LayerEnd { accountant, config, selection: layout, .. } = *self;
        let scratch = accountant.charge(Component::Scratch, layout.bytes())?;
        let positions = accountant.charge(Component::Positions, layout.positions_bytes())?;
        let mut selection = Selection::new(*layout);
        match (layout.score_source(), observation, config.selector.scorer.key_scorer()) {
            (Some(ScoreSource::Window(rows)), Some(observation), _) => {
                self.score_window((observation, rows), work, &mut selection)?;
            }
            (Some(ScoreSource::Keys), _, Some(scorer)) => {
                self.score_keys(scorer, &mut selection)?;
            }
            // Nothing to score. A source without what it scores from would be
            // missed by `finish`.
            _ => {}
        }
        let kept = Charged::with(positions, selection.finish());
        drop(scratch);
        Ok(kept)
    }

    /// Streams scores of the observation window into `selection`.
    fn score_window(
        &self,
        (observation, rows): (&mut Observation<B>, ScoreRows),
        work: &mut Workspace<B>,
        selection: &mut Selection,
    ) -> Result<(), Error> {
        let LayerEnd { backend, accountant, shape, config, layer, active, .. } = *self;
        backend.score_stats(observation, active, work)?;
        let bytes = score_block_bytes((shape, layer), config, self.selection);
        let mut scores = Charged::new(accountant, Component::Scratch, bytes, || {
            Ok(vec![0f32; bytes as usize / size_of::<f32>()])
        })?;
        let keys = self.selection.scored_keys();
        let n_rows = scores.len() / keys.len().min(config.score_block.get()).max(1);
        for keys in self.blocks(keys) {
            let block = ScoreBlock { observation, active, keys: keys.clone(), rows };
            let out = &mut scores[..n_rows * keys.len()];
            backend.score_block(block, work, out)?;
            selection.push(keys, out)?;
        }
        Ok(())
    }

    /// Shows keys and values to a scorer, twice, and streams its scores into
    /// `selection`.
    fn score_keys(&self, scorer: &dyn KeyScorer, selection: &mut Selection) -> Result<(), Error> {
        let LayerEnd { accountant, shape, config, layer, active, .. } = *self;
        let n_tokens = active.len;
        let most = n_tokens.min(config.score_block.get());
        let bytes = score_block_bytes((shape, layer), config, self.selection);
        let mut floats = Charged::new(accountant, Component::Scratch, bytes, || {
            Ok(vec![0f32; layout::key_block(shape, most) as usize / size_of::<f32>()])
        })?;
        let (k, rest) = floats.split_at_mut(most * shape.kv_cols());
        let (v, scores) = rest.split_at_mut(most * shape.kv_cols());
        let mut state = scorer.layer(&LayerContext::new(shape, layer, n_tokens));
        for keys in self.blocks(0..n_tokens) {
            if state.observe(&self.read(keys, k, v)?).is_break() {
                break;
            }
        }
        for keys in self.blocks(self.selection.scored_keys()) {
            let scores = &mut scores[..shape.n_kv_heads * keys.len()];
            // A score that is left out is then an error, not that of a block before.
            scores.fill(f32::NAN);
            state.score(&self.read(keys.clone(), k, v)?, scores);
            selection.push(keys, scores).map_err(|error| blame(scorer, error))?;
        }
        Ok(())
    }

    /// Keys and values of some positions, in room for them.
    fn read<'b>(
        &self,
        keys: Range<usize>,
        k: &'b mut [f32],
        v: &'b mut [f32],
    ) -> Result<KeyBlock<'b>, Error> {
        let floats = keys.len() * self.shape.kv_cols();
        let (k, v) = (&mut k[..floats], &mut v[..floats]);
        self.backend.read_kv(self.active, keys.clone(), k, v)?;
        Ok(KeyBlock::new(keys, (k, v), self.shape.head_dim))
    }

    /// `keys` in score blocks.
    fn blocks(&self, keys: Range<usize>) -> impl Iterator<Item = Range<usize>> + use<B> {
        let most = self.config.score_block.get();
        keys.clone().step_by(most).map(move |start| start..keys.end.min(start.saturating_add(most)))
    }
}

/// A score that cannot be ranked is the scorer's fault, not the layer's.
fn blame(scorer: &dyn KeyScorer, error: SelectError) -> SelectError {
    match error {
        SelectError::NonFiniteScore { head, position, value } => {
            SelectError::FaultyScorer { scorer: scorer.name().to_owned(), head, position, value }
        }
        other => other,
    }
}
