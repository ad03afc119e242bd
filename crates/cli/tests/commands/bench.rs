//! `tidekv bench`, the real binary. Its figures depend on the machine; that they are there, belong
//! together and are kept does not.

use crate::rig::{Place, ends_with, ids, json, stderr, tidekv};
use serde_json::Value;
use std::process::{Command, Output};

fn at_home(place: &Place, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidekv"));
    command.args(args).env("TIDEKV_HOME", place.name("home")).output().unwrap()
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is no number"))
}

#[test]
fn a_measured_machine_lets_plan_say_how_long_reading_takes() {
    let place = Place::new();
    let plan = |threads: &str| {
        let model = place.model();
        let args = ["plan", &model, "--tokens", "4000", "--threads", threads, "--json", "-"];
        let output = at_home(&place, &args);
        ends_with(&output, 0, &[]);
        json(&output)["estimated_prefill_s"].clone()
    };
    assert_eq!(plan("1"), Value::Null);

    let output = at_home(&place, &["bench", "machine", "--threads", "1", "--json", "-"]);
    ends_with(&output, 0, &["measuring"]);
    let machine = json(&output);
    let tiers = machine["tiers"].as_array().unwrap();
    assert_eq!(tiers[0]["isa"], "portable");
    assert!(tiers.iter().any(|tier| tier["isa"] == machine["isa"]), "{machine}");
    let figures = ["product_flops", "packed_weights_per_s", "attention_flops", "read_bytes_per_s"];
    for figure in figures.map(|name| &machine[name]).into_iter().chain([&tiers[0]["f32_flops"]]) {
        let figures = figure.as_array().map_or(vec![figure], |all| all.iter().collect());
        assert!(figures.into_iter().all(|figure| number(figure) > 1e6), "{machine}");
    }

    assert!(number(&plan("1")) > 0.0);
    // Nobody measured two threads.
    assert_eq!(plan("2"), Value::Null);
    let time = || {
        let args = ["plan", &place.model(), "--tokens", "4000", "--threads", "1"];
        let output = at_home(&place, &args);
        assert_eq!(stderr(&output), "");
        let text = String::from_utf8(output.stdout).unwrap();
        text.lines().filter(|line| line.contains("to read")).collect::<Vec<_>>().join("\n")
    };
    assert!(time().contains("to read, by this machine's"), "{}", time());

    // Figures that are of something else are told from none.
    for (key, value, whose) in [
        ("threads", Value::from(3), "of 3 threads, not 1;"),
        ("isa", Value::from("abacus"), "of abacus, not "),
        ("cpu", Value::from("Abacus\n3"), "of another CPU, Abacus\\n3;"),
    ] {
        let mut other = machine.clone();
        other[key] = value;
        std::fs::write(place.path("home/machine.json"), other.to_string()).unwrap();
        let said = time();
        assert!(said.contains(whose) && said.contains("`tidekv bench machine`"), "{said}");
        let model = place.model();
        let run = ["run", &model, "--prompt-ids", "1,2", "--max-tokens", "1", "--threads", "1"];
        let auto = at_home(&place, &[&run[..], &["--chunk", "auto"]].concat());
        ends_with(&auto, 0, &[whose, "`tidekv bench machine`"]);
        assert!(!stderr(&at_home(&place, &run)).contains(whose));
    }
    std::fs::remove_file(place.path("home/machine.json")).unwrap();
    assert_eq!(time(), "");
}

#[test]
fn figures_that_cannot_be_used_are_said() {
    let place = Place::new();
    let plan = || {
        let args = ["plan", &place.model(), "--tokens", "40", "--threads", "1", "--json", "-"];
        let output = at_home(&place, &args);
        assert_eq!(json(&output)["estimated_prefill_s"], Value::Null);
        output
    };
    // Nothing was measured yet.
    assert_eq!(stderr(&plan()), "");
    let file = place.path("home/machine.json");
    std::fs::create_dir_all(place.path("home")).unwrap();
    let said = |reason: &str| {
        let output = plan();
        ends_with(&output, 0, &["machine.json is not used", reason, "`tidekv bench machine`"]);
        assert_eq!(stderr(&output).lines().count(), 1);
    };
    let stopped = r#"{"cpu": "x", "isa": "avx2", "threads": 1, "tiers": [],
        "read_bytes_per_s": [1e9, 1e9], "product_flops": 0,
        "packed_weights_per_s": 1e9, "attention_flops": [1e9, 1e9]}"#;
    let endless = stopped.replace("\"product_flops\": 0", "\"product_flops\": 1e300");
    let sound = stopped.replace("\"product_flops\": 0", "\"product_flops\": 1e9");
    for (text, reason) in [
        ("", "EOF"),
        ("{}", "missing field `cpu`"),
        (&stopped[..60], "EOF"),
        (stopped, "no machine has, 0e0"),
        (&endless, "no machine has, 1e300"),
    ] {
        std::fs::write(&file, text).unwrap();
        said(reason);
    }
    // Said once, also where two things depend on it.
    let args = ["plan", &place.model(), "--tokens", "40", "--chunk", "auto"];
    assert_eq!(stderr(&at_home(&place, &args)).matches("is not used").count(), 1);
    // Those of another machine are no damage.
    std::fs::write(&file, &sound).unwrap();
    assert_eq!(stderr(&plan()), "");
}

