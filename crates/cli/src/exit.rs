//! Exit codes: 0 ok, 1 failed, 2 usage (clap), 3 refused by the memory plan, 130
//! interrupted.

use crate::output::{escaped, note, note_lines, printable};
use std::ffi::OsString;
use std::io;
use std::process::ExitCode;

/// A command that ended without its result, though nothing is broken.
#[derive(Debug, thiserror::Error)]
pub enum Ended {
    /// The memory plan does not fit. What would has been said already, or is in
    /// the text.
    #[error("{0}")]
    Refused(String),
    /// What was asked for contradicts itself, or the model.
    #[error("{0}")]
    Usage(String),
    /// The user pressed Ctrl-C.
    #[error("interrupted")]
    Interrupted,
}

const FAILED: u8 = 1;
const USAGE: u8 = 2;
const REFUSED: u8 = 3;
/// What a shell says of a process that SIGINT has ended.
pub const INTERRUPTED: u8 = 130;

/// Prints the error, if any, and chooses the exit code.
pub fn report(outcome: anyhow::Result<()>) -> ExitCode {
    let Err(error) = outcome else { return ExitCode::SUCCESS };
    if is_broken_pipe(&error) {
        // The reader has had enough, `tidekv ... | head` for example.
        return ExitCode::SUCCESS;
    }
    let code = code(&error);
    match code {
        INTERRUPTED => note("interrupted"),
        _ => say(&error),
    }
    ExitCode::from(code)
}

/// Prints what clap has to say of the command line `args`, help or an error, and ends. An error may
/// quote what was given: it is shown as clap does, in colours, only if all of that is printable.
/// Otherwise it is the error of the same line made printable, which `error_of` finds.
pub fn usage(
    error: clap::Error,
    args: &[OsString],
    error_of: impl FnOnce(Vec<OsString>) -> Option<clap::Error>,
) -> ! {
    let shown = args.iter().map(|arg| OsString::from(printable(&arg.to_string_lossy())));
    let shown: Vec<OsString> = shown.collect();
    if !error.use_stderr() || shown == args {
        error.exit();
    }
    let same = error_of(shown).filter(|shown| shown.kind() == error.kind());
    let error = same.unwrap_or(error);
    note_lines(&error.render().to_string());
    std::process::exit(error.exit_code())
}

fn say(error: &anyhow::Error) {
    note_lines(&format!("error: {}\n", message(error)));
}

/// The outcome of several things of which none costs another. All failures are said: here, but for
/// the one returned, which is the first that is not merely a closed pipe.
pub fn all(outcomes: impl IntoIterator<Item = anyhow::Result<()>>) -> anyhow::Result<()> {
    let mut failures: Vec<_> = outcomes.into_iter().filter_map(Result::err).collect();
    failures.sort_by_key(is_broken_pipe);
    let mut failures = failures.into_iter();
    let first = failures.next();
    for other in failures.filter(|error| !is_broken_pipe(error)) {
        say(&other);
    }
    first.map_or(Ok(()), Err)
}

/// The error and its causes, without those that an error before has repeated; one line, but for what
/// is said in several.
fn message(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain() {
        let cause = match cause.downcast_ref() {
            // A line for each source, below which its own words are indented.
            Some(tidekv_fetch::Error::NotFetched { .. } | tidekv_fetch::Error::Pip { .. }) => {
                escaped(&cause.to_string())
            }
            _ => printable(&cause.to_string()),
        };
        if text.is_empty() {
            text = cause;
        } else if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

fn code(error: &anyhow::Error) -> u8 {
    for cause in error.chain() {
        match cause.downcast_ref::<Ended>() {
            Some(Ended::Refused(_)) => return REFUSED,
            Some(Ended::Usage(_)) => return USAGE,
            Some(Ended::Interrupted) => return INTERRUPTED,
            None => {}
        }
        match cause.downcast_ref::<tidekv::Error>() {
            Some(tidekv::Error::Refused(_)) => return REFUSED,
            Some(tidekv::Error::Cancelled) => return INTERRUPTED,
            _ => {}
        }
        if matches!(cause.downcast_ref(), Some(tidekv_fetch::Error::Cancelled)) {
            return INTERRUPTED;
        }
    }
    FAILED
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let kind = |cause: &(dyn std::error::Error + 'static)| {
        cause.downcast_ref::<io::Error>().map(io::Error::kind)
    };
    error.chain().any(|cause| kind(cause) == Some(io::ErrorKind::BrokenPipe))
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::anyhow;

    #[test]
    fn a_cause_that_was_said_already_is_not_repeated() {
        let error = anyhow!("no such file").context("cannot read x: no such file").context("model");
        assert_eq!(message(&error), "model: cannot read x: no such file");
    }

    #[test]
    fn an_error_is_one_line_whatever_it_quotes() {
        let error = anyhow!("no file a\u{200b}\nerror: b").context("c\r\nd\u{e0041}");
        let expected = "c\\r\\nd\\u{e0041}: no file a\\u{200b}\\nerror: b";
        assert_eq!(message(&error), expected);
        let attempts = vec![tidekv_fetch::Attempt {
            source: tidekv_fetch::Source::Hub,
            reason: "said\nerror: \x1b".to_owned(),
        }];
        let (model, by_hand) = ("m".to_owned(), "by hand".to_owned());
        let error = tidekv_fetch::Error::NotFetched { model, attempts, by_hand };
        let said = message(&error.into());
        let lines: Vec<&str> = said.lines().collect();
        assert!(lines[1].starts_with("  ") && lines[2] == "    error: \\u{1b}", "{said}");
        assert_eq!((lines.len(), lines[3]), (4, "by hand"));
    }

    #[test]
    fn codes_are_found_under_context() {
        let under = |error: anyhow::Error| code(&error.context("a file").context("a model"));
        assert_eq!(under(Ended::Refused("no".to_owned()).into()), REFUSED);
        assert_eq!(under(Ended::Usage("no".to_owned()).into()), USAGE);
        assert_eq!(under(tidekv::Error::Cancelled.into()), INTERRUPTED);
        assert_eq!(under(tidekv_fetch::Error::Cancelled.into()), INTERRUPTED);
        assert_eq!(under(tidekv::Error::EmptyPrompt.into()), FAILED);
    }

    #[test]
    fn a_closed_pipe_is_said_only_if_nothing_else_failed() {
        let pipe = || Err(io::Error::from(io::ErrorKind::BrokenPipe).into());
        assert!(all([Ok(()), Ok(())]).is_ok());
        assert!(is_broken_pipe(&all([Ok(()), pipe()]).unwrap_err()));
        let failed = all([pipe(), Ok(()), Err(anyhow!("disk")), Err(anyhow!("other"))]);
        assert_eq!(failed.unwrap_err().to_string(), "disk");
    }

    #[test]
    fn only_a_closed_pipe_is_no_failure() {
        let error = |kind| anyhow::Error::from(io::Error::from(kind)).context("stdout");
        assert!(is_broken_pipe(&error(io::ErrorKind::BrokenPipe)));
        assert!(!is_broken_pipe(&error(io::ErrorKind::StorageFull)));
    }
}
