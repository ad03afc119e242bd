//! The Jinja environment that chat templates are written for
//! ([`transformers`' one](https://github.com/huggingface/transformers/blob/main/src/transformers/utils/chat_template_utils.py)):
//! `trim_blocks`, `lstrip_blocks`, loop controls, Python's string methods,
//! `raise_exception`, `strftime_now` and `tojson` as Python's `json.dumps`.

use super::chat::{ChatOptions, GenerationPrompt, Message};
use super::error::TextError;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Environment, Error, ErrorKind, Value};
use std::time::{SystemTime, UNIX_EPOCH};

/// Instructions one rendering may take: some seconds at most. Templates come from files of unknown origin.
const FUEL: u64 = 20_000_000;

/// Nesting that `tojson` follows.
const MAX_JSON_DEPTH: usize = 64;

/// What is rendered.
pub(super) struct Request<'a> {
    pub(super) source: &'a str,
    pub(super) messages: Vec<Message>,
    pub(super) bos: Option<&'a str>,
    pub(super) eos: Option<&'a str>,
    pub(super) options: &'a ChatOptions,
}

/// Compiles a template and forgets it.
pub(super) fn check(source: &str) -> Result<(), TextError> {
    environment(UNIX_EPOCH)?.template_from_str(source).map(drop).map_err(explain)
}

/// Renders a chat.
pub(super) fn render(request: Request<'_>) -> Result<String, TextError> {
    let environment = environment(request.options.now)?;
    let template = environment.template_from_str(request.source).map_err(explain)?;
    let message = |Message { role, content }| {
        Value::from_pairs([("role", Value::from(role)), ("content", Value::from(content))])
    };
    let add_generation_prompt = request.options.generation_prompt == GenerationPrompt::Add;
    let mut context = vec![
        ("messages", request.messages.into_iter().map(message).collect::<Value>()),
        ("add_generation_prompt", Value::from(add_generation_prompt)),
        // Templates tell "no tools" (none) from "the caller knows no tools" (undefined).
        ("tools", Value::from(())),
        ("documents", Value::from(())),
    ];
    context.extend(request.bos.map(|token| ("bos_token", Value::from(token))));
    context.extend(request.eos.map(|token| ("eos_token", Value::from(token))));
    template.render(Value::from_pairs(context)).map_err(explain)
}

fn environment(now: SystemTime) -> Result<Environment<'static>, TextError> {
    let mut environment = Environment::new();
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    environment.set_syntax(syntax.map_err(explain)?);
    environment.set_fuel(Some(FUEL));
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.add_function("raise_exception", |reason: String| -> Result<Value, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, "raise_exception").with_source(Raised(reason)))
    });
    environment.add_function("strftime_now", move |format: &str| strftime(now, format));
    environment.add_filter("tojson", to_json);
    Ok(environment)
}

/// The reason a template gives when it calls `raise_exception`.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Raised(String);

/// A template error as a sentence for the user, who did not write the template.
fn explain(error: Error) -> TextError {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(&error);
    while let Some(current) = cause {
        if let Some(Raised(reason)) = current.downcast_ref() {
            return TextError::TemplateRefused { reason: reason.clone() };
        }
        cause = current.source();
    }
    let problem = match error.detail() {
        Some(detail) => format!("{}: {detail}", error.kind()),
        None => error.kind().to_string(),
    };
    TextError::Template { problem, line: error.line() }
}

/// `json.dumps(value, ensure_ascii=False, indent=indent)`.
fn to_json(value: &Value, options: Kwargs) -> Result<String, Error> {
    let indent: Option<usize> = options.get("indent")?;
    if options.get::<Option<bool>>("ensure_ascii")? == Some(true) {
        return Err(Error::new(
            ErrorKind::InvalidOperation,
            "tojson(ensure_ascii=true) is not supported",
        ));
    }
    options.assert_all_used()?;
    let mut json = String::new();
    write_json(value, Layout { indent, depth: 0 }, &mut json)?;
    Ok(json)
}

/// Where a JSON value stands.
#[derive(Clone, Copy)]
struct Layout {
    /// Spaces per level; `None` is one line.
    indent: Option<usize>,
    depth: usize,
}

impl Layout {
    /// Begins an element at this depth.
    fn new_line(self, json: &mut String) {
        if let Some(indent) = self.indent {
            json.push('\n');
            json.extend(std::iter::repeat_n(' ', indent * self.depth));
        }
    }

