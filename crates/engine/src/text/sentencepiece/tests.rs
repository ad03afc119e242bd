use super::super::tokenizer::{Specials, Tokenizer};
use super::super::vocab::{TokenKind, VocabSource};
use super::*;
use proptest::prelude::*;

/// Tokens from `<unk>`, `<s>`, `</s>`, all bytes, then `pieces` with their scores.
fn source(pieces: &[(&str, f32)]) -> VocabSource {
    let mut source = VocabSource {
        model: "llama".into(),
        bos: Some(1),
        eos: vec![2],
        chat_template: Some(
            "{{ bos_token }}{% for m in messages %}[INST] {{ m.content }} [/INST]{% endfor %}"
                .into(),
        ),
        ..VocabSource::default()
    };
    let mut add = |token: String, code: i32, score: f32| {
        source.tokens.push(token);
        source.token_types.push(code);
        source.scores.push(score);
    };
    for (token, code) in [("<unk>", 2), ("<s>", 3), ("</s>", 3)] {
        add(token.into(), code, 0.0);
    }
    for byte in 0..=255u8 {
        add(format!("<0x{byte:02X}>"), 6, 0.0);
    }
    for (piece, score) in pieces {
        add((*piece).into(), 1, *score);
    }
    source
}

/// Characters and a few joins, as a trained vocabulary has them: the longer, the worse.
fn english() -> VocabSource {
    source(&[
        ("▁", -10.0),
        ("h", -10.0),
        ("e", -10.0),
        ("l", -10.0),
        ("o", -10.0),
        ("he", -1.0),
        ("ll", -2.0),
        ("lo", -2.0),
        ("hell", -3.0),
        ("hello", -4.0),
        ("▁hello", -5.0),
        ("▁▁", -6.0),
    ])
}

fn strings(tokenizer: &Tokenizer, ids: &[u32]) -> Vec<String> {
    ids.iter().map(|&id| tokenizer.token(id).unwrap().to_owned()).collect()
}

fn encode(source: VocabSource, text: &str) -> Vec<String> {
    let t = Tokenizer::new(source).unwrap();
    strings(&t, &t.encode(text, Specials::AsText).unwrap())
}

#[test]
fn the_best_score_merges_first_and_the_leftmost_of_equal_ones() {
    assert_eq!(encode(english(), "hello hello"), ["<s>", "▁hello", "▁hello"]);
    // `ll` and `lo` have the same score: the left pair wins, and `hell` takes it.
    assert_eq!(encode(english(), "hellolo"), ["<s>", "▁hello", "lo"]);
    assert_eq!(encode(english(), "llo"), ["<s>", "▁", "ll", "o"]);
    assert_eq!(encode(english(), ""), ["<s>"]);
}

#[test]
fn other_characters_fall_back_to_bytes() {
    assert_eq!(encode(english(), "é\n"), ["<s>", "▁", "<0xC3>", "<0xA9>", "<0x0A>"]);
    let mut without = english();
    without.token_types[3 + 0xA9] = 5;
    let error = Tokenizer::new(without).unwrap().encode("hé", Specials::AsText).unwrap_err();
    // Offsets count the blank in front, which takes three bytes.
    assert!(
        matches!(error, TextError::NoTokenForByte { byte: 0xA9, character: 'é', offset: 4 }),
        "{error}"
    );
}

#[test]
fn a_piece_may_have_characters_that_are_no_pieces() {
    let s = source(&[("▁", -1.0), ("né", -2.0), ("n", -3.0)]);
    assert_eq!(encode(s.clone(), "né"), ["<s>", "▁", "né"]);
    assert_eq!(encode(s, "é"), ["<s>", "▁", "<0xC3>", "<0xA9>"]);
}

#[test]
fn the_blank_in_front_is_as_the_file_says() {
    let with = |add_space_prefix| VocabSource { add_space_prefix, ..english() };
    assert_eq!(encode(with(None), "hello"), ["<s>", "▁hello"]);
    assert_eq!(encode(with(Some(true)), " hello"), ["<s>", "▁", "▁hello"]);
    assert_eq!(encode(with(Some(false)), "hello"), ["<s>", "hello"]);
    let t = Tokenizer::new(english()).unwrap();
    let continued = t.encode_continuation("hello", Specials::AsText).unwrap();
    assert_eq!(strings(&t, &continued), ["hello"]);
    let marked = t.encode("hello</s>hello", Specials::Recognize).unwrap();
    assert_eq!(strings(&t, &marked), ["<s>", "▁hello", "</s>", "▁hello"]);
}

