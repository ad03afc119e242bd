//! Tiny seeded models, dense references and comparators for TideKV's tests.
//!
//! - [`GgufWriter`] writes any GGUF file, well-formed, with data streamed from closures.
//! - [`TinySpec`] describes a model of a few layers with seeded random weights and everything a real
//!   file has: [`tiny_llama`], [`tiny_qwen2`], [`llama_8b_two_layers`].
//! - [`compare`] holds the comparators, each with a test that makes it fail.
//!
//! Files depend on their spec alone: the same spec gives the same bytes on every machine.

#![forbid(unsafe_code)]

pub mod compare;
mod gguf_writer;
mod random;
mod tiny;
mod tiny_tokenizer;
mod weights;

pub use gguf_writer::{ALIGNMENT, GgufWriter};
pub use random::Random;
pub use tiny::{Arch, Head, MatrixTypes, TinySpec, llama_8b_two_layers, tiny_llama, tiny_qwen2};
pub use tiny_tokenizer::{CHATML_TEMPLATE, MIN_VOCAB};
pub use weights::{can_encode, encode_row};