#[test]
fn a_cache_that_takes_no_figures_is_said_before_they_are_measured() {
    let place = Place::new();
    let plan = || at_home(&place, &["plan", &place.model(), "--tokens", "40"]);
    let refused = |words: &[&str]| {
        let output = at_home(&place, &["bench", "machine", "--threads", "1"]);
        ends_with(
            &output,
            1,
            &[&["machine.json", "set TIDEKV_HOME to a directory"], words].concat(),
        );
        assert!(!stderr(&output).contains("measuring") && output.stdout.is_empty());
        let output = plan();
        ends_with(&output, 0, &[&["is not used", "set TIDEKV_HOME"], words].concat());
        assert!(!stderr(&output).contains("`tidekv bench machine`"), "{}", stderr(&output));
    };
    let home = place.write("home", b"");
    refused(&["home is not a directory"]);
    std::fs::remove_file(home).unwrap();
    std::fs::create_dir_all(place.path("home/machine.json")).unwrap();
    refused(&["it is a directory"]);
}

#[test]
fn a_chunk_is_chosen_for_speed_and_the_limit() {
    let place = Place::new();
    let plan = |more: &[&str]| {
        let model = place.model();
        let args = ["plan", &model, "--tokens", "4000", "--threads", "1", "--json", "-"];
        let output = at_home(&place, &[&args, more].concat());
        ends_with(&output, 0, &[]);
        json(&output)
    };
    let chosen = |more: &[&str]| {
        let plan = plan(&[&["--chunk", "auto"], more].concat());
        let chosen = &plan["chosen_chunk"];
        (chosen["chunk"].as_u64().unwrap(), chosen["reason"].as_str().unwrap().to_owned())
    };
    assert_eq!(plan(&[])["chosen_chunk"], Value::Null);
    // Nothing was measured.
    assert_eq!(chosen(&[]).0, 2048);
    assert!(chosen(&[]).1.contains("not been measured"));

    ends_with(&at_home(&place, &["bench", "machine", "--threads", "1"]), 0, &[]);
    let (fast, why) = chosen(&[]);
    assert!(fast.is_power_of_two() && (512..=8192).contains(&fast), "{fast}");
    assert!(why.contains("2 %"), "{why}");
    assert!(chosen(&["--schedule", "post-prefill"]).1.contains("whole prompt"));

    // As large as a limit allows, and no larger.
    let peak = |chunk: &str| {
        let plan = plan(&["--chunk", chunk]);
        plan["plans"][0]["memory"]["planned_peak_bytes"].as_u64().unwrap()
    };
    let limit = peak("128").to_string();
    let (chunk, why) = chosen(&["--memory-limit", &limit]);
    assert_eq!(chunk, 128);
    assert!(why.contains("the memory limit allows"), "{why}");
    ends_with(&tidekv(&["plan", &place.model(), "--tokens", "4", "--chunk", "soon"]), 2, &["auto"]);

    let model = place.model();
    let ids = ids(300);
    let run = ["run", &model, "--prompt-ids", &ids, "--max-tokens", "3", "--threads", "1"];
    let given = at_home(&place, &[&run[..], &["--json", "-"]].concat());
    let auto = at_home(&place, &[&run[..], &["--chunk", "auto", "--json", "-"]].concat());
    ends_with(&auto, 0, &[&format!("chunks of {fast} tokens"), "2 %"]);
    let (given, auto) = (json(&given), json(&auto));
    assert_eq!(given["chunk_reason"], Value::Null);
    assert!(auto["chunk_reason"].as_str().unwrap().contains("2 %"));
    assert_eq!(given["output_token_ids"], auto["output_token_ids"]);
}

