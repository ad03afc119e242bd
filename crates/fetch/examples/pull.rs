//! `cargo run --release -p tidekv-fetch --example pull -- MODEL`: pulls a model
//! and says where it is.

use std::process::ExitCode;
use std::time::Instant;

use tidekv_fetch::{ModelRef, Progress, pull};

/// Messages and whole tenths of the way to standard error.
#[derive(Default)]
struct Lines {
    tenths: u64,
}

impl Progress for Lines {
    fn message(&mut self, text: &str) {
        eprintln!("{text}");
        self.tenths = 0;
    }

    fn bytes(&mut self, done: u64, total: u64) {
        let tenths = (done * 10).checked_div(total).unwrap_or(0);
        if tenths > self.tenths {
            self.tenths = tenths;
            eprintln!("  {} of {} MB", done / 1_000_000, total / 1_000_000);
        }
    }
}

fn main() -> ExitCode {
    let Some(text) = std::env::args().nth(1) else {
        eprintln!("usage: pull MODEL");
        return ExitCode::from(2);
    };
    let start = Instant::now();
    match ModelRef::parse(&text).and_then(|model| pull(&model, &mut Lines::default())) {
        Ok(pulled) => {
            eprintln!("{pulled:#?}\n{:.1} s", start.elapsed().as_secs_f64());
            println!("{}", pulled.path.display());
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
