//! Prompts that are read together and answered together.

use crate::flags::{LogprobFlags, SampleFlags};
use crate::interrupt::Interrupt;
use crate::progress::{Extent, Watch};
use std::time::Instant;
use tidekv::generate::{Generate, GenerateConfig, Piece, next_together};
use tidekv::report::{Facts, RetainedDump, RunReport, retained_dump};
use tidekv::sample::{Logprobs, PromptLogprobs};
use tidekv::{Engine, FinishReason, RunConfig, Session};
use tidekv_cpu::Cpu;

/// Prompts to be read and answered together.
#[derive(Clone, Copy)]
pub struct Request<'a> {
    /// Ids of every prompt.
    pub prompts: &'a [&'a [u32]],
    /// Settings of the run.
    pub config: &'a RunConfig,
    /// Settings of the answers.
    pub sample: &'a SampleFlags,
    /// What is reported of tokens.
    pub logprobs: LogprobFlags,
    /// The model as named.
    pub model: &'a str,
    /// The schedule as named.
    pub schedule: &'a str,
}

/// An answer and what is known about the run.
pub struct Answer {
    /// The report.
    pub report: RunReport,
    /// Kept positions.
    pub retained: RetainedDump,
    /// W of the observation window, if the selector looks from one.
    pub window: Option<usize>,
}

/// Log-probabilities of the tokens of every prompt.
type PerPrompt = Vec<Vec<Logprobs>>;

/// Prompts that have been read, and whose answers are still to come.
pub struct Reading<'r, 'e> {
    request: Request<'r>,
    engine: &'e Engine<Cpu>,
    interrupt: &'r Interrupt,
    watch: Watch<'r>,
    prefill_s: f64,
    sessions: Vec<Session<'e, Cpu>>,
    /// Of every prompt, where they were asked for.
    prompt_logprobs: Option<PerPrompt>,
}

impl<'r> Request<'r> {
    /// Reads the prompts.
    ///
    /// # Errors
    /// Whatever stops the run.
    pub fn read<'e>(
        &self,
        engine: &'e Engine<Cpu>,
        interrupt: &'r Interrupt,
    ) -> anyhow::Result<Reading<'r, 'e>> {
        let n_layers = engine.model().spec.shape.n_layers;
        let n_tokens: Vec<usize> = self.prompts.iter().map(|tokens| tokens.len()).collect();
        let extent = Extent::new(n_layers, self.config.schedule, &n_tokens);
        let mut watch = Watch::new(self.schedule, extent, interrupt);
        let (sessions, prompt_logprobs) = self.prefill(engine, &mut watch)?;
        let prefill_s = watch.elapsed().as_secs_f64();
        watch.clear();
        let request = *self;
        Ok(Reading { request, engine, interrupt, watch, prefill_s, sessions, prompt_logprobs })
    }

    /// Settings of an answer.
    pub fn settings(&self, interrupt: &Interrupt) -> GenerateConfig {
        GenerateConfig {
            sample: self.sample.config(),
            stop: self.sample.stop.clone(),
            logprobs: self.logprobs.logprobs,
            cancel: interrupt.flag(),
        }
    }

    /// Reads the prompts, and the log-probabilities of their tokens if they were
    /// asked for.
    fn prefill<'e>(
        &self,
        engine: &'e Engine<Cpu>,
        watch: &mut Watch<'_>,
    ) -> anyhow::Result<(Vec<Session<'e, Cpu>>, Option<PerPrompt>)> {
        let Some(n_top) = self.logprobs.prompt_logprobs else {
            return Ok((engine.prefill_batch(self.prompts, self.config, watch)?, None));
        };
        let mut all = vec![Vec::new(); self.prompts.len()];
        let mut observer = PromptLogprobs {
            prompts: self.prompts,
            n_top,
            inner: watch,
            each: &mut |seq, _, logprobs| all[seq].push(logprobs),
        };
        let sessions = engine.prefill_batch(self.prompts, self.config, &mut observer)?;
        Ok((sessions, Some(all)))
    }
}

impl<'r, 'e> Reading<'r, 'e> {
    /// The engine that read them.
    pub fn engine(&self) -> &'e Engine<Cpu> {
        self.engine
    }

    /// Starts the answers.
    ///
    /// # Errors
    /// Settings that do not fit the model.
    pub fn answers(&mut self) -> anyhow::Result<Answers<'_, 'r, 'e>> {
        let Reading { request, interrupt, watch, prefill_s, .. } = self;
        let mut prompt_logprobs = self.prompt_logprobs.take().map(Vec::into_iter);
        let start = |session| {
            let facts = Facts {
                model: request.model.to_owned(),
                schedule: request.schedule.to_owned(),
                prefill_s: *prefill_s,
                ttft_s: watch.elapsed().as_secs_f64(),
                compress_s: watch.compress.as_secs_f64(),
                seed: request.sample.seed,
                process_peak_anon_bytes: watch.anonymous.bytes(),
                prompt_logprobs: prompt_logprobs.as_mut().and_then(Iterator::next),
                logprobs: request.logprobs.logprobs.map(|_| Vec::new()),
                ..Facts::default()
            };
            let pieces = Session::generate(session, request.settings(interrupt))?;
            let unsaid = String::new();
            Ok(Going { pieces, facts, came: None, generated: 0, unsaid, ended: None })
        };
        let all = self.sessions.iter_mut().map(start).collect::<anyhow::Result<_>>()?;
        Ok(Answers { all, next: 0, watch, has_text: self.engine.tokenizer().is_ok() })
    }
}

