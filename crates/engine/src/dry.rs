//! The dry backend: it accounts for a run and computes nothing.
//!
//! It sizes its buffers with another backend's [`Sizes`], so the executor can be
//! driven through a model of any size on any machine, and the ledger compared
//! with the plan.

use crate::backend::{
    Backend, BackendError, ChunkRows, DecodeRow, LayerOf, ScoreBlock, Sizes, Workspace,
};
use crate::bridge::Bridge;
use crate::cache::{ActiveKv, Observation, RetainedKv};
use crate::config::RunConfig;
use crate::element::Element;
use crate::error::Error;
use crate::memory::{Accountant, Breakdown, Moment, WeightBytes};
use crate::model::{ModelFile, ModelSpec, Rotations, Shape};
use crate::observe::Observer;
use crate::prefill::{Device, prefill, workspace};
use std::ops::Range;
use std::sync::Arc;

/// A backend without arithmetic.
#[derive(Clone)]
pub struct Dry {
    sizes: Arc<dyn Sizes>,
}

/// A run of a model that need not exist.
#[derive(Debug, Clone, Copy)]
pub struct DryRun<'a> {
    /// The model's dimensions.
    pub shape: &'a Shape,
    /// The model's weights.
    pub weights: WeightBytes,
    /// The run's settings.
    pub config: &'a RunConfig,
    /// S of every prompt of the batch.
    pub n_tokens: &'a [usize],
}

impl Dry {
    /// Accounts with the sizes of another backend.
    pub fn new(sizes: Arc<dyn Sizes>) -> Self {
        Dry { sizes }
    }

    /// Drives the executor through a batch of prompts and returns what is live when
    /// decoding begins. Everything is released on return.
    ///
    /// # Errors
    /// As [`crate::Engine::prefill_batch`], except that the plan is not consulted: the
    /// ledger alone keeps its limit.
    pub fn prefill(
        &self,
        run: DryRun<'_>,
        accountant: &Accountant,
        observer: &mut dyn Observer,
    ) -> Result<Breakdown, Error> {
        let DryRun { shape, weights, config, n_tokens } = run;
        let rotations = &vec![Rotations::none(); n_tokens.len()];
        let device = Device {
            backend: self,
            weights: &(),
            weight_bytes: weights,
            shape,
            rotations,
            files: None,
        };
        let tokens: Vec<Vec<u32>> = n_tokens.iter().map(|&n| vec![0; n]).collect();
        let prompts: Vec<&[u32]> = tokens.iter().map(Vec::as_slice).collect();
        config.check_prompts(shape, &prompts)?;
        let _prefilled = prefill(&device, config, accountant, &prompts, observer)?;
        accountant.begin(Moment::Decode);
        let work = |_| workspace((self, accountant), shape, 1, None);
        let _works = n_tokens.iter().map(work).collect::<Result<Vec<_>, _>>()?;
        Ok(accountant.live())
    }
}

type Done = Result<(), BackendError>;

impl Backend for Dry {
    type Buffer = ();
    type Weights = ();

    fn name(&self) -> String {
        "dry".to_owned()
    }

    fn threads(&self) -> usize {
        0
    }

    fn sizes(&self) -> Arc<dyn Sizes> {
        Arc::clone(&self.sizes)
    }

    fn alloc(&self, _: u64) -> Done {
        Ok(())
    }

    fn upload(&self, _: &ModelSpec, _: &Arc<ModelFile>) -> Done {
        Ok(())
    }

    fn embed(&self, _: &(), _: &[u32], _: &mut Bridge<Self>, _: usize) -> Done {
        Ok(())
    }

    fn qkv(
        &self,
        _: LayerOf<'_, Self>,
        rows: &ChunkRows,
        _: &Bridge<Self>,
        _: &mut Workspace<Self>,
        active: &mut ActiveKv<Self>,
    ) -> Done {
        active.len = rows.span.end();
        Ok(())
    }

    fn keep_queries(
        &self,
        _: &ChunkRows,
        _: Range<usize>,
        _: &Workspace<Self>,
        _: &mut Observation<Self>,
        _: usize,
    ) -> Done {
        Ok(())
    }

    fn attend(
        &self,
        _: LayerOf<'_, Self>,
        _: &ChunkRows,
        _: &Bridge<Self>,
        _: &mut Workspace<Self>,
        _: &ActiveKv<Self>,
    ) -> Done {
        Ok(())
    }

    fn mlp(
        &self,
        _: LayerOf<'_, Self>,
        _: &ChunkRows,
        _: &mut Bridge<Self>,
        _: &mut Workspace<Self>,
    ) -> Done {
        Ok(())
    }

    fn score_stats(
        &self,
        _: &mut Observation<Self>,
        _: &ActiveKv<Self>,
        _: &mut Workspace<Self>,
    ) -> Done {
        Ok(())
    }

    fn score_block(
        &self,
        _: ScoreBlock<'_, Self>,
        _: &mut Workspace<Self>,
        out: &mut [f32],
    ) -> Done {
        out.fill(0.0);
        Ok(())
    }

    /// Ones, so that a scorer may divide by a norm.
    fn read_kv(&self, _: &ActiveKv<Self>, _: Range<usize>, k: &mut [f32], v: &mut [f32]) -> Done {
        k.fill(1.0);
        v.fill(1.0);
        Ok(())
    }

    fn gather(&self, _: &ActiveKv<Self>, _: &mut RetainedKv<Self>) -> Done {
        Ok(())
    }

    fn logits(
        &self,
        _: &(),
        _: (&Bridge<Self>, Range<usize>),
        _: &mut Workspace<Self>,
        _: &mut (),
    ) -> Done {
        Ok(())
    }

    fn decode(&self, _: &(), rows: &mut [DecodeRow<'_, Self>]) -> Vec<Done> {
        vec![Ok(()); rows.len()]
    }

    fn read(&self, _: &(), _: Element, _: usize, out: &mut [f32]) {
        out.fill(0.0);
    }

    fn sync(&self) -> Done {
        Ok(())
    }
}
