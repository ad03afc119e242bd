//! Sessions that are fed together, and answers that grow together: each has the
//! bits that it has alone, in whatever company, and no one's failure is another's.

// clippy.toml exempts #[test] functions; the rest of a test binary is test code too.
#![allow(clippy::unwrap_used)]

mod rig {
    pub mod device;
    pub mod tiny;
}

use rig::device::engine;
use rig::tiny::{TinyFile, prompt};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tidekv::backend::BackendError;
use tidekv::sample::SampleConfig;
use tidekv::{
    Element, Engine, Error, FinishReason, Generate, GenerateConfig, Piece, RunConfig, Session,
    Unobserved, feed_together, next_together,
};
use tidekv_cpu::{Cpu, Isa};
use tidekv_format::TensorType;
use tidekv_testkit::compare::assert_bits_eq;
use tidekv_testkit::{Head, MatrixTypes, TinySpec, tiny_families, tiny_llama, tiny_qwen2};

/// Tokens fed after each prompt.
const FED: usize = 6;

/// Settings of runs that differ in what they keep and in which type.
fn configs() -> [RunConfig; 3] {
    [(24, Element::Bf16), (64, Element::F32), (4096, Element::F16)].map(|(budget, kv)| RunConfig {
        selector: "observation(window=8,kernel=5,pool=max)+sinks(2)".parse().unwrap(),
        budget,
        kv,
        max_new_tokens: FED,
        ..RunConfig::default()
    })
}

/// One session per prompt, of batches with different settings.
fn sessions<'e>(engine: &'e Engine<Cpu>, spec: &TinySpec) -> Vec<Session<'e, Cpu>> {
    let lengths: [&[usize]; 3] = [&[129, 1, 40], &[300], &[129, 5]];
    let batches = configs().into_iter().zip(lengths).zip([1, 10, 20]);
    let read = |((config, lengths), seed): ((RunConfig, &[usize]), u64)| {
        let prompts: Vec<Vec<u32>> =
            (seed..).zip(lengths).map(|(seed, &n)| prompt(seed, spec.vocab, n)).collect();
        let prompts: Vec<&[u32]> = prompts.iter().map(Vec::as_slice).collect();
        engine.prefill_batch(&prompts, &config, &mut Unobserved).unwrap()
    };
    batches.flat_map(read).collect()
}

/// The token that is fed to a session in a step.
fn token(session: usize, step: usize) -> u32 {
    (37 * session + 11 * step + 4) as u32
}

