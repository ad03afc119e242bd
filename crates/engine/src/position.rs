//! Positions and rows: two numbers that must not be mixed up.
//!
//! After eviction the `j`-th retained row of a head is, in general, *not* the
//! prompt's `j`-th token. Rotary embedding, causal masks and selection speak of
//! positions; buffers are indexed by rows. Taking the number of retained rows
//! for the position of the next token is the commonest eviction bug: the output
//! stays fluent and is wrong. So the two are different types, and nothing
//! converts one into the other: the retained cache looks a row's position up.
//!
//! ```compile_fail
//! use tidekv::position::{Pos, Row};
//! let next: Pos = Row(4096).into(); // rows retained, not tokens seen
//! ```

use std::fmt;

/// Absolute position of a token in its sequence, from 0. Kept by a key for
/// life: the first generated token sits at position S whatever was evicted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct Pos(pub u32);

/// Index of a row in retained storage, from 0. Changes meaning at eviction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct Row(pub u32);

impl Pos {
    /// The position as an index into per-position storage.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl Row {
    /// The row as an index into per-row storage.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for Pos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "position {}", self.0)
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "row {}", self.0)
    }
}
