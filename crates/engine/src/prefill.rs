//! The executor: the only loop over the steps of a schedule.
//!
//! It follows [`crate::schedule::Schedule::steps`] with one arm per kind of
//! step; it neither times nor prints. Every control of the paper runs here.
//! Next hop of a prompt: [`crate::bridge`], the backend's layer verbs, then
//! `compress`.

use crate::backend::{Backend, ChunkRows, LayerOf, Workspace};
use crate::bridge::Bridge;
use crate::cache::{ActiveRoom, DecodeTail, LayerCaches, Observation, RetainedKv};
use crate::compress::LayerEnd;
use crate::config::{Outputs, RunConfig};
use crate::error::Error;
use crate::memory::{Accountant, Charge, Charged, Component, Moment, WeightBytes, layout, window};
use crate::model::{Rotations, Shape};
use crate::observe::{Observer, Progress, Tap};
use crate::schedule::{Span, Step, step_cost};
use crate::select::SelectionLayout;
use tidekv_format::TensorStore;

/// What a prefill runs on.
pub(crate) struct Device<'a, B: Backend> {
    pub backend: &'a B,
    pub weights: &'a B::Weights,
    pub weight_bytes: WeightBytes,
    pub shape: &'a Shape,
    pub rotations: &'a Rotations,
    /// The files that the weights are read from; `None` for a backend without
    /// weights.
    pub files: Option<&'a TensorStore>,
}

impl<B: Backend> Device<'_, B> {
    /// Refuses weights that are no longer the ones that were opened. A system call
    /// per file, nothing beside any step.
    fn verify_unchanged(&self) -> Result<(), Error> {
        Ok(self.files.map_or(Ok(()), TensorStore::verify_unchanged)?)
    }
}

/// What a prefill leaves behind.
pub(crate) struct Prefilled<B: Backend> {
    pub retained: Vec<RetainedKv<B>>,
    pub tails: Vec<DecodeTail<B>>,
    pub logits: Charged<B::Buffer>,
    pub tokens: Charged<Vec<u32>>,
    pub weights: [Charge; 2],
}

/// Reads a prompt.
///
/// # Errors
/// [`Error::Cancelled`] by the observer, a model file that has changed, the memory
/// limit, a value that is not finite, or the backend's own errors. All memory is
/// released.
pub(crate) fn prefill<B: Backend>(
    device: &Device<'_, B>,
    config: &RunConfig,
    accountant: &Accountant,
    tokens: &[u32],
    observer: &mut dyn Observer,
) -> Result<Prefilled<B>, Error> {
    let shape = device.shape;
    let mut run = Run::new(device, config, accountant, tokens)?;
    let n_tokens = [tokens.len()];
    let steps = || config.schedule.steps(shape.n_layers, &n_tokens);
    let cost = |step: &Step| step_cost(shape, tokens.len(), step);
    let mut progress =
        Progress { done: 0.0, step: 0.0, total: steps().map(|step| cost(&step)).sum() };
    for step in steps() {
        progress.step = cost(&step);
        if observer.before(&step, &progress, &run.tap(step)).is_break() {
            return Err(Error::Cancelled);
        }
        device.verify_unchanged()?;
        accountant.begin(Moment::Step(step));
        match step {
            Step::Embed { chunk, .. } => run.embed(chunk)?,
            Step::Layer { layer, chunk, .. } => run.layer(layer, chunk, observer)?,
            Step::Evict { layer, .. } => run.evict(layer)?,
            Step::Head { .. } => run.head()?,
        }
        observer.after(&step, &accountant.step(), &run.tap(step));
        progress.done += progress.step;
    }
    // What the last step has read is still to be vouched for.
    device.verify_unchanged()?;
    run.finish()
}

/// The buffers of one prefill. All that depend on the run's settings alone come
/// up before the first step.
struct Run<'a, B: Backend> {
    device: &'a Device<'a, B>,
    config: &'a RunConfig,
    accountant: &'a Accountant,
    selections: Vec<SelectionLayout>,
    tokens: Charged<Vec<u32>>,
    bridge: Bridge<B>,
    work: Workspace<B>,
    /// One per layer that may be active; layer l uses number l mod the count.
    observations: Vec<Observation<B>>,
    caches: LayerCaches<B>,
    tails: Vec<DecodeTail<B>>,
    logits: Charged<B::Buffer>,
    weights: [Charge; 2],
}

