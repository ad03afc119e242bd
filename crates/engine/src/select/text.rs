//! The text form of a selector: what `--selector` takes and reports print.
//!
//! `head + modifier + ...`, where the head is a preset or a scorer, with
//! parameters where it has some, and modifiers set the other values. Printing
//! gives the preset's name if the value is a preset, else the explicit form
//! without the parts that say nothing new. A scorer from outside this crate is
//! printed as `custom(NAME)` and cannot be read: text brings no code along.

use super::{
    Granularity, GroupReduce, HeadBudget, LayerBudget, Observation, PRESETS, Pool, PoolOrder,
    Scorer, SelectError, Selector,
};
use std::fmt;
use std::str::FromStr;

/// Parameters of an observation scorer.
const OBSERVATION_PARAMETERS: [&str; 5] = ["window", "kernel", "pool", "group", "order"];

/// Modifiers, as an error message shows them.
const MODIFIERS: &str = "sinks(N), recent(N), uniform, per-head, token";

/// An enum whose values have names in the text form.
trait Named: Copy + PartialEq + 'static {
    const NAMES: &'static [(&'static str, Self)];

    fn name(self) -> &'static str {
        Self::NAMES.iter().find(|(_, value)| *value == self).map_or("", |(name, _)| name)
    }
}

impl Named for Pool {
    const NAMES: &'static [(&'static str, Self)] = &[("avg", Pool::Avg), ("max", Pool::Max)];
}

impl Named for GroupReduce {
    const NAMES: &'static [(&'static str, Self)] =
        &[("mean", GroupReduce::Mean), ("max", GroupReduce::Max), ("sum", GroupReduce::Sum)];
}

impl Named for PoolOrder {
    const NAMES: &'static [(&'static str, Self)] = &[
        ("group-then-pool", PoolOrder::GroupThenPool),
        ("pool-then-group", PoolOrder::PoolThenGroup),
    ];
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(preset) = PRESETS.iter().find(|preset| preset.selector == *self) {
            return f.write_str(preset.name);
        }
        // Values that every selector has today are not printed; the patterns
        // stop matching when there are others.
        let (LayerBudget::Uniform, HeadBudget::PerHead, Granularity::Token) =
            (self.layers, self.heads, self.unit);
        match &self.scorer {
            Scorer::Observation(observation) => write!(f, "{observation}")?,
            Scorer::Recency => f.write_str("recency")?,
            Scorer::KeepAll => f.write_str("none")?,
            Scorer::Custom(custom) => write!(f, "{custom}")?,
        }
        for (name, count) in [("sinks", self.sinks), ("recent", self.recent)] {
            if count > 0 {
                write!(f, "+{name}({count})")?;
            }
        }
        Ok(())
    }
}

impl fmt::Display for Observation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Observation { window, kernel, pool, group, order } = *self;
        let (pool, group) = (pool.name(), group.name());
        write!(f, "observation(window={window},kernel={kernel},pool={pool},group={group}")?;
        if order != Observation::SNAPKV.order {
            write!(f, ",order={}", order.name())?;
        }
        f.write_str(")")
    }
}

/// `name` or `name(arguments)`.
struct Part<'a> {
    name: &'a str,
    arguments: Option<&'a str>,
}

impl<'a> Part<'a> {
    fn parse(text: &str, part: &'a str) -> Result<Self, SelectError> {
        let part = part.trim();
        let malformed = || SelectError::Malformed { text: text.to_owned(), part: part.to_owned() };
        let (name, arguments) = match part.split_once('(') {
            None => (part, None),
            Some((name, rest)) => (name, Some(rest.strip_suffix(')').ok_or_else(malformed)?)),
        };
        let balanced = !arguments.unwrap_or_default().contains(['(', ')']);
        if name.is_empty() || name.contains(')') || !balanced {
            return Err(malformed());
        }
        Ok(Part { name: name.trim(), arguments })
    }

    /// Refuses parameters on a part that has none.
    fn no_arguments(&self) -> Result<(), SelectError> {
        match self.arguments {
            None => Ok(()),
            Some(arguments) => Err(SelectError::UnknownParameter {
                part: self.name.to_owned(),
                name: arguments.to_owned(),
                legal: "none".to_owned(),
            }),
        }
    }

    /// The single argument of a part such as `sinks(4)`.
    fn count(&self) -> Result<usize, SelectError> {
        self.number("N", self.arguments.unwrap_or_default().trim(), "a whole number")
    }

    fn number(&self, name: &str, value: &str, legal: &str) -> Result<usize, SelectError> {
        value.parse().map_err(|_| self.bad_value(name, value, legal))
    }

