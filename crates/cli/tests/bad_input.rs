//! Bad input to the real binary: a clear sentence, the right exit code, nothing
//! lost.

// clippy.toml exempts #[test] functions; the rest of a test binary is test code too.
#![allow(clippy::unwrap_used)]

mod rig;

use rig::{Place, command, ends_with, ids, json, stderr, tidekv};
use tidekv_format::TensorType;
use tidekv_testkit::{Random, TinySpec, tiny_llama};

const IDS: [&str; 2] = ["--prompt-ids", "1,2,3,4,5,6,7,8"];

fn run(model: &str, args: &[&str]) -> std::process::Output {
    tidekv(&[&["run", model], args].concat())
}

#[test]
fn files_that_are_no_models_are_refused_with_what_they_are() {
    let place = Place::new();
    let refused = |name: &str, bytes: &[u8], words: &[&str]| {
        let output = run(&place.write(name, bytes), &IDS);
        ends_with(&output, 1, &[&[name], words].concat());
        assert!(output.stdout.is_empty());
    };
    let whole = std::fs::read(place.model()).unwrap();
    let cut = whole.len() / 2;
    refused(
        "cut.gguf",
        &whole[..cut],
        &["truncated", &with_commas(cut), &with_commas(whole.len())],
    );
    refused("page.gguf", b"<!DOCTYPE html><html></html>", &["an HTML page"]);
    let pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n";
    refused("pointer.gguf", pointer, &["Git LFS pointer"]);
    refused("empty.gguf", b"", &["0 bytes"]);
    refused("text.gguf", b"once upon a time there was a long text", &["not a GGUF model"]);
    ends_with(&run(&place.name("absent.gguf"), &IDS), 1, &["absent.gguf", "smollm2-135m"]);
    std::fs::create_dir(place.path("empty")).unwrap();
    ends_with(&run(&place.name("empty"), &IDS), 1, &["is empty", "config.json"]);
    ends_with(&run("", &IDS), 1, &["does not name a model"]);
}

/// 1234567 as 1,234,567.
fn with_commas(number: usize) -> String {
    let digits = number.to_string();
    let groups: Vec<_> = digits.as_bytes().rchunks(3).rev().map(String::from_utf8_lossy).collect();
    groups.join(",")
}

#[test]
fn corrupted_files_never_panic() {
    let place = Place::new();
    let whole = std::fs::read(place.model()).unwrap();
    let mut random = Random::named(1, "corruption");
    // Magic, counts, metadata, vocabulary and tensor table; then come numbers,
    // which nobody can tell from others.
    let header = 8_000;
    let mut refused = 0;
    for _ in 0..60 {
        let mut bytes = whole.clone();
        for _ in 0..1 + random.below(4) {
            let at = random.below(header as u64) as usize;
            bytes[at] = random.below(256) as u8;
        }
        let output = run(
            &place.write("corrupted.gguf", &bytes),
            &[&IDS[..], &["--max-tokens", "1"]].concat(),
        );
        // What was hit may be a weight or a name that nobody reads.
        assert!(matches!(output.status.code(), Some(0 | 1)), "{}", stderr(&output));
        assert!(!stderr(&output).contains("panicked"), "{}", stderr(&output));
        refused += usize::from(output.status.code() == Some(1));
    }
    assert!(refused >= 10, "only {refused} of 60 were noticed");
}

#[test]
fn nan_in_weights_is_an_error_and_not_a_token() {
    for name in ["blk.1.ffn_down.weight", "blk.2.attn_k.weight", "token_embd.weight"] {
        let spec = tiny_llama(1);
        let (inputs, outputs) = match name {
            "blk.1.ffn_down.weight" => (spec.d_ff, spec.d_model),
            "blk.2.attn_k.weight" => (spec.d_model, spec.n_kv_heads * spec.head_dim),
            _ => (spec.d_model, spec.vocab),
        };
        let mut writer = spec.writer();
        writer.remove_tensor(name);
        let nan = f32::NAN.to_le_bytes().repeat(inputs * outputs);
        writer.tensor(name, &[inputs as u64, outputs as u64], TensorType::F32, nan);
        let place = Place::new();
        writer.write_to(&place.path("nan.gguf")).unwrap();
        let output = run(&place.name("nan.gguf"), &IDS);
        ends_with(&output, 1, &["finite"]);
        assert!(output.stdout.is_empty(), "{name}");
    }
}

