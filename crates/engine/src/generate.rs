//! Generation: an iterator over the answer's pieces of text, and several answers at once.

use crate::backend::Backend;
use crate::error::Error;
use crate::sample::{Logprobs, MAX_TOP_LOGPROBS, SampleConfig, Sampler};
use crate::session::{Session, feed_checked};
use crate::text::{DetokenizeStream, StopMatcher, StopStep};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Why generation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum FinishReason {
    /// An end-of-sequence token or a stop string.
    Stop,
    /// The largest number of tokens, or a full context.
    Length,
    /// The caller cancelled.
    Cancelled,
}

impl FinishReason {
    /// The name in reports.
    pub fn name(self) -> &'static str {
        match self {
            FinishReason::Stop => "stop",
            FinishReason::Length => "length",
            FinishReason::Cancelled => "cancelled",
        }
    }
}

/// Settings of an answer. By default the likeliest token is taken, until the model
/// ends the answer or [`crate::RunConfig::max_new_tokens`] are there.
///
/// ```
/// use std::sync::Arc;
/// use std::sync::atomic::{AtomicBool, Ordering};
/// use tidekv::{Engine, FinishReason, GenerateConfig, Model, RunConfig, SampleConfig, Unobserved};
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("model.gguf");
/// # tidekv_testkit::tiny_llama(1).write_to(&path)?;
/// # let cpu = tidekv_cpu::Cpu::new(tidekv_cpu::CpuConfig::default())?;
/// # let engine = Engine::new(Model::open(&path, None)?, cpu)?;
/// let mut session = engine.prefill(&[1, 2, 3], &RunConfig::default(), &mut Unobserved)?;
/// let stop_it = Arc::new(AtomicBool::new(false));
/// let mut answer = session.generate(GenerateConfig {
///     sample: SampleConfig { temperature: 0.8, top_p: 0.95, seed: 7, ..SampleConfig::default() },
///     stop: vec!["\n\n".to_owned()],
///     logprobs: Some(3),
///     cancel: Arc::clone(&stop_it), // may be set by another thread
/// })?;
/// if let Some(piece) = answer.next() {
///     let logprobs = piece?.logprobs.ok_or("not asked for")?;
///     assert_eq!(logprobs.top.len(), 3);
/// }
/// stop_it.store(true, Ordering::Relaxed);
/// answer.by_ref().for_each(drop);
/// assert_eq!(answer.finish_reason(), Some(FinishReason::Cancelled));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Default)]
pub struct GenerateConfig {
    /// Choice of tokens.
    pub sample: SampleConfig,
    /// Strings that end the answer; none of them is part of it.
    pub stop: Vec<String>,
    /// Log-probabilities of every token, with as many alternatives, at most
    /// [`MAX_TOP_LOGPROBS`]; `None` for none.
    pub logprobs: Option<usize>,
    /// Set from elsewhere to end the answer before the next token.
    pub cancel: Arc<AtomicBool>,
}

impl GenerateConfig {
    /// Checks the settings for a model of `vocab` tokens, which can be done before
    /// a prompt is read.
    ///
    /// # Errors
    /// As [`SampleConfig::validate`], [`Error::Setting`] for too many
    /// alternatives, [`Error::TokenOutOfRange`] for a bias on a token that the
    /// model does not have.
    pub fn validate(&self, vocab: usize) -> Result<(), Error> {
        self.sample.validate()?;
        if let Some(n_top) = self.logprobs.filter(|&n_top| n_top > MAX_TOP_LOGPROBS) {
            let reason = "must be at most 20".into();
            return Err(Error::Setting { setting: "logprobs", value: n_top.to_string(), reason });
        }
        let bias = self.sample.logit_bias.iter().enumerate();
        match bias.map(|(index, &(id, _))| (index, id)).find(|&(_, id)| id as usize >= vocab) {
            Some((index, id)) => Err(Error::TokenOutOfRange { id, index, vocab }),
            None => Ok(()),
        }
    }
}

/// Text that has become certain, with the token that made it so.
#[derive(Debug, Clone, PartialEq)]
pub struct Piece {
    /// The token; `None` for text held back until the end.
    pub token: Option<u32>,
    /// Complete characters; may be empty, and is where the model's text cannot be
    /// read.
    pub text: String,
    /// How likely the token was, where [`GenerateConfig::logprobs`] asks for it.
    pub logprobs: Option<Logprobs>,
}

