//! Tiny seeded models, dense references and comparators for TideKV's tests.
//!
//! - [`GgufWriter`] and [`SafetensorsWriter`] write any file of their formats, well-formed, whole or in
//!   parts, with data streamed from closures.
//! - [`TinySpec`] describes a model of a few layers with seeded random weights and everything a real
//!   file has: [`tiny_llama`], [`tiny_qwen2`], [`tiny_families`], [`llama_8b_two_layers`]; it is
//!   written as GGUF or as a Hugging Face directory.
//! - [`reference::Reference`] is a dense forward pass in f64 under any mask.
//! - [`compare`] holds the comparators, each with a test that makes it fail.
//! - [`models::path`] is where a real model is, pulled if need be.
//!
//! Files depend on their spec alone: the same spec gives the same bytes on every machine.

#![forbid(unsafe_code)]

pub mod compare;
mod family;
mod gguf_writer;
mod hugging_face;
pub mod models;
mod random;
pub mod reference;
mod safetensors_writer;
mod streamed;
mod tiny;
mod tiny_tokenizer;
mod weights;

pub use family::{Arch, Norms};
pub use gguf_writer::{ALIGNMENT, GgufWriter};
pub use random::Random;
pub use safetensors_writer::SafetensorsWriter;
pub use tiny::{
    Head, MatrixTypes, TinySpec, llama_8b_two_layers, tiny_families, tiny_llama, tiny_qwen2,
};
pub use tiny_tokenizer::{CHATML_TEMPLATE, MIN_VOCAB};
pub use weights::{can_encode, encode_row};
