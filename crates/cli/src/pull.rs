//! `tidekv pull`: a model into the cache.

use crate::interrupt::Interrupt;
use crate::model::{self, Check};
use crate::output::{note, print_text, printable_path};
use std::ffi::OsString;
use std::io::IsTerminal;

/// Fetch a model into the cache.
///
/// Known aliases: smollm2-135m, qwen2.5-coder-0.5b, gemma-3-270m; or a model of the Hugging Face hub,
/// hf:org/name[@revision][:file]. Without a file it is the repository's only GGUF model, else its only
/// Q4_K_M one, else its safetensors with configuration and tokenizer. A revision is a branch, a tag or
/// a commit; what is fetched is kept by commit, and pull asks whether a branch has moved. The cache is
/// $TIDEKV_HOME, else the platform's cache directory. An interrupted download goes on where it
/// stopped; a finished one is checked before it is used. Prints the path.
#[derive(clap::Args)]
pub struct Args {
    #[arg(help = model::MODEL_HELP)]
    model: OsString,
}

/// Runs the command.
///
/// # Errors
/// What was tried, source by source.
pub fn pull(args: &Args) -> anyhow::Result<()> {
    let pulled = model::pull(&args.model, Check::Digest, &Interrupt::install()?)?;
    if let Some(license) = &pulled.license {
        note(&format!("license: {}. {}", license.name, license.note));
    }
    note(&format!("{} bytes from {}", pulled.n_bytes, pulled.source));
    // A script gets the name as it is.
    let path = match std::io::stdout().is_terminal() {
        true => printable_path(&pulled.path),
        false => pulled.path.display().to_string(),
    };
    print_text(&(path + "\n"))
}
