//! The engine: a loaded model on a backend. Immutable and shareable; what
//! belongs to one prompt lives in a [`Session`].

use crate::backend::{Backend, Sizes};
use crate::config::RunConfig;
use crate::error::Error;
use crate::memory::{
    Accountant, ChunkChoice, ChunkRates, Moment, Plan, PlanInput, WeightBytes, choose_chunk,
    largest_prompt, refuse_unless_fits,
};
use crate::model::{ModelFile, ModelSpec, RopeScaling, Rotations};
use crate::observe::Observer;
use crate::prefill::{Device, Prefilled, prefill, workspace};
use crate::schedule::ScheduleKind;
use crate::session::{Batch, Session};
use crate::text::{ChatTemplate, Tokenizer};
use std::path::Path;
use std::sync::{Arc, OnceLock};

/// A model file, opened and described, not yet on a device.
///
/// ```
/// use tidekv::Model;
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("model.gguf");
/// # tidekv_testkit::tiny_llama(1).write_to(&path)?;
/// // A GGUF file, any part of a split one, or a Hugging Face directory.
/// let model = Model::open(&path, None)?;
/// let shape = &model.spec.shape;
/// assert_eq!((shape.n_layers, shape.n_kv_heads, shape.head_dim), (3, 2, 16));
///
/// // Matrices stay in the file; norm vectors and biases are held.
/// let bytes = model.weight_bytes();
/// assert!(bytes.held < bytes.mapped);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Model {
    /// Architecture and dimensions.
    pub spec: ModelSpec,
    /// The mapped file.
    pub file: Arc<ModelFile>,
}

impl Model {
    /// Opens a model; reads its header only. `rope` overrides the file's RoPE
    /// scaling and stretches the context accordingly.
    ///
    /// # Errors
    /// A damaged file, a model the engine does not support, or a scaling with numbers that make no
    /// sense.
    pub fn open(path: &Path, rope: Option<RopeScaling>) -> Result<Model, Error> {
        let (mut spec, file) = ModelFile::open(path)?;
        if let Some(scaling) = rope {
            spec.scale_rope(scaling)?;
        }
        Ok(Model { spec, file: Arc::new(file) })
    }

    /// Bytes of the weights.
    pub fn weight_bytes(&self) -> WeightBytes {
        WeightBytes { held: self.file.tensors.vector_bytes(), mapped: self.file.mapped_bytes() }
    }

    /// The tokenizer of the file's vocabulary.
    ///
    /// # Errors
    /// An unknown, faulty or missing vocabulary.
    pub fn tokenizer(&self) -> Result<Tokenizer, Error> {
        self.file.tokenizer()
    }
}

/// A model on a device.
pub struct Engine<B: Backend> {
    backend: B,
    weights: B::Weights,
    model: Model,
    /// Read when text is first asked for: token ids need none.
    tokenizer: OnceLock<Tokenizer>,
}

impl<B: Backend> Engine<B> {
    /// Puts a model on a device.
    ///
    /// # Errors
    /// What the backend cannot work with.
    pub fn new(model: Model, backend: B) -> Result<Self, Error> {
        let weights = backend.upload(&model.spec, &model.file)?;
        Ok(Engine { backend, weights, model, tokenizer: OnceLock::new() })
    }

    /// The backend.
    pub fn backend(&self) -> &B {
        &self.backend
    }

    /// The model.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// The tokenizer, which is read on the first call. A model without one that the
    /// engine can read still reads and answers token ids.
    ///
    /// # Errors
    /// As [`Model::tokenizer`].
    pub fn tokenizer(&self) -> Result<&Tokenizer, Error> {
        if let Some(tokenizer) = self.tokenizer.get() {
            return Ok(tokenizer);
        }
        let tokenizer = self.model.tokenizer()?;
        Ok(self.tokenizer.get_or_init(|| tokenizer))
    }

    /// The chat template of the file.
    ///
    /// # Errors
    /// A file without one, or with one that is not a template, or without a
    /// tokenizer.
    pub fn chat_template(&self) -> Result<ChatTemplate, Error> {
        Ok(self.tokenizer()?.chat_template()?)
    }

    /// Memory of a run of a prompt of `n_tokens` tokens.
    ///
    /// # Errors
    /// [`Error::Refused`] with what would fit when the plan passes the limit.
    pub fn plan(&self, config: &RunConfig, n_tokens: usize) -> Result<Plan, Error> {
        self.plan_batch(config, &[n_tokens])
    }

    /// Memory of a run of prompts of `n_tokens` tokens each, read together.
    ///
    /// # Errors
    /// As [`Engine::plan`], and [`Error::EmptyBatch`].
    pub fn plan_batch(&self, config: &RunConfig, n_tokens: &[usize]) -> Result<Plan, Error> {
        let sizes = self.backend.sizes();
        refuse_unless_fits(&self.plan_input(&*sizes, config, n_tokens))
    }

