use super::super::vocab::byte_chars;
use super::*;

const CONTROLS: [&str; 4] = ["<|im_start|>", "<|im_end|>", "<s>", "<|endoftext|>"];
const MERGES: [&str; 7] = ["h e", "l l", "he ll", "hell o", "Ġ hello", "< |", "| >"];
const TEMPLATE: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content | trim }}<|im_end|>\n{% endfor %}\
                        {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

/// All bytes, a few merges, four control tokens, `<tool>` as user-defined, one unused token.
pub(in super::super) fn tiny() -> VocabSource {
    let mut source = VocabSource {
        model: "gpt2".into(),
        pre: Some("gpt-2".into()),
        tokens: byte_chars().iter().map(char::to_string).collect(),
        merges: MERGES.map(str::to_owned).to_vec(),
        chat_template: Some(TEMPLATE.into()),
        ..VocabSource::default()
    };
    source.tokens.extend(MERGES.map(|merge| merge.replace(' ', "")));
    source.token_types = vec![1; source.tokens.len()];
    for (token, code) in
        CONTROLS.map(|token| (token, 3)).into_iter().chain([("<tool>", 4), ("[PAD]", 5)])
    {
        source.tokens.push(token.into());
        source.token_types.push(code);
    }
    source.bos = Some(id_of(&source, "<s>"));
    source.eos = vec![id_of(&source, "<|im_end|>")];
    source
}

fn id_of(source: &VocabSource, token: &str) -> u32 {
    source.tokens.iter().position(|t| t == token).unwrap() as u32
}

pub(in super::super) fn tokenizer(source: VocabSource) -> Tokenizer {
    Tokenizer::new(source).unwrap()
}

fn strings(tokenizer: &Tokenizer, ids: &[u32]) -> Vec<String> {
    ids.iter().map(|&id| tokenizer.token(id).unwrap().to_owned()).collect()
}

#[test]
fn merges_apply_by_rank() {
    let t = tokenizer(tiny());
    let tokens = |text| strings(&t, &t.encode(text, Specials::AsText).unwrap());
    assert_eq!(tokens("hello hello hell"), ["hello", "Ġhello", "Ġ", "hell"]);
    assert_eq!(tokens("é"), ["Ã", "©"]);
    assert_eq!(tokens(""), [""; 0]);
}

#[test]
fn specials_are_text_or_tokens_as_asked() {
    let t = tokenizer(tiny());
    let text = "hello<|im_end|><tool>";
    let tokens = |specials| strings(&t, &t.encode(text, specials).unwrap());
    assert_eq!(tokens(Specials::Recognize), ["hello", "<|im_end|>", "<tool>"]);
    assert_eq!(
        tokens(Specials::AsText),
        ["hello", "<|", "i", "m", "_", "e", "n", "d", "|>", "<tool>"]
    );
    assert_eq!(t.decode(&t.encode(text, Specials::AsText).unwrap()).unwrap(), text);
    assert_eq!(t.decode(&t.encode(text, Specials::Recognize).unwrap()).unwrap(), "hello<tool>");
}

#[test]
fn a_control_token_that_is_a_whole_word_stays_out_of_reach() {
    // Llama 3's kind takes words that are tokens without looking at merges.
    let mut source = tiny();
    source.pre = Some("llama-bpe".into());
    source.tokens.extend(["hi".into(), "stop".into()]);
    source.token_types.extend([1, 3]);
    let t = tokenizer(source);
    let ids = t.encode_continuation("hi stop", Specials::AsText).unwrap();
    assert_eq!(strings(&t, &ids), ["hi", "Ġ", "s", "t", "o", "p"]);
    let ids = t.encode_continuation("stop", Specials::AsText).unwrap();
    assert_eq!(strings(&t, &ids), ["s", "t", "o", "p"]);
}

#[test]
fn bos_is_there_once() {
    let with =
        |add_bos, pre: &str| tokenizer(VocabSource { add_bos, pre: Some(pre.into()), ..tiny() });
    let yes = with(Some(true), "gpt-2");
    let bos = id_of(&tiny(), "<s>");
    assert_eq!(yes.prompt_bos(), Some(bos));
    let count =
        |ids: Vec<u32>| (ids.first() == Some(&bos), ids.iter().filter(|&&id| id == bos).count());
    assert_eq!(count(yes.encode("hello", Specials::AsText).unwrap()), (true, 1));
    assert_eq!(count(yes.encode("<s>hello", Specials::Recognize).unwrap()), (true, 1));
    assert_eq!(count(yes.encode("<s>hello", Specials::AsText).unwrap()), (true, 1));
    assert_eq!(yes.encode("", Specials::AsText).unwrap(), [bos]);
    assert_eq!(count(yes.encode_continuation("hello", Specials::AsText).unwrap()), (false, 0));

    assert_eq!(with(None, "gpt-2").prompt_bos(), None);
    assert_eq!(with(Some(false), "llama-bpe").prompt_bos(), None);
    assert_eq!(with(None, "llama-bpe").prompt_bos(), Some(bos));
    let missing =
        Tokenizer::new(VocabSource { add_bos: Some(true), bos: None, ..tiny() }).unwrap_err();
    assert!(missing.to_string().contains("no `tokenizer.ggml.bos_token_id`"), "{missing}");
}

#[test]
fn end_markers_of_the_vocabulary_count_beside_the_headers() {
    let t = tokenizer(tiny());
    let source = tiny();
    let (im_end, endoftext) = (id_of(&source, "<|im_end|>"), id_of(&source, "<|endoftext|>"));
    assert_eq!(t.eos(), [im_end, endoftext]);
    assert!(t.is_eos(im_end) && t.is_eos(endoftext) && !t.is_eos(0));
    // A header may name a token that is typed as text: it ends generation and is no text.
    let h = id_of(&source, "[PAD]");
    let t = tokenizer(VocabSource { eos: vec![h], ..source });
    assert!(t.is_eos(h));
    assert_eq!(t.kind(h).unwrap(), TokenKind::Control);
    assert_eq!(t.decode(&[h]).unwrap(), "");
}

#[test]
fn ids_outside_the_vocabulary_are_errors() {
    let t = tokenizer(tiny());
    let vocab = t.vocab_len() as u32;
    for error in [
        t.decode(&[0, vocab]).unwrap_err(),
        t.token_bytes(u32::MAX).map(<[u8]>::len).unwrap_err(),
        t.token(vocab).map(str::len).unwrap_err(),
        t.kind(vocab).map(drop).unwrap_err(),
        t.detokenize_stream().push(vocab).unwrap_err(),
    ] {
        assert!(matches!(error, TextError::TokenOutOfRange { .. }), "{error}");
    }
}

#[test]
fn damaged_vocabularies_are_refused_by_name() {
    let error = |change: fn(&mut VocabSource)| {
        let mut source = tiny();
        change(&mut source);
        Tokenizer::new(source).unwrap_err().to_string()
    };
    assert!(error(|s| s.model = "t5".into()).contains("tokenizer model `t5` is not supported"));
    assert!(error(|s| s.pre = None).contains("no `tokenizer.ggml.pre`"));
    assert!(
        error(|s| s.pre = Some("default".into()))
            .starts_with("pre-tokenizer `default` is not supported (supported: gpt-2, phi-2,")
    );
    assert!(error(|s| s.merges[2] = "he".into()).contains("merge 2, \"he\", does not join"));
    assert!(error(|s| s.merges[2] = "he llll".into()).contains("merge 2"));
    assert!(error(|s| s.merges[2] = "h h".into()).contains("merge 2"));
    // A merge that made a control token would make one from text.
    assert!(
        error(|s| {
            s.tokens.push("hh".into());
            s.token_types.push(3);
            s.merges.push("h h".into());
        })
        .contains("merge 7")
    );
}

#[test]
fn a_byte_without_token_is_named_not_dropped() {
    let mut source = tiny();
    source.tokens[7] = "unreachable".into();
    let t = tokenizer(source);
    let text = "hé<tool>\u{7}x";
    let error = t.encode(text, Specials::AsText).unwrap_err();
    assert!(
        matches!(error, TextError::NoTokenForByte { byte: 7, character: '\u{7}', offset: 9 }),
        "{error}"
    );
    assert!(t.encode("hé<tool>x", Specials::AsText).is_ok());
}

#[test]
fn encode_can_be_cancelled() {
    let t = tokenizer(tiny());
    let text = "hello ".repeat(1 << 16);
    let mut polls = 0;
    let mut third = || {
        polls += 1;
        if polls == 3 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let error = t.encode_polled(&text, Specials::AsText, &mut third).unwrap_err();
    let TextError::Cancelled { bytes } = error else { panic!("{error}") };
    assert!((3 * POLL_BYTES..3 * (POLL_BYTES + 6)).contains(&bytes), "{bytes}");
}
