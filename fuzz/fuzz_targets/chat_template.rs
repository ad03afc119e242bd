//! Any text as a chat template, and messages behind zero bytes.
#![no_main]

#[path = "../../crates/engine/tests/sound/mod.rs"]
mod sound;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| sound::chat_template(bytes));
