//! The executor: the only loop over the steps of a schedule.
//!
//! It follows [`crate::schedule::Schedule::steps`] with one arm per kind of
//! step; it neither times nor prints. Every control of the paper runs here, and
//! every batch: a single prompt is a batch of one.
//! Next hop of a prompt: [`crate::bridge`], the backend's layer verbs, then
//! `compress`.

use crate::backend::{Backend, ChunkRows, LayerOf, Workspace};
use crate::bridge::Bridge;
use crate::cache::{ActiveRoom, CacheOf, DecodeTail, LayerCaches, Observation, RetainedKv};
use crate::compress::LayerEnd;
use crate::config::{Outputs, RunConfig};
use crate::element::Element;
use crate::error::Error;
use crate::memory::{
    Accountant, Charge, Charged, Component, Moment, WeightBytes, layout, longest_window, window,
};
use crate::model::{Rotations, Shape};
use crate::observe::{Observer, Progress, Tap};
use crate::schedule::{Span, Step, longest, step_cost};
use crate::select::SelectionLayout;
use tidekv_format::TensorStore;

/// What a prefill runs on.
pub(crate) struct Device<'a, B: Backend> {
    pub backend: &'a B,
    pub weights: &'a B::Weights,
    pub weight_bytes: WeightBytes,
    pub shape: &'a Shape,
    /// Of every prompt of the batch.
    pub rotations: &'a [Rotations],
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
    /// Of every prompt, in order.
    pub prompts: Vec<PrefilledPrompt<B>>,
    pub weights: [Charge; 2],
}

/// What is left of one prompt.
pub(crate) struct PrefilledPrompt<B: Backend> {
    pub retained: Vec<RetainedKv<B>>,
    pub tails: Vec<DecodeTail<B>>,
    pub logits: Charged<B::Buffer>,
    pub tokens: Charged<Vec<u32>>,
}

