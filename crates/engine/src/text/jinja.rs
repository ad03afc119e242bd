//! The Jinja environment that chat templates are written for
//! ([`transformers`' one](https://github.com/huggingface/transformers/blob/main/src/transformers/utils/chat_template_utils.py)):
//! `trim_blocks`, `lstrip_blocks`, loop controls, Python's string methods,
//! `raise_exception`, `strftime_now` and `tojson` as Python's `json.dumps`.

mod source;

use self::source::{STORED, STORED_IN_NAMESPACE, guarded};
use super::chat::{ChatOptions, GenerationPrompt, Message};
use super::error::TextError;
use super::hf::MAX_CHAT_TEMPLATE_BYTES;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State, Value};
use std::borrow::Cow;
use std::fmt::{self, Write};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// What one rendering may take beside what its messages add: an instruction costs
/// one, and so do 64 bytes that an instruction makes. Templates come from files
/// of unknown origin. Those of published models take some hundreds.
const FUEL: u64 = 100_000;

/// What a message adds.
const FUEL_OF_MESSAGE: u64 = 2_000;

/// Bytes of a message that add one more: enough for eight passes over it.
const BYTES_PER_FUEL: u64 = 8;

/// Bytes that a unit of fuel pays for.
const BYTES_OF_FUEL: usize = 64;

/// Elements that are counted for a unit of fuel.
const ELEMENTS_OF_FUEL: usize = 64;

/// Stack of a rendering. Values that a template nests are shown, compared and
/// freed by functions that call themselves.
const STACK: usize = 8 << 20;

/// What nesting may take of it: a level takes a template five instructions at
/// least, and these functions 1 KiB at most.
const STACK_PER_FUEL: usize = 256;

/// What reading the source may take of it: every byte can open a level.
const STACK_PER_SOURCE_BYTE: usize = 2 << 10;

/// Nesting that `tojson` follows.
const MAX_JSON_DEPTH: usize = 64;

/// What one rendering or compiling may last, beside [`TIME_PER_MEGABYTE`] of its
/// messages. Two things cost no fuel, and a template can make them endless: lists
/// that are added, each the sum of the one before with itself, and elements of such
/// sums by index. Published templates take milliseconds.
const TIME: Duration = Duration::from_secs(6);

/// What a MiB of messages adds: a thousand times what a pass over it takes.
const TIME_PER_MEGABYTE: Duration = Duration::from_secs(1);

/// What is rendered.
pub(super) struct Request<'a> {
    pub(super) source: &'a str,
    pub(super) messages: Vec<Message>,
    pub(super) bos: Option<&'a str>,
    pub(super) eos: Option<&'a str>,
    pub(super) options: &'a ChatOptions,
}

impl Request<'_> {
    /// What the rendering may take.
    fn limits(&self) -> Limits {
        let bytes: u64 = self.messages.iter().map(|message| message.content.len() as u64).sum();
        let messages = self.messages.len() as u64;
        let megabytes = u32::try_from(bytes >> 20).unwrap_or(u32::MAX);
        Limits {
            fuel: FUEL + messages * FUEL_OF_MESSAGE + bytes / BYTES_PER_FUEL,
            time: TIME + TIME_PER_MEGABYTE.saturating_mul(megabytes),
        }
    }
}

/// What one rendering may take.
#[derive(Clone, Copy)]
struct Limits {
    fuel: u64,
    time: Duration,
}

/// Compiles a template and forgets it.
pub(super) fn check(source: &str) -> Result<(), TextError> {
    if source.len() > MAX_CHAT_TEMPLATE_BYTES {
        let problem = format!(
            "it has {} bytes, and at most {MAX_CHAT_TEMPLATE_BYTES} are read",
            source.len()
        );
        return Err(TextError::Template { problem, line: None });
    }
    let source = guarded(source)?;
    let compile = |source: &str| {
        environment(UNIX_EPOCH, 0)?.template_from_str(source).map(drop).map_err(explain)
    };
    within(Limits { fuel: FUEL, time: TIME }, source, compile)
}

/// Renders a chat.
pub(super) fn render(request: Request<'_>) -> Result<String, TextError> {
    let limits = request.limits();
    let now = request.options.now;
    let context = context(&request);
    within(limits, guarded(request.source)?, move |source| {
        let environment = environment(now, limits.fuel)?;
        let template = environment.template_from_str(source).map_err(explain)?;
        template.render(context).map_err(explain)
    })
}

/// What a template sees.
fn context(request: &Request<'_>) -> Value {
    let message = |Message { role, content }: &Message| {
        let (role, content) = (role.as_str(), content.as_str());
        Value::from_pairs([("role", Value::from(role)), ("content", Value::from(content))])
    };
    let add_generation_prompt = request.options.generation_prompt == GenerationPrompt::Add;
    let mut context = vec![
        ("messages", request.messages.iter().map(message).collect::<Value>()),
        ("add_generation_prompt", Value::from(add_generation_prompt)),
        // Templates tell "no tools" (none) from "the caller knows no tools" (undefined).
        ("tools", Value::from(())),
        ("documents", Value::from(())),
    ];
    context.extend(request.bos.map(|token| ("bos_token", Value::from(token))));
    context.extend(request.eos.map(|token| ("eos_token", Value::from(token))));
    Value::from_pairs(context)
}

