//! Any bytes as a whole GGUF file.
#![no_main]

#[path = "../../crates/format/tests/sound/mod.rs"]
mod sound;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| sound::gguf_header(bytes, bytes.len() as u64));