impl<'a, B: Backend> Run<'a, B> {
    fn new(
        device: &'a Device<'a, B>,
        config: &'a RunConfig,
        accountant: &'a Accountant,
        tokens: &[u32],
    ) -> Result<Self, Error> {
        let Device { backend, shape, .. } = *device;
        let n_tokens = tokens.len();
        let selections = config.selections(shape, n_tokens)?;
        let window = window(&selections);
        let schedule = &config.schedule;
        let on = (backend, accountant);
        let active_layers = schedule.active_layers(shape.n_layers);
        let weights = [
            accountant.charge(Component::Weights, device.weight_bytes.held)?,
            accountant.charge(Component::WeightsMapped, device.weight_bytes.mapped)?,
        ];
        let tail_rows = config.tail_rows(shape);
        let room = ActiveRoom { layers: active_layers, element: config.kv, n_tokens };
        Ok(Run {
            device,
            config,
            accountant,
            weights,
            tokens: Charged::new(accountant, Component::Tokens, layout::tokens(n_tokens), || {
                Ok(tokens.to_vec())
            })?,
            bridge: Bridge::new(on, shape, config.bridge, schedule, n_tokens)?,
            work: workspace(on, shape, schedule.chunk().rows(n_tokens), Some(window))?,
            observations: (0..if window > 0 { active_layers } else { 0 })
                .map(|_| Observation::new(on, shape, window, n_tokens))
                .collect::<Result<_, _>>()?,
            caches: LayerCaches::new(shape.n_layers, room),
            tails: (0..shape.n_layers)
                .map(|_| DecodeTail::new(on, shape, config.kv, tail_rows))
                .collect::<Result<_, _>>()?,
            logits: logits_buffer(on, shape)?,
            selections,
        })
    }

    fn embed(&mut self, chunk: Span) -> Result<(), Error> {
        let Device { backend, weights, .. } = *self.device;
        let row = self.bridge.row_of(chunk);
        let tokens = &self.tokens[chunk.start..chunk.end()];
        Ok(backend.embed(weights, tokens, &mut self.bridge, row)?)
    }

    fn layer(
        &mut self,
        index: usize,
        chunk: Span,
        observer: &mut dyn Observer,
    ) -> Result<(), Error> {
        let Device { backend, weights, shape, rotations, .. } = *self.device;
        let rows = self.rows_to_compute(index, chunk);
        let layer = LayerOf { weights, index, rope: rotations.of_layer(index) };
        let active = self.caches.open((backend, self.accountant), shape, index)?;
        backend.qkv(layer, &rows, &self.bridge, &mut self.work, active)?;
        let slot = index % self.observations.len().max(1);
        if let Some(observation) = self.observations.get_mut(slot)
            && let Some((in_window, at)) = observation.rows_in(chunk)
        {
            backend.keep_queries(&rows, in_window, &self.work, observation, at)?;
        }
        if rows.first_output < chunk.len {
            backend.attend(layer, &rows, &self.bridge, &mut self.work, active)?;
            backend.mlp(layer, &rows, &mut self.bridge, &mut self.work)?;
        }
        let last = index + 1 == shape.n_layers;
        if last && self.config.outputs == Outputs::AllLogits {
            self.stream_logits(chunk, observer)?;
        }
        Ok(())
    }

    /// Which rows of a chunk a layer computes. Where only the last token's
    /// logits are wanted, the last layer needs queries of the observation window
    /// and the output of the last row; K/V always of all rows.
    fn rows_to_compute(&self, layer: usize, chunk: Span) -> ChunkRows {
        let bridge_row = self.bridge.row_of(chunk);
        let all = ChunkRows { span: chunk, bridge_row, first_query: 0, first_output: 0 };
        let last_layer = layer + 1 == self.device.shape.n_layers;
        if !last_layer || self.config.outputs != Outputs::LastLogits {
            return all;
        }
        let last = self.tokens.len() - 1;
        let window = self.observations.first().map_or(last, |observation| observation.first);
        let inside = |position: usize| position.saturating_sub(chunk.start).min(chunk.len);
        ChunkRows { first_query: inside(window.min(last)), first_output: inside(last), ..all }
    }

    fn evict(&mut self, layer: usize) -> Result<(), Error> {
        let Device { backend, shape, .. } = *self.device;
        let end = LayerEnd {
            backend,
            accountant: self.accountant,
            shape,
            config: self.config,
            layer,
            selection: &self.selections[layer],
            active: self.caches.active(layer)?,
        };
        let slot = layer % self.observations.len().max(1);
        let retained = end.compress(self.observations.get_mut(slot), &mut self.work)?;
        self.caches.commit(layer, retained);
        Ok(())
    }

    fn head(&mut self) -> Result<(), Error> {
        let Device { backend, weights, .. } = *self.device;
        let position = self.tokens.len() - 1;
        let row = self.last_row(position);
        backend
            .logits(weights, (&self.bridge, row), &mut self.work, &mut self.logits)
            .map_err(|error| error.at(position))?;
        Ok(backend.sync()?)
    }

