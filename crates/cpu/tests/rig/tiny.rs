//! Tiny models in files, on the CPU.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use tempfile::TempDir;
use tidekv::{Engine, Model};
use tidekv_cpu::{Cpu, CpuConfig, Tier};
use tidekv_testkit::{GgufWriter, Random};

/// A model file that goes when this is dropped.
pub struct TinyFile {
    _dir: TempDir,
    path: PathBuf,
}

impl TinyFile {
    /// Writes the file.
    pub fn write(writer: &GgufWriter) -> TinyFile {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tiny.gguf");
        writer.write_to(&path).unwrap();
        TinyFile { _dir: dir, path }
    }

    /// The file's path.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// A model on the CPU with `threads` threads of one tier; `None` is the best.
pub fn engine(path: &Path, threads: usize, tier: Option<Tier>) -> Engine<Cpu> {
    let model = Model::open(path, None).unwrap();
    let config = CpuConfig { threads: NonZeroUsize::new(threads), tier };
    Engine::new(model, Cpu::new(config).unwrap()).unwrap()
}

/// Seeded token ids, `[n_tokens]`, below `vocab`.
pub fn prompt(seed: u64, vocab: usize, n_tokens: usize) -> Vec<u32> {
    let mut random = Random::named(seed, "prompt");
    (0..n_tokens).map(|_| random.below(vocab as u64) as u32).collect()
}