    fn separator(self) -> &'static str {
        if self.indent.is_some() { "," } else { ", " }
    }
}

fn write_json(value: &Value, layout: Layout, json: &mut String) -> Result<(), Error> {
    if layout.depth > MAX_JSON_DEPTH {
        return Err(Error::new(
            ErrorKind::BadSerialization,
            format!("nested deeper than {MAX_JSON_DEPTH}"),
        ));
    }
    match value.kind() {
        ValueKind::None => json.push_str("null"),
        ValueKind::Bool => json.push_str(if value.is_true() { "true" } else { "false" }),
        ValueKind::Number => json.push_str(&value.to_string()),
        ValueKind::String => write_json_string(value.as_str().unwrap_or_default(), json),
        ValueKind::Seq | ValueKind::Iterable => write_json_items(value, layout, ('[', ']'), json)?,
        ValueKind::Map => write_json_items(value, layout, ('{', '}'), json)?,
        other => {
            return Err(Error::new(
                ErrorKind::BadSerialization,
                format!("{other} has no JSON form"),
            ));
        }
    }
    Ok(())
}

/// The elements of a list, or the keys of a map with their values.
fn write_json_items(
    value: &Value,
    layout: Layout,
    brackets: (char, char),
    json: &mut String,
) -> Result<(), Error> {
    let inner = Layout { depth: layout.depth + 1, ..layout };
    json.push(brackets.0);
    let mut empty = true;
    for item in value.try_iter()? {
        if !empty {
            json.push_str(layout.separator());
        }
        empty = false;
        inner.new_line(json);
        if value.kind() == ValueKind::Map {
            write_json_string(&item.to_string(), json);
            json.push_str(": ");
            write_json(&value.get_item(&item)?, inner, json)?;
        } else {
            write_json(&item, inner, json)?;
        }
    }
    if !empty {
        layout.new_line(json);
    }
    json.push(brackets.1);
    Ok(())
}

fn write_json_string(text: &str, json: &mut String) {
    json.push('"');
    for c in text.chars() {
        match c {
            '"' => json.push_str("\\\""),
            '\\' => json.push_str("\\\\"),
            '\n' => json.push_str("\\n"),
            '\r' => json.push_str("\\r"),
            '\t' => json.push_str("\\t"),
            '\u{8}' => json.push_str("\\b"),
            '\u{c}' => json.push_str("\\f"),
            c if c < ' ' => json.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => json.push(c),
        }
    }
    json.push('"');
}

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
/// 1 January 1970 was a Thursday.
const WEEKDAYS: [&str; 7] =
    ["Thursday", "Friday", "Saturday", "Sunday", "Monday", "Tuesday", "Wednesday"];

/// `time` in UTC in the given `strftime` format: the date and time directives of C's "C" locale.
fn strftime(time: SystemTime, format: &str) -> Result<String, Error> {
    let seconds = time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = civil_from_days(days);
    let (month_name, weekday) = (MONTHS[month as usize - 1], WEEKDAYS[(days % 7) as usize]);
    let mut text = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            text.push(c);
            continue;
        }
        text += &match chars.next() {
            Some('Y') => year.to_string(),
            Some('y') => format!("{:02}", year % 100),
            Some('m') => format!("{month:02}"),
            Some('B') => month_name.to_owned(),
            Some('b' | 'h') => month_name[..3].to_owned(),
            Some('d') => format!("{day:02}"),
            Some('e') => format!("{day:2}"),
            Some('A') => weekday.to_owned(),
            Some('a') => weekday[..3].to_owned(),
            Some('H') => format!("{:02}", second / 3600),
            Some('M') => format!("{:02}", second / 60 % 60),
            Some('S') => format!("{:02}", second % 60),
            Some('F') => format!("{year}-{month:02}-{day:02}"),
            Some('%') => "%".to_owned(),
            other => {
                let directive = other.map(String::from).unwrap_or_default();
                let problem =
                    format!("strftime_now: the directive `%{directive}` is not supported");
                return Err(Error::new(ErrorKind::InvalidOperation, problem));
            }
        };
    }
    Ok(text)
}

