//! The run report: one object with every figure of a run, as `--json` writes it.

use crate::backend::Backend;
use crate::memory::{Breakdown, Moment, Plan, process_memory};
use crate::sample::{Logprobs, TokenLogprob};
use crate::session::Session;
use crate::text::Tokenizer;
use serde::Serialize;
use std::collections::BTreeMap;

/// Bytes by component name.
pub type ComponentBytes = BTreeMap<&'static str, u64>;

/// A number of things in words.
///
/// ```
/// use tidekv::report::counted;
/// assert_eq!([counted(1, "token"), counted(2, "token")], ["1 token", "2 tokens"]);
/// ```
pub fn counted(number: usize, thing: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {thing}{plural}")
}

/// Figures that only the caller knows: names and times.
#[derive(Debug, Clone, Default)]
pub struct Facts {
    /// The model as the user named it.
    pub model: String,
    /// Schedule, as named.
    pub schedule: String,
    /// Seconds from the start of prefill to the first token.
    pub ttft_s: f64,
    /// Seconds of prefill.
    pub prefill_s: f64,
    /// Seconds of prefill spent on layer-end compression.
    pub compress_s: f64,
    /// Seconds from the first token to the last, whatever else was generated meanwhile.
    pub decode_s: f64,
    /// Seed of the sampler.
    pub seed: u64,
    /// Generated tokens.
    pub output_token_ids: Vec<u32>,
    /// Generated text.
    pub output_text: String,
    /// Log-probabilities of the generated tokens, where they were asked for.
    pub logprobs: Option<Vec<Logprobs>>,
    /// Log-probabilities of the prompt's tokens from position 1 on, where they
    /// were asked for.
    pub prompt_logprobs: Option<Vec<Logprobs>>,
    /// Why the answer ended.
    pub finish_reason: &'static str,
    /// Largest number of bytes live in the allocator, where it counts.
    pub allocator_peak_bytes: Option<u64>,
    /// Largest anonymous resident memory seen, where the system tells.
    pub process_peak_anon_bytes: Option<u64>,
}

/// One run.
#[derive(Debug, Clone, Serialize)]
pub struct RunReport {
    /// The model as the user named it.
    pub model: String,
    /// S, tokens received.
    pub prompt_tokens: usize,
    /// Tokens generated.
    pub generated_tokens: usize,
    /// Schedule.
    pub schedule: String,
    /// Selector in text form.
    pub selector: String,
    /// K.
    pub budget: usize,
    /// C; the prompt's length for whole-prompt schedules.
    pub chunk: usize,
    /// Instruction set or device.
    pub isa: String,
    /// Threads.
    pub threads: usize,
    /// Seed of the sampler.
    pub seed: u64,
    /// Seconds to the first token.
    pub ttft_s: f64,
    /// Seconds of prefill, of all prompts that were read together.
    pub prefill_s: f64,
    /// Seconds of layer-end compression, of all of them.
    pub compress_s: f64,
    /// Decode rate after the first token, beside whatever else is generated meanwhile; 0
    /// without a second token.
    pub decode_tokens_per_s: f64,
    /// Where the memory went.
    pub memory: MemoryReport,
    /// Rows kept per layer and KV head.
    pub kept: Vec<KeptReport>,
    /// Generated tokens.
    pub output_token_ids: Vec<u32>,
    /// Generated text.
    pub output_text: String,
    /// `stop`, `length` or `cancelled`.
    pub finish_reason: &'static str,
    /// One per generated token; absent unless asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logprobs: Option<Vec<LogprobReport>>,
    /// One per token of the prompt, the first `null` because nothing comes before
    /// it; absent unless asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_logprobs: Option<Vec<Option<LogprobReport>>>,
}

/// A token with its log-probability, in nats, under the model itself: before
/// penalties, bias, temperature and filters.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TokenReport {
    /// Token id.
    pub id: u32,
    /// What it adds to the text; U+FFFD where that is a part of a character.
    pub text: String,
    /// ln of its probability.
    pub logprob: f32,
}

