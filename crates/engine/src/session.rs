//! A session: one prompt that has been read, and the answer that grows from it.
//!
//! Next hop of a prompt: [`crate::sample`], [`crate::text`].

use crate::backend::{Backend, DecodeRow, Workspace};
use crate::cache::{DecodeTail, RetainedKv};
use crate::config::RunConfig;
use crate::element::Element;
use crate::engine::Engine;
use crate::error::Error;
use crate::memory::{Accountant, Breakdown, Charge, Charged, Plan};
use crate::model::Rotations;
use crate::position::Pos;
use crate::prefill::PrefilledPrompt;
use std::sync::Arc;

/// What the sessions of a batch have in common. It goes with the last of them.
pub(crate) struct Batch {
    accountant: Accountant,
    plan: Plan,
    /// Live when prefill had ended.
    held: Breakdown,
    config: RunConfig,
    _weights: [Charge; 2],
}

impl Batch {
    /// A batch whose sessions have all their memory.
    pub(crate) fn new(
        (accountant, plan): (Accountant, Plan),
        config: RunConfig,
        weights: [Charge; 2],
    ) -> Self {
        Batch { held: accountant.live(), accountant, plan, config, _weights: weights }
    }
}

/// The compressed cache of a prompt, with room for new tokens.
///
/// [`Session::generate`] makes an answer of it. With [`Session::feed`] and
/// [`Session::logits`] the same can be done by hand:
///
/// ```
/// use tidekv::{Engine, Model, RunConfig, Unobserved};
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("model.gguf");
/// # tidekv_testkit::tiny_llama(1).write_to(&path)?;
/// # let cpu = tidekv_cpu::Cpu::new(tidekv_cpu::CpuConfig::default())?;
/// # let engine = Engine::new(Model::open(&path, None)?, cpu)?;
/// let prompt: Vec<u32> = (0..200).collect();
/// let config = RunConfig { budget: 64, max_new_tokens: 3, ..RunConfig::default() };
/// let mut session = engine.prefill(&prompt, &config, &mut Unobserved)?;
/// while session.room() > 0 {
///     let logits = session.logits(); // [vocab]
///     let likeliest = (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b]));
///     session.feed(likeliest.ok_or("no logits")? as u32)?;
/// }
/// // 64 positions of the prompt are left, and the answer still begins at 200.
/// assert_eq!(session.retained()[0].kept.head(0).len(), 64);
/// assert_eq!((session.fed().len(), session.next_position().index()), (3, 203));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Session<'e, B: Backend> {
    engine: &'e Engine<B>,
    retained: Vec<RetainedKv<B>>,
    tails: Vec<DecodeTail<B>>,
    tail_row: usize,
    work: Workspace<B>,
    logits: Charged<B::Buffer>,
    tokens: Charged<Vec<u32>>,
    fed: Vec<u32>,
    // Frozen at the prompt's length.
    rotations: Rotations,
    batch: Arc<Batch>,
}

impl<'e, B: Backend> Session<'e, B> {
    pub(crate) fn new(
        engine: &'e Engine<B>,
        batch: Arc<Batch>,
        (prompt, work): (PrefilledPrompt<B>, Workspace<B>),
        rotations: Rotations,
    ) -> Self {
        let PrefilledPrompt { retained, tails, logits, tokens } = prompt;
        Session {
            engine,
            retained,
            tails,
            tail_row: 0,
            work,
            logits,
            tokens,
            fed: Vec::new(),
            rotations,
            batch,
        }
    }

    /// Settings of the run.
    pub fn config(&self) -> &RunConfig {
        &self.batch.config
    }

    /// The engine.
    pub fn engine(&self) -> &'e Engine<B> {
        self.engine
    }

    /// Tokens of the prompt.
    pub fn prompt(&self) -> &[u32] {
        &self.tokens
    }

    /// Tokens fed since the prompt was read, of answers or otherwise.
    pub fn fed(&self) -> &[u32] {
        &self.fed
    }

    /// Retained cache of every layer.
    pub fn retained(&self) -> &[RetainedKv<B>] {
        &self.retained
    }

    /// The run's ledger: of all the sessions of its batch that are alive.
    pub fn accountant(&self) -> &Accountant {
        &self.batch.accountant
    }

    /// The run's plan: of its whole batch.
    pub fn plan(&self) -> &Plan {
        &self.batch.plan
    }

    /// Bytes that were live when prefill had ended: those of the whole batch,
    /// whichever of its sessions are still alive.
    pub fn held(&self) -> Breakdown {
        self.batch.held
    }

    /// True absolute position of the next token: S plus the tokens fed since,
    /// whatever the caches hold.
    pub fn next_position(&self) -> Pos {
        // `check_prompt` bounds S by the context and the context by u32.
        Pos((self.tokens.len() + self.tail_row) as u32)
    }

    /// Tokens that can still be fed: what the tail and the context have room for.
    pub fn room(&self) -> usize {
        let in_tail = self.tails.first().map_or(0, |tail| tail.capacity - self.tail_row);
        let context = self.engine.model().spec.shape.context;
        in_tail.min(context - self.next_position().index())
    }

    /// Logits after the last token fed, `[vocab]`.
    pub fn logits(&self) -> Vec<f32> {
        let vocab = self.engine.model().spec.shape.vocab;
        let mut logits = vec![0.0; vocab];
        self.engine.backend().read(&self.logits, Element::F32, 0, &mut logits);
        logits
    }

    /// Feeds one token at its true position.
    ///
    /// # Errors
    /// [`Error::Setting`] when there is no room left, [`Error::TokenOutOfRange`], a
    /// model file that has changed, or a failure of the backend.
    pub fn feed(&mut self, token: u32) -> Result<(), Error> {
        let vocab = self.engine.model().spec.shape.vocab;
        if token as usize >= vocab {
            return Err(Error::TokenOutOfRange { id: token, index: self.tail_row, vocab });
        }
        if self.room() == 0 {
            return Err(Error::Setting {
                setting: "max_new_tokens",
                value: self.config().max_new_tokens.to_string(),
                reason: "is used up, or the context is full; no further token can be fed".into(),
            });
        }
        let row = DecodeRow {
            token,
            position: self.next_position(),
            rotations: &self.rotations,
            retained: &self.retained,
            tail: &mut self.tails,
            tail_row: self.tail_row,
        };
        let backend = self.engine.backend();
        backend.decode(self.engine.weights()?, row, &mut self.work, &mut self.logits)?;
        backend.sync()?;
        self.tail_row += 1;
        self.fed.push(token);
        Ok(())
    }
}