#[test]
fn decoding_takes_away_what_encoding_put_in_front() {
    for add_space_prefix in [Some(true), Some(false)] {
        let t = Tokenizer::new(VocabSource { add_space_prefix, ..english() }).unwrap();
        for text in ["hello", " hello", "  hello  é", "", " ", "\n"] {
            let ids = t.encode(text, Specials::AsText).unwrap();
            assert_eq!(t.decode(&ids).unwrap(), text);
            // What comes later in a stream keeps its blank.
            let next = t.encode_continuation(" hello", Specials::AsText).unwrap();
            assert_eq!(t.decode(&next).unwrap(), " hello");
            let both = t.decode(&[ids, next].concat()).unwrap();
            assert_eq!(
                both,
                format!("{text} hello").as_str().trim_start_matches(
                    // Behind BOS alone the blank is the prompt's own.
                    if text.is_empty() && add_space_prefix == Some(true) { " " } else { "" }
                )
            );
        }
    }
}

#[test]
fn text_never_becomes_control_or_byte_tokens() {
    let mut s = english();
    // A vocabulary in which the characters of `</s>` and `<0x0A>` could join.
    for piece in ["<", "/", "s", ">", "</", "s>", "0", "x", "A", "<0", "x0", "A>", "<0x0"] {
        s.tokens.push(piece.into());
        s.token_types.push(1);
        s.scores.push(-1.0);
    }
    let t = Tokenizer::new(s).unwrap();
    for text in ["</s>", "<s>", "<unk>", "<0x0A>"] {
        let ids = t.encode_continuation(text, Specials::AsText).unwrap();
        assert!(ids.iter().all(|&id| t.kind(id).unwrap() == TokenKind::Text), "{text}");
        assert_eq!(t.decode(&ids).unwrap(), text);
        assert!(ids.len() > 1);
    }
}

#[test]
fn user_defined_pieces_are_cut_out_first() {
    let mut s = VocabSource { add_space_prefix: Some(false), ..english() };
    for token in ["\n", "\n\n", "   ", "▁▁▁▁"] {
        s.tokens.push(token.into());
        s.token_types.push(4);
        s.scores.push(-1000.0);
    }
    let t = Tokenizer::new(s).unwrap();
    let text = "hello\n\n\nhello   hello    ";
    let ids = t.encode(text, Specials::AsText).unwrap();
    let tokens = ["<s>", "hello", "\n\n", "\n", "hello", "   ", "hello", "▁▁▁▁"];
    assert_eq!(strings(&t, &ids), tokens);
    assert_eq!(t.decode(&ids).unwrap(), text);
}

#[test]
fn markers_swallow_blanks_where_the_family_does() {
    let mut s = VocabSource { markers_strip_right: true, ..english() };
    s.tokens.push("<|user|>".into());
    s.token_types.push(3);
    s.scores.push(0.0);
    let t = Tokenizer::new(s).unwrap();
    let ids = t.encode("<|user|>\n hello</s> hello<s> hello", Specials::Recognize).unwrap();
    let tokens = ["<s>", "<|user|>", "▁hello", "</s>", "▁hello", "<s>", "▁", "▁hello"];
    assert_eq!(strings(&t, &ids), tokens);
}

#[test]
fn chats_are_encoded_as_their_text() {
    use super::super::{ChatOptions, Message};
    let t = Tokenizer::new(english()).unwrap();
    let chat = t.chat_template().unwrap();
    let chat = chat.render(&[Message::new("user", "hello </s>")], &ChatOptions::default());
    let ids = t.encode_chat(&chat.unwrap()).unwrap();
    assert_eq!(ids.iter().filter(|&&id| id == 1).count(), 1);
    assert!(!ids.contains(&2));
    assert_eq!(t.decode(&ids).unwrap(), "[INST] hello </s> [/INST]");
}