    /// Bridge row of a position of the last chunk.
    fn last_row(&self, position: usize) -> usize {
        let size = self.config.schedule.chunk().rows(self.tokens.len());
        let start = position / size * size;
        let chunk = Span { start, len: self.tokens.len() - start };
        self.bridge.row_of(chunk) + position - start
    }

    fn stream_logits(&mut self, chunk: Span, observer: &mut dyn Observer) -> Result<(), Error> {
        let Device { backend, weights, shape, .. } = *self.device;
        let first = self.bridge.row_of(chunk);
        let mut row = vec![0.0; shape.vocab];
        for offset in 0..chunk.len {
            let at = (&self.bridge, first + offset);
            backend
                .logits(weights, at, &mut self.work, &mut self.logits)
                .map_err(|error| error.at(chunk.start + offset))?;
            backend.sync()?;
            backend.read(&self.logits, crate::Element::F32, 0, &mut row);
            observer.logits_row(chunk.start + offset, &row);
        }
        Ok(())
    }

    fn finish(self) -> Result<Prefilled<B>, Error> {
        let Run { caches, tails, logits, tokens, weights, .. } = self;
        Ok(Prefilled { retained: caches.into_retained()?, tails, logits, tokens, weights })
    }

    fn tap(&self, step: Step) -> RunTap<'_, 'a, B> {
        RunTap { run: self, step }
    }
}

/// The workspace of `rows` rows: a prefill's, with its observation window, or
/// (`None`) that of decoding.
pub(crate) fn workspace<B: Backend>(
    (backend, accountant): (&B, &Accountant),
    shape: &Shape,
    rows: usize,
    window: Option<usize>,
) -> Result<Workspace<B>, Error> {
    let sizes = backend.sizes();
    let scratch = match window {
        Some(window) => sizes.scratch(shape, window),
        None => sizes.decode_scratch(shape),
    };
    let activation = sizes.activation(shape, rows);
    let make =
        |component, bytes| Charged::new(accountant, component, bytes, || Ok(backend.alloc(bytes)?));
    Ok(Workspace {
        activation: make(Component::Activation, activation)?,
        scratch: make(Component::Scratch, scratch)?,
        rows,
    })
}

fn logits_buffer<B: Backend>(
    (backend, accountant): (&B, &Accountant),
    shape: &Shape,
) -> Result<Charged<B::Buffer>, Error> {
    let bytes = layout::logits(shape);
    Charged::new(accountant, Component::Logits, bytes, || Ok(backend.alloc(bytes)?))
}

struct RunTap<'r, 'a, B: Backend> {
    run: &'r Run<'a, B>,
    step: Step,
}

impl<B: Backend> Tap for RunTap<'_, '_, B> {
    fn hidden(&self) -> Option<(usize, Vec<f32>)> {
        let (Step::Embed { chunk, .. } | Step::Layer { chunk, .. }) = self.step else {
            return None;
        };
        let Bridge { buffer, element, d_model, .. } = &self.run.bridge;
        let mut rows = vec![0.0; chunk.len * d_model];
        let at = self.run.bridge.row_of(chunk) * d_model;
        self.run.device.backend.read(buffer, *element, at, &mut rows);
        Some((chunk.start, rows))
    }

    fn active_kv(&self) -> Option<(Vec<f32>, Vec<f32>)> {
        let Step::Evict { layer, .. } = self.step else { return None };
        let Device { backend, shape, .. } = *self.run.device;
        let active = self.run.caches.active(layer).ok()?;
        // Gathering everything turns the backend's layout into rows. The copy
        // is the observer's, not the run's, so it has a ledger of its own.
        let ledger = Accountant::new(None);
        let all = crate::select::Selector::new(crate::select::Scorer::KeepAll);
        let dims = crate::select::SelectionDims {
            n_tokens: active.len,
            kv_heads: shape.n_kv_heads,
            group: shape.group(),
        };
        let kept = SelectionLayout::new(&all, dims, active.len).ok()?;
        let charge = ledger.charge(Component::Positions, kept.positions_bytes()).ok()?;
        let kept = Charged::with(charge, crate::select::Selection::new(kept).finish());
        let mut rows = RetainedKv::new((backend, &ledger), shape, active.element, kept).ok()?;
        backend.gather(active, &mut rows).ok()?;
        let read = |buffer| {
            let mut out = vec![0.0; active.len * shape.kv_cols()];
            backend.read(buffer, active.element, 0, &mut out);
            out
        };
        Some((read(&rows.k), read(&rows.v)))
    }
}

#[cfg(test)]
mod tests;