/// Calls `work` with `source` on a thread whose stack suffices for what the source and
/// the fuel can nest, and waits for it as long as it may last. A thread cannot be
/// stopped: one that lasts longer ends with the process.
fn within<T: Send + 'static>(
    limits: Limits,
    source: String,
    work: impl FnOnce(&str) -> Result<T, TextError> + Send + 'static,
) -> Result<T, TextError> {
    let values = usize::try_from(limits.fuel).unwrap_or(usize::MAX).saturating_mul(STACK_PER_FUEL);
    let nested = source.len().saturating_mul(STACK_PER_SOURCE_BYTE).saturating_add(values);
    let builder = thread::Builder::new().stack_size(STACK.saturating_add(nested));
    let failed = |problem: String| TextError::Template { problem, line: None };
    let (done, result) = mpsc::sync_channel(1);
    let thread = builder
        .spawn(move || {
            // Whoever waited may have left.
            let _ = done.send(work(&source));
        })
        .map_err(|error| failed(format!("no thread to render it on: {error}")))?;
    match result.recv_timeout(limits.time) {
        Ok(result) => result,
        Err(RecvTimeoutError::Timeout) => {
            Err(failed(format!("it takes more than {} s", limits.time.as_secs())))
        }
        Err(RecvTimeoutError::Disconnected) => match thread.join() {
            Err(panic) => std::panic::resume_unwind(panic),
            Ok(()) => Err(failed("it ended without a result".to_owned())),
        },
    }
}

fn syntax() -> Result<SyntaxConfig, TextError> {
    SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build().map_err(explain)
}

fn environment(now: SystemTime, fuel: u64) -> Result<Environment<'static>, TextError> {
    let mut environment = Environment::new();
    environment.set_syntax(syntax()?);
    environment.set_fuel(Some(fuel));
    environment.set_unknown_method_callback(python_method);
    environment.set_formatter(|out, state, value| {
        // As `Environment::default` writes without escapes, `none` as Python does.
        match shown(state, value)? {
            Cow::Borrowed(text) => out.write_str(text),
            Cow::Owned(text) => out.write_str(&text),
        }
        .map_err(Error::from)
    });
    environment.add_filter("string", |state: &State<'_, '_>, value: &Value| {
        Ok::<_, Error>(shown(state, value)?.into_owned())
    });
    environment.add_filter("join", |state: &State<'_, '_>, value: &Value, by: Option<&str>| {
        joined(state, value, by.unwrap_or_default())
    });
    environment.add_function("raise_exception", |reason: String| -> Result<Value, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, "raise_exception").with_source(Raised(reason)))
    });
    environment.add_function("strftime_now", move |state: &State<'_, '_>, format: &str| {
        // The longest name of a day takes the place of two bytes.
        state.consume_fuel(format.len() as u64)?;
        strftime(now, format)
    });
    environment.add_function(STORED, stored);
    environment.add_function(STORED_IN_NAMESPACE, |state: &State<'_, '_>, value: Value| {
        // Only namespaces can be changed, so only they could come to hold themselves, and
        // comparing or sorting what does has no end.
        match holds_namespace(&value) {
            true => {
                let problem = "a namespace cannot hold a namespace";
                Err(Error::new(ErrorKind::InvalidOperation, problem))
            }
            false => stored(state, value),
        }
    });
    environment.add_filter("tojson", to_json);
    // As in Python, none is not: templates ask before they count tools.
    environment.add_test("iterable", |value: &Value| !value.is_none() && value.try_iter().is_ok());
    Ok(environment)
}

/// A value that a template keeps. A list that is the sum of itself and itself, many times over,
/// takes memory and time that no fuel pays for, so it may have as many elements as there is fuel.
fn stored(state: &State<'_, '_>, value: Value) -> Result<Value, Error> {
    let most = fuel_left(state);
    let left = elements_within(&value, most).ok_or(Error::from(ErrorKind::OutOfFuel))?;
    state.consume_fuel(((most - left) / ELEMENTS_OF_FUEL) as u64)?;
    Ok(value)
}

/// Whether a value is a namespace or has one among its elements.
fn holds_namespace(value: &Value) -> bool {
    if value.as_object().is_some_and(|object| object.type_name().ends_with("::Namespace")) {
        return true;
    }
    elements(value).into_iter().flatten().any(|element| holds_namespace(&element))
}

/// A method of Python's strings, lists or maps.
fn python_method(
    state: &mut State<'_, '_>,
    value: &Value,
    method: &str,
    arguments: &[Value],
) -> Result<Value, Error> {
    // A width asks for that many blanks, which nothing else pays for.
    let widest = value.as_str().filter(|_| method == "format").map_or(0, |format| {
        let numbers = format.split(|c: char| !c.is_ascii_digit());
        numbers.map(|digits| digits.trim_start_matches('0').len()).max().unwrap_or(0)
    });
    if widest > 4 {
        let problem = "format: a width beyond 9999 is not supported";
        return Err(Error::new(ErrorKind::InvalidOperation, problem));
    }
    if let ("join", Some(by), [elements]) = (method, value.as_str(), arguments) {
        return joined(state, elements, by).map(Value::from);
    }
    minijinja_contrib::pycompat::unknown_method_callback(state, value, method, arguments)
}

