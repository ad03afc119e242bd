//! Tiny models in files, and prompts for them.

use std::path::{Path, PathBuf};

use tempfile::TempDir;
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

/// Seeded token ids, `[n_tokens]`, below `vocab`.
pub fn prompt(seed: u64, vocab: usize, n_tokens: usize) -> Vec<u32> {
    let mut random = Random::named(seed, "prompt");
    (0..n_tokens).map(|_| random.below(vocab as u64) as u32).collect()
}
