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
//!   [`Session`] is one prompt that has been read; [`Generate`] iterates over the
//!   answer.
//! - [`RunConfig`] holds what decides result and memory: a
//!   [`schedule::Schedule`] (order, chunks, eviction) and a
//!   [`select::Selector`] (what is kept) are values.
//! - [`memory::plan()`] says what a run will allocate before it starts, and the
//!   [`memory::Accountant`] what it did; they agree to the byte.
//! - An [`Observer`] sees every step and may cancel.
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
pub use generate::{FinishReason, Generate, GenerateConfig, Piece};
pub use observe::{Observer, Progress, Tap, Unobserved};
pub use position::{Pos, Row};
pub use sample::{SampleConfig, Sampler};
pub use session::Session;