/// The texts of the elements with `by` between them. Elements may be one long text
/// many times over, so the length is paid for as it grows.
fn joined(state: &State<'_, '_>, value: &Value, by: &str) -> Result<String, Error> {
    let mut joined = String::new();
    if value.is_undefined() || value.is_none() {
        return Ok(joined);
    }
    let mut add = |text: &str| {
        state.consume_fuel(1 + (text.len() / BYTES_OF_FUEL) as u64)?;
        joined.push_str(text);
        Ok::<_, Error>(())
    };
    // A text is a list of its characters.
    let characters = value.as_str().map(|text| text.chars().map(|c| Value::from(c.to_string())));
    let elements: Box<dyn Iterator<Item = Value> + '_> = match characters {
        Some(characters) => Box::new(characters),
        None => Box::new(value.try_iter()?),
    };
    for (index, element) in elements.enumerate() {
        if index > 0 {
            add(by)?;
        }
        add(&shown(state, &element)?)?;
    }
    Ok(joined)
}

/// The text of a value. A list that holds itself many times over can be small and
/// its text without end: it is cut off where the fuel that is left ends.
fn shown<'v>(state: &State<'_, '_>, value: &'v Value) -> Result<Cow<'v, str>, Error> {
    if let Some(text) = value.as_str() {
        return Ok(Cow::Borrowed(text));
    }
    let left = fuel_left(state);
    let mut text = Limited { text: String::new(), limit: left.saturating_mul(BYTES_OF_FUEL) };
    let fits = elements_within(value, left).is_some() && write!(text, "{value}").is_ok();
    match fits {
        true => Ok(Cow::Owned(text.text)),
        false => Err(Error::from(ErrorKind::OutOfFuel)),
    }
}

fn fuel_left(state: &State<'_, '_>) -> usize {
    let left = state.fuel_levels().map_or(u64::MAX, |(_, left)| left);
    usize::try_from(left).unwrap_or(usize::MAX)
}

/// What is left of `limit` after the elements of a value and of theirs; `None` if
/// there are more. A list goes on counting elements that no longer fit, and a
/// repeated one can have a hundred million.
fn elements_within(value: &Value, limit: usize) -> Option<usize> {
    // What cannot be counted can be read only once; it is made by taking elements one by one.
    let Some(n) = value.len().filter(|_| value.as_str().is_none()) else { return Some(limit) };
    let left = limit.checked_sub(n)?;
    let elements = elements(value).into_iter().flatten();
    elements.into_iter().try_fold(left, |left, element| elements_within(&element, left))
}

/// The elements of a list that can be read again, or the values of a map.
fn elements(value: &Value) -> Option<impl Iterator<Item = Value> + '_> {
    value.len().filter(|_| value.as_str().is_none())?;
    let is_map = value.kind() == ValueKind::Map;
    let elements = value.try_iter().ok()?;
    Some(elements.filter_map(move |element| match is_map {
        true => value.get_item(&element).ok(),
        false => Some(element),
    }))
}

/// Text up to a length.
struct Limited {
    text: String,
    limit: usize,
}

impl fmt::Write for Limited {
    fn write_str(&mut self, more: &str) -> fmt::Result {
        if more.len() > self.limit - self.text.len() {
            return Err(fmt::Error);
        }
        self.text.push_str(more);
        Ok(())
    }
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
fn to_json(state: &State<'_, '_>, value: &Value, options: Kwargs) -> Result<String, Error> {
    let indent: Option<usize> = options.get("indent")?;
    if options.get::<Option<bool>>("ensure_ascii")? == Some(true) {
        return Err(Error::new(
            ErrorKind::InvalidOperation,
            "tojson(ensure_ascii=true) is not supported",
        ));
    }
    options.assert_all_used()?;
    let mut json = String::new();
    write_json(value, Layout { state, indent, depth: 0 }, &mut json)?;
    Ok(json)
}

/// Where a JSON value stands.
#[derive(Clone, Copy)]
struct Layout<'s> {
    /// Pays for every element before it is written.
    state: &'s State<'s, 's>,
    /// Spaces per level; `None` is one line.
    indent: Option<usize>,
    depth: usize,
}

impl Layout<'_> {
    /// Pays for an element: one, and one for 64 blanks in front of it.
    fn pay(self) -> Result<(), Error> {
        let blanks = self.indent.unwrap_or(0).saturating_mul(self.depth);
        self.state.consume_fuel(1 + blanks as u64 / 64)
    }

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

fn write_json(value: &Value, layout: Layout<'_>, json: &mut String) -> Result<(), Error> {
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
    layout: Layout<'_>,
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
        inner.pay()?;
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
        layout.pay()?;
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
mod tests;