#[test]
fn impossible_settings_are_named_with_the_limit() {
    let place = Place::new();
    let prompt = ids(100);
    let ends = |args: &[&str], code: i32, words: &[&str]| {
        let output = place.run(&[&["--prompt-ids", &prompt], args].concat());
        ends_with(&output, code, words);
        assert!(output.stdout.is_empty());
    };
    ends(&["--budget", "8"], 1, &["budget of 8", "32", "snapkv"]);
    ends(&["--selector", "snapkv+sinks(4)", "--budget", "35"], 1, &["budget of 35", "36"]);
    ends(&["--logit-bias", "1=1,999999=1"], 1, &["--logit-bias", "999999", "vocabulary"]);
    ends(&["--memory-limit", "64K"], 3, &["100 tokens", "limit is 64.00 KiB"]);
    let usage: [(&[&str], &str); 37] = [
        (&["--budget", "auto"], "`auto` is not a count such as 4096"),
        (&["--chunk", "soon"], "`soon` is neither auto nor a count such as 512"),
        (&["--chunk", "0"], "must be at least 1"),
        (&["--chunk", "-1"], "must be at least 1"),
        (&["--threads", "-1"], "must be at least 1"),
        (&["--max-tokens", "-1"], "must not be negative"),
        (&["--memory-limit", "-1"], "`-1` is not a size"),
        (&["--json", ""], "give a file, or -"),
        (&["--dump-retained", ""], "--dump-retained"),
        (&["--dump-retained", "-"], "stdout has the answer"),
        (&["--score-block", "0"], "must be at least 1"),
        (&["--budget", "-5"], "must not be negative"),
        (
            &["--budget", "99999999999999999999"],
            "`99999999999999999999` is more than the largest count",
        ),
        (
            &["--memory-limit", "99999999999TB"],
            "`99999999999TB` is more than the largest size, 184467",
        ),
        (&["--memory-limit", "1e9"], "`1e9` is not a size such as 8GiB or 8G"),
        (&["--max-tokens", "1e9"], "`1e9` is not a count such as 4096"),
        (&["--isa", "mmx"], "unknown instruction set `mmx`"),
        (&["--threads", "0"], "must be at least 1"),
        (&["--threads", "100000"], "4 for each of the"),
        (&["--selector", "magic"], "snapkv"),
        (&["--schedule", "online"], "tide"),
        (&["--memory-limit", "8X"], "is not a size"),
        (&["--temperature", "-1"], "temperature = -1"),
        (&["--temperature", "NaN"], "temperature"),
        (&["--top-p", "1.5"], "top-p = 1.5"),
        (&["--typical-p", "0"], "typical-p = 0: must be above 0 and at most 1"),
        (&["--min-p", "1.5"], "min-p = 1.5: must be at least 0 and at most 1"),
        (&["--repetition-penalty", "11"], "must be above 0 and at most 10"),
        (&["--repetition-last-n", "0"], "must be at least 1, or all"),
        (&["--presence-penalty", "3"], "must be from -2 to 2"),
        (&["--frequency-penalty", "-3"], "must be from -2 to 2"),
        (&["--logit-bias", "1=200"], "must be from -100 to 100"),
        (&["--logit-bias", "one"], "`one` is not ID=BIAS"),
        (&["--logprobs", "21", "--json", "-"], "must be at most 20"),
        (&["--prompt-logprobs", "1"], "--json"),
        (&["--rope-scaling", "linear:0"], "linear:0"),
        (&["--no-such-flag"], "--no-such-flag"),
    ];
    for (args, words) in usage {
        ends(args, 2, &[words]);
    }
    ends_with(&tidekv(&["frobnicate"]), 2, &["frobnicate"]);
    ends_with(&tidekv(&[]), 2, &["Usage"]);
}

#[test]
fn a_plan_over_the_limit_says_what_would_fit() {
    let place = Place::new();
    let prompt = ids(4000);
    let run = |limit: &str| {
        place.run(&["--prompt-ids", &prompt, "--max-tokens", "1", "--memory-limit", limit])
    };
    let output = run("3M");
    ends_with(&output, 3, &["a prompt of 4000 tokens needs", "limit is 3.00 MiB", "--chunk"]);
    let said = stderr(&output);
    let fitting = said.split("up to ").nth(1).unwrap().split(' ').next().unwrap();
    let fitting: usize = fitting.parse().unwrap();
    assert!((1..4000).contains(&fitting));
    let fits = ["--prompt-ids", &ids(fitting), "--max-tokens", "1", "--memory-limit", "3M"];
    ends_with(&place.run(&fits), 0, &[]);
}

