//! Streaming top-k under a strict total order.

use crate::position::Pos;
use std::cmp::Ordering;
use std::collections::BinaryHeap;

/// A scored position of one head.
///
/// The order is by *rank*: `a < b` means that a is chosen before b, that is, a
/// has the higher score or, on equal scores (-0.0 and +0.0 are equal), the lower
/// position. It is total, because scores are
/// finite by the time they arrive, so top-k does not depend on how the stream is
/// cut.
#[derive(Debug, Clone, Copy)]
pub(super) struct Candidate {
    /// Pooled score.
    pub score: f32,
    /// Absolute position.
    pub position: Pos,
}

impl Ord for Candidate {
    fn cmp(&self, other: &Self) -> Ordering {
        other
            .score
            .partial_cmp(&self.score)
            .unwrap_or(Ordering::Equal)
            .then(self.position.cmp(&other.position))
    }
}

impl PartialOrd for Candidate {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Candidate {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Candidate {}

/// The k smallest entries of a stream (the best ranked, for [`Candidate`]s), in
/// memory allocated once.
#[derive(Debug)]
pub(super) struct TopK<E> {
    /// The last ranked of the entries kept is at the root.
    entries: BinaryHeap<E>,
    k: usize,
}

impl<E: Ord> TopK<E> {
    /// Room for exactly `k` entries.
    pub fn new(k: usize) -> Self {
        TopK { entries: BinaryHeap::with_capacity(k), k }
    }

    /// Bytes of the entries, or `None` beyond 64 bits.
    pub fn bytes(k: usize) -> Option<u64> {
        u64::try_from(k).ok()?.checked_mul(size_of::<E>() as u64)
    }

    /// Keeps `entry` if it ranks among the first k so far.
    pub fn offer(&mut self, entry: E) {
        if self.entries.len() < self.k {
            self.entries.push(entry);
        } else if let Some(mut last) = self.entries.peek_mut()
            && entry < *last
        {
            *last = entry;
        }
    }

    /// The entries kept, in no particular order; none are left.
    pub fn drain(&mut self) -> impl Iterator<Item = E> + '_ {
        self.entries.drain()
    }

    /// Entries allocated.
    #[cfg(test)]
    pub fn capacity(&self) -> usize {
        self.entries.capacity()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn top(k: usize, scores: &[f32]) -> Vec<u32> {
        let mut best = TopK::new(k);
        for (position, &score) in (0u32..).zip(scores) {
            best.offer(Candidate { score, position: Pos(position) });
        }
        let mut positions: Vec<u32> = best.drain().map(|c| c.position.0).collect();
        positions.sort_unstable();
        positions
    }

    #[test]
    fn keeps_the_highest_scores() {
        assert_eq!(top(3, &[0.1, 0.5, 0.3, 0.4, 0.2]), [1, 2, 3]);
        assert_eq!(top(9, &[0.1, 0.5]), [0, 1]);
        assert_eq!(top(0, &[0.1, 0.5]), [0u32; 0]);
    }

    #[test]
    fn ties_go_to_the_lower_position() {
        assert_eq!(top(2, &[0.5; 5]), [0, 1]);
        assert_eq!(top(2, &[0.1, 0.5, 0.5, 0.5]), [1, 2]);
    }

    #[test]
    fn zeros_of_both_signs_are_equal() {
        assert_eq!(top(2, &[-0.0, 0.0, -0.0, 0.0]), [0, 1]);
        assert_eq!(top(1, &[-0.0, 0.0]), [0]);
    }

    #[test]
    fn order_of_arrival_does_not_matter() {
        let scores = [0.25, 0.5, 0.25, 0.5, 0.125, 0.25];
        let mut best = TopK::new(3);
        for position in [5u32, 2, 3, 0, 4, 1] {
            let score = scores[position as usize];
            best.offer(Candidate { score, position: Pos(position) });
        }
        let mut positions: Vec<u32> = best.drain().map(|c| c.position.0).collect();
        positions.sort_unstable();
        assert_eq!(positions, [0, 1, 3]);
    }

    #[test]
    fn memory_is_exact_and_does_not_grow() {
        let mut best = TopK::new(5);
        assert_eq!(best.capacity(), 5);
        for position in 0..100 {
            best.offer(Candidate { score: position as f32, position: Pos(position) });
        }
        assert_eq!(best.capacity(), 5);
        assert_eq!(TopK::<Candidate>::bytes(5), Some(40));
        assert_eq!(TopK::<Candidate>::bytes(usize::MAX), None);
    }
}
