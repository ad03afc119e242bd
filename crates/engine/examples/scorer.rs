//! A scorer of one's own: which positions of a document would it keep, and how
//! many of them does SnapKV keep too?
//!
//! ```sh
//! cargo run --release -p tidekv --example scorer -- MODEL DOCUMENT
//! ```
//!
//! A `KeyScorer` makes a `LayerScorer` for each layer, which is shown the layer's
//! keys and values in blocks when the layer has seen the whole prompt. Sinks and
//! recent tokens that are kept in any case, budgets, heaps, memory: all of that is
//! the engine's, for every scorer alike.

use std::collections::HashSet;
use std::error::Error;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use tidekv::select::{KeyBlock, KeyScorer, LayerContext, LayerScorer, Scorer, Selector};
use tidekv::text::Specials;
use tidekv::{Engine, Model, RunConfig, Session, Unobserved};
use tidekv_cpu::{Cpu, CpuConfig};

/// Keeps the keys of small norm, which many queries attend to (Devoto et al., "A
/// Simple and Effective L2 Norm-Based Strategy for KV Cache Compression",
/// arXiv:2406.11430).
struct SmallNorm;

impl KeyScorer for SmallNorm {
    fn name(&self) -> &str {
        "small-norm"
    }

    fn layer(&self, _: &LayerContext) -> Box<dyn LayerScorer + '_> {
        // Nothing needs to be remembered from block to block. A scorer that does
        // remember says in `layer_bytes` how much, so that it is planned for.
        Box::new(SmallNorm)
    }
}

impl LayerScorer for SmallNorm {
    fn score(&mut self, block: &KeyBlock<'_>, scores: &mut [f32]) {
        // One row of scores for each KV head, one score for each position.
        for (head, scores) in scores.chunks_exact_mut(block.n_keys()).enumerate() {
            for (score, key) in scores.iter_mut().zip(block.keys(head)) {
                *score = -key.iter().map(|x| x * x).sum::<f32>();
            }
        }
    }
}

/// Writes, layer by layer, how many positions both selectors keep.
pub fn compare(model: &Path, document: &str, out: &mut dyn Write) -> Result<(), Box<dyn Error>> {
    let engine = Engine::new(Model::open(model, None)?, Cpu::new(CpuConfig::default())?)?;
    let prompt = engine.tokenizer()?.encode(document, Specials::AsText)?;
    // The first 4 tokens and the last 32 are kept whatever their scores, as SnapKV
    // keeps its window.
    let own = Selector { sinks: 4, recent: 32, ..Selector::new(Scorer::custom(SmallNorm)) };
    let config = |selector| RunConfig {
        selector,
        budget: (prompt.len() / 4).max(64),
        max_new_tokens: 0,
        ..RunConfig::default()
    };
    let own = engine.prefill(&prompt, &config(own), &mut Unobserved)?;
    let snapkv = engine.prefill(&prompt, &config("snapkv".parse()?), &mut Unobserved)?;

    writeln!(out, "{} tokens, selectors {} and snapkv", prompt.len(), own.config().selector)?;
    for (layer, (own, snapkv)) in kept(&own).zip(kept(&snapkv)).enumerate() {
        let both = own.intersection(&snapkv).count();
        writeln!(out, "layer {layer:2}: {both:5} of {:5} kept by both", own.len())?;
    }
    Ok(())
}

/// Kept positions of every layer, as (KV head, position).
fn kept<'s>(session: &'s Session<'_, Cpu>) -> impl Iterator<Item = HashSet<(usize, u32)>> + 's {
    session.retained().iter().map(|layer| {
        let of_head = |head| layer.kept.head(head).iter().map(move |position| (head, position.0));
        (0..layer.kept.n_heads()).flat_map(of_head).collect()
    })
}

fn run() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [model, document] = &arguments[..] else {
        return Err("usage: scorer MODEL DOCUMENT".into());
    };
    compare(model.as_ref(), &std::fs::read_to_string(document)?, &mut std::io::stdout())
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
