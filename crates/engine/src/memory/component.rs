//! The names under which memory is counted.
//!
//! One list serves code, tables and JSON, so that a figure in a report can be
//! searched for in the source. Next hop of a prompt: [`super::accountant`].

use std::fmt;
use std::ops::{Index, IndexMut};

/// What a block of memory is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Component {
    /// Weights and constants held in memory (norm vectors, biases).
    Weights,
    /// File-backed weights. The system can evict them at any time, so they are
    /// reported apart and never part of a total.
    WeightsMapped,
    /// Prompt token ids.
    Tokens,
    /// The hidden-state bridge between layers, `[S, d_model]`.
    Bridge,
    /// Uncompressed K/V of the layers that are being built.
    ActiveKv,
    /// Attention and MLP activations of one chunk.
    Activation,
    /// Queries of the observation window, `[Hq, W, D]` f32.
    Observation,
    /// Packed weights, attention and score blocks, selection lists.
    Scratch,
    /// Compressed K/V of completed layers.
    RetainedKv,
    /// Absolute positions of retained rows.
    Positions,
    /// Room for the K/V of generated tokens.
    DecodeTail,
    /// One row of logits, `[vocab]` f32.
    Logits,
}

impl Component {
    /// Number of components.
    pub const COUNT: usize = 12;

    /// Every component, in report order.
    pub const ALL: [Component; Self::COUNT] = [
        Component::Weights,
        Component::WeightsMapped,
        Component::Tokens,
        Component::Bridge,
        Component::ActiveKv,
        Component::Activation,
        Component::Observation,
        Component::Scratch,
        Component::RetainedKv,
        Component::Positions,
        Component::DecodeTail,
        Component::Logits,
    ];

    /// The name used in tables and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Component::Weights => "weights",
            Component::WeightsMapped => "weights_mapped",
            Component::Tokens => "tokens",
            Component::Bridge => "bridge",
            Component::ActiveKv => "active_kv",
            Component::Activation => "activation",
            Component::Observation => "observation",
            Component::Scratch => "scratch",
            Component::RetainedKv => "retained_kv",
            Component::Positions => "positions",
            Component::DecodeTail => "decode_tail",
            Component::Logits => "logits",
        }
    }

    /// Whether the component is still held when prefill has ended. The rest of
    /// the peak is the *transient* footprint (the paper's Fig. 5 quantity).
    pub fn outlives_prefill(self) -> bool {
        matches!(
            self,
            Component::Weights
                | Component::Tokens
                | Component::RetainedKv
                | Component::Positions
                | Component::DecodeTail
        )
    }
}

impl fmt::Display for Component {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Bytes per component.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Breakdown([u64; Component::COUNT]);

impl Breakdown {
    /// Sum over everything TideKV allocates: all components but the mapped
    /// weights. Saturates, so that an absurd shape stays absurd.
    pub fn total(&self) -> u64 {
        self.iter()
            .filter(|(component, _)| *component != Component::WeightsMapped)
            .fold(0, |sum, (_, bytes)| u64::saturating_add(sum, bytes))
    }

    /// Bytes that outlive prefill; see [`Component::outlives_prefill`].
    pub fn held(&self) -> u64 {
        self.iter()
            .filter(|(component, _)| component.outlives_prefill())
            .fold(0, |sum, (_, bytes)| u64::saturating_add(sum, bytes))
    }

    /// Components with their bytes, in report order.
    pub fn iter(&self) -> impl Iterator<Item = (Component, u64)> + '_ {
        Component::ALL.iter().map(|&component| (component, self[component]))
    }

    /// Raises each component to the larger of both.
    pub(crate) fn raise_to(&mut self, other: &Breakdown) {
        for (mine, theirs) in self.0.iter_mut().zip(other.0) {
            *mine = (*mine).max(theirs);
        }
    }
}

impl Index<Component> for Breakdown {
    type Output = u64;
    fn index(&self, component: Component) -> &u64 {
        &self.0[component as usize]
    }
}

impl IndexMut<Component> for Breakdown {
    fn index_mut(&mut self, component: Component) -> &mut u64 {
        &mut self.0[component as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_lists_each_component_at_its_index() {
        for (index, component) in Component::ALL.into_iter().enumerate() {
            assert_eq!(component as usize, index, "{component}");
        }
    }

    #[test]
    fn total_leaves_mapped_weights_out() {
        let mut bytes = Breakdown::default();
        bytes[Component::WeightsMapped] = 100;
        bytes[Component::Bridge] = 7;
        bytes[Component::RetainedKv] = 5;
        assert_eq!(bytes.total(), 12);
        assert_eq!(bytes.held(), 5);
    }
}
