//! Perplexity needs the memory of reading, not of a row of logits for every token.
//! Alone in its process, because it looks at all that is allocated.

// clippy.toml exempts #[test] functions; the rest of a test binary is test code too.
#![allow(clippy::unwrap_used)]

mod rig {
    pub mod device;
    pub mod tiny;
}

use rig::device::engine;
use rig::tiny::{TinyFile, prompt};
use std::num::NonZeroUsize;
use tidekv::Unobserved;
use tidekv::perplexity::{Perplexity, PerplexityConfig};
use tidekv_testkit::tiny_llama;

#[global_allocator]
static ALLOCATOR: tidekv_alloc::Counting = tidekv_alloc::Counting;

#[test]
fn no_logits_of_a_whole_text_are_ever_held() {
    const TOKENS: usize = 4000;
    let spec = tiny_llama(3);
    let file = TinyFile::write(&spec.writer());
    let engine = engine(file.path(), 2, None);
    let tokens = prompt(9, spec.vocab, TOKENS);
    let config =
        PerplexityConfig { chunk: NonZeroUsize::new(64).unwrap(), ..PerplexityConfig::default() };
    let measurement = Perplexity::new(&engine, &tokens, &config).unwrap();
    let plan = engine.plan(measurement.run_config(), TOKENS).unwrap();
    let all_rows = (TOKENS * spec.vocab * size_of::<f32>()) as u64;
    // The bound means something only if one buffer of all rows would break it.
    assert!(plan.peak_bytes() < all_rows / 2, "{} {all_rows}", plan.peak_bytes());

    let before = tidekv_alloc::stats().live_bytes;
    tidekv_alloc::reset_peak();
    let window = measurement.windows().iter().next().unwrap();
    let scored = measurement.score(&window, &mut Unobserved).unwrap();
    assert_eq!(scored.n_tokens, TOKENS - 1);
    let grown = tidekv_alloc::stats().peak_bytes.saturating_sub(before);
    assert!(grown < all_rows, "{grown} bytes, {all_rows} would hold all rows");
}
