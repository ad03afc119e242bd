#![allow(clippy::unwrap_used, reason = "a test may panic")]

use super::*;
use crate::backend::Sizes;
use crate::dry::Dry;
use crate::element::Element;
use std::fs::{self, File};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tidekv_format::{FormatError, GgufModel};

/// Buffers of no size: nothing is computed here.
struct NoSizes;

impl Sizes for NoSizes {
    fn active_half(&self, _: &Shape, _: Element, _: usize) -> u64 {
        0
    }

    fn activation(&self, _: &Shape, _: usize) -> u64 {
        0
    }

    fn scratch(&self, _: &Shape, _: usize) -> u64 {
        0
    }

    fn decode_scratch(&self, _: &Shape) -> u64 {
        0
    }
}

/// Cuts the model file to nothing before a step, and counts the steps.
struct Truncate {
    file: PathBuf,
    before_step: usize,
    begun: usize,
}

impl Observer for Truncate {
    fn before(&mut self, _: &Step, _: &Progress, _: &dyn Tap) -> ControlFlow<()> {
        if self.begun == self.before_step {
            File::options().write(true).open(&self.file).unwrap().set_len(0).unwrap();
        }
        self.begun += 1;
        ControlFlow::Continue(())
    }
}

/// A GGUF file without keys and tensors: magic, version 3, two counts of zero.
fn write_empty_model(path: &Path) {
    let header = [&b"GGUF"[..], &3u32.to_le_bytes(), &[0; 16]].concat();
    fs::write(path, header).unwrap();
}

#[test]
fn a_file_that_is_truncated_under_a_run_stops_it_before_the_next_step() {
    let shape = &Shape::named("llama-3.1-8b").unwrap();
    let config = &RunConfig::default();
    let tokens = [0; 100];
    let n_steps = config.schedule.steps(shape.n_layers, &[tokens.len()]).count();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.gguf");
    for before_step in [0, 1, n_steps / 2, n_steps - 1, n_steps] {
        write_empty_model(&path);
        let (_, store) = GgufModel::open(&path).unwrap().into_parts();
        let device = Device {
            backend: &Dry::new(Arc::new(NoSizes)),
            weights: &(),
            weight_bytes: WeightBytes { held: 0, mapped: 0 },
            shape,
            rotations: &[Rotations::none()],
            files: Some(&store),
        };
        let mut observer = Truncate { file: path.clone(), before_step, begun: 0 };
        let run = prefill(&device, config, &Accountant::new(None), &[&tokens], &mut observer);
        if before_step == n_steps {
            assert!(run.is_ok(), "an untouched file was refused");
            continue;
        }
        assert_eq!(observer.begun, before_step + 1, "it went on");
        match run.err() {
            Some(Error::Format(error @ FormatError::Changed { opened: 24, now: 0, .. })) => {
                assert!(error.to_string().contains("model.gguf"), "{error}");
            }
            other => panic!("step {before_step}: {other:?}"),
        }
    }
}
