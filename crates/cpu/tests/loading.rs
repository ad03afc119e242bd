//! Loading a model reads its headers and vectors and maps the rest: what the
//! system has mapped in of a file of some 300 MB is counted after every step.
#![cfg(target_os = "linux")]
// clippy.toml exempts #[test] functions; the rest of a test binary is test code too.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};
use tidekv::{Engine, Model};
use tidekv_cpu::{Cpu, CpuConfig};
use tidekv_format::TensorType;
use tidekv_testkit::{MatrixTypes, TinySpec, tiny_llama};

/// Three layers with matrices of tens of megabytes, norms between them.
fn spec() -> TinySpec {
    TinySpec {
        d_model: 2048,
        d_ff: 8192,
        n_heads: 16,
        n_kv_heads: 8,
        head_dim: 128,
        types: MatrixTypes::all(TensorType::BF16),
        ..tiny_llama(5)
    }
}

/// Bytes of the files below `directory` that this process has mapped in.
fn resident(directory: &Path) -> u64 {
    let maps = fs::read_to_string("/proc/self/smaps").unwrap();
    let (mut ours, mut kilobytes) = (false, 0);
    for line in maps.lines() {
        let first = line.split_whitespace().next().unwrap_or_default();
        if first.contains('-') {
            ours = line.contains(directory.to_str().unwrap());
        } else if ours && first == "Rss:" {
            kilobytes += line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap();
        }
    }
    kilobytes * 1024
}

/// What reading so many bytes in each of several places may map in, where the
/// system maps `around` bytes at once: a place may begin and end within such a
/// window.
fn windows(places: &[u64], around: u64) -> u64 {
    places.iter().map(|n_bytes| (n_bytes.div_ceil(around) + 1) * around).sum()
}

/// Bytes that the system maps in around one that is read: neighbours in the page
/// cache come along, and how many is the file system's affair. Shows too that a
/// matrix that is read is seen.
fn around_one_byte(path: &Path, directory: &Path) -> u64 {
    let file = Model::open(path, None).unwrap().file;
    let matrices: Vec<&[u8]> = file.store.tensors().iter().map(|t| file.store.bytes(t)).collect();
    let grown = |read: &dyn Fn() -> u8| {
        let before = resident(directory);
        std::hint::black_box(read());
        resident(directory) - before
    };
    let middles = matrices.iter().map(|matrix| grown(&|| matrix[matrix.len() / 2]));
    let around = middles.max().unwrap();
    let largest = matrices.iter().max_by_key(|matrix| matrix.len()).unwrap();
    let all = grown(&|| largest.iter().fold(0, |sum, byte| sum ^ byte));
    assert!(all + 2 * around >= largest.len() as u64, "a matrix was read, and {all} bytes more");
    around
}

/// Opens and loads the model at `path`, whose files lie in `directory`.
fn load(what: &str, path: &Path, directory: &Path) {
    let around = around_one_byte(path, directory);
    assert_eq!(resident(directory), 0, "{what}: nothing is mapped any more");
    let model = Model::open(path, None).unwrap();
    let tensors = |model: &Model| model.file.store.tensors().to_vec();
    let total: u64 = tensors(&model).iter().filter_map(|tensor| tensor.n_bytes).sum();
    let files = fs::read_dir(directory).unwrap().map(|file| file.unwrap().metadata().unwrap());
    let sizes: u64 = files.map(|file| file.len()).sum();
    // What is no tensor: headers, the vocabulary in them, and what follows the last tensor.
    let headers = windows(&[sizes - total, 0, 0], around);
    let opened = resident(directory);
    assert!(opened > 0, "{what}: the header was read from the map");
    assert!(opened <= headers, "{what}: {opened} bytes after opening, {headers} in headers");

    let engine = Engine::new(model, Cpu::new(CpuConfig::default()).unwrap()).unwrap();
    let vectors = tensors(engine.model()).into_iter().filter(|tensor| tensor.shape.len() == 1);
    let vectors: Vec<u64> = vectors.filter_map(|vector| vector.n_bytes).collect();
    let allowed = headers + windows(&vectors, around);
    let loaded = resident(directory);
    println!(
        "{what}: {total} bytes; {opened} resident when opened, {loaded} when loaded; {around} \
         around a byte"
    );
    assert_eq!(vectors.len(), 2 * 3 + 1, "{what}");
    assert!(loaded <= allowed, "{what}: {loaded} bytes resident, {allowed} allowed");
    // One byte of each of the 22 matrices would pass the bound.
    assert!(opened + 22 * around > allowed && total > 8 * allowed, "{what}: {allowed} allowed");
}

#[test]
fn headers_and_vectors_are_read_and_matrices_are_not() {
    let place = tempfile::tempdir().unwrap();
    let directory = |name: &str| {
        let path: PathBuf = place.path().join(name);
        fs::create_dir(&path).unwrap();
        path
    };
    let gguf = directory("gguf");
    spec().write_to(&gguf.join("model.gguf")).unwrap();
    load("GGUF", &gguf.join("model.gguf"), &gguf);
    let hugging_face = directory("hugging-face");
    spec().write_hugging_face(&hugging_face, 3).unwrap();
    load("safetensors", &hugging_face, &hugging_face);
}
