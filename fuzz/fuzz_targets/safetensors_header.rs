//! Any bytes as a whole safetensors file, and as an index of shards.
#![no_main]

#[path = "../../crates/format/tests/sound/mod.rs"]
mod sound;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    sound::safetensors_header(bytes, bytes.len() as u64);
    sound::shard_index(bytes);
});
