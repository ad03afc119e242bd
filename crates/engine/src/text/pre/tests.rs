use super::*;
use proptest::prelude::*;
use std::sync::LazyLock;
use std::time::{Duration, Instant};
use table::Recipe;

fn compiled(recipe: Recipe) -> PreTokenizer {
    PreTokenizer::new(recipe.nfc, recipe.stages.iter().copied()).unwrap()
}

fn collect(pre: &PreTokenizer, text: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut push = |word: &str| {
        words.push(word.to_owned());
        Ok(())
    };
    pre.words(text, &mut push).unwrap();
    words
}

fn words(name: &str, text: &str) -> Vec<String> {
    collect(&compiled(table::recipe(name).unwrap()), text)
}

/// The published patterns, lookahead included, in a backtracking engine.
fn words_by_lookahead(stages: &[fancy_regex::Regex], text: &str) -> Vec<String> {
    let mut pieces = vec![text.to_owned()];
    for stage in stages {
        let mut next = Vec::new();
        for piece in &pieces {
            let mut at = 0;
            for found in stage.find_iter(piece) {
                let found = found.unwrap();
                next.extend([&piece[at..found.start()], found.as_str()].map(str::to_owned));
                at = found.end();
            }
            next.push(piece[at..].to_owned());
        }
        pieces = next;
    }
    pieces.retain(|piece| !piece.is_empty());
    pieces
}

type Both = (&'static str, PreTokenizer, Vec<fancy_regex::Regex>);

/// Every recipe, in both engines.
fn both() -> &'static [Both] {
    static BOTH: LazyLock<Vec<Both>> = LazyLock::new(|| {
        let oracle = |stage: &&str| fancy_regex::Regex::new(stage).unwrap();
        table::all()
            .map(|(name, recipe)| {
                (name, compiled(recipe), recipe.stages.iter().map(oracle).collect())
            })
            .collect()
    });
    &BOTH
}

#[test]
fn blanks_give_their_last_to_the_word_behind() {
    assert_eq!(words("gpt-2", "a   b  "), ["a", "  ", " b", "  "]);
    assert_eq!(words("gpt-2", "a\n\n\tb"), ["a", "\n\n", "\t", "b"]);
    assert_eq!(words("qwen2", "a \n \n  b."), ["a", " \n \n", " ", " b", "."]);
    assert_eq!(words("qwen2", "x = {\n\n"), ["x", " =", " {\n\n"]);
}

#[test]
fn digits_group_by_kind() {
    assert_eq!(words("gpt-2", " 1234"), [" 1234"]);
    assert_eq!(words("smollm", "a  12"), ["a", "  ", "1", "2"]);
    assert_eq!(words("qwen2", "a 12"), ["a", " ", "1", "2"]);
    assert_eq!(words("llama3", "12345"), ["123", "45"]);
    assert_eq!(words("deepseek-v3", "a 12345b"), ["a", " ", "123", "45", "b"]);
    assert_eq!(words("falcon", "12345"), ["123", "45"]);
}

#[test]
fn words_group_by_kind() {
    assert_eq!(words("tekken", "camelCase HTMLPage's"), ["camel", "Case", " HTMLPage", "'s"]);
    assert_eq!(words("gpt-4o", "camelCase it's"), ["camel", "Case", " it's"]);
    assert_eq!(words("qwen35", "हिन्दी"), ["हिन्दी"]);
    assert_eq!(words("bloom", "one two, three"), ["one", " two", ",", " three"]);
    assert_eq!(words("deepseek-coder", "a = b\n中文x"), ["a", " =", " b", "\n", "中文", "x"]);
    assert_eq!(words("exaone-moe", "two words, one"), ["two words", ",", " one"]);
}

#[test]
fn nfc_is_qwens_only() {
    for (name, recipe) in table::all() {
        let expected = if name.starts_with("qwen") { "\u{e9}" } else { "e\u{301}" };
        assert_eq!(compiled(recipe).normalize("e\u{301}"), expected, "{name}");
    }
}

#[test]
fn a_pattern_that_is_not_regular_is_named() {
    let error = PreTokenizer::new(false, [r"\d{1,3}(?=(?:\d{3})*\b)"]).unwrap_err();
    assert!(error.starts_with(r#"pattern "\\d{1,3}(?=(?:\\d{3})*\\b)": "#), "{error}");
}

#[test]
fn empty_matches_cut_nothing() {
    let pre = PreTokenizer::new(false, ["x*"]).unwrap();
    assert_eq!(collect(&pre, "éxxé"), ["é", "xx", "é"]);
}

#[test]
fn every_character_alone_is_cut_as_published() {
    for (name, pre, oracle) in both() {
        // Both engines have the same character tables: blanks and the scripts in use are enough.
        let dense =
            |c: &char| c.is_whitespace() || u32::from(*c) < 0x3100 || u32::from(*c) % 61 == 0;
        for c in ('\0'..=char::MAX).filter(dense) {
            let text = format!("a{c}{c}b");
            assert_eq!(collect(pre, &text), words_by_lookahead(oracle, &text), "{name} {c:?}");
        }
    }
}

#[test]
fn a_megabyte_is_cut_in_linear_time() {
    const MB: usize = 1 << 20;
    let texts = [
        "Z".repeat(MB),
        " ".repeat(MB),
        format!("{}word", " ".repeat(MB)),
        " \n".repeat(MB / 2),
        format!("{}x", "\n ".repeat(MB / 2)),
        "<".repeat(MB),
        "7".repeat(MB),
        "字".repeat(MB / 3),
        "a b ".repeat(MB / 4),
    ];
    // A quadratic step would take minutes. The slowest linear one, six patterns over a million pieces, takes
    // a third of the limit; without optimisation all take seconds.
    let limit = Duration::from_secs(if cfg!(debug_assertions) { 60 } else { 2 });
    for (name, pre, _) in both() {
        for text in &texts {
            let best = (0..3)
                .map(|_| {
                    let start = Instant::now();
                    let mut length = 0;
                    let mut add = |word: &str| {
                        length += word.len();
                        Ok(())
                    };
                    pre.words(text, &mut add).unwrap();
                    assert_eq!(length, text.len());
                    start.elapsed()
                })
                .find(|time| *time < limit);
            assert!(best.is_some(), "{name}: {:?}", text.chars().next());
        }
    }
}

proptest! {
    #[test]
    fn words_are_those_of_the_published_pattern(text in r"([ \t\r\n\u{a0}\u{3000}]{0,3}[a-bAéǅ日ー가\u{301}'’sS1२.<_/(-]{0,3}){0,12}") {
        for (name, pre, oracle) in both() {
            let ours = collect(pre, &text);
            prop_assert_eq!(ours.concat(), text.as_str());
            prop_assert_eq!(ours, words_by_lookahead(oracle, &text), "{}", name);
        }
    }
}
