//! Models on the CPU.

use std::num::NonZeroUsize;
use std::path::Path;

use tidekv::{Engine, Model};
use tidekv_cpu::{Cpu, CpuConfig, Tier};

/// A model on the CPU with `threads` threads of one tier; `None` is the best.
pub fn engine(path: &Path, threads: usize, tier: Option<Tier>) -> Engine<Cpu> {
    let model = Model::open(path, None).unwrap();
    let config = CpuConfig { threads: NonZeroUsize::new(threads), tier };
    Engine::new(model, Cpu::new(config).unwrap()).unwrap()
}