/// How likely a token was, and what would have been likelier.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LogprobReport {
    /// The token that was taken.
    #[serde(flatten)]
    pub chosen: TokenReport,
    /// The most likely tokens, best first.
    pub top: Vec<TokenReport>,
}

impl LogprobReport {
    /// The figures with the tokens' texts, which are empty without a tokenizer.
    pub fn new(logprobs: &Logprobs, tokenizer: Option<&Tokenizer>) -> Self {
        let token = |of: &TokenLogprob| TokenReport {
            id: of.token,
            // A model may have more rows than its vocabulary has tokens.
            text: tokenizer
                .and_then(|tokenizer| tokenizer.decode(&[of.token]).ok())
                .unwrap_or_default(),
            logprob: of.logprob,
        };
        LogprobReport {
            chosen: token(&logprobs.chosen),
            top: logprobs.top.iter().map(token).collect(),
        }
    }
}

/// Memory of a run: of all prompts that were read together.
#[derive(Debug, Clone, Serialize)]
pub struct MemoryReport {
    /// Peak the plan foresaw.
    pub planned_peak_bytes: u64,
    /// Peak that the accountant saw.
    pub accounted_peak_bytes: u64,
    /// When it was reached.
    pub peak_at: PeakAt,
    /// Peak minus what is still held after prefill.
    pub transient_peak_bytes: u64,
    /// Bytes of the compressed caches.
    pub retained_bytes: u64,
    /// What made up the peak.
    pub components_at_peak: ComponentBytes,
    /// Largest bytes of each component.
    pub components_max: ComponentBytes,
    /// Largest number of bytes live in the allocator.
    pub allocator_peak_bytes: Option<u64>,
    /// Largest resident memory of the process, mapped weights included.
    pub process_peak_rss_bytes: Option<u64>,
    /// Largest anonymous resident memory of the process.
    pub process_peak_anon_bytes: Option<u64>,
}

/// Memory of a planned run.
#[derive(Debug, Clone, Serialize)]
pub struct PlannedMemory {
    /// Peak.
    pub planned_peak_bytes: u64,
    /// When it is reached.
    pub peak_at: PeakAt,
    /// Peak minus what is still held after prefill.
    pub transient_peak_bytes: u64,
    /// Bytes of the compressed caches.
    pub retained_bytes: u64,
    /// What makes up the peak.
    pub components_at_peak: ComponentBytes,
    /// Largest bytes of each component.
    pub components_max: ComponentBytes,
}

/// When a peak is reached.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PeakAt {
    /// Layer, if the step belongs to one.
    pub layer: Option<usize>,
    /// Kind of step: `embed`, `layer`, `evict`, `head`, `setup` or `decode`.
    pub step: &'static str,
}

/// Rows kept by one layer.
#[derive(Debug, Clone, Serialize)]
pub struct KeptReport {
    /// Layer.
    pub layer: usize,
    /// Rows of each KV head.
    pub per_head: Vec<usize>,
}

/// Positions kept by every layer (`--dump-retained`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RetainedDump {
    /// S.
    pub prompt_tokens: usize,
    /// Layers.
    pub layers: Vec<RetainedLayer>,
}

/// Positions kept by one layer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RetainedLayer {
    /// Layer.
    pub layer: usize,
    /// Absolute positions of each KV head, ascending.
    pub per_head: Vec<Vec<u32>>,
}

impl From<Moment> for PeakAt {
    fn from(moment: Moment) -> Self {
        match moment {
            Moment::Setup => PeakAt { layer: None, step: "setup" },
            Moment::Decode => PeakAt { layer: None, step: "decode" },
            Moment::Step(step) => PeakAt { layer: step.layer(), step: step.name() },
        }
    }
}

/// Bytes under their component names.
pub fn component_bytes(bytes: &Breakdown) -> ComponentBytes {
    bytes.iter().map(|(component, bytes)| (component.name(), bytes)).collect()
}

