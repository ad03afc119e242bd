//! Which pre-tokenizer each name in a GGUF file stands for.
//!
//! The names and the patterns behind them are facts of
//! [`llama-vocab.cpp`](https://github.com/ggml-org/llama.cpp/blob/master/src/llama-vocab.cpp)
//! (`llm_tokenizer_bpe` and `llama_vocab::impl::load`), whose converter writes
//! the names. Where it had to rewrite a model's own pattern for its regular
//! expressions, the pattern here is the model's (`tokenizer.json`).
//!
//! Names whose pattern has a lookahead in its middle (`tiny_aya`, `superbpe`,
//! `jais-2`) or needs code of its own (`kimi-k2`, `afmoe`, `chameleon`) are not
//! here: they are refused like an unknown name.

/// GPT-2's pattern
/// ([source](https://github.com/openai/gpt-2/blob/master/src/encoder.py), `self.pat`).
pub(in super::super) const GPT2: &str =
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";

/// Qwen2's pattern
/// ([source](https://huggingface.co/Qwen/Qwen2.5-Coder-0.5B-Instruct/blob/main/tokenizer.json), `pre_tokenizer`).
const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// Qwen3.5's pattern: Qwen2's with combining marks in words.
const QWEN35: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// Llama 3's pattern: Qwen2's with up to three digits together
/// ([source](https://github.com/meta-llama/llama3/blob/main/llama/tokenizer.py), `pat_str`).
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// Mistral's Tekken: words end where lower case becomes upper case
/// ([source](https://huggingface.co/mistralai/Mistral-Nemo-Instruct-2407/blob/main/tokenizer.json)).
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// `o200k_base`: Tekken's with contractions at the word and up to three digits together
/// ([source](https://github.com/openai/tiktoken/blob/main/tiktoken_ext/openai_public.py), `o200k_base`).
const GPT4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// Letters of alphabets, as DeepSeek LLM's `tokenizer.json` lists them.
const DEEPSEEK_LLM_WORDS: &str = r"\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-\x{1F7D}ᾀ-ᾴᾶ-ᾼ\x{1FBE}ῂ-ῄῆ-ῌῐ-\x{1FD3}ῖ-\x{1FDB}ῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤ\x{2126}ℨ\x{212A}-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+";
/// Ideographs, syllables and what stands between, as DeepSeek's first models cut them.
const DEEPSEEK_CJK: &str = "[一-龥ࠀ-一가-퟿]+";
/// DeepSeek V3's words, behind the cuts at digits and at Chinese and Japanese.
const DEEPSEEK3_WORDS: &str = r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##;
/// BLOOM's words: what stands between blanks and sentence marks. The parenthesis is in the published class.
const BLOOM: &str = r" ?[^(\s|.,!?…。，、।۔،)]+";

/// How the words of one family are cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) struct Recipe {
    /// Patterns in the order they cut: each sees the pieces of the one before, one by one.
    pub(in super::super) stages: &'static [&'static str],
    /// Whether a word that is a token is that token, whatever the merges make of it: some vocabularies have
    /// tokens that their merges do not reach.
    pub(in super::super) whole_words_first: bool,
    /// Whether prompts begin with BOS when the file has no `tokenizer.ggml.add_bos_token`.
    pub(in super::super) adds_bos: bool,
    /// Whether the model was trained on text in Unicode's composed form (NFC).
    pub(in super::super) nfc: bool,
}

/// Nothing but words.
const fn plain(stages: &'static [&'static str]) -> Recipe {
    Recipe { stages, whole_words_first: false, adds_bos: false, nfc: false }
}

/// Llama 3 and its kin: whole words first, and a BOS.
const fn with_bos(stages: &'static [&'static str]) -> Recipe {
    Recipe { whole_words_first: true, adds_bos: true, ..plain(stages) }
}

/// Names with the same recipe.
type Entry = (&'static [&'static str], Recipe);

