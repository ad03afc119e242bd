//! Models on the CPU.

// Every test binary that includes the rig uses a part of it.
#![allow(dead_code)]

use std::num::NonZeroUsize;
use std::path::Path;

use tidekv::{Engine, Model};
use tidekv_cpu::{Cpu, CpuConfig, Precision, Tier};

/// A model on the CPU with `threads` threads of one tier; `None` is the best.
pub fn engine(path: &Path, threads: usize, tier: Option<Tier>) -> Engine<Cpu> {
    engine_of(Precision::Auto, path, threads, tier)
}

/// The same with prefill's products in f32, for comparisons with a reference.
pub fn engine_f32(path: &Path, threads: usize, tier: Option<Tier>) -> Engine<Cpu> {
    engine_of(Precision::F32, path, threads, tier)
}

/// The same with either precision.
pub fn engine_of(
    precision: Precision,
    path: &Path,
    threads: usize,
    tier: Option<Tier>,
) -> Engine<Cpu> {
    let threads = NonZeroUsize::new(threads);
    engine_with(CpuConfig { threads, tier, precision, ..CpuConfig::default() }, path)
}

/// The same with any settings.
pub fn engine_with(config: CpuConfig, path: &Path) -> Engine<Cpu> {
    let model = Model::open(path, None).unwrap();
    Engine::new(model, Cpu::new(config).unwrap()).unwrap()
}
