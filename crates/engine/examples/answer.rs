//! Answers a question about a document.
//!
//! ```sh
//! cargo run --release -p tidekv --example answer -- MODEL DOCUMENT QUESTION
//! ```
//!
//! Four values, in this order: a `Model` is an opened file, an `Engine` is a model
//! on a backend, a `Session` is a prompt that has been read, and `Generate` iterates
//! over the answer. Model and engine are made once and serve any number of prompts.
//!
//! The question stands at the end: the default selector keeps what the last tokens
//! of the prompt attend to.

use std::error::Error;
use std::io::Write;
use std::path::Path;
use tidekv::text::{ChatOptions, Message};
use tidekv::{Engine, GenerateConfig, Model, RunConfig, Unobserved};
use tidekv_cpu::{Cpu, CpuConfig};

/// Writes the answer to `out`, piece by piece.
pub fn answer(
    (model, document, question): (&Path, &str, &str),
    out: &mut dyn Write,
) -> Result<(), Box<dyn Error>> {
    let engine = Engine::new(Model::open(model, None)?, Cpu::new(CpuConfig::default())?)?;

    // The document cannot act as a marker of the template, whatever it contains.
    let message = Message::new("user", format!("{document}\n\n{question}"));
    let chat = engine.chat_template()?.render(&[message], &ChatOptions::default())?;
    let prompt = engine.tokenizer()?.encode_chat(&chat)?;

    // Of each layer 1,024 positions are kept, whatever the document's length.
    let config = RunConfig { budget: 1024, max_new_tokens: 200, ..RunConfig::default() };
    let mut session = engine.prefill(&prompt, &config, &mut Unobserved)?;
    for piece in session.generate(GenerateConfig::default())? {
        write!(out, "{}", piece?.text)?;
        out.flush()?;
    }
    Ok(())
}

fn run() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [model, document, question] = &arguments[..] else {
        return Err("usage: answer MODEL DOCUMENT QUESTION".into());
    };
    let document = std::fs::read_to_string(document)?;
    let mut out = std::io::stdout();
    answer((model.as_ref(), &document, question), &mut out)?;
    Ok(writeln!(out)?)
}

fn main() -> std::process::ExitCode {
    match run() {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            std::process::ExitCode::FAILURE
        }
    }
}