/// Every supported name.
const RECIPES: [Entry; 19] = [
    (
        &[
            "gpt-2",
            "phi-2",
            "mpt",
            "olmo",
            "jais",
            "trillion",
            "exaone4",
            "gigachat",
            "a.x-4.0",
            "mellum",
            "modern-bert",
            "granite-docling",
            "jina-es",
            "jina-de",
            "jina-v1-en",
            "jina-v2-es",
            "jina-v2-de",
            "jina-v2-code",
            "roberta-bpe",
        ],
        plain(&[GPT2]),
    ),
    (
        &[
            "smollm",
            "starcoder",
            "refact",
            "command-r",
            "codeshell",
            "exaone",
            "minerva-7b",
            "mellum2",
        ],
        plain(&[r"\p{N}", GPT2]),
    ),
    (&["qwen2"], Recipe { nfc: true, ..plain(&[QWEN2]) }),
    (&["qwen35"], Recipe { nfc: true, ..plain(&[QWEN35]) }),
    (
        &[
            "stablelm2",
            "hunyuan",
            "solar-open",
            "grok-2",
            "megrez",
            "deepseek-r1-qwen",
            "kormo",
            "f2llmv2",
        ],
        plain(&[QWEN2]),
    ),
    (
        &[
            "llama-bpe",
            "llama3",
            "llama-v3",
            "falcon3",
            "falcon-h1",
            "pixtral",
            "midm-2.0",
            "lfm2",
            "jina-v5-nano",
        ],
        with_bos(&[LLAMA3]),
    ),
    (&["dbrx", "smaug-bpe", "glm4", "chatglm-bpe"], plain(&[LLAMA3])),
    (&["tekken"], with_bos(&[TEKKEN])),
    (&["gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"], plain(&[GPT4O])),
    (
        &["deepseek-llm"],
        plain(&[
            r"[\r\n]",
            DEEPSEEK_LLM_WORDS,
            r"\s?[!-/:-~！-／：-～‘-‟　-。]+",
            r"\s+$",
            DEEPSEEK_CJK,
            r"\p{N}+",
        ]),
    ),
    (&["deepseek-coder"], plain(&[r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", DEEPSEEK_CJK, r"\p{N}"])),
    (
        &["deepseek-v3", "hunyuan-dense", "hy_v4", "joyai-llm"],
        plain(&[r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+", DEEPSEEK3_WORDS]),
    ),
    (&["falcon"], plain(&[r"[\p{P}\$\+<=>\^~\|`]+", GPT2, "[0-9][0-9][0-9]"])),
    (&["bloom", "poro-chat", "gpt3-finnish"], plain(&[BLOOM])),
    (&["viking"], plain(&[BLOOM, r"\p{N}"])),
    (
        &["bailingmoe", "bailingmoe2", "llada-moe"],
        plain(&[
            r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
        ]),
    ),
    (
        &["seed-coder"],
        plain(&[
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+",
        ]),
    ),
    (
        &["exaone-moe"],
        plain(&[
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+",
        ]),
    ),
    (
        &["minicpm5"],
        Recipe {
            whole_words_first: true,
            ..plain(&[
                r"\p{N}{1,3}",
                r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}+| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
            ])
        },
    ),
];

/// The recipe of that name. `default`, which converters wrote when they did not know, is not one.
pub(in super::super) fn recipe(name: &str) -> Option<Recipe> {
    RECIPES.iter().find(|(names, _)| names.contains(&name)).map(|(_, recipe)| *recipe)
}

/// All supported names, for messages.
pub(in super::super) fn known_names() -> String {
    RECIPES.iter().flat_map(|(names, _)| *names).copied().collect::<Vec<_>>().join(", ")
}

/// Every recipe with the first of its names.
#[cfg(test)]
pub(super) fn all() -> impl Iterator<Item = (&'static str, Recipe)> {
    RECIPES.iter().map(|(names, recipe)| (names[0], *recipe))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn names_are_distinct() {
        let names: Vec<&str> = RECIPES.iter().flat_map(|(names, _)| *names).copied().collect();
        assert_eq!(names.iter().collect::<HashSet<_>>().len(), names.len());
    }

    #[test]
    fn default_and_unknown_names_have_no_recipe() {
        for name in ["default", "", "kimi-k2", "gpt-2 "] {
            assert_eq!(recipe(name), None, "{name}");
        }
        assert!(known_names().starts_with("gpt-2, phi-2, mpt,"));
    }
}
