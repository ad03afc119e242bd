//! What can be wrong with a selector, a budget or a score.

use crate::report::counted;

/// A selector that cannot be used, or scores that cannot be ranked.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SelectError {
    /// The observation window holds no query.
    #[error("observation window of 0 tokens scores nothing; use a window of at least 1")]
    EmptyWindow,

    /// Pooling has no centre, or would yield more scores than keys.
    #[error("pooling kernel {kernel} is even; use an odd kernel such as {}", kernel + 1)]
    EvenKernel {
        /// The kernel asked for.
        kernel: usize,
    },

    /// A mandatory set was given to the selector that keeps everything.
    #[error(
        "`none` keeps every token, so {} and {} mean nothing; drop them or choose a selector",
        counted(*sinks, "sink"),
        counted(*recent, "recent token")
    )]
    MandatoryWithoutEviction {
        /// Sinks asked for.
        sinks: usize,
        /// Recent tokens asked for.
        recent: usize,
    },

    /// K_l is smaller than what must be kept.
    #[error(
        "budget of {} per KV head is below the {needed} that `{selector}` must keep of a prompt of \
         {} ({}, {recent} most recent); use a budget of at least {needed} or fewer mandatory tokens",
        counted(*budget, "token"),
        counted(*n_tokens, "token"),
        counted(*sinks, "sink")
    )]
    BudgetTooSmall {
        /// The selector, in text form.
        selector: String,
        /// K_l.
        budget: usize,
        /// Smallest K_l that works for this prompt.
        needed: usize,
        /// Sinks of the selector.
        sinks: usize,
        /// Tokens at the prompt's end that must be kept, observation window
        /// included.
        recent: usize,
        /// S.
        n_tokens: usize,
    },

    /// Positions are 32-bit.
    #[error("prompt of {n_tokens} tokens; positions are stored in 32 bits, at most {limit} tokens")]
    PromptTooLong {
        /// S.
        n_tokens: usize,
        /// Largest S.
        limit: usize,
    },

    /// A buffer size does not fit 64 bits.
    #[error(
        "selection buffers for {kv_heads} KV heads, budget {budget} and pooling kernel {kernel} \
         exceed 2^64 bytes"
    )]
    TooLarge {
        /// Hkv.
        kv_heads: usize,
        /// K_l.
        budget: usize,
        /// Pooling kernel.
        kernel: usize,
    },

    /// A score is NaN or infinite: the layer's keys or queries are broken.
    #[error(
        "score of position {position} in score row {head} is {value}; \
         the layer's keys or queries hold values that are not finite"
    )]
    NonFiniteScore {
        /// Row of the score block: a KV head, or a query head when pooling comes
        /// before the group reduction.
        head: usize,
        /// Absolute position of the key.
        position: usize,
        /// The value.
        value: f32,
    },

    /// A scorer of the caller's own gave a score that is NaN or infinite, or left
    /// one out.
    #[error(
        "scorer `{scorer}` gave position {position} of KV head {head} the score {value}; \
         a scorer has to write every score, and each must be finite"
    )]
    FaultyScorer {
        /// Name of the scorer.
        scorer: String,
        /// KV head.
        head: usize,
        /// Absolute position of the key.
        position: usize,
        /// The value; NaN where none was written.
        value: f32,
    },

    /// The text form of a selector with a scorer from outside the library.
    #[error(
        "selector `{text}` names a scorer that a program brought along; \
         it can be set by that program only, not by its name"
    )]
    CustomScorer {
        /// The whole text.
        text: String,
    },

    /// A part of the text form is not of the shape `name` or `name(...)`.
    #[error("`{part}` in selector `{text}` is not of the form name or name(key=value,...)")]
    Malformed {
        /// The whole text.
        text: String,
        /// The offending part.
        part: String,
    },

    /// No scorer, preset or modifier has this name.
    #[error("unknown {kind} `{name}` in a selector; legal here: {legal}")]
    UnknownName {
        /// What was expected at this place.
        kind: &'static str,
        /// The name found.
        name: String,
        /// Comma-separated legal names.
        legal: String,
    },

    /// A parameter that the part does not have.
    #[error("`{part}` of a selector has no parameter `{name}`; legal: {legal}")]
    UnknownParameter {
        /// Name of the part.
        part: String,
        /// The parameter found.
        name: String,
        /// Comma-separated legal parameters.
        legal: String,
    },

    /// A parameter value that cannot be read.
    #[error("`{name}={value}` in `{part}` of a selector; legal values: {legal}")]
    BadValue {
        /// Name of the part.
        part: String,
        /// Name of the parameter.
        name: String,
        /// The value found.
        value: String,
        /// Comma-separated legal values.
        legal: String,
    },

    /// The same thing is said twice.
    #[error("`{name}` is given twice in selector `{text}`; say it once")]
    Repeated {
        /// The whole text.
        text: String,
        /// What is repeated.
        name: String,
    },
}
