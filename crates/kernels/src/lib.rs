//! Numeric CPU kernels of TideKV: shapes, not models.
//!
//! Single-threaded functions on slices. The caller splits work over threads by handing out disjoint
//! slices, and owns all scratch. Every function takes an [`Isa`], the proof that this CPU has the
//! instructions of one [`Tier`].
//!
//! Within one tier the bits of an output row depend on no other row, and on no tile, tail or
//! thread: each GEMM output is one accumulation chain in ascending K (of terms, or of the exact sums
//! of [`fixed`] blocks), and attention reduces on a fixed grid of absolute key positions. Tests of
//! everything above this crate rest on it.

pub mod attention;
pub mod element;
mod exp;
pub mod fixed;
pub mod gemm;
mod isa;
pub mod kv;
mod lanes;
pub mod matvec;
pub mod norm;
pub mod peak;
pub mod quant;
pub mod rope;
pub mod score;
#[cfg(test)]
mod test_data;
mod tile;

pub use isa::{Isa, Tier, UnknownTier};
