//! The commands that do not answer a prompt, as the real binary runs them.

// clippy.toml exempts #[test] functions; the rest of a test binary is test code too.
#![allow(clippy::unwrap_used)]

#[path = "../rig/mod.rs"]
mod rig;

mod bench;
mod completions;
mod directory;
mod hugging_face;
mod inspect;
mod no_tokenizer;
mod offline;
mod perplexity;
mod terminal;