    fn named<T: Named>(&self, name: &str, value: &str) -> Result<T, SelectError> {
        let found = T::NAMES.iter().find(|(legal, _)| *legal == value);
        found.map(|&(_, value)| value).ok_or_else(|| {
            let legal: Vec<_> = T::NAMES.iter().map(|(name, _)| *name).collect();
            self.bad_value(name, value, &legal.join(", "))
        })
    }

    fn bad_value(&self, name: &str, value: &str, legal: &str) -> SelectError {
        SelectError::BadValue {
            part: self.name.to_owned(),
            name: name.to_owned(),
            value: value.to_owned(),
            legal: legal.to_owned(),
        }
    }

    /// `start` with the given parameters replaced.
    fn observation(&self, text: &str, start: Observation) -> Result<Observation, SelectError> {
        let mut observation = start;
        let mut seen = Vec::new();
        let arguments = self.arguments.map(|a| a.split(',')).into_iter().flatten();
        for argument in arguments {
            let (name, value) = argument.split_once('=').ok_or_else(|| SelectError::Malformed {
                text: text.to_owned(),
                part: argument.to_owned(),
            })?;
            let (name, value) = (name.trim(), value.trim());
            once(text, &mut seen, name)?;
            match name {
                "window" => observation.window = self.number(name, value, "1 and up")?,
                "kernel" => observation.kernel = self.number(name, value, "1, 3, 5, ...")?,
                "pool" => observation.pool = self.named(name, value)?,
                "group" => observation.group = self.named(name, value)?,
                "order" => observation.order = self.named(name, value)?,
                _ => {
                    return Err(SelectError::UnknownParameter {
                        part: self.name.to_owned(),
                        name: name.to_owned(),
                        legal: OBSERVATION_PARAMETERS.join(", "),
                    });
                }
            }
        }
        Ok(observation)
    }
}

/// Refuses a name that was seen before.
fn once<'a>(text: &str, seen: &mut Vec<&'a str>, name: &'a str) -> Result<(), SelectError> {
    if seen.contains(&name) {
        let (text, name) = (text.to_owned(), name.to_owned());
        return Err(SelectError::Repeated { text, name });
    }
    seen.push(name);
    Ok(())
}

/// The selector that the first part of a text form stands for.
fn parse_head(text: &str, part: &Part<'_>) -> Result<Selector, SelectError> {
    let start = match part.name {
        "observation" => Selector::new(Scorer::Observation(Observation::SNAPKV)),
        "recency" => Selector::new(Scorer::Recency),
        "custom" => return Err(SelectError::CustomScorer { text: text.to_owned() }),
        name => Selector::preset(name).cloned().ok_or_else(|| {
            let presets = PRESETS.iter().map(|preset| preset.name);
            let legal: Vec<_> = presets.chain(["observation(...)", "recency"]).collect();
            SelectError::UnknownName {
                kind: "preset or scorer",
                name: name.to_owned(),
                legal: legal.join(", "),
            }
        })?,
    };
    match start.scorer {
        Scorer::Observation(observation) => {
            let scorer = Scorer::Observation(part.observation(text, observation)?);
            Ok(Selector { scorer, ..start })
        }
        Scorer::Recency | Scorer::KeepAll | Scorer::Custom(_) => {
            part.no_arguments().map(|()| start)
        }
    }
}

impl FromStr for Selector {
    type Err = SelectError;