/// Feeds the sessions that `company` names their tokens of `step`.
fn feed(sessions: &mut [Session<'_, Cpu>], company: impl Fn(usize) -> bool) -> Result<(), Error> {
    let all = sessions.iter_mut().enumerate().filter(|(index, _)| company(*index));
    let feeds = all.map(|(index, session)| {
        let token = token(index, session.fed().len());
        (session, token)
    });
    feed_together(&mut feeds.collect::<Vec<_>>())
}

/// Logits after each step of each session, fed alone.
fn alone(sessions: &mut [Session<'_, Cpu>]) -> Vec<Vec<Vec<f32>>> {
    let all = sessions.iter_mut().enumerate().map(|(index, session)| {
        let steps = (0..FED).map(|step| {
            session.feed(token(index, step)).unwrap();
            session.logits()
        });
        steps.collect()
    });
    all.collect()
}

/// Every family, and matrices of quantised types.
fn specs() -> Vec<TinySpec> {
    let quantised = [TensorType::Q8_0, TensorType::Q5_0].map(|ty| TinySpec {
        d_ff: 224,
        types: MatrixTypes::all(ty),
        ..tiny_llama(54)
    });
    tiny_families(61).into_iter().chain(quantised).collect()
}

#[test]
fn every_session_has_the_bits_that_it_has_alone_in_any_company() {
    for spec in specs() {
        let file = TinyFile::write(&spec.writer());
        for isa in Isa::available() {
            for threads in 1..=3 {
                let engine = engine(file.path(), threads, Some(isa.tier()));
                let expected = alone(&mut sessions(&engine, &spec));
                let mut together = sessions(&engine, &spec);
                let n = together.len();
                let before: Vec<_> = together.iter().map(|s| s.accountant().live()).collect();
                let what = format!("{}, {}, {threads} threads", spec.arch.name(), isa.name());
                let mut round = 0usize;
                while together.iter().any(|session| session.fed().len() < FED) {
                    // All, then one less in turn, then pairs, then one.
                    let left: Vec<bool> = together.iter().map(|s| s.fed().len() < FED).collect();
                    let company = |index: usize| {
                        left[index]
                            && match round % 4 {
                                0 => true,
                                1 => index != round / 4 % n,
                                2 => index % 3 == round / 4 % 3,
                                _ => index == round / 4 % n,
                            }
                    };
                    let fed: Vec<usize> = together.iter().map(|s| s.fed().len()).collect();
                    feed(&mut together, company).unwrap();
                    for (index, session) in together.iter().enumerate() {
                        let step = fed[index] + usize::from(company(index));
                        assert_eq!(session.fed().len(), step, "{what}");
                        if step > 0 {
                            let what = format!("{what}, session {index}, step {step}");
                            assert_bits_eq(&session.logits(), &expected[index][step - 1], &what);
                        }
                    }
                    round += 1;
                }
                // Everything that decoding needs was there before.
                let after: Vec<_> = together.iter().map(|s| s.accountant().live()).collect();
                assert_eq!(after, before, "{what}");
            }
        }
    }
}

fn failed(result: Result<(), Error>) -> Vec<(usize, Error)> {
    match result {
        Err(Error::OfSessions { failed, n_sessions: 6 }) => failed,
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_cannot_be_fed_is_refused_before_anything_is() {
    let spec = tiny_qwen2(62);
    let file = TinyFile::write(&spec.writer());
    let (first, second) = (engine(file.path(), 2, None), engine(file.path(), 2, None));
    let mut ours = sessions(&first, &spec);
    let before: Vec<Vec<f32>> = ours.iter().map(Session::logits).collect();
    for step in 0..FED {
        ours[4].feed(token(4, step)).unwrap();
    }
    let full = ours[4].logits();
    let mut theirs = sessions(&second, &spec);
    {
        let (last, others) = ours.split_last_mut().unwrap();
        let mut feeds: Vec<_> = others.iter_mut().map(|session| (session, 1)).collect();
        feeds[2].1 = spec.vocab as u32;
        feeds.push((&mut theirs[0], 1));
        let errors = failed(feed_together(&mut feeds));
        let text = Error::OfSessions { failed: errors, n_sessions: 6 }.to_string();
        let expected = [
            "session 3 of 6: token id 288 at index 0",
            "; session 5 of 6: max_new_tokens = 6: is used up",
            "; session 6 of 6: the session belongs to another engine",
        ];
        assert!(expected.iter().all(|part| text.contains(part)), "{text}");
        assert_eq!(text.matches("session ").count() - text.matches("the session ").count(), 3);
        // The number is that of the session, however few there are.
        let alone = feed_together(&mut [(last, spec.vocab as u32)]);
        assert!(matches!(alone, Err(Error::OfSessions { n_sessions: 1, .. })), "{alone:?}");
    }
    for (index, session) in ours.iter().enumerate() {
        let logits = if index == 4 { &full } else { &before[index] };
        assert_bits_eq(&session.logits(), logits, "nothing was fed");
        assert_eq!(session.fed().len(), if index == 4 { FED } else { 0 });
    }
    assert!(theirs[0].fed().is_empty());
    assert!(feed_together::<Cpu>(&mut []).is_ok());
    assert!(next_together::<Cpu>(&mut []).is_empty());
}

const FAULTY: u32 = 77;

/// A model that cannot read [`FAULTY`].
fn faulty(spec: &TinySpec) -> TinyFile {
    let index = FAULTY as usize * spec.d_model + 5;
    TinyFile::with_value(spec, "token_embd.weight", (index, f32::NAN))
}

/// Sessions whose prompts the faulty model can read.
fn sound<'e>(
    engine: &'e Engine<Cpu>,
    spec: &TinySpec,
    config: &RunConfig,
) -> Vec<Session<'e, Cpu>> {
    let mut prompts: Vec<Vec<u32>> = [60, 1, 200, 33, 90]
        .iter()
        .zip(5..)
        .map(|(&n, seed)| prompt(seed, spec.vocab, n))
        .collect();
    prompts.iter_mut().flatten().filter(|id| **id == FAULTY).for_each(|id| *id = 0);
    let prompts: Vec<&[u32]> = prompts.iter().map(Vec::as_slice).collect();
    engine.prefill_batch(&prompts, config, &mut Unobserved).unwrap()
}

#[test]
fn numbers_that_overflow_in_one_session_are_no_other_sessions() {
    let spec = tiny_qwen2(63);
    let file = faulty(&spec);
    let engine = engine(file.path(), 2, None);
    let config = RunConfig { max_new_tokens: FED, ..RunConfig::default() };
    let alone = alone(&mut sound(&engine, &spec, &config));
    let of_step = |step: usize| alone.iter().map(move |steps| steps[step].as_slice());
    let mut together = sound(&engine, &spec, &config);
    let positions: Vec<usize> = together.iter().map(|s| s.next_position().index()).collect();
    for step in 0..FED {
        // Two of five fail in this step, then take the token they should have had.
        let bad = [step % 5, (step + 2) % 5];
        let feeds = together.iter_mut().enumerate().map(|(index, session)| {
            let token = if bad.contains(&index) { FAULTY } else { token(index, step) };
            (session, token)
        });
        let Err(Error::OfSessions { failed, n_sessions: 5 }) =
            feed_together(&mut feeds.collect::<Vec<_>>())
        else {
            panic!("no error")
        };
        let mut named: Vec<usize> = failed.iter().map(|(index, _)| *index).collect();
        for (index, error) in failed {
            let (place, position) = ("the logits".to_owned(), positions[index] + step);
            let at = BackendError::NonFinite { place, position };
            assert!(matches!(error, Error::Backend(error) if error == at));
        }
        named.sort_unstable();
        let mut sorted = bad;
        sorted.sort_unstable();
        assert_eq!(named, sorted);
        for ((index, session), expected) in together.iter_mut().enumerate().zip(of_step(step)) {
            let fed = if bad.contains(&index) { step } else { step + 1 };
            assert_eq!(session.fed().len(), fed);
            if fed == step {
                session.feed(token(index, step)).unwrap();
            }
            assert_bits_eq(&session.logits(), expected, "after the failure");
        }
    }
}

/// What an answer came to.
#[derive(Debug, PartialEq)]
struct Outcome {
    pieces: Vec<Piece>,
    error: Option<String>,
    finish: Option<FinishReason>,
    fed: Vec<u32>,
}

impl Outcome {
    fn text(&self) -> String {
        self.pieces.iter().map(|piece| piece.text.as_str()).collect()
    }
}

/// Settings of five answers: with seeds and `stops`, the second with a token that it
/// begins with, the fourth with log-probabilities, the last without an end of its own,
/// to be cancelled behind its fourth piece.
fn settings(
    engine: &Engine<Cpu>,
    stops: [&str; 5],
    begin: Option<u32>,
) -> (Vec<GenerateConfig>, Arc<AtomicBool>) {
    let cancel = Arc::new(AtomicBool::new(false));
    let tokenizer = engine.tokenizer().unwrap();
    let ends = (0..engine.model().spec.shape.vocab as u32).filter(|&id| tokenizer.is_eos(id));
    let endless: Vec<(u32, f32)> = ends.map(|id| (id, f32::NEG_INFINITY)).collect();
    const NEVER: (u32, f32) = (FAULTY, f32::NEG_INFINITY);
    let config = |(index, stop): (usize, &str)| GenerateConfig {
        sample: SampleConfig {
            temperature: if index == 0 { 0.0 } else { 0.9 },
            seed: 40 + index as u64,
            logit_bias: match index {
                1 => begin.map(|id| (id, 50.0)).into_iter().collect(),
                4 => [&endless[..], &[NEVER]].concat(),
                _ => vec![NEVER],
            },
            ..SampleConfig::default()
        },
        stop: Some(stop).filter(|stop| !stop.is_empty()).map(str::to_owned).into_iter().collect(),
        logprobs: (index == 3).then_some(2),
        cancel: if index == 4 { Arc::clone(&cancel) } else { Arc::default() },
    };
    (stops.into_iter().enumerate().map(config).collect(), cancel)
}

const CANCELLED_BEHIND: usize = 4;

/// The answers of sessions, in groups that take turns.
fn outcomes(
    sessions: &mut [Session<'_, Cpu>],
    (configs, cancel): (Vec<GenerateConfig>, Arc<AtomicBool>),
    groups: &[&[usize]],
) -> Vec<Outcome> {
    let start = |(session, config)| Session::generate(session, config).unwrap();
    let mut answers: Vec<Generate<'_, '_, Cpu>> =
        sessions.iter_mut().zip(configs).map(start).collect();
    let mut pieces = vec![Vec::new(); answers.len()];
    let mut errors = vec![None; answers.len()];
    let mut over = vec![false; answers.len()];
    while over.contains(&false) {
        for group in groups {
            let mut all: Vec<(usize, &mut Generate<'_, '_, Cpu>)> =
                answers.iter_mut().enumerate().filter(|(index, _)| group.contains(index)).collect();
            let indices: Vec<usize> = all.iter().map(|(index, _)| *index).collect();
            let mut of_group: Vec<_> = all.iter_mut().map(|(_, answer)| &mut **answer).collect();
            for (index, piece) in indices.into_iter().zip(next_together(&mut of_group)) {
                match piece {
                    Some(Ok(piece)) => pieces[index].push(piece),
                    Some(Err(error)) => errors[index] = Some(error.to_string()),
                    None => over[index] = true,
                }
            }
            cancel.store(pieces[4].len() >= CANCELLED_BEHIND, Ordering::Relaxed);
        }
    }
    let outcome = |((answer, pieces), error): ((&Generate<'_, '_, Cpu>, _), _)| Outcome {
        pieces,
        error,
        finish: answer.finish_reason(),
        fed: answer.session().fed().to_vec(),
    };
    answers.iter().zip(pieces).zip(errors).map(outcome).collect()
}

#[test]
fn answers_are_those_that_each_has_alone() {
    const ALONE: &[&[usize]] = &[&[0], &[1], &[2], &[3], &[4]];
    const COMPANIES: [&[&[usize]]; 3] =
        [&[&[0, 1, 2, 3, 4]], &[&[1, 3, 4], &[0, 2]], &[&[2, 4], &[0, 1, 3], &[4]]];
    // Where the head is tied, nobody could use the model.
    let untied = tiny_families(64).into_iter().filter(|spec| spec.head == Head::Untied);
    for spec in untied {
        let what = spec.arch.name();
        let file = faulty(&spec);
        let engine = engine(file.path(), 2, None);
        let config = RunConfig { budget: 48, max_new_tokens: 12, ..RunConfig::default() };
        let of = |settings, groups| outcomes(&mut sound(&engine, &spec, &config), settings, groups);
        // A stop string in the middle of what the third would say.
        let free = of(settings(&engine, [""; 5], None), ALONE);
        let said = free[2].text();
        let stop: String = said.chars().skip(said.chars().count() / 2).take(2).collect();
        let settings = || settings(&engine, ["", "", &stop, "", ""], Some(FAULTY));
        let expected = of(settings(), ALONE);
        assert_eq!(expected[1].pieces.len(), 1, "{what}: the token that cannot be read");
        assert!(expected[1].error.as_ref().is_some_and(|error| error.contains("not finite")));
        assert_eq!(expected[2].finish, Some(FinishReason::Stop), "{what}");
        assert!(expected[2].pieces.len() < free[2].pieces.len(), "{what}: {stop:?} in {said:?}");
        assert_eq!(expected[4].finish, Some(FinishReason::Cancelled), "{what}");
        assert_ne!(expected[0].pieces, expected[3].pieces, "{what}");
        for groups in COMPANIES {
            assert_eq!(of(settings(), groups), expected, "{what}, {groups:?}");
        }
    }
}

#[test]
fn an_answer_of_another_engine_ends_and_costs_no_other() {
    let spec = tiny_llama(65);
    let file = TinyFile::write(&spec.writer());
    let (first, second) = (engine(file.path(), 2, None), engine(file.path(), 1, None));
    let config = RunConfig { max_new_tokens: 5, ..RunConfig::default() };
    let tokens = prompt(3, spec.vocab, 80);
    let read = |engine| Engine::prefill(engine, &tokens, &config, &mut Unobserved).unwrap();
    let (mut ours, mut theirs) = (read(&first), read(&second));
    let config = GenerateConfig::default();
    let (mut a, mut b) = (ours.generate(config.clone()).unwrap(), theirs.generate(config).unwrap());
    // A first token is drawn without being fed.
    let pieces = next_together(&mut [&mut a, &mut b]);
    assert!(pieces.iter().all(|piece| matches!(piece, Some(Ok(_)))));
    let pieces = next_together(&mut [&mut a, &mut b]);
    assert!(matches!(pieces[..], [Some(Ok(_)), Some(Err(Error::OtherEngine))]), "{pieces:?}");
    assert!(b.next().is_none() && b.finish_reason().is_none());
    assert_eq!(a.count(), 3);
}
