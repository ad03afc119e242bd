//! A directory with a tiny model, and the real binary run on it.

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tidekv_testkit::{GgufWriter, TinySpec, tiny_llama};

/// A fresh directory with `tiny.gguf` in it.
pub struct Place {
    dir: tempfile::TempDir,
}

impl Place {
    /// A model with a context of 8,192 tokens.
    pub fn new() -> Self {
        Place::with(&tiny_llama(1))
    }

    /// A model of one's own.
    pub fn with(spec: &TinySpec) -> Self {
        let place = Place { dir: tempfile::tempdir().unwrap() };
        spec.write_to(Path::new(&place.model())).unwrap();
        place
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A path as an argument.
    pub fn name(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    pub fn model(&self) -> String {
        self.name("tiny.gguf")
    }

    /// Writes a file and gives its path as an argument.
    pub fn write(&self, name: &str, bytes: &[u8]) -> String {
        std::fs::write(self.path(name), bytes).unwrap();
        self.name(name)
    }

    /// The model in parts; the name of the second.
    #[allow(dead_code, reason = "not every test binary needs it")]
    pub fn split(&self, n_parts: usize) -> String {
        let parts = tiny_llama(1).writer().write_split(self.dir.path(), "split", n_parts).unwrap();
        parts[1].to_str().unwrap().to_owned()
    }

    /// The model as a Hugging Face directory.
    #[allow(dead_code, reason = "not every test binary needs it")]
    pub fn hugging_face(&self, n_shards: usize) -> String {
        let directory = self.path("hugging-face");
        std::fs::create_dir(&directory).unwrap();
        tiny_llama(1).write_hugging_face(&directory, n_shards).unwrap();
        directory.to_str().unwrap().to_owned()
    }

    /// A file made from the model's by a change.
    #[allow(dead_code, reason = "not every test binary needs it")]
    pub fn changed(&self, change: impl FnOnce(&mut GgufWriter)) -> String {
        let mut writer = tiny_llama(1).writer();
        change(&mut writer);
        let name = self.name("changed.gguf");
        writer.write_to(Path::new(&name)).unwrap();
        name
    }

    /// `tidekv run` on the model.
    pub fn run(&self, args: &[&str]) -> Output {
        tidekv(&[&["run", &self.model()], args].concat())
    }
}

/// The binary, still to be started.
pub fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidekv"));
    command.args(args);
    command
}

/// The binary, run to its end.
pub fn tidekv(args: &[&str]) -> Output {
    command(args).output().unwrap()
}

/// Ids `0, 1, ..., 249, 0, ...` as an argument.
pub fn ids(n_tokens: usize) -> String {
    (0..n_tokens).map(|id| (id % 250).to_string()).collect::<Vec<_>>().join(",")
}

pub fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Asserts the exit code and that stderr says each of `words`.
#[track_caller]
pub fn ends_with(output: &Output, code: i32, words: &[&str]) {
    let stderr = stderr(output);
    assert_eq!(output.status.code(), Some(code), "{stderr}");
    assert!(!stderr.contains("panicked"), "{stderr}");
    for word in words {
        assert!(stderr.contains(word), "`{word}` is not in: {stderr}");
    }
}

/// The object on stdout, where nothing else may be.
#[track_caller]
pub fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", stderr(output)))
}
