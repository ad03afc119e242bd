//! `tidekv inspect`: what a model file is, and whether it runs here.

mod contents;
mod report;

use crate::exit;
use crate::flags::{CpuFlags, Precision, bytes};
use crate::interrupt::Interrupt;
use crate::model;
use crate::output::{JsonTarget, print_report};
use anyhow::Context;
use contents::Contents;
use report::{Fit, Report, TokenizerReport};
use std::ffi::OsString;
use std::path::Path;
use tidekv::memory::default_limit;
use tidekv::model::ModelError;
use tidekv::text::{TextError, Tokenizer, VocabSource};
use tidekv::{Engine, Error, Model, RunConfig};
use tidekv_cpu::Cpu;

/// Say what a model file is, and whether it runs here
///
/// Reads headers only. Shows format, name, license and sizes as the file states them, the types its
/// tensors are stored in, the tokenizer, what keeps the model from running if it does not, and the
/// largest prompt that fits this machine if it does. A model that is merely not supported is no
/// failure; a file that is no model, or one that is damaged or lacks a part, exits with 1, the latter
/// after all that can be said of it.
///
///   tidekv inspect model.gguf
///   tidekv inspect smollm2-135m --tensors --json -
#[derive(clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Args {
    #[arg(help = model::MODEL_HELP)]
    model: OsString,
    /// List every tensor
    #[arg(long)]
    tensors: bool,
    /// Memory that the largest prompt may take, such as 8GiB or 8G (of 1,024) or 8GB (of 1,000)
    /// [default: what the machine has free]
    #[arg(long, value_name = "SIZE", value_parser = bytes)]
    memory_limit: Option<u64>,
    #[command(flatten)]
    cpu: CpuFlags,
    /// Write the report as JSON; `-` puts the object alone on stdout
    #[arg(long, value_name = "FILE|-", help_heading = "Output")]
    json: Option<JsonTarget>,
}

/// Runs the command.
///
/// # Errors
/// A file that is no model, or a damaged one: the latter when the report is out.
pub fn inspect(args: &Args) -> anyhow::Result<()> {
    if let Some(json) = &args.json {
        json.check(&[Path::new(&args.model)])?;
    }
    let path = model::path(&args.model, &Interrupt::install()?)?;
    let contents = Contents::open(&path)?;
    let mut report = Report::new(&args.model.to_string_lossy(), &contents);
    if args.tensors {
        report.list_tensors(&contents);
    }
    let damage = args.try_to_run(&path, &contents, &mut report)?;
    let written = args.json.as_ref().map_or(Ok(()), |json| json.write(&report));
    let printed = match args.json == Some(JsonTarget::Stdout) {
        true => Ok(()),
        false => print_report(&report.text()),
    };
    let sound = damage.map_or(Ok(()), |damage| Err(damage).context(path.display().to_string()));
    exit::all([sound, written, printed])
}

impl Args {
    /// Finds out what the engine makes of the model by letting it try, and notes
    /// what keeps it from running. Nothing is computed. Gives what is damaged, if anything is.
    fn try_to_run(
        &self,
        path: &Path,
        contents: &Contents,
        report: &mut Report,
    ) -> anyhow::Result<Option<Error>> {
        let backend = Cpu::new(self.cpu.config(Precision::Auto))?;
        let mut damage = None;
        let opened = Model::open(path, None);
        match &opened {
            Ok(model) => report.set_shape(&model.spec.shape),
            // The engine would not come to the tokenizer.
            Err(_) => {
                let problem = tokenizer_problem(contents);
                report.problems.extend(problem.as_ref().map(TextError::to_string));
                damage = problem.filter(TextError::is_damage).map(Error::from);
            }
        }
        match opened.and_then(|model| Engine::new(model, backend)) {
            Ok(engine) => {
                report.supported = true;
                report.fit = Some(self.fit(&engine));
                match engine.tokenizer() {
                    Ok(tokenizer) => {
                        report.text_supported = true;
                        let read = || TokenizerReport::read_by_engine(tokenizer);
                        report.tokenizer.get_or_insert_with(read);
                        report.problems.extend(template_problem(tokenizer));
                    }
                    Err(error) => {
                        report.problems.push(error.to_string());
                        // A model without a tokenizer takes token ids.
                        let damaged = matches!(&error, Error::Text(error) if error.is_damage());
                        damage = Some(error).filter(|_| damaged);
                    }
                }
            }
            Err(error) => {
                if let Error::Model(ModelError::Quantised { quantisation }) = &error {
                    report.quantisation = Some(quantisation.clone());
                }
                report.problems.insert(0, error.to_string());
                damage = Some(error).filter(Error::is_damage).or(damage);
            }
        }
        Ok(damage)
    }

    fn fit(&self, engine: &Engine<Cpu>) -> Fit {
        let limit = self.memory_limit.or_else(default_limit);
        let config = RunConfig { memory_limit: limit, ..RunConfig::default() };
        let largest = engine.largest_prompt(&config, limit.unwrap_or(u64::MAX));
        Fit { largest_prompt_tokens: largest, limit_bytes: limit }
    }
}

/// What keeps the chat template from being used.
fn template_problem(tokenizer: &Tokenizer) -> Option<String> {
    match tokenizer.chat_template() {
        Ok(_) | Err(TextError::NoChatTemplate) => None,
        Err(error) => Some(format!("{error}; --raw does without it")),
    }
}

/// What keeps the vocabulary from being used.
fn tokenizer_problem(contents: &Contents) -> Option<TextError> {
    let source = VocabSource::from_metadata(contents.metadata()?);
    source.and_then(Tokenizer::new).err()
}