    fn from_str(text: &str) -> Result<Self, SelectError> {
        let mut parts = text.split('+').map(|part| Part::parse(text, part));
        // `split` yields at least one part, be it empty.
        let head = parts.next().unwrap_or_else(|| Part::parse(text, ""))?;
        let mut selector = parse_head(text, &head)?;
        let mut seen = Vec::new();
        for part in parts {
            let part = part?;
            once(text, &mut seen, part.name)?;
            match part.name {
                "sinks" => selector.sinks = part.count()?,
                "recent" => selector.recent = part.count()?,
                "uniform" => {
                    part.no_arguments()?;
                    selector.layers = LayerBudget::Uniform;
                }
                "per-head" => {
                    part.no_arguments()?;
                    selector.heads = HeadBudget::PerHead;
                }
                "token" => {
                    part.no_arguments()?;
                    selector.unit = Granularity::Token;
                }
                name => {
                    return Err(SelectError::UnknownName {
                        kind: "modifier",
                        name: name.to_owned(),
                        legal: MODIFIERS.to_owned(),
                    });
                }
            }
        }
        selector.validate()?;
        Ok(selector)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Selector, SelectError> {
        text.parse()
    }

    #[test]
    fn presets_round_trip_by_name() {
        for preset in &PRESETS {
            assert_eq!(preset.selector.to_string(), preset.name);
            assert_eq!(parse(preset.name), Ok(preset.selector.clone()));
        }
    }

    #[test]
    fn the_explicit_form_of_a_preset_is_the_preset() {
        let explicit = "observation(window=32,kernel=7,pool=max,group=mean)";
        assert_eq!(parse(explicit), parse("snapkv"));
        assert_eq!(parse("observation"), parse("snapkv"));
        assert_eq!(parse("snapkv(window=64,kernel=5,pool=avg)"), parse("snapkv-kvpress"));
        assert_eq!(parse("recency+sinks(4)"), parse("streaming"));
        assert_eq!(parse("streaming+sinks(0)"), parse("recent"));
        assert_eq!(parse(" snapkv + uniform + per-head + token "), parse("snapkv"));
    }

    #[test]
    fn canonical_texts_print_as_they_were_read() {
        for text in [
            "observation(window=32,kernel=7,pool=max,group=mean)+sinks(4)",
            "observation(window=8,kernel=1,pool=avg,group=sum)",
            "observation(window=8,kernel=5,pool=max,group=max,order=pool-then-group)+recent(40)",
            "recency+sinks(2)+recent(8)",
        ] {
            assert_eq!(parse(text).map(|selector| selector.to_string()), Ok(text.to_owned()));
        }
    }

    #[test]
    fn every_combination_round_trips() {
        let mut count = 0;
        for &(_, pool) in Pool::NAMES {
            for &(_, group) in GroupReduce::NAMES {
                for &(_, order) in PoolOrder::NAMES {
                    for (window, kernel, sinks, recent) in
                        [(32, 7, 0, 0), (64, 5, 0, 0), (1, 1, 4, 0), (9, 3, 2, 11)]
                    {
                        let observation = Observation { window, kernel, pool, group, order };
                        let selector = Selector {
                            sinks,
                            recent,
                            ..Selector::new(Scorer::Observation(observation))
                        };
                        assert_eq!(parse(&selector.to_string()), Ok(selector));
                        count += 1;
                    }
                }
            }
        }
        assert_eq!(count, 48);
    }

    #[test]
    fn errors_list_what_is_legal() {
        for (text, legal) in [
            ("snapkw", ["snapkw", "snapkv-kvpress", "observation(...)", "none"]),
            ("sinks(4)", ["sinks", "streaming", "recency", "none"]),
            ("snapkv+sink(4)", ["sink", "sinks(N)", "recent(N)", "per-head"]),
            ("snapkv(width=3)", ["width", "window", "kernel", "order"]),
            ("snapkv(pool=min)", ["min", "pool", "avg", "max"]),
            ("snapkv(order=first)", ["first", "order", "group-then-pool", "pool-then-group"]),
            ("snapkv(window=-1)", ["-1", "window", "1 and up", "snapkv"]),
            ("streaming(sinks=4)", ["streaming", "sinks=4", "no parameter", "legal: none"]),
            ("snapkv+sinks", ["sinks", "N", "a whole number", "legal"]),
            ("snapkv+token(2)", ["token", "2", "no parameter", "none"]),
        ] {
            let error = parse(text).unwrap_err().to_string();
            for part in legal {
                assert!(error.contains(part), "`{text}`: {error}");
            }
        }
    }

    #[test]
    fn malformed_texts_are_refused() {
        for text in [
            "",
            "+",
            "snapkv+",
            "snapkv(",
            "snapkv)",
            "snapkv(window=3",
            "snapkv(window)",
            "snapkv((window=3))",
            "snapkv()",
            "(window=3)",
            "snapkv)(",
            "snapkv(window=3)x",
        ] {
            let error = parse(text).unwrap_err();
            assert!(matches!(error, SelectError::Malformed { .. }), "`{text}`: {error:?}");
        }
    }

    #[test]
    fn repetitions_and_contradictions_are_refused() {
        for (text, repeated) in
            [("snapkv+sinks(1)+sinks(2)", "sinks"), ("snapkv(window=1,window=2)", "window")]
        {
            let text = text.to_owned();
            let name = repeated.to_owned();
            assert_eq!(parse(&text), Err(SelectError::Repeated { text, name }));
        }
        assert!(matches!(
            parse("none+sinks(4)"),
            Err(SelectError::MandatoryWithoutEviction { sinks: 4, recent: 0 })
        ));
        assert_eq!(parse("snapkv(kernel=6)"), Err(SelectError::EvenKernel { kernel: 6 }));
        assert_eq!(parse("snapkv(window=0)"), Err(SelectError::EmptyWindow));
    }
}
