//! A pool of threads over disjoint pieces of work.

use rayon::{ThreadPool, ThreadPoolBuildError, ThreadPoolBuilder};
use std::num::NonZeroUsize;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

/// Threads that take pieces of work from a shared queue. Which thread takes
/// which piece is not determined; no result depends on it.
pub(crate) struct Pool {
    threads: Option<ThreadPool>,
    n_threads: usize,
}

impl Pool {
    pub(crate) fn new(n_threads: NonZeroUsize) -> Result<Self, ThreadPoolBuildError> {
        let n_threads = n_threads.get();
        let build = || {
            ThreadPoolBuilder::new()
                .num_threads(n_threads)
                .thread_name(|index| format!("tidekv-{index}"))
                .build()
        };
        // One thread is the caller's own.
        let threads = if n_threads > 1 { Some(build()?) } else { None };
        Ok(Pool { threads, n_threads })
    }

    pub(crate) fn n_threads(&self) -> usize {
        self.n_threads
    }

    /// Runs `work` on a thread of the pool, from which [`Pool::each`] starts without a hand-over:
    /// one wait for the threads of other programs, not one per product.
    pub(crate) fn enter<R: Send>(&self, work: impl FnOnce() -> R + Send) -> R {
        match &self.threads {
            Some(threads) => threads.install(work),
            None => work(),
        }
    }

    /// Runs `work` once per item.
    pub(crate) fn each<T: Send>(
        &self,
        items: impl Iterator<Item = T> + Send,
        work: impl Fn(T) + Sync,
    ) {
        self.each_with(items, &mut [], |item, _| work(item));
    }

    /// Runs `work` once per item, with scratch that no other thread uses
    /// meanwhile: `scratch` is cut into one equal part per thread.
    pub(crate) fn each_with<T: Send>(
        &self,
        mut items: impl Iterator<Item = T> + Send,
        scratch: &mut [f32],
        work: impl Fn(T, &mut [f32]) + Sync,
    ) {
        let Some(threads) = &self.threads else {
            return items.for_each(|item| work(item, scratch));
        };
        let queue = Mutex::new(&mut items);
        let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).next();
        let part = scratch.len() / self.n_threads;
        let mut rest = scratch;
        threads.scope(|scope| {
            for _ in 0..self.n_threads {
                let (mine, others) = std::mem::take(&mut rest).split_at_mut(part);
                rest = others;
                let (next, work) = (&next, &work);
                scope.spawn(move |_| {
                    while let Some(item) = next() {
                        work(item, mine);
                    }
                });
            }
        });
    }
}

/// How rows are shared out: large tasks first, which use caches best, and ever
/// smaller ones towards the end, so that no thread waits long for another's
/// last task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shares {
    /// Tasks have a multiple of this many rows, the last one the remainder.
    pub(crate) least: usize,
    /// Rows of the largest task, a multiple of `least`.
    pub(crate) most: usize,
    /// Threads that take tasks.
    pub(crate) threads: usize,
}

impl Shares {
    /// Cuts `rows` rows into tasks: half of a thread's equal share of what is
    /// left at a time.
    pub(crate) fn of(self, rows: usize) -> impl Iterator<Item = Range<usize>> {
        let Shares { least, most, threads } = self;
        let mut start = 0;
        std::iter::from_fn(move || {
            let left = rows - start;
            let share = (left / (2 * threads)).next_multiple_of(least).clamp(least, most);
            let task = start..start + share.min(left);
            start = task.end;
            (!task.is_empty()).then_some(task)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_cover_the_rows_and_shrink_to_the_smallest() {
        for threads in 1..=5 {
            for rows in [0, 1, 5, 6, 7, 48, 511, 512, 8192] {
                let shares = Shares { least: 6, most: 48, threads };
                let tasks: Vec<_> = shares.of(rows).collect();
                assert!(tasks.is_sorted_by_key(|task| std::cmp::Reverse(task.len())));
                assert!(tasks.iter().all(|task| !task.is_empty() && task.len() <= 48));
                assert!(tasks.iter().rev().skip(1).all(|task| task.len() % 6 == 0));
                assert!(tasks.last().is_none_or(|task| task.len() <= 6));
                let cover: Vec<_> = tasks.into_iter().flatten().collect();
                assert_eq!(cover, (0..rows).collect::<Vec<_>>());
            }
        }
    }

    #[test]
    fn every_item_runs_once_with_scratch_of_its_own() {
        for n_threads in 1..=4 {
            let pool = Pool::new(NonZeroUsize::new(n_threads).unwrap()).unwrap();
            let mut done = vec![0u32; 1000];
            let mut scratch = vec![0.0; 16 * n_threads];
            pool.each_with(done.iter_mut().enumerate(), &mut scratch, |(index, cell), scratch| {
                scratch.fill(index as f32);
                std::thread::yield_now();
                assert!(scratch.iter().all(|&value| value == index as f32));
                *cell += 1 + index as u32;
            });
            assert!(done.iter().enumerate().all(|(index, &cell)| cell == 1 + index as u32));
        }
    }
}