impl From<&Plan> for PlannedMemory {
    fn from(plan: &Plan) -> Self {
        PlannedMemory {
            planned_peak_bytes: plan.peak_bytes(),
            peak_at: plan.peak.at.into(),
            transient_peak_bytes: plan.transient_bytes(),
            retained_bytes: plan.retained_bytes(),
            components_at_peak: component_bytes(&plan.peak.bytes),
            components_max: component_bytes(&plan.max),
        }
    }
}

impl MemoryReport {
    fn new<B: Backend>(session: &Session<'_, B>, facts: &Facts) -> Self {
        let (plan, accountant) = (session.plan(), session.accountant());
        let peak = accountant.peak();
        let accounted = peak.bytes.total();
        MemoryReport {
            planned_peak_bytes: plan.peak_bytes(),
            accounted_peak_bytes: accounted,
            peak_at: peak.at.into(),
            transient_peak_bytes: accounted.saturating_sub(session.held().held()),
            retained_bytes: plan.retained_bytes(),
            components_at_peak: component_bytes(&peak.bytes),
            components_max: component_bytes(&accountant.max()),
            allocator_peak_bytes: facts.allocator_peak_bytes,
            process_peak_rss_bytes: process_memory().peak_resident,
            process_peak_anon_bytes: facts.process_peak_anon_bytes,
        }
    }
}

impl RunReport {
    /// The report of a session whose answer has ended.
    pub fn new<B: Backend>(session: &Session<'_, B>, facts: Facts) -> Self {
        let config = session.config();
        let backend = session.engine().backend();
        let n_tokens = session.prompt().len();
        let generated = facts.output_token_ids.len();
        let fed = generated.saturating_sub(1) as f64;
        let tokenizer = session.engine().tokenizer().ok();
        let with_text = |logprobs: &Logprobs| LogprobReport::new(logprobs, tokenizer);
        let of_answer = |all: &Vec<Logprobs>| all.iter().map(with_text).collect();
        let of_prompt = |all: &Vec<Logprobs>| {
            std::iter::once(None).chain(all.iter().map(|of| Some(with_text(of)))).collect()
        };
        RunReport {
            prompt_tokens: n_tokens,
            generated_tokens: generated,
            selector: config.effective_selector().to_string(),
            budget: config.budget,
            chunk: config.schedule.chunk().rows(n_tokens),
            isa: backend.name(),
            threads: backend.threads(),
            seed: facts.seed,
            ttft_s: facts.ttft_s,
            prefill_s: facts.prefill_s,
            compress_s: facts.compress_s,
            decode_tokens_per_s: if facts.decode_s > 0.0 { fed / facts.decode_s } else { 0.0 },
            memory: MemoryReport::new(session, &facts),
            kept: kept(session),
            logprobs: facts.logprobs.as_ref().map(of_answer),
            prompt_logprobs: facts.prompt_logprobs.as_ref().map(of_prompt),
            model: facts.model,
            schedule: facts.schedule,
            output_token_ids: facts.output_token_ids,
            output_text: facts.output_text,
            finish_reason: facts.finish_reason,
        }
    }
}

fn kept<B: Backend>(session: &Session<'_, B>) -> Vec<KeptReport> {
    let layers = session.retained().iter().enumerate();
    layers
        .map(|(layer, retained)| {
            let heads = 0..retained.kept.n_heads();
            KeptReport {
                layer,
                per_head: heads.map(|head| retained.kept.head(head).len()).collect(),
            }
        })
        .collect()
}

/// The kept positions of a session.
pub fn retained_dump<B: Backend>(session: &Session<'_, B>) -> RetainedDump {
    let layers = session.retained().iter().enumerate().map(|(layer, retained)| {
        let heads = 0..retained.kept.n_heads();
        let positions = |head| retained.kept.head(head).iter().map(|position| position.0).collect();
        RetainedLayer { layer, per_head: heads.map(positions).collect() }
    });
    RetainedDump { prompt_tokens: session.prompt().len(), layers: layers.collect() }
}