#[test]
fn bad_prompts_are_named() {
    let place = Place::new();
    let ends = |args: &[&str], code: i32, words: &[&str]| ends_with(&place.run(args), code, words);
    ends(&["--prompt-ids", "1,999999"], 1, &["999999", "index 1", "vocabulary"]);
    ends(&["--prompt-ids", "1,x"], 1, &["`x`"]);
    ends(&["--prompt-ids", "1,-2"], 1, &["`-2`"]);
    ends(&["--prompt-ids", "4294967296"], 1, &["`4294967296`"]);
    ends(&["--prompt-ids", ""], 1, &["empty"]);
    ends(&["--prompt-ids", "[]"], 1, &["empty"]);
    ends(&["--prompt-ids", "1,,2"], 1, &["entry 2 of the list is empty"]);
    ends(&["--prompt-ids", "1, ,2"], 1, &["entry 2 of the list is empty"]);
    ends(&["--prompt-ids", "[1,2,]"], 1, &["entry 3 of the list is empty"]);
    ends(&["--prompt-ids", ",1"], 1, &["entry 1 of the list is empty"]);
    ends(&["--prompt-ids", "@"], 2, &["names no file"]);
    ends(&["--prompt-ids", "@/no/such/ids"], 1, &["/no/such/ids"]);
    ends(&["--prompt", ""], 1, &["empty"]);
    ends(&["--prompt-file", &place.write("nothing.txt", b"")], 1, &["empty"]);
    ends(&["--prompt-file", &place.name("absent.txt")], 1, &["absent.txt"]);
    let bytes = place.write("bytes.txt", b"abc\xff\xfe");
    ends(&["--prompt-file", &bytes], 1, &["bytes.txt", "UTF-8", "byte 3 of 5"]);
    ends(&[], 2, &["--prompt-file"]);
    ends(&["--prompt", "a", "--prompt-ids", "1"], 2, &["cannot be used with"]);
    ends(&["--prompt", "a", "-"], 2, &["cannot be used with"]);
    ends(&["--prompt", "a", "--raw", "--chat"], 2, &["cannot be used with"]);
    ends(&["--prompt", "a", "--raw", "--system", "b"], 2, &["cannot be used with"]);
    ends(&["--prompt", "a", "--stop", ""], 2, &["--stop"]);
}

#[test]
fn a_template_that_leaves_out_the_prompt_is_refused_and_raw_does_without_it() {
    let place = Place::new();
    let model = place.changed(|writer| {
        let template = "{{ messages[-1].content[:20] }}".to_owned();
        writer.set("tokenizer.chat_template", tidekv_format::Value::String(template));
    });
    let prompt = "hello ".repeat(20);
    let args = ["--prompt", &prompt, "--max-tokens", "1"];
    let output = run(&model, &args);
    ends_with(&output, 1, &["leaves out text of message 1", "user", "--raw"]);
    assert!(output.stdout.is_empty());
    ends_with(&run(&model, &[&args[..], &["--raw"]].concat()), 0, &[]);
}

#[test]
fn a_bad_template_is_answered_with_one_advice() {
    let place = Place::new();
    for (template, reason) in [
        (Some("{{ x"), "chat template fails"),
        (Some("{{ raise_exception('no') }}"), "refuses these messages"),
        (None, "has no chat template"),
    ] {
        let model = place.changed(|writer| {
            const KEY: &str = "tokenizer.chat_template";
            writer.remove(KEY);
            if let Some(text) = template {
                writer.set(KEY, tidekv_format::Value::String(text.to_owned()));
            }
        });
        for mode in [&["--chat"][..], &["--system", "b"], &[]] {
            if template.is_none() && mode.is_empty() {
                continue;
            }
            let output = run(&model, &[&["--prompt", "a", "--max-tokens", "1"], mode].concat());
            ends_with(&output, 1, &[reason]);
            let said = stderr(&output);
            assert!(said.matches("--raw").count() == 1 && !said.contains("chat mode"), "{said}");
        }
    }
}

#[test]
fn bytes_that_are_not_text_on_standard_input_are_named() {
    use std::io::Write;
    let place = Place::new();
    let mut child = command(&["run", &place.model(), "-"])
        .stdin(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"\xc3").unwrap();
    let output = child.wait_with_output().unwrap();
    ends_with(&output, 1, &["standard input", "UTF-8"]);
}

/// A model with a context of 64 tokens and the room beside an answer of 4.
fn short() -> (Place, usize) {
    let spec = TinySpec { context: 64, ..tiny_llama(1) };
    (Place::with(&spec), 60)
}

