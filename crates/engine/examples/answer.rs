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
use std::path::Path;
use tidekv::text::{ChatOptions, Message};
use tidekv::{Engine, GenerateConfig, Model, RunConfig, Unobserved};
use tidekv_cpu::{Cpu, CpuConfig};

/// Hands the answer to `print`, piece by piece.
pub fn answer(
    (model, document, question): (&Path, &str, &str),
    print: &mut dyn FnMut(&str),
) -> Result<(), Box<dyn Error>> {
    let engine = Engine::new(Model::open(model, None)?, Cpu::new(CpuConfig::default())?)?;

    // The document cannot act as a marker of the template, whatever it contains.
    let message = Message::new("user", format!("{document}\n\n{question}"));
    let chat = engine.chat_template()?.render(&[message], &ChatOptions::default())?;
    let prompt = engine.tokenizer().encode_chat(&chat)?;

    // Of each layer 1,024 positions are kept, whatever the document's length.
    let config = RunConfig { budget: 1024, max_new_tokens: 200, ..RunConfig::default() };
    let mut session = engine.prefill(&prompt, &config, &mut Unobserved)?;
    for piece in session.generate(GenerateConfig::default())? {
        print(&piece?.text);
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [model, document, question] = &arguments[..] else {
        return Err("usage: answer MODEL DOCUMENT QUESTION".into());
    };
    let document = std::fs::read_to_string(document)?;
    answer((model.as_ref(), &document, question), &mut |text| print!("{text}"))?;
    println!();
    Ok(())
}
