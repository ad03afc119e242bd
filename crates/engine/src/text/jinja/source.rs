//! What is done to a template before it is compiled, so that neither compiling nor what no fuel pays
//! for is without bounds.

use super::syntax;
use crate::text::error::TextError;
use minijinja::machinery::{Span, Token, tokenize};

/// Jinja tokens in one `{{ }}` or `{% %}`. Fuel pays for rendering, and compiling
/// looks for constants below every operator of an expression anew: without a limit
/// a chain as long as a source may be takes more than a minute, with this one no
/// source takes a second. Of 70 published templates the longest expression has 58.
pub(super) const MAX_TAG_TOKENS: usize = 512;

/// Functions that [`guarded`] puts around what a template assigns.
pub(super) const STORED: &str = "tidekv_stored";
pub(super) const STORED_IN_NAMESPACE: &str = "tidekv_stored_in_namespace";

/// The template with every `set x = value` as `set x = tidekv_stored((value))`, and likewise for
/// attributes of namespaces: what no fuel pays for needs values that are kept. Long expressions are
/// refused, and what is no Jinja is left to the compiler to complain about; lines stay what they
/// are.
pub(super) fn guarded(source: &str) -> Result<String, TextError> {
    let tokens: Vec<_> = tokenize(source, false, syntax()?).map_while(Result::ok).collect();
    refuse_long_tags(&tokens)?;
    if let Some((_, span)) = tokens.iter().find(|(token, _)| is_ours(token)) {
        return Err(refusal("names must not begin with `tidekv_`".to_owned(), span));
    }
    let (mut guarded, mut copied) = (String::with_capacity(source.len()), 0);
    for tag in tokens.split(|(token, _)| matches!(token, Token::BlockEnd)) {
        let Some((function, assign, last)) = assignment(tag) else { continue };
        let (value, end) = (assign.end_offset as usize, last.end_offset as usize);
        let (Some(before), Some(value)) = (source.get(copied..value), source.get(value..end))
        else {
            continue;
        };
        guarded += &format!("{before} {function}(({value}))");
        copied = end;
    }
    Ok(guarded + source.get(copied..).unwrap_or_default())
}

fn is_ours(token: &Token<'_>) -> bool {
    matches!(token, Token::Ident(name) if name.starts_with("tidekv_"))
}

/// The guard of what a tag assigns, and between which tokens that stands.
fn assignment<'t>(tag: &'t [(Token<'_>, Span)]) -> Option<(&'static str, &'t Span, &'t Span)> {
    let start = tag.iter().rposition(|(token, _)| matches!(token, Token::BlockStart))?;
    let [_, (Token::Ident("set"), _), target @ ..] = &tag[start..] else { return None };
    let assign = target.iter().position(|(token, _)| matches!(token, Token::Assign))?;
    // A value ends in one token at least.
    let (_, last) = target[assign + 1..].last()?;
    let in_namespace = target[..assign].iter().any(|(token, _)| matches!(token, Token::Dot));
    let function = if in_namespace { STORED_IN_NAMESPACE } else { STORED };
    Some((function, &target[assign].1, last))
}

fn refusal(problem: String, span: &Span) -> TextError {
    TextError::Template { problem, line: Some(span.start_line as usize) }
}

/// Refuses expressions that would take long to compile.
fn refuse_long_tags(tokens: &[(Token<'_>, Span)]) -> Result<(), TextError> {
    let mut n_tokens = 0;
    for (token, span) in tokens {
        match token {
            Token::TemplateData(_) | Token::VariableStart | Token::BlockStart => n_tokens = 0,
            _ => n_tokens += 1,
        }
        if n_tokens > MAX_TAG_TOKENS {
            let problem = format!(
                "an expression of more than {MAX_TAG_TOKENS} parts, which would take long to \
                 compile"
            );
            return Err(refusal(problem, span));
        }
    }
    Ok(())
}
