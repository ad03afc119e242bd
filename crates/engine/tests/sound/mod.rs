//! What holds for any chat template and any messages: used by the fuzz target and
//! by the random mutations.

use std::time::{Duration, Instant, SystemTime};
use tidekv::text::{ChatOptions, GenerationPrompt, Message, Tokenizer, VocabSource};

/// Longest that a template may take; those that are refused take milliseconds.
const LONGEST: Duration = Duration::from_secs(10);

/// A vocabulary of bytes and two markers.
fn vocabulary(chat_template: String) -> VocabSource {
    // The alphabet of byte-level vocabularies: bytes that print stand for themselves.
    let prints = |byte: u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..);
    let mut others = 0;
    let mut tokens: Vec<String> = Vec::new();
    for byte in 0..=u8::MAX {
        let code = match prints(byte) {
            true => u32::from(byte),
            false => {
                others += 1;
                255 + others
            }
        };
        tokens.extend(char::from_u32(code).map(String::from));
    }
    tokens.extend(["<|im_start|>", "<|im_end|>"].map(str::to_owned));
    VocabSource {
        model: "gpt2".to_owned(),
        pre: Some("gpt-2".to_owned()),
        token_types: (0..tokens.len()).map(|id| if id < 256 { 1 } else { 3 }).collect(),
        tokens,
        bos: Some(256),
        eos: vec![257],
        chat_template: Some(chat_template),
        ..VocabSource::default()
    }
}

/// Renders the messages, and encodes what comes out. `input` is a template and then
/// messages, with zero bytes between them.
///
/// # Panics
/// If rendering takes too long or too much, or rendered text has other tokens than it
/// should.
pub fn chat_template(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    let mut parts = text.split('\0');
    let source = parts.next().unwrap_or_default().to_owned();
    let roles = ["system", "user", "assistant"].into_iter().cycle();
    let messages: Vec<Message> =
        parts.zip(roles).map(|(content, role)| Message::new(role, content)).collect();
    let start = Instant::now();
    let tokenizer = Tokenizer::new(vocabulary(source)).expect("the vocabulary is sound");
    if let Ok(template) = tokenizer.chat_template() {
        let options =
            ChatOptions { generation_prompt: GenerationPrompt::Add, now: SystemTime::UNIX_EPOCH };
        if let Ok(chat) = template.render(&messages, &options) {
            let rendered = chat.text();
            assert!(rendered.len() <= 64 * 200_000 + 16 * input.len(), "{} bytes", rendered.len());
            let ids = tokenizer.encode_chat(&chat).expect("every byte has a token");
            let plain = ids.iter().filter(|&&id| id < 256).count();
            let markers = ids.len() - plain;
            assert!(plain <= rendered.len() && markers <= rendered.len() / 10 + 1, "{markers}");
        }
    }
    assert!(start.elapsed() < LONGEST, "{:?}", start.elapsed());
}
