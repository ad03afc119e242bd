//! Real models for tests: pulled once into the cache, then found there.

use std::path::PathBuf;

use tidekv_fetch::{ModelRef, Progress, pull};

/// Path of the model with this alias, which is downloaded if it is not in the
/// cache. Tests that run at once, in one process or several, wait for one download.
///
/// # Panics
/// Where the alias is unknown or no source gives the model; a test that needs a
/// real model fails then, it is not skipped.
pub fn path(alias: &str) -> PathBuf {
    let pulled = ModelRef::parse(alias).and_then(|model| pull(&model, &mut Notes));
    match pulled {
        Ok(pulled) => pulled.path,
        Err(error) => panic!("the model {alias} is needed by this test: {error}"),
    }
}

/// Says on standard error what a download does, for the log of a slow first run.
struct Notes;

impl Progress for Notes {
    fn message(&mut self, text: &str) {
        eprintln!("{text}");
    }

    fn bytes(&mut self, _done: u64, _total: u64) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_model_is_there_and_is_a_gguf_file() {
        let mut magic = [0; 4];
        let mut file = std::fs::File::open(path("smollm2-135m")).unwrap();
        std::io::Read::read_exact(&mut file, &mut magic).unwrap();
        assert_eq!(&magic, b"GGUF");
    }

    #[test]
    #[should_panic(expected = "no-such-model")]
    fn an_unknown_alias_fails_the_test() {
        path("no-such-model");
    }
}