/// The answer to a prompt, token by token. Ends by itself; then
/// [`Generate::finish_reason`] says why. Several at once: [`next_together`].
pub struct Generate<'s, 'e, B: Backend> {
    session: &'s mut Session<'e, B>,
    sampler: Sampler,
    // Taken when the answer ends and the held-back text is flushed. No stream where
    // the model's text cannot be read.
    text: Option<(Option<DetokenizeStream<'e>>, StopMatcher)>,
    cancel: Arc<AtomicBool>,
    logprobs: Option<usize>,
    generated: usize,
    pending: Option<u32>,
    finish: Option<FinishReason>,
}

impl<'e, B: Backend> Session<'e, B> {
    /// Starts an answer, at what has been read: the prompt and every token fed
    /// since. The repetition penalty looks at all of that; presence and frequency
    /// at this answer alone.
    ///
    /// A token is fed when the one after it is asked for. An answer that ended with
    /// [`FinishReason::Length`], in a stop string or by being dropped has therefore
    /// not fed its last token; [`Session::feed`] it before another answer is to
    /// follow.
    ///
    /// Where the model has no tokenizer that the engine can read ([`Engine::tokenizer`]),
    /// pieces have ids and no text, and no token ends the answer.
    ///
    /// # Errors
    /// As [`GenerateConfig::validate`], for a stop string that is empty, and for stop
    /// strings where there is no text.
    ///
    /// [`Engine::tokenizer`]: crate::Engine::tokenizer
    pub fn generate(&mut self, config: GenerateConfig) -> Result<Generate<'_, 'e, B>, Error> {
        config.validate(self.engine().model().spec.shape.vocab)?;
        let stream = match self.engine().tokenizer() {
            Ok(tokenizer) => Some(tokenizer.detokenize_stream()),
            Err(error) if !config.stop.is_empty() => return Err(error),
            Err(_) => None,
        };
        let stops = StopMatcher::new(config.stop)?;
        let mut sampler = Sampler::new(config.sample)?;
        sampler.read(self.prompt());
        sampler.read(self.fed());
        Ok(Generate {
            session: self,
            sampler,
            text: Some((stream, stops)),
            cancel: config.cancel,
            logprobs: config.logprobs,
            generated: 0,
            pending: None,
            finish: None,
        })
    }
}

/// A token that was drawn.
struct Drawn {
    token: u32,
    logprobs: Option<Logprobs>,
}

impl<'e, B: Backend> Generate<'_, 'e, B> {
    /// The session that it grows from.
    pub fn session(&self) -> &Session<'e, B> {
        self.session
    }

    /// Why the answer ended; `None` while it goes on, and where an error ended it.
    pub fn finish_reason(&self) -> Option<FinishReason> {
        self.finish
    }

    /// Whether tokens become text.
    fn has_text(&self) -> bool {
        self.text.as_ref().is_some_and(|(stream, _)| stream.is_some())
    }

    /// What comes next.
    fn turn(&mut self) -> Turn {
        if self.text.is_none() {
            return Turn::Over;
        }
        if self.cancel.load(Ordering::Relaxed) {
            return Turn::End(FinishReason::Cancelled);
        }
        if self.generated == self.session.config().max_new_tokens {
            return Turn::End(FinishReason::Length);
        }
        // A token is fed only when the next one is asked for, so the last token
        // of an answer costs no forward pass.
        match self.pending.take() {
            None => Turn::Draw,
            Some(_) if self.session.room() == 0 => Turn::End(FinishReason::Length),
            Some(token) => Turn::Feed(token),
        }
    }

    /// Does what comes next; a token of the turn has been fed.
    fn follow(&mut self, turn: Turn) -> Option<Result<Piece, Error>> {
        let step = match turn {
            Turn::Over => Ok(None),
            Turn::End(reason) => Ok(self.end(reason)),
            Turn::Draw | Turn::Feed(_) => self.advance(),
            Turn::Fail(error) => Err(error),
        };
        if step.is_err() {
            self.text = None;
        }
        step.transpose()
    }

    /// The next token, or the reason why there is none.
    fn next_token(&mut self) -> Result<Result<Drawn, FinishReason>, Error> {
        let logits = self.session.logits();
        let token = self.sampler.draw(&logits)?;
        if self.has_text() && self.session.engine().tokenizer()?.is_eos(token) {
            return Ok(Err(FinishReason::Stop));
        }
        self.sampler.accept(token);
        self.pending = Some(token);
        self.generated += 1;
        let logprobs = self.logprobs.map(|n_top| Logprobs::new(&logits, token, n_top));
        Ok(Ok(Drawn { token, logprobs }))
    }

    fn advance(&mut self) -> Result<Option<Piece>, Error> {
        let Drawn { token, logprobs } = match self.next_token()? {
            Ok(drawn) => drawn,
            Err(reason) => return Ok(self.end(reason)),
        };
        let Some((stream, stops)) = &mut self.text else { return Ok(None) };
        let decoded = match stream {
            Some(stream) => stream.push(token)?.unwrap_or_default(),
            None => String::new(),
        };
        match stops.push(&decoded) {
            StopStep::Continue(text) => Ok(Some(Piece { token: Some(token), text, logprobs })),
            StopStep::Stopped(text) => {
                self.text = None;
                self.finish = Some(FinishReason::Stop);
                Ok(Some(Piece { token: Some(token), text, logprobs }))
            }
        }
    }

    /// Ends the answer and flushes what was held back.
    fn end(&mut self, reason: FinishReason) -> Option<Piece> {
        self.finish = Some(reason);
        let (stream, mut stops) = self.text.take()?;
        let rest = stream.and_then(DetokenizeStream::finish).unwrap_or_default();
        let text = match stops.push(&rest) {
            StopStep::Continue(text) => text + &stops.finish(),
            StopStep::Stopped(text) => text,
        };
        (!text.is_empty()).then_some(Piece { token: None, text, logprobs: None })
    }
}