/// Reads the prompts of a batch.
///
/// # Errors
/// [`Error::Cancelled`] by the observer, a model file that has changed, the memory
/// limit, a value that is not finite, or the backend's own errors. All memory is
/// released.
pub(crate) fn prefill<B: Backend>(
    device: &Device<'_, B>,
    config: &RunConfig,
    accountant: &Accountant,
    prompts: &[&[u32]],
    observer: &mut dyn Observer,
) -> Result<Prefilled<B>, Error> {
    let shape = device.shape;
    let n_tokens: Vec<usize> = prompts.iter().map(|tokens| tokens.len()).collect();
    let mut run = Run::new(device, config, accountant, (prompts, &n_tokens))?;
    let steps = || config.schedule.steps(shape.n_layers, &n_tokens);
    let cost = |step: &Step| step_cost(shape, &n_tokens, step);
    let mut progress =
        Progress { done: 0.0, step: 0.0, total: steps().map(|step| cost(&step)).sum() };
    for step in steps() {
        progress.step = cost(&step);
        if observer.before(&step, &progress, &run.tap(step)).is_break() {
            return Err(Error::Cancelled);
        }
        device.verify_unchanged()?;
        accountant.begin(Moment::Step(step));
        let done = match step {
            Step::Embed { seq, chunk } => run.embed(seq, chunk),
            Step::Layer { seq, layer, chunk } => run.layer(CacheOf { seq, layer }, chunk, observer),
            Step::Evict { seq, layer } => run.evict(CacheOf { seq, layer }),
            Step::Head { seq } => run.head(seq),
        };
        done.map_err(|error| error.of_prompt(step.seq(), prompts.len()))?;
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
    sequences: Vec<Sequence<B>>,
    bridge: Bridge<B>,
    work: Workspace<B>,
    /// The layer that the backend has prepared.
    prepared: Option<usize>,
    /// One per layer that may be active; layer l uses number l mod the count.
    observations: Vec<Observation<B>>,
    caches: LayerCaches<B>,
    /// Where the logits of every token are wanted.
    stream: Option<LogitStream<B>>,
    weights: [Charge; 2],
}

/// Logits of every token on their way to the observer.
struct LogitStream<B: Backend> {
    /// `[rows, vocab]`, computed together.
    tile: Charged<B::Buffer>,
    rows: usize,
    /// The one that is shown, `[vocab]`.
    shown: Charged<Vec<f32>>,
}

impl<B: Backend> LogitStream<B> {
    fn new(on: (&B, &Accountant), shape: &Shape, chunk: usize) -> Result<Self, Error> {
        let rows = layout::logit_tile_rows(shape, chunk);
        let shown = || Ok(vec![0.0; shape.vocab]);
        let bytes = layout::logits(shape, 1);
        Ok(LogitStream {
            tile: logits_buffer(on, shape, rows)?,
            rows,
            shown: Charged::new(on.1, Component::Logits, bytes, shown)?,
        })
    }
}

/// What belongs to one prompt from the beginning.
struct Sequence<B: Backend> {
    selections: Vec<SelectionLayout>,
    /// W.
    window: usize,
    tokens: Charged<Vec<u32>>,
    tails: Vec<DecodeTail<B>>,
    logits: Charged<B::Buffer>,
}

impl<B: Backend> Sequence<B> {
    fn new(
        (backend, accountant): (&B, &Accountant),
        shape: &Shape,
        config: &RunConfig,
        (tokens, selections): (&[u32], Vec<SelectionLayout>),
    ) -> Result<Self, Error> {
        let on = (backend, accountant);
        let bytes = layout::tokens(tokens.len());
        let tail_rows = config.tail_rows(shape);
        Ok(Sequence {
            window: window(&selections),
            selections,
            tokens: Charged::new(accountant, Component::Tokens, bytes, || Ok(tokens.to_vec()))?,
            tails: (0..shape.n_layers)
                .map(|_| DecodeTail::new(on, shape, config.kv, tail_rows))
                .collect::<Result<_, _>>()?,
            logits: logits_buffer(on, shape, 1)?,
        })
    }
}

impl<'a, B: Backend> Run<'a, B> {
    fn new(
        device: &'a Device<'a, B>,
        config: &'a RunConfig,
        accountant: &'a Accountant,
        (prompts, n_tokens): (&[&[u32]], &[usize]),
    ) -> Result<Self, Error> {
        let Device { backend, shape, .. } = *device;
        let selections = config.batch_selections(shape, n_tokens)?;
        let window = longest_window(&selections);
        let longest = longest(n_tokens);
        let schedule = &config.schedule;
        let chunk_rows = schedule.chunk().rows(longest);
        let on = (backend, accountant);
        let active_layers = schedule.active_layers(shape.n_layers);
        let weights = [
            accountant.charge(Component::Weights, device.weight_bytes.held)?,
            accountant.charge(Component::WeightsMapped, device.weight_bytes.mapped)?,
        ];
        let room =
            ActiveRoom { layers: active_layers, element: config.kv, n_tokens: n_tokens.to_vec() };
        let sequence = |of| Sequence::new(on, shape, config, of);
        Ok(Run {
            device,
            config,
            accountant,
            weights,
            sequences: prompts
                .iter()
                .copied()
                .zip(selections)
                .map(sequence)
                .collect::<Result<_, _>>()?,
            bridge: Bridge::new(on, shape, config.bridge, schedule, n_tokens)?,
            work: workspace(on, shape, chunk_rows, Some(window))?,
            prepared: None,
            observations: (0..if window > 0 { active_layers } else { 0 })
                .map(|_| Observation::new(on, shape, window))
                .collect::<Result<_, _>>()?,
            caches: LayerCaches::new(shape.n_layers, room),
            stream: (config.outputs == Outputs::AllLogits)
                .then(|| LogitStream::new(on, shape, chunk_rows))
                .transpose()?,
        })
    }

    fn embed(&mut self, seq: usize, chunk: Span) -> Result<(), Error> {
        let Device { backend, weights, .. } = *self.device;
        let row = self.bridge.row_of(seq, chunk);
        let tokens = &self.sequences[seq].tokens[chunk.start..chunk.end()];
        Ok(backend.embed(weights, tokens, &mut self.bridge, row)?)
    }

    fn layer(
        &mut self,
        at: CacheOf,
        chunk: Span,
        observer: &mut dyn Observer,
    ) -> Result<(), Error> {
        let Device { backend, weights, shape, rotations, .. } = *self.device;
        let CacheOf { seq, layer: index } = at;
        let rows = self.rows_to_compute(at, chunk);
        let layer = LayerOf { weights, index, rope: rotations[seq].of_layer(index) };
        if self.prepared != Some(index) {
            backend.prepare(layer, &mut self.work)?;
            self.prepared = Some(index);
        }
        let active = self.caches.open((backend, self.accountant), shape, at)?;
        backend.qkv(layer, &rows, &self.bridge, &mut self.work, active)?;
        let slot = index % self.observations.len().max(1);
        if let Some(observation) = self.observations.get_mut(slot) {
            let sequence = &self.sequences[seq];
            observation.look_at(sequence.window, sequence.tokens.len());
            if let Some((in_window, at)) = observation.rows_in(chunk) {
                backend.keep_queries(&rows, in_window, &self.work, observation, at)?;
            }
        }
        if rows.first_output < chunk.len {
            backend.attend(layer, &rows, &self.bridge, &mut self.work, active)?;
            backend.mlp(layer, &rows, &mut self.bridge, &mut self.work)?;
        }
        match index + 1 == shape.n_layers {
            true => self.stream_logits(seq, chunk, observer),
            false => Ok(()),
        }
    }

    /// Which rows of a chunk a layer computes. Where only the last token's
    /// logits are wanted, the last layer needs queries of the observation window
    /// and the output of the last row; K/V always of all rows.
    fn rows_to_compute(&self, CacheOf { seq, layer }: CacheOf, chunk: Span) -> ChunkRows {
        let bridge_row = self.bridge.row_of(seq, chunk);
        let all = ChunkRows { span: chunk, bridge_row, first_query: 0, first_output: 0 };
        let last_layer = layer + 1 == self.device.shape.n_layers;
        if !last_layer || self.config.outputs != Outputs::LastLogits {
            return all;
        }
        let Sequence { tokens, window, .. } = &self.sequences[seq];
        let last = tokens.len() - 1;
        let in_window = tokens.len().saturating_sub(*window);
        let inside = |position: usize| position.saturating_sub(chunk.start).min(chunk.len);
        ChunkRows { first_query: inside(in_window.min(last)), first_output: inside(last), ..all }
    }

    fn evict(&mut self, at: CacheOf) -> Result<(), Error> {
        let Device { backend, shape, .. } = *self.device;
        let end = LayerEnd {
            backend,
            accountant: self.accountant,
            shape,
            config: self.config,
            layer: at.layer,
            selection: &self.sequences[at.seq].selections[at.layer],
            active: self.caches.active(at)?,
        };
        let slot = at.layer % self.observations.len().max(1);
        let retained = end.compress(self.observations.get_mut(slot), &mut self.work)?;
        self.caches.commit(at, retained);
        Ok(())
    }

    fn head(&mut self, seq: usize) -> Result<(), Error> {
        let Device { backend, weights, .. } = *self.device;
        let row = self.last_row(seq);
        let Sequence { tokens, logits, .. } = &mut self.sequences[seq];
        backend
            .logits(weights, (&self.bridge, row..row + 1), &mut self.work, logits)
            .map_err(|error| error.at(|_| tokens.len() - 1))?;
        Ok(backend.sync()?)
    }

    /// Bridge row of the last token of a sequence.
    fn last_row(&self, seq: usize) -> usize {
        let n_tokens = self.sequences[seq].tokens.len();
        let size = self.config.schedule.chunk().rows(n_tokens);
        let start = (n_tokens - 1) / size * size;
        let chunk = Span { start, len: n_tokens - start };
        self.bridge.row_of(seq, chunk) + chunk.len - 1
    }

    /// Shows the observer the logits of a chunk, if they are wanted.
    fn stream_logits(
        &mut self,
        seq: usize,
        chunk: Span,
        observer: &mut dyn Observer,
    ) -> Result<(), Error> {
        let Device { backend, weights, shape, .. } = *self.device;
        let Some(LogitStream { tile, rows, shown }) = &mut self.stream else { return Ok(()) };
        let first = self.bridge.row_of(seq, chunk);
        let position_of = |row: usize| chunk.start + row - first;
        for start in (first..first + chunk.len).step_by(*rows) {
            let together = start..(start + *rows).min(first + chunk.len);
            backend
                .logits(weights, (&self.bridge, together.clone()), &mut self.work, tile)
                .map_err(|error| error.at(position_of))?;
            backend.sync()?;
            for row in together {
                backend.read(tile, Element::F32, (row - start) * shape.vocab, shown);
                observer.logits_row(seq, position_of(row), shown);
            }
        }
        Ok(())
    }

    fn finish(self) -> Result<Prefilled<B>, Error> {
        let Run { caches, sequences, weights, .. } = self;
        let with_cache = |(sequence, retained)| {
            let Sequence { tokens, tails, logits, .. } = sequence;
            PrefilledPrompt { retained, tails, logits, tokens }
        };
        let prompts = sequences.into_iter().zip(caches.into_retained()?).map(with_cache).collect();
        Ok(Prefilled { prompts, weights })
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
    rows: usize,
) -> Result<Charged<B::Buffer>, Error> {
    let bytes = layout::logits(shape, rows);
    Charged::new(accountant, Component::Logits, bytes, || Ok(backend.alloc(bytes)?))
}

struct RunTap<'r, 'a, B: Backend> {
    run: &'r Run<'a, B>,
    step: Step,
}

impl<B: Backend> Tap for RunTap<'_, '_, B> {
    fn hidden(&self) -> Option<(usize, Vec<f32>)> {
        let (Step::Embed { seq, chunk } | Step::Layer { seq, chunk, .. }) = self.step else {
            return None;
        };
        let Bridge { buffer, element, d_model, .. } = &self.run.bridge;
        let mut rows = vec![0.0; chunk.len * d_model];
        let at = self.run.bridge.row_of(seq, chunk) * d_model;
        self.run.device.backend.read(buffer, *element, at, &mut rows);
        Some((chunk.start, rows))
    }

    fn active_kv(&self) -> Option<(Vec<f32>, Vec<f32>)> {
        let Step::Evict { seq, layer } = self.step else { return None };
        let Device { backend, shape, .. } = *self.run.device;
        let active = self.run.caches.active(CacheOf { seq, layer }).ok()?;
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
