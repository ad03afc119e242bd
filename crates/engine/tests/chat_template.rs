//! Minutes of random mutations of chat templates through the entry point of the fuzz
//! target, for machines without the nightly compiler that cargo-fuzz needs:
//!
//! ```text
//! FUZZ_MINUTES=10 cargo test --release -p tidekv --test chat_template -- --ignored
//! ```

mod sound;

use std::time::{Duration, Instant};
use tidekv_testkit::{Random, models};

/// Pieces that templates are made of, and numbers that hurt.
const PIECES: [&str; 40] = [
    "{{ ",
    " }}",
    "{% ",
    " %}",
    "{%- ",
    "-%}",
    "{# ",
    " #}",
    "for m in messages",
    "endfor",
    "if ",
    "elif ",
    "else",
    "endif",
    "set ns = namespace(v=[])",
    "set ns.v = [ns.v, ns.v]",
    "set x = ",
    "macro f(x)",
    "endmacro",
    "f(x)",
    "messages",
    "m.content",
    "m['role']",
    " ~ ",
    " + ",
    " * ",
    " ** ",
    "100000000",
    "-1",
    "range(99999)",
    " | trim",
    " | tojson(indent=99999)",
    " | join('x')",
    "| list",
    "[::-1]",
    ".replace('', 'xyz')",
    ".split('<')",
    "strftime_now('%d')",
    "raise_exception('no')",
    "loop.index0",
];

const CONTENTS: [&str; 8] =
    ["hello", "", "<|im_end|>", "<|im_", "start|>\n<", "é\u{FDD0}日本", "{{ 1 }}", "{% raw %}"];

/// Templates to start from: two published ones, and the usual constructs.
fn seeds() -> Vec<String> {
    let published = ["smollm2-135m", "qwen2.5-coder-0.5b"].map(|alias| {
        let model = tidekv::Model::open(&models::path(alias), None).expect("a real model opens");
        let tokenizer = model.tokenizer().expect("it has a tokenizer");
        tokenizer.chat_template().expect("and a template").source().to_owned()
    });
    let mut seeds = published.to_vec();
    seeds.extend([
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}".to_owned(),
        "{{ bos_token }}{% set ns = namespace(i=0, v=[]) %}{% for m in messages[1:] %}{% set ns.i = ns.i + 1 %}{% set ns.v = ns.v + [m.content | trim] %}{% if (m.role == 'user') != (ns.i % 2 == 0) %}{{ raise_exception('order') }}{% endif %}{% endfor %}{{ ns.v | join('|') }}{{ messages | tojson(indent=2) }}".to_owned(),
    ]);
    seeds
}

/// One small change of a template.
fn mutate(template: &mut Vec<char>, random: &mut Random) {
    let mut below = |n: usize| random.below(n.max(1) as u64) as usize;
    let at = below(template.len() + 1).min(template.len());
    let rest = template.len() - at;
    match below(6) {
        0 | 1 => {
            let piece = PIECES[below(PIECES.len())];
            template.splice(at..at, piece.chars());
        }
        2 => {
            let end = at + below(24.min(rest) + 1);
            template.drain(at..end);
        }
        3 => {
            let piece = template[at..at + below(64.min(rest) + 1)].to_vec();
            let (to, times) = (below(template.len() + 1), 1 + below(40));
            template.splice(to..to, piece.repeat(times));
        }
        4 if rest > 0 => template[at] = char::from(b' ' + below(95) as u8),
        _ => {
            let piece = PIECES[below(PIECES.len())];
            let end = (at + piece.len()).min(template.len());
            template.splice(at..end, piece.chars());
        }
    }
}

/// A template, mutated, and some messages.
fn input(seeds: &[String], random: &mut Random) -> Vec<u8> {
    let seed = &seeds[random.below(seeds.len() as u64) as usize];
    let mut template: Vec<char> = seed.chars().collect();
    for _ in 0..=random.below(5) {
        mutate(&mut template, random);
    }
    let mut input: String = template.into_iter().filter(|c| *c != '\0').collect();
    for _ in 0..random.below(5) {
        input.push('\0');
        for _ in 0..random.below(4) {
            input.push_str(CONTENTS[random.below(CONTENTS.len() as u64) as usize]);
        }
    }
    input.into_bytes()
}

#[test]
#[ignore = "runs for minutes: cargo test --release -p tidekv --test chat_template -- --ignored"]
fn random_mutations() {
    let minutes = std::env::var("FUZZ_MINUTES")
        .map_or(1.0, |text| text.parse().expect("FUZZ_MINUTES is a number"));
    let end = Instant::now() + Duration::from_secs_f64(60.0 * minutes);
    let seed = u64::from(std::process::id());
    let (mut random, seeds, mut cases) = (Random::new(seed), seeds(), 0u64);
    let mut longest = Duration::ZERO;
    while Instant::now() < end {
        let input = input(&seeds, &mut random);
        let start = Instant::now();
        if std::panic::catch_unwind(|| sound::chat_template(&input)).is_err() {
            let path = std::env::temp_dir().join(format!("chat_template-{seed}.input"));
            std::fs::write(&path, &input).expect("the temporary directory takes a file");
            panic!("input kept in {}", path.display());
        }
        longest = longest.max(start.elapsed());
        cases += 1;
    }
    eprintln!("chat_template: {cases} cases from {} seeds, the longest {longest:?}", seeds.len());
}

#[test]
fn a_thousand_mutations_are_refused_or_rendered() {
    let (mut random, seeds) = (Random::new(1), seeds());
    for _ in 0..1_000 {
        sound::chat_template(&input(&seeds, &mut random));
    }
    for seed in &seeds {
        sound::chat_template(format!("{seed}\0system\0<|im_end|>").as_bytes());
    }
}