impl<B: Backend> Iterator for Generate<'_, '_, B> {
    type Item = Result<Piece, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        next_together(&mut [self]).pop().flatten()
    }
}

/// What an answer does next.
enum Turn {
    /// Nothing; it has ended.
    Over,
    /// It ends.
    End(FinishReason),
    /// A token is drawn.
    Draw,
    /// A token is drawn when this one, the last that was drawn, has been fed.
    Feed(u32),
    /// It ends in an error.
    Fail(Error),
}

/// The next piece of each of several answers, or `None` for one that has ended: what
/// `next` of each would give, with one step for all tokens that are fed
/// ([`feed_together`]). Answers may begin, end and fail at different times; which of
/// them go on together is the caller's choice at each call, and changes no token.
///
/// ```
/// use tidekv::{Engine, GenerateConfig, Model, RunConfig, Session, Unobserved, next_together};
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("model.gguf");
/// # tidekv_testkit::tiny_llama(1).write_to(&path)?;
/// # let cpu = tidekv_cpu::Cpu::new(tidekv_cpu::CpuConfig::default())?;
/// # let engine = Engine::new(Model::open(&path, None)?, cpu)?;
/// let config = RunConfig { max_new_tokens: 8, ..RunConfig::default() };
/// let mut sessions = engine.prefill_batch(&[&[1, 2, 3], &[4, 5]], &config, &mut Unobserved)?;
/// let generate = |session| Session::generate(session, GenerateConfig::default());
/// let mut answers = sessions.iter_mut().map(generate).collect::<Result<Vec<_>, _>>()?;
/// let mut texts = vec![String::new(); answers.len()];
/// loop {
///     let mut all: Vec<_> = answers.iter_mut().collect();
///     let pieces = next_together(&mut all);
///     if pieces.iter().all(Option::is_none) {
///         break;
///     }
///     for (text, piece) in texts.iter_mut().zip(pieces) {
///         *text += &piece.transpose()?.map_or(String::new(), |piece| piece.text);
///     }
/// }
/// assert!(answers.iter().all(|answer| answer.finish_reason().is_some()));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// An error is that of its answer, which has then ended; the others go on. An answer of
/// another engine than the first's ends with [`Error::OtherEngine`].
///
/// [`feed_together`]: crate::feed_together
pub fn next_together<B: Backend>(
    answers: &mut [&mut Generate<'_, '_, B>],
) -> Vec<Option<Result<Piece, Error>>> {
    let mut turns: Vec<Turn> = answers.iter_mut().map(|answer| answer.turn()).collect();
    feed_turns(answers, &mut turns);
    answers.iter_mut().zip(turns).map(|(answer, turn)| answer.follow(turn)).collect()
}

/// Feeds the tokens of all turns that have one. A turn whose token cannot be fed
/// becomes a failure.
fn feed_turns<B: Backend>(answers: &mut [&mut Generate<'_, '_, B>], turns: &mut [Turn]) {
    let Some(engine) = answers.first().map(|first| first.session.engine()) else { return };
    let (mut feeds, mut fed) = (Vec::new(), Vec::new());
    for (answer, turn) in answers.iter_mut().zip(turns) {
        let Turn::Feed(token) = *turn else { continue };
        match answer.session.check_engine(engine) {
            Ok(()) => {
                feeds.push((&mut *answer.session, token));
                fed.push(turn);
            }
            Err(error) => *turn = Turn::Fail(error),
        }
    }
    while !feeds.is_empty() {
        match feed_checked(&mut feeds) {
            Ok(outcomes) => {
                for (turn, outcome) in fed.into_iter().zip(outcomes) {
                    if let Err(error) = outcome {
                        *turn = Turn::Fail(error);
                    }
                }
                return;
            }
            // It would be the error of all; each asks for its own.
            Err(error) => {
                feeds.remove(0);
                *fed.remove(0) = Turn::Fail(error);
            }
        }
    }
}