/// Year, month and day in the Gregorian calendar, `days` after 1 January 1970. Counts in years that begin in
/// March, so that leap days come last, and in eras of 400 years, which all have the same number of days
/// (method of [H. Hinnant](https://howardhinnant.github.io/date_algorithms.html#civil_from_days)).
fn civil_from_days(days: u64) -> (u64, u64, u64) {
    const DAYS_PER_ERA: u64 = 146_097;
    // From 1 March of year 0 to 1 January 1970.
    let days = days + 719_468;
    let (era, day_of_era) = (days / DAYS_PER_ERA, days % DAYS_PER_ERA);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn render_with(source: &str, content: &str) -> Result<String, TextError> {
        let options = ChatOptions {
            generation_prompt: GenerationPrompt::Omit,
            now: UNIX_EPOCH + Duration::from_secs(951_827_696),
        };
        let messages = vec![Message::new("user", content)];
        render(Request { source, messages, bos: Some("<s>"), eos: None, options: &options })
    }

    fn rendered(source: &str) -> String {
        render_with(source, "a \"b\" <c> é\n").unwrap()
    }

    #[test]
    fn blocks_are_trimmed_as_in_transformers() {
        assert_eq!(rendered("{% if true %}\nx\n  {% endif %}\ny"), "x\ny");
        assert_eq!(rendered("{{ bos_token }}|{{ eos_token }}|{{ tools is none }}"), "<s>||True");
        assert_eq!(
            rendered(
                "{% for i in [1,2,3] %}{% if i == 2 %}{% continue %}{% endif %}{{ i }}{% endfor %}"
            ),
            "13"
        );
    }

    #[test]
    fn python_methods_work_and_nothing_is_escaped() {
        assert_eq!(rendered("{{ messages[0].content.strip() }}"), "a \"b\" <c> é");
        assert_eq!(rendered("{{ messages[0]['content'].split('<')[-1].startswith('c') }}"), "True");
    }

    #[test]
    fn json_is_pythons() {
        assert_eq!(rendered("{{ messages[0].content | tojson }}"), r#""a \"b\" <c> é\n""#);
        let nested = "{{ {'b': [1, 2.5, true, none], 'a': {}} | tojson";
        assert_eq!(rendered(&format!("{nested} }}}}")), r#"{"b": [1, 2.5, true, null], "a": {}}"#);
        assert_eq!(
            rendered(&format!("{nested}(indent=2) }}}}")),
            "{\n  \"b\": [\n    1,\n    2.5,\n    true,\n    null\n  ],\n  \"a\": {}\n}"
        );
    }

    #[test]
    fn dates_are_utc() {
        // 2000-02-29 12:34:56, a Tuesday.
        assert_eq!(
            rendered("{{ strftime_now('%d %b %Y|%A %H:%M:%S|%F %%') }}"),
            "29 Feb 2000|Tuesday 12:34:56|2000-02-29 %"
        );
        assert_eq!(civil_from_days(0), (1970, 1, 1));
        assert_eq!(civil_from_days(20_453), (2025, 12, 31));
        assert_eq!(civil_from_days(47_541), (2100, 3, 1));
        let error = render_with("{{ strftime_now('%Q') }}", "").unwrap_err().to_string();
        assert!(error.contains("the directive `%Q` is not supported"), "{error}");
    }

    #[test]
    fn errors_are_sentences() {
        let message = |source| render_with(source, "").unwrap_err().to_string();
        assert_eq!(
            message("{{ raise_exception('roles must alternate') }}"),
            "the model's chat template refuses these messages: roles must alternate"
        );
        let undefined = message("a\n{{ x.y.z }}");
        assert!(
            undefined.starts_with("the model's chat template fails at line 2: undefined value"),
            "{undefined}"
        );
        let filter = message("{{ 1 | nosuch }}");
        assert!(filter.contains("unknown filter"), "{filter}");
        assert!(matches!(check("{% if %}"), Err(TextError::Template { line: Some(1), .. })));
    }

    #[test]
    fn templates_cannot_run_for_ever() {
        let source =
            "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}";
        let error = render_with(source, "").unwrap_err().to_string();
        assert!(error.contains("out of fuel"), "{error}");
        let deep = "{% set ns = namespace(v=[]) %}{% for i in range(100) %}{% set ns.v = [ns.v] %}{% endfor %}{{ ns.v | tojson }}";
        let error = render_with(deep, "").unwrap_err().to_string();
        assert!(error.contains("nested deeper than 64"), "{error}");
    }
}