#[test]
fn damaged_vocabularies_are_refused_by_name() {
    let error = |change: fn(&mut VocabSource)| {
        let mut source = english();
        change(&mut source);
        Tokenizer::new(source).unwrap_err().to_string()
    };
    assert!(error(|s| s.scores.truncate(5)).contains("271 tokens, but 5 scores"));
    assert!(error(|s| s.scores[260] = f32::NAN).contains("token 260 has no score"));
    assert!(
        error(|s| s.tokens[260] = "a".repeat(513))
            .contains("token 260 has 513 bytes (at most 512)")
    );
    assert!(error(|s| s.bos = None).contains("no `tokenizer.ggml.bos_token_id`"));
}

#[test]
fn merges_in_place_of_scores() {
    let mut s = source(&[]);
    s.model = "gemma4".into();
    for (token, code) in [("▁", 1), ("a", 1), ("b", 1), ("ab", 1), ("▁ab", 1), ("\n", 1), ("  ", 4)]
    {
        s.tokens.push(token.into());
        s.token_types.push(code);
    }
    s.merges = ["a b", "▁ ab", "▁ ▁"].map(str::to_owned).to_vec();
    assert_eq!(encode(s.clone(), "ab ab\n"), ["<s>", "ab", "▁ab", "\n"]);
    assert_eq!(encode(s.clone(), "ab  ab"), ["<s>", "ab", "  ", "ab"]);
    s.merges.push("b a".into());
    let error = Tokenizer::new(s).unwrap_err().to_string();
    assert!(error.contains("merge 3, \"b\" and \"a\": \"ba\" is no token"), "{error}");
}

#[test]
fn bytes_have_their_tokens() {
    assert_eq!(byte_of("<0x0A>"), Some(10));
    for other in ["<0x0>", "<0x+A>", "<0x0AA>", "0x0A", "<0xé>", "<0xZZ>"] {
        assert_eq!(byte_of(other), None, "{other}");
    }
}

#[test]
fn a_run_without_seams_can_be_cancelled() {
    let t = Tokenizer::new(english()).unwrap();
    let text = "l".repeat(1 << 20);
    let mut polls = 0;
    let mut poll = || {
        polls += 1;
        if polls < 3 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    };
    let error = t.encode_polled(&text, Specials::AsText, &mut poll).unwrap_err();
    assert!(matches!(error, TextError::Cancelled { .. }), "{error}");
    // 2^19 pairs merge in this run: it ended long before.
    assert_eq!(polls, 3);
}

/// The rule as SentencePiece's paper and code state it, on strings: again and again the pair of neighbours
/// whose join is the best piece, from the left.
fn by_the_rule(source: &VocabSource, text: &str) -> Vec<String> {
    let written = with_blanks(text, true);
    let mut symbols: Vec<String> = written.chars().map(String::from).collect();
    loop {
        let mut best: Option<(f32, usize)> = None;
        for at in 1..symbols.len() {
            let joined = format!("{}{}", symbols[at - 1], symbols[at]);
            let id = source.tokens.iter().position(|token| *token == joined);
            let score = id.filter(|&id| source.token_types[id] == 1).map(|id| source.scores[id]);
            if let Some(score) = score.filter(|&score| best.is_none_or(|(top, _)| score > top)) {
                best = Some((score, at));
            }
        }
        let Some((_, at)) = best else { return symbols };
        let right = symbols.remove(at);
        symbols[at - 1].push_str(&right);
    }
}

proptest! {
    #[test]
    fn any_vocabulary_is_merged_by_the_rule(
        pieces in prop::collection::btree_map("[abc▁]{1,4}", 0u8..6, 0..14),
        text in "[abc ]{1,16}",
    ) {
        // All characters are pieces, as training makes it. Scores tie often.
        let mut list: Vec<(&str, f32)> =
            ["a", "b", "c", "▁"].into_iter().filter(|c| !pieces.contains_key(*c)).map(|c| (c, -9.0)).collect();
        list.extend(pieces.iter().map(|(piece, score)| (piece.as_str(), -f32::from(*score))));
        let s = source(&list);
        let expected = by_the_rule(&s, &text);
        prop_assert_eq!(&encode(s, &text)[1..], expected);
    }
}
