//! The steps of a schedule. The loops over layers, chunks and sequences live
//! here and nowhere else.

use super::{Chunk, Schedule};

/// Consecutive prompt rows of one chunk: positions `start..start + len`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Span {
    /// Absolute position of the first row.
    pub start: usize,
    /// Number of rows, at least 1.
    pub len: usize,
}

impl Span {
    /// One past the last position.
    pub fn end(&self) -> usize {
        self.start + self.len
    }
}

/// One unit of prefill work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Step {
    /// Token embeddings of a chunk go into the bridge.
    Embed {
        /// Sequence of the batch.
        seq: usize,
        /// Rows.
        chunk: Span,
    },
    /// One chunk passes through one layer.
    Layer {
        /// Sequence of the batch.
        seq: usize,
        /// Layer.
        layer: usize,
        /// Rows.
        chunk: Span,
    },
    /// The layer's rows to keep are chosen (all of them when the schedule never
    /// evicts), gathered into the retained cache, and the full K/V released.
    Evict {
        /// Sequence of the batch.
        seq: usize,
        /// Layer.
        layer: usize,
    },
    /// Logits of the prompt's last token.
    Head {
        /// Sequence of the batch.
        seq: usize,
    },
}

impl Step {
    /// Short name of the kind of step.
    pub fn name(&self) -> &'static str {
        match self {
            Step::Embed { .. } => "embed",
            Step::Layer { .. } => "layer",
            Step::Evict { .. } => "evict",
            Step::Head { .. } => "head",
        }
    }

    /// Sequence of the batch that the step belongs to.
    pub fn seq(&self) -> usize {
        match *self {
            Step::Embed { seq, .. }
            | Step::Layer { seq, .. }
            | Step::Evict { seq, .. }
            | Step::Head { seq } => seq,
        }
    }

    /// Layer of the step, if it belongs to one.
    pub fn layer(&self) -> Option<usize> {
        match *self {
            Step::Layer { layer, .. } | Step::Evict { layer, .. } => Some(layer),
            Step::Embed { .. } | Step::Head { .. } => None,
        }
    }
}

impl Chunk {
    /// Chunks of a prompt of `n_tokens` tokens in causal order.
    fn spans(self, n_tokens: usize) -> impl Iterator<Item = Span> + Clone {
        let size = self.rows(n_tokens).max(1);
        (0..n_tokens)
            .step_by(size)
            .map(move |start| Span { start, len: size.min(n_tokens - start) })
    }
}