    /// The chunk size C with which `kind` reads prompts of `n_tokens` tokens each, for the speed and
    /// the limit of this machine. Settings other than the schedule are those of `config`.
    ///
    /// # Errors
    /// Settings that cannot be planned.
    pub fn choose_chunk(
        &self,
        (config, kind): (&RunConfig, ScheduleKind),
        n_tokens: &[usize],
        rates: Option<ChunkRates>,
    ) -> Result<ChunkChoice, Error> {
        let sizes = self.backend.sizes();
        choose_chunk(&self.plan_input(&*sizes, config, n_tokens), kind, rates)
    }

    /// Largest prompt, in tokens, whose plan stays within `limit` bytes.
    pub fn largest_prompt(&self, config: &RunConfig, limit: u64) -> usize {
        let sizes = self.backend.sizes();
        largest_prompt(&self.plan_input(&*sizes, config, &[1]), limit)
    }

    /// Reads a prompt. The plan is checked first; a run that starts stays
    /// within its memory limit.
    ///
    /// ```
    /// use tidekv::{Engine, Error, Model, RunConfig, Unobserved};
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("model.gguf");
    /// # tidekv_testkit::tiny_llama(1).write_to(&path)?;
    /// # let cpu = tidekv_cpu::Cpu::new(tidekv_cpu::CpuConfig::default())?;
    /// # let engine = Engine::new(Model::open(&path, None)?, cpu)?;
    /// let prompt = [1, 2, 3, 4];
    /// let session = engine.prefill(&prompt, &RunConfig::default(), &mut Unobserved)?;
    /// assert_eq!(session.next_position().index(), 4);
    ///
    /// // A run that does not fit is refused before anything is computed.
    /// let tight = RunConfig { memory_limit: Some(1000), ..RunConfig::default() };
    /// match engine.prefill(&prompt, &tight, &mut Unobserved) {
    ///     Err(Error::Refused(refusal)) => assert!(refusal.plan.peak_bytes() > 1000),
    ///     _ => panic!("not refused"),
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// A bad prompt, [`Error::Refused`], [`Error::Cancelled`] by the observer, or
    /// a failure of the backend. Nothing stays allocated.
    pub fn prefill(
        &self,
        tokens: &[u32],
        config: &RunConfig,
        observer: &mut dyn Observer,
    ) -> Result<Session<'_, B>, Error> {
        let mut sessions = self.prefill_batch(&[tokens], config, observer)?;
        sessions.pop().ok_or(Error::EmptyBatch)
    }

    /// Reads several prompts together, of any lengths, so that each layer's weights
    /// are visited once for all of them. Every session has the bits that its prompt
    /// has when it is read alone. The plan of the whole batch is checked first;
    /// the sessions come in the order of the prompts, and what belongs to one of
    /// them is released when it is dropped.
    ///
    /// # Errors
    /// As [`Engine::prefill`], and [`Error::EmptyBatch`]; what is wrong with one of
    /// several prompts comes as [`Error::OfPrompt`].
    pub fn prefill_batch(
        &self,
        prompts: &[&[u32]],
        config: &RunConfig,
        observer: &mut dyn Observer,
    ) -> Result<Vec<Session<'_, B>>, Error> {
        let spec = &self.model.spec;
        config.check_prompts(&spec.shape, prompts)?;
        let n_tokens: Vec<usize> = prompts.iter().map(|tokens| tokens.len()).collect();
        // Frozen at each prompt's own length.
        let rotations =
            n_tokens.iter().map(|&n| spec.rotations(n)).collect::<Result<Vec<_>, _>>()?;
        let plan = self.plan_batch(config, &n_tokens)?;
        let accountant = Accountant::new(config.memory_limit);
        let device = self.device(&rotations);
        let Prefilled { prompts, weights } =
            prefill(&device, config, &accountant, prompts, observer)?;
        accountant.begin(Moment::Decode);
        let works = (0..prompts.len())
            .map(|_| workspace((&self.backend, &accountant), &spec.shape, 1, None))
            .collect::<Result<Vec<_>, _>>()?;
        let batch = Arc::new(Batch::new((accountant, plan), config.clone(), weights));
        let with_work = prompts.into_iter().zip(works).zip(rotations);
        let session = |((prompt, work), rotations)| {
            Session::new(self, Arc::clone(&batch), (prompt, work), rotations)
        };
        Ok(with_work.map(session).collect())
    }

    /// What a plan of this model is made from; `n_tokens` are those of every prompt
    /// of the batch.
    pub fn plan_input<'p>(
        &'p self,
        sizes: &'p dyn Sizes,
        config: &'p RunConfig,
        n_tokens: &'p [usize],
    ) -> PlanInput<'p> {
        let shape = &self.model.spec.shape;
        PlanInput { shape, weights: self.model.weight_bytes(), sizes, config, n_tokens }
    }

    /// The weights, if their files are still the ones that were opened.
    ///
    /// # Errors
    /// A file that has changed.
    pub fn weights(&self) -> Result<&B::Weights, Error> {
        self.model.file.store.verify_unchanged()?;
        Ok(&self.weights)
    }

    fn device<'d>(&'d self, rotations: &'d [Rotations]) -> Device<'d, B> {
        Device {
            rotations,
            files: Some(&self.model.file.store),
            backend: &self.backend,
            weights: &self.weights,
            weight_bytes: self.model.weight_bytes(),
            shape: &self.model.spec.shape,
        }
    }
}
