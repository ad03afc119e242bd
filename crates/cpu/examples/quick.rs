//! Quick look.
#![allow(clippy::unwrap_used)]
use std::num::NonZeroUsize;
use tidekv::schedule::*;
use tidekv::*;
use tidekv_cpu::*;
fn main() {
    let mut args = std::env::args().skip(1);
    let path = args.next().unwrap();
    let n: usize = args.next().unwrap().parse().unwrap();
    let chunk: usize = args.next().unwrap().parse().unwrap();
    let kind: ScheduleKind = args.next().unwrap().parse().unwrap();
    let model = Model::open(path.as_ref(), None).unwrap();
    let engine = Engine::new(model, Cpu::new(CpuConfig::default()).unwrap()).unwrap();
    let ids: Vec<u32> = if n == 0 {
        engine.tokenizer().encode("The capital of France is", text::Specials::AsText).unwrap()
    } else {
        (0..n as u32).map(|i| (i * 7919 + 13) % 40000).collect()
    };
    let config = RunConfig {
        schedule: kind.with_chunk(NonZeroUsize::new(chunk).unwrap()),
        budget: 512,
        max_new_tokens: 24,
        ..Default::default()
    };
    struct T(std::time::Instant, std::collections::BTreeMap<&'static str, f64>);
    impl Observer for T {
        fn before(&mut self, _: &Step, _: &Progress, _: &dyn Tap) -> std::ops::ControlFlow<()> {
            self.0 = std::time::Instant::now();
            std::ops::ControlFlow::Continue(())
        }
        fn after(&mut self, s: &Step, _: &memory::StepMemory, _: &dyn Tap) {
            *self.1.entry(s.name()).or_default() += self.0.elapsed().as_secs_f64();
        }
    }
    let mut t = T(std::time::Instant::now(), Default::default());
    let start = std::time::Instant::now();
    let mut s = engine.prefill(&ids, &config, &mut t).unwrap();
    println!("prefill {:?} {:?}", start.elapsed(), t.1);
    println!(
        "plan {} acc {} transient {}",
        s.plan().peak_bytes(),
        s.accountant().peak().bytes.total(),
        s.plan().transient_bytes()
    );
    let start = std::time::Instant::now();
    let mut k = 0;
    for p in s.generate(GenerateConfig::default()).unwrap() {
        print!("{}", p.unwrap().text);
        k += 1;
    }
    println!("\n{k} {:?}", start.elapsed());
}
