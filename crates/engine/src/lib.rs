//! TideKV: layer-major prefill with delayed KV eviction, the library.
//!
//! A long prompt is expensive to *read*: ordinarily the K/V of every layer and
//! whole-prompt activations exist at once while the cache is built, although
//! only a small compressed cache is kept. TideKV drives one layer over all
//! prompt chunks before the next, keeps full K/V for that one layer only,
//! selects what to keep when the layer has seen everything, and moves on.
//!
//! # Tour
//!
//! - [`Model`] is an opened file; [`Engine`] is a model on a [`Backend`];
//!   [`Session`] is one prompt that has been read, alone or with others in a
//!   batch; [`Generate`] iterates over the answer. [`next_together`] and
//!   [`feed_together`] carry on several at once, with one read of the weights.
//! - [`RunConfig`] holds what decides result and memory: a
//!   [`schedule::Schedule`] (order, chunks, eviction) and a
//!   [`select::Selector`] (what is kept) are values.
//! - [`memory::plan()`] says what a run will allocate before it starts, and the
//!   [`memory::Accountant`] what it did; they agree to the byte.
//! - An [`Observer`] sees every step and may cancel.
//!
//! ```
//! use tidekv::text::Specials;
//! use tidekv::{Engine, GenerateConfig, Model, RunConfig, Unobserved};
//! use tidekv_cpu::{Cpu, CpuConfig};
//! # let dir = tempfile::tempdir()?;
//! # let path = dir.path().join("model.gguf");
//! # tidekv_testkit::tiny_llama(1).write_to(&path)?;
//! // A file, then a model on a device. Both serve any number of prompts.
//! let model = Model::open(&path, None)?;
//! let engine = Engine::new(model, Cpu::new(CpuConfig::default())?)?;
//! let text = "The tide comes in twice a day. ".repeat(20);
//! let prompt = engine.tokenizer()?.encode(&text, Specials::AsText)?;
//!
//! // What decides result and memory is a value, and the plan follows from it.
//! let config = RunConfig { budget: 100, max_new_tokens: 8, ..RunConfig::default() };
//! let plan = engine.plan(&config, prompt.len())?;
//!
//! // The prompt is read, one layer after the other, and 100 positions are left of
//! // each layer and KV head. The ledger says what the plan said.
//! let mut session = engine.prefill(&prompt, &config, &mut Unobserved)?;
//! assert_eq!(session.retained()[0].kept.head(0).len(), 100);
//! assert_eq!(session.accountant().peak().bytes.total(), plan.peak_bytes());
//!
//! // The answer comes in pieces of text.
//! let mut answer = String::new();
//! for piece in session.generate(GenerateConfig::default())? {
//!     answer += &piece?.text;
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! `examples/` has whole programs: an answer from a document, a scorer of one's own,
//! a timeline with a deadline, a plan that chooses the settings.
//!
//! # Where to extend it
//!
//! - What is kept: [`select::Selector`] is a product of values; a
//!   [`select::KeyScorer`] ranks positions by code of one's own.
//! - What is watched: an [`Observer`], with a [`Tap`] for the numbers.
//! - Where it runs: a [`Backend`] and its [`backend::Sizes`]; `tidekv-cpu` is one,
//!   [`dry`] another that computes nothing.
//!
//! # Units, errors, growth
//!
//! Sizes are bytes, lengths are tokens, positions are absolute and from 0; shapes
//! are written `[rows, cols]` with the letters of [`model::Shape`]. Every failure
//! that a caller, a file or a machine can cause is an [`enum@Error`] with the numbers
//! and what can be done; a panic is a broken contract, named under "Panics". The
//! crate has no features, every public item is documented, and there is no unsafe
//! code.
//!
//! Enums that users only receive or name may grow and are `non_exhaustive`; those
//! that a backend must handle to the last value are not, so that one that does not
//! fails to compile. Settings are written `RunConfig { budget: 512,
//! ..RunConfig::default() }`, which goes on compiling when fields are added.
//!
//! The path of a prompt through the modules: [`text`], [`memory`], `prefill`
//! over [`schedule`], [`bridge`], the backend's layer verbs ([`backend`]),
//! [`cache`], `compress` with [`select`], [`sample`], [`generate`].
#![forbid(unsafe_code)]

pub mod backend;
pub mod bridge;
pub mod cache;
mod compress;
pub mod config;
pub mod dry;
mod element;
mod engine;
mod error;
pub mod generate;
pub mod memory;
pub mod model;
pub mod observe;
pub mod perplexity;
pub mod position;
mod prefill;
pub mod report;
pub mod sample;
pub mod schedule;
pub mod select;
mod session;
pub mod text;
pub mod verify;

pub use backend::Backend;
pub use config::{Outputs, RunConfig};
pub use element::{Element, UnknownElement};
pub use engine::{Engine, Model};
pub use error::Error;
pub use generate::{FinishReason, Generate, GenerateConfig, Piece, next_together};
pub use observe::{Observer, Progress, Tap, Unobserved};
pub use position::{Pos, Row};
pub use sample::{SampleConfig, Sampler};
pub use session::{Session, feed_together};
/// Model files as checked tables of tensors, and what can be wrong with them.
pub use tidekv_format as format;
