//! Tiny models in files, and prompts for them.

// Every test binary that includes the rig uses a part of it.
#![allow(dead_code)]

use std::path::{Path, PathBuf};

use tempfile::TempDir;
use tidekv_format::{GgufFile, TensorType};
use tidekv_testkit::{GgufWriter, Random, TinySpec};

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

    /// A model with one value of an F32 tensor replaced.
    pub fn with_value(spec: &TinySpec, name: &str, (index, value): (usize, f32)) -> TinyFile {
        let original = TinyFile::write(&spec.writer());
        let gguf = GgufFile::open(original.path()).unwrap();
        let tensor = gguf.tensor(name).unwrap();
        assert_eq!(tensor.ty, TensorType::F32);
        let mut bytes = gguf.bytes(tensor).to_vec();
        bytes[4 * index..][..4].copy_from_slice(&value.to_le_bytes());
        let mut writer = spec.writer();
        writer.remove_tensor(name).tensor(name, &tensor.shape, tensor.ty, bytes);
        TinyFile::write(&writer)
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