#[test]
fn the_kernels_asked_for_stand_beside_their_ceiling() {
    let place = Place::new();
    let file = place.name("kernels.json");
    let score = ["bench", "kernels", "--kernels", "score", "--threads", "1", "--json", &file];
    let output = tidekv(&score);
    ends_with(&output, 0, &["measuring"]);
    let report: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    assert_eq!(report["threads"], 1);
    let ceiling = number(&report["f32_peak_flops"]);
    for name in ["f32_peak_flops", "i16_peak_ops", "read_bytes_per_s"] {
        assert!(number(&report[name]) > 1e6, "{report}");
    }
    let kernels = report["kernels"].as_array().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let shown: Vec<&str> = text.lines().filter(|line| line.starts_with("  score ")).collect();
    assert_eq!((kernels.len(), shown.len()), (2, 2), "{text}");
    for (kernel, line) in kernels.iter().zip(shown) {
        let (rate, share) = (number(&kernel["rate"]), number(&kernel["of_ceiling"]));
        assert!(rate > 1e6 && share > 0.0, "{kernel}");
        assert!((rate / ceiling / share - 1.0).abs() < 1e-6, "{kernel} of {ceiling}");
        let what = kernel["what"].as_str().unwrap();
        assert_eq!(kernel["kernel"], "score");
        assert!(line.contains(what), "{line}");
        let cells: Vec<&str> = line.split(what).nth(1).unwrap().split_whitespace().collect();
        let [rate_shown, share_shown, "%"] = cells[..] else { panic!("{line}") };
        let rate_shown: f64 = rate_shown.parse().unwrap();
        let share_shown: f64 = share_shown.parse().unwrap();
        assert!((rate_shown - rate / 1e9).abs() <= 0.051, "{line} is not {rate}");
        assert!((share_shown - 100.0 * share).abs() <= 0.51, "{line} is not {share}");
    }
    // No figure but those.
    assert!(
        !["product ", "attention ", "vector "]
            .iter()
            .any(|name| { text.lines().any(|line| line.trim_start().starts_with(name)) }),
        "{text}"
    );
}

#[test]
fn a_kernel_that_is_not_there_is_refused_with_those_that_are() {
    for list in ["scoring", "score,gemm", ""] {
        let output = tidekv(&["bench", "kernels", "--kernels", list]);
        ends_with(&output, 2, &["--kernels", "product, attention, score, vector"]);
        assert!(!stderr(&output).contains("measuring"));
    }
}

#[test]
fn every_combination_is_run_and_its_figures_belong_together() {
    let place = Place::new();
    let model = place.model();
    let lists = ["--tokens", "40,100", "--chunk", "16,1k", "--schedules", "tide,post-prefill"];
    let others = ["--rounds", "3", "--decode", "3", "--budget", "36", "--json", "-"];
    let output = tidekv(&[&["bench", "prefill", &model], &lists[..], &others[..]].concat());
    ends_with(&output, 0, &[]);
    let report = json(&output);
    let runs = report["runs"].as_array().unwrap();
    let names = |run: &Value| -> (u64, String, u64) {
        let schedule = run["schedule"].as_str().unwrap().to_owned();
        (run["prompt_tokens"].as_u64().unwrap(), schedule, run["chunk"].as_u64().unwrap())
    };
    // A chunk beyond the prompt is the prompt; the whole prompt is run once.
    let expected = [40, 100].map(|tokens| {
        [("tide", 16), ("tide", tokens), ("post-prefill", tokens)]
            .map(|(schedule, chunk)| (tokens, schedule.to_owned(), chunk))
    });
    assert_eq!(runs.iter().map(names).collect::<Vec<_>>(), expected.concat());
    for run in runs {
        let times =
            |name: &str| -> Vec<f64> { run[name].as_array().unwrap().iter().map(number).collect() };
        let mut ttft = times("ttft_s");
        assert_eq!((ttft.len(), times("decode_tokens_per_s").len()), (3, 3));
        ttft.sort_by(f64::total_cmp);
        let phases: f64 = run["phases_s"].as_object().unwrap().values().map(number).sum();
        assert!(0.0 < phases && phases <= ttft[1], "{phases} s of phases in {ttft:?} s");
        assert!(number(&run["flops"]) > 0.0 && number(&run["predicted_s"]) > 0.0);
        let memory = &run["memory"];
        assert_eq!(memory["planned_peak_bytes"], memory["accounted_peak_bytes"]);
    }
    assert!(number(&report["f32_peak_flops"]) > 0.0);
    // Order and chunks do not change the work.
    assert_eq!(runs[0]["flops"], runs[1]["flops"]);
    assert_eq!(runs[0]["flops"], runs[2]["flops"]);
}

#[test]
fn behind_a_prompt_that_fills_the_context_no_token_is_timed() {
    let place = Place::new();
    let model = place.model();
    let bench =
        |more: &[&str]| tidekv(&[&["bench", "prefill", &model, "--tokens", "8192"], more].concat());
    let output = bench(&["--json", "-"]);
    ends_with(&output, 0, &[]);
    assert_eq!(json(&output)["runs"][0]["decode_tokens_per_s"], Value::Array(Vec::new()));
    let output = bench(&[]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("no room"), "{text}");
}

#[test]
fn impossible_measurements_are_refused_before_any_starts() {
    let place = Place::new();
    let bench = |args: &[&str]| tidekv(&[&["bench", "prefill", &place.model()], args].concat());
    ends_with(&bench(&["--tokens", "40,9000"]), 1, &["9000", "context of 8192"]);
    ends_with(&bench(&["--schedules", "sideways"]), 2, &["sideways"]);
    ends_with(&bench(&["--memory-limit", "1KiB"]), 3, &["1.00 KiB"]);
    ends_with(&tidekv(&["bench", "prefill", &place.name("absent.gguf")]), 1, &["absent.gguf"]);
}