/// The answers to several prompts. All grow together and are given out in order.
pub struct Answers<'s, 'r, 'e> {
    all: Vec<Going<'s, 'e>>,
    /// The one that is given out next; those before it have been.
    next: usize,
    watch: &'s Watch<'r>,
    has_text: bool,
}

/// An answer on its way.
struct Going<'s, 'e> {
    pieces: Generate<'s, 'e, Cpu>,
    facts: Facts,
    /// When its first and its last token came.
    came: Option<[Instant; 2]>,
    /// Tokens so far.
    generated: usize,
    /// What has not been given out.
    unsaid: String,
    ended: Option<Result<(), tidekv::Error>>,
}

impl Answers<'_, '_, '_> {
    /// Carries on all answers until the next one, in the order of the prompts, has
    /// ended; `each` gets its text as it comes, or its ids where the model's text
    /// cannot be read. `None` after the last. An answer that fails is an error of its
    /// own, and the next can be asked for.
    ///
    /// # Errors
    /// Those of `each`.
    pub fn next_answer(
        &mut self,
        each: &mut dyn FnMut(&str) -> anyhow::Result<()>,
    ) -> anyhow::Result<Option<Result<Answer, tidekv::Error>>> {
        let index = self.next;
        self.next = (index + 1).min(self.all.len());
        while let Some(answer) = self.all.get_mut(index) {
            each(&std::mem::take(&mut answer.unsaid))?;
            if let Some(ended) = answer.ended.take() {
                return Ok(Some(ended.map(|()| answer.finish())));
            }
            self.step(index);
        }
        Ok(None)
    }

    /// The next piece of every answer from `first` on that has not ended.
    fn step(&mut self, first: usize) {
        let going = self.all[first..].iter_mut().filter(|answer| answer.ended.is_none());
        let mut going: Vec<&mut Going<'_, '_>> = going.collect();
        let mut all: Vec<_> = going.iter_mut().map(|answer| &mut answer.pieces).collect();
        let pieces = next_together(&mut all);
        for (answer, piece) in going.into_iter().zip(pieces) {
            match piece {
                Some(Ok(piece)) => answer.push(piece, self.has_text, self.watch),
                Some(Err(error)) => answer.ended = Some(Err(error)),
                None => answer.ended = Some(Ok(())),
            }
        }
    }

    /// Tokens that were generated after the first ones, of all answers, and the seconds
    /// that took.
    pub fn decoded(&self) -> (usize, f64) {
        let fed = |answer: &Going<'_, '_>| answer.generated.saturating_sub(1);
        let came = || self.all.iter().filter_map(|answer| answer.came);
        let first = came().map(|[first, _]| first).min();
        let last = came().map(|[_, last]| last).max();
        let took = first.zip(last).map_or(0.0, |(first, last)| (last - first).as_secs_f64());
        (self.all.iter().map(fed).sum(), took)
    }
}

impl Going<'_, '_> {
    fn push(&mut self, piece: Piece, has_text: bool, watch: &Watch<'_>) {
        if piece.token.is_some() {
            let now = Instant::now();
            let [_, last] = self.came.get_or_insert_with(|| {
                self.facts.ttft_s = watch.elapsed().as_secs_f64();
                [now, now]
            });
            *last = now;
            self.generated += 1;
        }
        match piece.token {
            Some(id) if !has_text => self.unsaid.push_str(&format!("{id} ")),
            _ => self.unsaid.push_str(&piece.text),
        }
        self.facts.output_token_ids.extend(piece.token);
        self.facts.output_text.push_str(&piece.text);
        if let Some(all) = &mut self.facts.logprobs {
            all.extend(piece.logprobs);
        }
    }

    /// The answer, which has ended.
    fn finish(&mut self) -> Answer {
        let session = self.pieces.session();
        let facts = Facts {
            decode_s: self.came.map_or(0.0, |[first, last]| (last - first).as_secs_f64()),
            finish_reason: self.pieces.finish_reason().map_or("length", FinishReason::name),
            allocator_peak_bytes: Some(tidekv_alloc::stats().peak_bytes),
            ..std::mem::take(&mut self.facts)
        };
        Answer {
            window: window(session),
            retained: retained_dump(session),
            report: RunReport::new(session, facts),
        }
    }
}

/// W of the observation window, if the selector looks from one.
fn window(session: &Session<'_, Cpu>) -> Option<usize> {
    let shape = &session.engine().model().spec.shape;
    let selections = session.config().selections(shape, session.prompt().len()).ok()?;
    selections.iter().map(|selection| selection.window()).max().filter(|&window| window > 0)
}
