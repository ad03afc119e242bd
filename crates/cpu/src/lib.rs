//! The CPU backend of TideKV: the engine's verbs over the numeric kernels.
//!
//! The kernels are single-threaded functions on slices; this crate lays
//! activations out in the engine's buffers, cuts them into disjoint pieces and
//! hands those to a pool of threads. No result depends on how many there are:
//! rows are cut, sums never.
#![forbid(unsafe_code)]

mod activation;
mod attention;
mod backend;
pub mod bench;
mod buffer;
mod decode;
mod layer;
mod logits;
mod packed;
mod phase;
mod pool;
mod product;
mod score;
mod sizes;
mod weights;

pub use backend::{Cpu, CpuConfig, CpuError, Precision};
pub use buffer::CpuBuffer;
pub use packed::{Pack, UnknownPack};
pub use phase::{Phase, PhaseTimes};
pub use sizes::CpuSizes;
pub use tidekv_kernels::{Isa, Tier};
pub use weights::CpuWeights;
