//! `tidekv completions` and `tidekv man`: what a shell and `man` want to know of
//! the command line, made from its definition.

use crate::output::{note, print_text};
use anyhow::Context;
use clap::Command;
use clap_complete::Shell;
use clap_mangen::Man;
use std::path::PathBuf;

/// Print a completion script for a shell
///
/// bash:        tidekv completions bash > ~/.local/share/bash-completion/completions/tidekv
/// zsh:         tidekv completions zsh > ~/.zfunc/_tidekv
///              (with `fpath+=~/.zfunc` before `compinit` in ~/.zshrc)
/// fish:        tidekv completions fish > ~/.config/fish/completions/tidekv.fish
/// powershell:  tidekv completions powershell >> $PROFILE
/// elvish:      tidekv completions elvish >> ~/.config/elvish/rc.elv
#[derive(clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Args {
    /// The shell
    shell: Shell,
}

/// Print a manual page
///
/// `tidekv man | man -l -` reads the page of tidekv itself, `tidekv man run | man -l -` that of a
/// command. With --dir all pages are written: tidekv.1, tidekv-run.1 and so on.
#[derive(clap::Args)]
pub struct ManArgs {
    /// The command [default: tidekv itself]
    #[arg(conflicts_with = "dir")]
    command: Option<String>,
    /// Write the pages of all commands into a directory
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

/// Prints the script.
///
/// # Errors
/// A closed pipe.
pub fn completions(args: &Args, mut command: Command) -> anyhow::Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, "tidekv", &mut script);
    print_text(&String::from_utf8(script)?)
}

/// Prints a page, or writes all.
///
/// # Errors
/// An unknown command, a directory that takes no files, a closed pipe.
pub fn man(args: &ManArgs, command: Command) -> anyhow::Result<()> {
    let pages = pages(command);
    if let Some(dir) = &args.dir {
        let written = || format!("cannot write the pages into {}", dir.display());
        std::fs::create_dir_all(dir).with_context(written)?;
        for page in &pages {
            page.generate_to(dir).with_context(written)?;
        }
        note(&format!("{} pages are in {}", pages.len(), dir.display()));
        return Ok(());
    }
    let mut text = Vec::new();
    named(&pages, args.command.as_deref())?.render(&mut text)?;
    print_text(&String::from_utf8(text)?)
}

/// The page of the whole and those of its commands.
fn pages(root: Command) -> Vec<Man> {
    let mut root = root.disable_help_subcommand(true);
    // Gives subcommands their full names.
    root.build();
    let source = format!("{} {}", root.get_name(), root.get_version().unwrap_or_default());
    let mut commands = Vec::new();
    with_subcommands(root, &mut commands);
    commands.into_iter().map(|command| Man::new(command).source(source.as_str())).collect()
}

/// A command and all below it.
fn with_subcommands(command: Command, all: &mut Vec<Command>) {
    let below: Vec<Command> = command.get_subcommands().cloned().collect();
    all.push(command);
    below.into_iter().for_each(|command| with_subcommands(command, all));
}

/// The page of a command; without a name the first.
fn named<'p>(pages: &'p [Man], name: Option<&str>) -> anyhow::Result<&'p Man> {
    let Some(name) = name else { return pages.first().context("no pages") };
    let file = format!("tidekv-{name}.1");
    let found = pages.iter().find(|page| page.get_filename() == file);
    found.with_context(|| format!("no command `{name}`; `tidekv --help` lists them"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root() -> Command {
        let bench = Command::new("bench").subcommand(Command::new("machine"));
        Command::new("tidekv").subcommands([Command::new("run"), bench]).version("1")
    }

    #[test]
    fn every_command_has_a_page_and_others_have_none() {
        let pages = pages(root());
        let files: Vec<String> = pages.iter().map(Man::get_filename).collect();
        assert_eq!(files, ["tidekv.1", "tidekv-run.1", "tidekv-bench.1", "tidekv-bench-machine.1"]);
        let file = |name| named(&pages, name).map(Man::get_filename);
        assert_eq!(file(None).unwrap(), "tidekv.1");
        assert_eq!(file(Some("run")).unwrap(), "tidekv-run.1");
        let error = file(Some("walk")).unwrap_err().to_string();
        assert!(error.contains("`walk`"), "{error}");
    }
}
