//! `tidekv inspect` maps a model and does not read it: the most memory that the
//! process ever had, told by the system while it waits for its output to be taken.
#![cfg(target_os = "linux")]
// clippy.toml exempts #[test] functions; the rest of a test binary is test code too.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use tidekv_format::{TensorType, Value};
use tidekv_testkit::{MatrixTypes, TinySpec, tiny_llama};

const MB: u64 = 1_000_000;

/// A model with an MLP of this width, and with a name that is longer than a pipe
/// holds.
fn write(path: &Path, d_ff: usize) {
    let spec = TinySpec {
        d_model: 2048,
        d_ff,
        n_heads: 16,
        n_kv_heads: 8,
        head_dim: 128,
        types: MatrixTypes::all(TensorType::BF16),
        ..tiny_llama(5)
    };
    let mut writer = spec.writer();
    writer.set("general.name", Value::String("long ".repeat(40_000)));
    writer.write_to(path).unwrap();
}

/// Runs the program until its first output and says how much memory it had at
/// most until then.
fn peak(args: &[&str]) -> u64 {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidekv"));
    let mut child = command.args(args).stdout(Stdio::piped()).spawn().unwrap();
    let mut first = [0];
    child.stdout.as_mut().unwrap().read_exact(&mut first).unwrap();
    let status = fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:"));
    let line = line.unwrap_or_else(|| panic!("the program had ended:\n{status}"));
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

#[test]
fn inspecting_a_large_model_takes_no_more_memory_than_a_small_one() {
    let place = tempfile::tempdir().unwrap();
    let name = |name: &str| place.path().join(name).to_str().unwrap().to_owned();
    let (small, large) = (name("small.gguf"), name("large.gguf"));
    write(Path::new(&small), 64);
    write(Path::new(&large), 8192);
    let apart = fs::metadata(&large).unwrap().len() - fs::metadata(&small).unwrap().len();
    assert!(apart > 290 * MB, "{apart} bytes apart");
    let inspect = |model: &str| peak(&["inspect", model, "--json", "-"]);
    let (of_small, of_large) = (inspect(&small), inspect(&large));
    // The measure must see weights that are read.
    let ids = ["--prompt-ids", "1,2,3", "--max-tokens", "4000"];
    let run = peak(&[&["run", &large], &ids[..]].concat());
    println!("inspect {of_small} and {of_large}, run {run}");
    // The file system maps up to 2 MB in around each byte that is read: 7 vectors, and the
    // header and the end of the file, all mapped by two readers.
    assert!(of_large < of_small + 40 * MB, "{of_small} and {of_large} bytes");
    assert!(run > of_large + 250 * MB, "{of_large} and {run} bytes");
}
