//! A byte-level BPE vocabulary as small as one can be: every byte, a few merges of English, the three
//! control tokens of ChatML, and filler up to the size a model wants.

use tidekv_format::{Array, Value};

/// Turns as `<|im_start|>role\ncontent<|im_end|>\n`, in the template language of model files.
pub const CHATML_TEMPLATE: &str = "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

/// In the order of their ids. Each joins two tokens that exist before it.
const MERGES: [&str; 29] = [
    "Ġ t", "Ġ a", "h e", "i n", "r e", "o n", "Ġt he", "e r", "Ġ s", "a t", "e n", "Ġ o", "n d",
    "Ġa nd", "o r", "i s", "in g", "Ġ w", "Ġ c", "o u", "l l", "Ġ b", "Ġ f", "e s", "Ġ m", "Ġt o",
    "Ġo f", "i t", "Ġ p",
];

const CONTROL: [&str; 3] = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"];

/// The least vocabulary: 256 bytes, 29 merges, 3 control tokens.
pub const MIN_VOCAB: usize = 256 + MERGES.len() + CONTROL.len();

/// `tokenizer.ggml.token_type` of ordinary, control and unused tokens.
const NORMAL: i32 = 1;
const CONTROL_TYPE: i32 = 3;
const UNUSED: i32 = 5;

/// How text is cut before merging, and with it where the control tokens stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PreTokenizer {
    /// Control tokens first, `<|im_start|>` as BOS, `<|im_end|>` as EOS: SmolLM2.
    Smollm,
    /// Control tokens after the merges, `<|endoftext|>` as BOS, `<|im_end|>` as EOS: Qwen2.
    Qwen2,
}

/// The character that stands for a byte in a byte-level vocabulary (GPT-2's `bytes_to_unicode`):
/// printable Latin-1 for itself, the rest from U+0100 up in order.
fn byte_symbol(byte: u8) -> char {
    let prints = |b: u8| matches!(b, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    if prints(byte) {
        return char::from(byte);
    }
    let before = (0..byte).filter(|&b| !prints(b)).count() as u32;
    char::from_u32(0x100 + before).expect("U+0100 to U+0143 are characters")
}

/// The `tokenizer.*` entries of a file with `vocab` tokens.
pub(crate) fn entries(pre: PreTokenizer, vocab: usize) -> Vec<(&'static str, Value)> {
    assert!(vocab >= MIN_VOCAB, "a vocabulary of {vocab}: the least is {MIN_VOCAB}");
    let bytes = (0..=255u8).map(|byte| byte_symbol(byte).to_string());
    let text: Vec<_> = bytes
        .chain(MERGES.iter().map(|merge| merge.replace(' ', "")))
        .map(|t| (t, NORMAL))
        .collect();
    let control = CONTROL.iter().map(|token| ((*token).to_owned(), CONTROL_TYPE));
    let ordered: Vec<_> = match pre {
        PreTokenizer::Smollm => control.chain(text).collect(),
        PreTokenizer::Qwen2 => text.into_iter().chain(control).collect(),
    };
    let filler = (0..vocab - MIN_VOCAB).map(|i| (format!("[PAD{i}]"), UNUSED));
    let (tokens, types): (Vec<String>, Vec<i32>) = ordered.into_iter().chain(filler).unzip();
    let first_control = tokens.iter().position(|t| t == CONTROL[0]).expect("placed above") as u32;
    let (end_of_text, im_start, im_end) = (first_control, first_control + 1, first_control + 2);
    let (name, bos, padding) = match pre {
        PreTokenizer::Smollm => ("smollm", im_start, im_end),
        PreTokenizer::Qwen2 => ("qwen2", end_of_text, end_of_text),
    };
    let merges = MERGES.iter().map(|merge| (*merge).to_owned()).collect();
    vec![
        ("tokenizer.ggml.model", Value::String("gpt2".into())),
        ("tokenizer.ggml.pre", Value::String(name.into())),
        ("tokenizer.ggml.tokens", Value::Array(Array::String(tokens))),
        ("tokenizer.ggml.token_type", Value::Array(Array::I32(types))),
        ("tokenizer.ggml.merges", Value::Array(Array::String(merges))),
        ("tokenizer.ggml.bos_token_id", Value::U32(bos)),
        ("tokenizer.ggml.eos_token_id", Value::U32(im_end)),
        ("tokenizer.ggml.padding_token_id", Value::U32(padding)),
        ("tokenizer.ggml.add_bos_token", Value::Bool(false)),
        ("tokenizer.chat_template", Value::String(CHATML_TEMPLATE.into())),
    ]
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn tokens(pre: PreTokenizer, vocab: usize) -> Vec<String> {
        let entries = entries(pre, vocab);
        match &entries[2].1 {
            Value::Array(Array::String(tokens)) => tokens.clone(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn bytes_have_the_symbols_of_gpt2() {
        assert_eq!(
            [b' ', b'\n', b'A', 0xad, 0xff, 0].map(byte_symbol),
            ['Ġ', 'Ċ', 'A', 'Ń', 'ÿ', 'Ā']
        );
        let distinct: HashSet<char> = (0..=255).map(byte_symbol).collect();
        assert_eq!(distinct.len(), 256);
    }

    #[test]
    fn tokens_are_distinct_and_as_many_as_asked() {
        for pre in [PreTokenizer::Smollm, PreTokenizer::Qwen2] {
            for vocab in [MIN_VOCAB, MIN_VOCAB + 1, 1000] {
                let tokens = tokens(pre, vocab);
                assert_eq!(tokens.len(), vocab);
                assert_eq!(tokens.iter().collect::<HashSet<_>>().len(), vocab);
            }
        }
    }

    #[test]
    fn merges_join_tokens_that_exist_before_them() {
        let mut known: HashSet<String> =
            (0..=255).map(|byte| byte_symbol(byte).to_string()).collect();
        for merge in MERGES {
            let (left, right) = merge.split_once(' ').unwrap();
            assert!(known.contains(left) && known.contains(right), "{merge}");
            assert!(known.insert(format!("{left}{right}")), "{merge} twice");
        }
    }

    #[test]
    fn control_tokens_stand_where_the_real_files_have_them() {
        assert_eq!(tokens(PreTokenizer::Smollm, 300)[..3], CONTROL);
        assert_eq!(tokens(PreTokenizer::Qwen2, 300)[285..288], CONTROL);
    }

    #[test]
    #[should_panic(expected = "the least is 288")]
    fn too_small_a_vocabulary_is_a_contract_violation() {
        entries(PreTokenizer::Qwen2, 287);
    }
}
