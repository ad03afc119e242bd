//! Writes a seeded model, as a GGUF file or as a Hugging Face directory:
//! `cargo run --release -p tidekv-testkit --example write_model -- llama-8b-2-layers OUT.gguf`.
//!
//! `llama-8b-2-layers` has the layer shape of Llama-3.1-8B in BF16 (2.98 GB): large enough to
//! compare planned and real memory at full width, on a machine that never saw the real weights.

use std::path::Path;
use std::process::ExitCode;

use tidekv_testkit::{TinySpec, llama_8b_two_layers, tiny_families};

/// Models by name. The tiny ones have seed 1.
fn models() -> Vec<(String, TinySpec)> {
    let tiny = |spec: TinySpec| (format!("tiny-{}", spec.arch.name()), spec);
    let mut models: Vec<_> = tiny_families(1).into_iter().map(tiny).collect();
    models.insert(0, ("llama-8b-2-layers".to_owned(), llama_8b_two_layers()));
    models
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [name, out] = arguments.as_slice() else {
        return usage("two arguments are needed");
    };
    let Some((_, spec)) = models().into_iter().find(|(known, _)| known == name) else {
        return usage(&format!("there is no model `{name}`"));
    };
    let out = Path::new(out);
    let written = match out.extension() {
        Some(extension) if extension == "gguf" => spec.write_to(out),
        _ => std::fs::create_dir_all(out).and_then(|()| spec.write_hugging_face(out, 1)),
    };
    match written {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("cannot write {}: {error}", out.display());
            ExitCode::FAILURE
        }
    }
}

fn usage(problem: &str) -> ExitCode {
    let names: Vec<_> = models().into_iter().map(|(name, _)| name).collect();
    let names = names.join(", ");
    eprintln!("{problem}; usage: write_model NAME OUT.gguf|DIRECTORY, with NAME one of {names}");
    ExitCode::from(2)
}
