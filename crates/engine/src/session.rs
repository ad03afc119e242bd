//! A session: one prompt that has been read, and the answer that grows from it.
//!
//! Next hop of a prompt: [`crate::sample`], [`crate::text`].

use crate::backend::{Backend, BackendError, DecodeRow, Workspace};
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

    /// Feeds one token at its true position. [`feed_together`] does it for several
    /// sessions.
    ///
    /// # Errors
    /// [`Error::Setting`] when there is no room left, [`Error::TokenOutOfRange`], a
    /// model file that has changed, or a failure of the backend. The session stays
    /// where it was and can be fed again; after numbers that overflowed its logits are
    /// of no use until then.
    pub fn feed(&mut self, token: u32) -> Result<(), Error> {
        self.check_feed(token)?;
        feed_checked(&mut [(self, token)])?.into_iter().collect()
    }

    /// Whether `token` can be fed.
    fn check_feed(&self, token: u32) -> Result<(), Error> {
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
        Ok(())
    }

    /// Whether it can be fed together with a session of `engine`.
    pub(crate) fn check_engine(&self, engine: &Engine<B>) -> Result<(), Error> {
        match std::ptr::eq(self.engine, engine) {
            true => Ok(()),
            false => Err(Error::OtherEngine),
        }
    }

    /// The step that feeds `token`.
    fn step(&mut self, token: u32) -> DecodeRow<'_, B> {
        DecodeRow {
            token,
            position: self.next_position(),
            rotations: &self.rotations,
            retained: &self.retained,
            tail: &mut self.tails,
            tail_row: self.tail_row,
            work: &mut self.work,
            logits: &mut self.logits,
        }
    }
}

/// Feeds each session its token, all in one step that reads the weights once. The
/// sessions may come from different batches, with different settings; each has the
/// bits that it has when it is fed alone.
///
/// ```
/// use tidekv::{Engine, Error, Model, RunConfig, Session, Unobserved, feed_together};
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("model.gguf");
/// # tidekv_testkit::tiny_llama(1).write_to(&path)?;
/// # let cpu = tidekv_cpu::Cpu::new(tidekv_cpu::CpuConfig::default())?;
/// # let engine = Engine::new(Model::open(&path, None)?, cpu)?;
/// let config = RunConfig { max_new_tokens: 8, ..RunConfig::default() };
/// let mut sessions = engine.prefill_batch(&[&[1, 2, 3], &[4, 5]], &config, &mut Unobserved)?;
/// // One that joins later.
/// sessions.push(engine.prefill(&[6, 7, 8], &config, &mut Unobserved)?);
/// let mut feeds: Vec<(&mut Session<_>, u32)> = sessions.iter_mut().zip([9, 10, 11]).collect();
/// match feed_together(&mut feeds) {
///     Ok(()) => {}
///     Err(Error::OfSessions { failed, .. }) => eprintln!("without {failed:?}"),
///     Err(error) => return Err(error.into()),
/// }
/// assert_eq!(sessions.iter().map(|session| session.fed().len()).sum::<usize>(), 3);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`Error::OfSessions`] with what is wrong with each. That a session cannot take its
/// token ([`Session::feed`]) or belongs to another engine than the first
/// ([`Error::OtherEngine`]) is found before anything is fed, and nothing is. Numbers
/// that overflow ([`Error::Backend`]) are found after the step: the sessions named
/// are where they were, all others have been fed.
///
/// Any other error, such as that of a model file that has changed, is about all
/// sessions, and none has been fed.
pub fn feed_together<'e, B: Backend>(
    feeds: &mut [(&mut Session<'e, B>, u32)],
) -> Result<(), Error> {
    let Some(engine) = feeds.first().map(|(session, _)| session.engine) else { return Ok(()) };
    let check = |(session, token): &(&mut Session<'e, B>, u32)| {
        session.check_engine(engine).and_then(|()| session.check_feed(*token))
    };
    all_of_sessions(feeds.iter().map(check).collect())?;
    all_of_sessions(feed_checked(feeds)?)
}

/// The outcomes of several sessions as one.
fn all_of_sessions(outcomes: Vec<Result<(), Error>>) -> Result<(), Error> {
    let n_sessions = outcomes.len();
    let failure = |(index, outcome): (usize, Result<(), Error>)| Some((index, outcome.err()?));
    let failed: Vec<_> = outcomes.into_iter().enumerate().filter_map(failure).collect();
    match failed.is_empty() {
        true => Ok(()),
        false => Err(Error::OfSessions { failed, n_sessions }),
    }
}

/// Feeds sessions of one engine tokens for which they have room. Those that fail stay
/// where they were.
///
/// # Errors
/// What keeps all of them from being fed.
pub(crate) fn feed_checked<B: Backend>(
    feeds: &mut [(&mut Session<'_, B>, u32)],
) -> Result<Vec<Result<(), Error>>, Error> {
    let Some(engine) = feeds.first().map(|(session, _)| session.engine) else {
        return Ok(Vec::new());
    };
    let (backend, weights) = (engine.backend(), engine.weights()?);
    let mut rows: Vec<_> = feeds.iter_mut().map(|(session, token)| session.step(*token)).collect();
    let outcomes = backend.decode(weights, &mut rows);
    backend.sync()?;
    let advance = |((session, token), outcome): (&mut (&mut Session<'_, B>, u32), _)| {
        let fed: Result<(), BackendError> = outcome;
        fed?;
        session.tail_row += 1;
        session.fed.push(*token);
        Ok(())
    };
    Ok(feeds.iter_mut().zip(outcomes).map(advance).collect())
}