#[test]
fn a_prompt_longer_than_the_context_is_refused_and_one_as_long_is_not() {
    let (place, _) = short();
    let run = |n_tokens: usize| place.run(&["--prompt-ids", &ids(n_tokens), "--json", "-"]);
    ends_with(&run(65), 1, &["65 tokens", "1 more", "context of 64", "--overflow"]);
    let report = json(&run(64));
    assert_eq!(
        (&report["prompt_tokens"], &report["finish_reason"]),
        (&64.into(), &"length".into())
    );
    let text = "word ".repeat(100);
    ends_with(&place.run(&["--prompt", &text]), 1, &["context of 64", "--overflow"]);
    // One that fits is not cut, and what ends its answer is said.
    let output = place.run(&["--prompt-ids", &ids(64), "--overflow", "head", "--max-tokens", "9"]);
    ends_with(&output, 0, &["1 token generated", "fill the context of 64"]);
    assert!(!stderr(&output).contains("dropped"), "{}", stderr(&output));
    let prompt = ids(65);
    let cut = ["--prompt-ids", &prompt, "--overflow", "head", "--json", "-", "--max-tokens"];
    let cut = |max_tokens: &str| place.run(&[&cut[..], &[max_tokens]].concat());
    assert_eq!(json(&cut("9"))["prompt_tokens"], 55);
    assert_eq!(json(&cut("63"))["prompt_tokens"], 1);
    for (max_tokens, output) in [("64", cut("64")), ("1000", cut("1000"))] {
        ends_with(&output, 2, &["context of 64", &format!("--max-tokens {max_tokens}")]);
        assert!(output.stdout.is_empty());
    }
    let args = ["--raw", "--prompt", &text, "--overflow", "middle", "--max-tokens", "64"];
    ends_with(&place.run(&args), 2, &["context of 64", "--max-tokens 64"]);
}

#[test]
fn an_allowed_cut_takes_the_document_alone_and_is_said() {
    let (place, room) = short();
    // No merge of the tiny vocabulary joins these letters: a token each.
    let document = ["x", "z", "q", "j", "v"].map(|letter| letter.repeat(40)).concat();
    let run = |document: &str, how: &str| {
        let args = ["--raw", "--prompt", document, "--question", "k", "--max-tokens", "4"];
        place.run(&[&args[..], &["--overflow", how, "--json", "-"]].concat())
    };
    for how in ["head", "tail", "middle"] {
        let output = run(&document, how);
        ends_with(&output, 0, &["of the document dropped"]);
        let report = json(&output);
        let dropped = report["dropped_tokens"].as_u64().unwrap() as usize;
        assert!(stderr(&output).contains(&format!("{dropped} tokens of the document")));
        let kept = document.len() - dropped;
        // Two line ends and the question are in front of the answer.
        assert!(kept > 50 && report["prompt_tokens"].as_u64().unwrap() as usize <= room, "{kept}");
        let expected = match how {
            "head" => document[dropped..].to_owned(),
            "tail" => document[..kept].to_owned(),
            _ => [&document[..kept.div_ceil(2)], &document[document.len() - kept / 2..]].concat(),
        };
        let same = json(&run(&expected, "refuse"));
        assert_eq!(same["dropped_tokens"], 0);
        assert_eq!(same["prompt_tokens"], report["prompt_tokens"], "{how}");
        assert_eq!(same["output_token_ids"], report["output_token_ids"], "{how}");
    }
    let question = "k".repeat(80);
    let args = ["--raw", "--prompt", "x", "--question", &question, "--overflow", "head"];
    ends_with(
        &place.run(&[&args[..], &["--max-tokens", "4"]].concat()),
        1,
        &["shorten the question"],
    );
}

#[test]
fn a_cut_reads_markers_as_the_whole_prompt_does() {
    let (place, _) = short();
    let marked = |n_letters: usize| format!("<|im_start|>{}<|im_end|>", "x".repeat(n_letters));
    let run = |prompt: &str, how: &str, max_tokens: &str| {
        let args = ["--raw", "--prompt", prompt, "--overflow", how, "--json", "-"];
        json(&place.run(&[&args[..], &["--max-tokens", max_tokens]].concat()))
    };
    // Two markers are two tokens.
    let whole = run(&marked(50), "refuse", "4");
    assert_eq!(whole["prompt_tokens"], 52);
    let cut = run(&marked(70), "middle", "12");
    assert_eq!((&cut["prompt_tokens"], &cut["dropped_tokens"]), (&52.into(), &20.into()));
    let same = run(&marked(50), "refuse", "12");
    assert_eq!(cut["output_token_ids"], same["output_token_ids"]);
}

#[test]
fn unwritable_outputs_are_refused_before_the_run() {
    let place = Place::new();
    let missing = place.name("no/such/dir/report.json");
    let directory = place.name(".");
    for flag in ["--json", "--dump-retained"] {
        for path in [&missing, &directory] {
            let output = place.run(&[&IDS[..], &[flag, path]].concat());
            ends_with(&output, 1, &["cannot write", path]);
            assert!(output.stdout.is_empty(), "the run had already answered");
        }
    }
    // A run that fails leaves an older report as it was.
    let old = place.write("old.json", b"old");
    ends_with(&place.run(&["--prompt-ids", "999999", "--json", &old]), 1, &[]);
    assert_eq!(std::fs::read(&old).unwrap(), b"old");
}