impl Schedule {
    /// All steps of a prefill of sequences with `n_tokens` tokens each through
    /// `n_layers` layers. In layer-major order the sequences take turns inside
    /// a layer, so that one sequence's full K/V is active at a time.
    pub fn steps<'a>(
        &self,
        n_layers: usize,
        n_tokens: &'a [usize],
    ) -> Box<dyn Iterator<Item = Step> + 'a> {
        self.steps_of_chunks(n_layers, n_tokens, usize::MAX)
    }

    /// Those of [`Schedule::steps`], in the same order, that are not of a later
    /// chunk than a sequence's first: how many there are does not depend on the
    /// sequences' lengths.
    pub(crate) fn first_steps<'a>(
        &self,
        n_layers: usize,
        n_tokens: &'a [usize],
    ) -> Box<dyn Iterator<Item = Step> + 'a> {
        self.steps_of_chunks(n_layers, n_tokens, 1)
    }

    /// The steps with at most `n_chunks` chunks of every sequence.
    fn steps_of_chunks<'a>(
        &self,
        n_layers: usize,
        n_tokens: &'a [usize],
        n_chunks: usize,
    ) -> Box<dyn Iterator<Item = Step> + 'a> {
        let chunk = self.chunk();
        let spans = move |seq: usize| chunk.spans(n_tokens[seq]).take(n_chunks);
        let seqs = 0..n_tokens.len();
        let embed = move |seq: usize| spans(seq).map(move |chunk| Step::Embed { seq, chunk });
        match self {
            Schedule::LayerMajor { .. } => {
                let turn = move |layer: usize, seq: usize| {
                    spans(seq)
                        .map(move |chunk| Step::Layer { seq, layer, chunk })
                        .chain(std::iter::once(Step::Evict { seq, layer }))
                };
                let layers = (0..n_layers).flat_map(move |layer| {
                    (0..n_tokens.len()).flat_map(move |seq| turn(layer, seq))
                });
                let heads = seqs.clone().map(|seq| Step::Head { seq });
                Box::new(seqs.flat_map(embed).chain(layers).chain(heads))
            }
            Schedule::ChunkMajor { .. } => {
                let through = move |seq: usize, chunk: Span| {
                    std::iter::once(Step::Embed { seq, chunk })
                        .chain((0..n_layers).map(move |layer| Step::Layer { seq, layer, chunk }))
                };
                Box::new(seqs.flat_map(move |seq| {
                    spans(seq)
                        .flat_map(move |chunk| through(seq, chunk))
                        .chain((0..n_layers).map(move |layer| Step::Evict { seq, layer }))
                        .chain(std::iter::once(Step::Head { seq }))
                }))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::schedule::{ScheduleKind, Span, Step};
    use std::num::NonZeroUsize;

    fn steps(kind: ScheduleKind, chunk: usize, layers: usize, tokens: &[usize]) -> Vec<Step> {
        let chunk = NonZeroUsize::new(chunk).unwrap();
        kind.with_chunk(chunk).steps(layers, tokens).collect()
    }

    #[test]
    fn layer_major_finishes_a_layer_before_the_next() {
        let span = |start, len| Span { start, len };
        let expected = [
            Step::Embed { seq: 0, chunk: span(0, 4) },
            Step::Embed { seq: 0, chunk: span(4, 1) },
            Step::Layer { seq: 0, layer: 0, chunk: span(0, 4) },
            Step::Layer { seq: 0, layer: 0, chunk: span(4, 1) },
            Step::Evict { seq: 0, layer: 0 },
            Step::Layer { seq: 0, layer: 1, chunk: span(0, 4) },
            Step::Layer { seq: 0, layer: 1, chunk: span(4, 1) },
            Step::Evict { seq: 0, layer: 1 },
            Step::Head { seq: 0 },
        ];
        assert_eq!(steps(ScheduleKind::Tide, 4, 2, &[5]), expected);
    }

    #[test]
    fn chunk_major_finishes_a_chunk_before_the_next() {
        let kinds: Vec<_> = steps(ScheduleKind::ChunkedPost, 4, 2, &[5])
            .iter()
            .map(|step| (step.name(), step.layer()))
            .collect();
        let chunk = [("embed", None), ("layer", Some(0)), ("layer", Some(1))];
        let end = [("evict", Some(0)), ("evict", Some(1)), ("head", None)];
        assert_eq!(kinds, [&chunk[..], &chunk[..], &end[..]].concat());
    }

    #[test]
    fn whole_prompt_is_one_chunk_and_sequences_take_turns_inside_a_layer() {
        let all = steps(ScheduleKind::PostPrefill, 4, 2, &[5, 3]);
        let turns: Vec<_> = all
            .iter()
            .filter_map(|step| match *step {
                Step::Layer { seq, layer, chunk } => Some((layer, seq, chunk.start, chunk.len)),
                _ => None,
            })
            .collect();
        assert_eq!(turns, [(0, 0, 0, 5), (0, 1, 0, 3), (1, 0, 0, 5), (1, 1, 0, 3)]);
    }

    #[test]
    fn the_first_steps_are_those_of_no_later_chunk() {
        let first = |step: &Step| match step {
            Step::Embed { chunk, .. } | Step::Layer { chunk, .. } => chunk.start == 0,
            Step::Evict { .. } | Step::Head { .. } => true,
        };
        for kind in ScheduleKind::ALL {
            for tokens in [&[1][..], &[9], &[4, 12, 1]] {
                let expected: Vec<_> =
                    steps(kind, 4, 3, tokens).into_iter().filter(first).collect();
                let schedule = kind.with_chunk(NonZeroUsize::new(4).unwrap());
                assert_eq!(schedule.first_steps(3, tokens).collect::<Vec<_>>(), expected);
            }
        }
    }

    #[test]
    fn every_row_passes_every_layer_once_in_causal_order() {
        for kind in ScheduleKind::ALL {
            for tokens in [1, 3, 4, 5, 8, 9] {
                let mut next = [0; 3];
                for step in steps(kind, 4, 3, &[tokens]) {
                    if let Step::Layer { layer, chunk, .. } = step {
                        assert_eq!(chunk.start, next[layer], "{kind} {tokens}");
                        next[layer] = chunk.end();
                    }
                }
                assert_eq!(next, [tokens; 3], "{kind}");
            }
        }
    }
}
