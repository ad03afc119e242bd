//! Minutes of random mutations through the entry points of the fuzz targets, for machines without the
//! nightly compiler that cargo-fuzz needs:
//!
//! ```text
//! FUZZ_MINUTES=10 cargo test --release -p tidekv-format --test random_mutations -- --ignored
//! ```
//!
//! `FUZZ_SEEDS` may name a directory of further files to start from; of each the first mebibyte is
//! used. Without the two variables each target runs for a minute from the seeds of this crate.

mod raw;
mod sound;

use std::env;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Most bytes of a seed file.
const SEED_BYTES: u64 = 1 << 20;

/// SplitMix64: small, seeded, and good enough to choose what to break.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Below `n`, which is not 0.
    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }
}

const TOKENS: [&[u8]; 16] = [
    b"{",
    b"}",
    b"[",
    b"]",
    b",",
    b":",
    b"\"",
    b"-1",
    b"0",
    b"18446744073709551615",
    b"null",
    b"\\u0000",
    b"\"F32\"",
    b"..",
    b"/",
    b"GGUF",
];

/// One small change at one place; most places are in the first part, where headers are.
fn mutate(bytes: &mut Vec<u8>, random: &mut Random) {
    let reach = if random.below(4) == 0 { bytes.len() } else { bytes.len().min(2048) };
    let at = random.below(reach.max(1)).min(bytes.len());
    let rest = bytes.len() - at;
    match random.below(8) {
        0 if rest > 0 => bytes[at] = random.next() as u8,
        1 if rest > 0 => bytes[at] ^= 1 << random.below(8),
        2 if rest >= 8 => {
            let word = [u64::MAX, 1 << 63, 1 << 32, 0, 1, random.next() >> random.below(64)];
            bytes[at..at + 8].copy_from_slice(&word[random.below(word.len())].to_le_bytes());
        }
        3 if rest >= 4 => {
            let word = random.next() as u32 >> random.below(32);
            bytes[at..at + 4].copy_from_slice(&word.to_le_bytes());
        }
        4 => {
            let token = TOKENS[random.below(TOKENS.len())];
            let end = (at + random.below(token.len() + 1)).min(bytes.len());
            bytes.splice(at..end, token.iter().copied());
        }
        5 => {
            let end = at + random.below(64.min(rest) + 1);
            bytes.drain(at..end);
        }
        6 => {
            let piece = bytes[at..at + random.below(64.min(rest) + 1)].to_vec();
            let to = random.below(bytes.len() + 1);
            bytes.splice(to..to, piece);
        }
        _ => bytes.truncate(at),
    }
}

/// Files to start from: `built_in`, and what `FUZZ_SEEDS` names.
fn seeds(mut built_in: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    if let Some(dir) = env::var_os("FUZZ_SEEDS") {
        let read = |path: PathBuf| -> io::Result<Vec<u8>> {
            let mut bytes = Vec::new();
            File::open(path)?.take(SEED_BYTES).read_to_end(&mut bytes)?;
            Ok(bytes)
        };
        let entries = fs::read_dir(&dir).expect("FUZZ_SEEDS is a directory");
        let files = entries.map(|entry| read(entry?.path())).collect::<io::Result<Vec<_>>>();
        built_in.extend(files.expect("every file of FUZZ_SEEDS can be read"));
    }
    built_in
}

fn minutes() -> Duration {
    let minutes = env::var("FUZZ_MINUTES")
        .map_or(1.0, |text| text.parse().expect("FUZZ_MINUTES is a number"));
    Duration::from_secs_f64(minutes * 60.0)
}

/// Mutates until the time is up; a failing input is left in the temporary directory.
fn run(target: &str, seeds: &[Vec<u8>], entry: fn(&[u8])) {
    let seed = u64::from(std::process::id());
    let (mut random, mut cases, end) = (Random(seed), 0u64, Instant::now() + minutes());
    while Instant::now() < end {
        let mut bytes = seeds[random.below(seeds.len())].clone();
        for _ in 0..=random.below(6) {
            mutate(&mut bytes, &mut random);
        }
        if std::panic::catch_unwind(|| entry(&bytes)).is_err() {
            let path = env::temp_dir().join(format!("{target}-{seed}.input"));
            fs::write(&path, &bytes).expect("the temporary directory takes a file");
            panic!("{target}: input kept in {}", path.display());
        }
        cases += 1;
    }
    eprintln!("{target}: {cases} cases from {} seeds", seeds.len());
}

fn reference() -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/reference.safetensors");
    fs::read(path).expect("it is part of the crate")
}

#[test]
#[ignore = "runs for minutes: cargo test --release -p tidekv-format --test random_mutations -- --ignored"]
fn gguf_header() {
    let seeds = seeds(vec![raw::valid()]);
    run("gguf_header", &seeds, |bytes| sound::gguf_header(bytes, bytes.len() as u64));
}

#[test]
#[ignore = "runs for minutes: cargo test --release -p tidekv-format --test random_mutations -- --ignored"]
fn safetensors_header() {
    let seeds = seeds(vec![
        raw::safetensors::valid(),
        reference(),
        raw::safetensors::valid_index().into_bytes(),
    ]);
    run("safetensors_header", &seeds, |bytes| {
        sound::safetensors_header(bytes, bytes.len() as u64);
        sound::shard_index(bytes);
    });
}

#[test]
fn every_kind_of_mutation_changes_something_and_none_fails() {
    let mut random = Random(1);
    let mut changed = 0;
    for _ in 0..20_000 {
        let mut bytes = reference();
        mutate(&mut bytes, &mut random);
        changed += u64::from(bytes != reference());
        sound::safetensors_header(&bytes, bytes.len() as u64);
        let mut bytes = vec![0; random.below(3)];
        mutate(&mut bytes, &mut random);
    }
    assert!(changed > 15_000, "{changed} of 20000");
}
