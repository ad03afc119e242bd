//! Nothing is fetched where nothing may be, and what is missing is said.

use crate::rig::{Place, command, ends_with};

#[test]
fn a_model_that_is_not_here_is_an_error_that_says_what_is_missing() {
    let place = Place::new();
    let cache = place.name("cache");
    let offline = |args: &[&str], variable: &str| {
        let mut command = command(args);
        command.env("TIDEKV_HOME", &cache).env(variable, "1");
        // A hub or a registry that is asked would say something else.
        command.env("HF_ENDPOINT", "http://127.0.0.1:9").env("PATH", "");
        command.output().unwrap()
    };
    let run = ["run", "hf:org/name@v2:m.gguf", "--prompt", "x"];
    let flag = [&run[..], &["--offline"]].concat();
    let missing = ["hf:org/name@v2:m.gguf is not in the cache", "revision v2", "never fetched"];
    ends_with(&offline(&flag, "IRRELEVANT"), 1, &missing);
    ends_with(
        &offline(&["--offline", "plan", "hf:org/name", "--tokens", "8"], "IRRELEVANT"),
        1,
        &["revision main"],
    );
    for variable in ["TIDEKV_OFFLINE", "HF_HUB_OFFLINE"] {
        ends_with(&offline(&run, variable), 1, &missing);
        let known = offline(&["pull", "smollm2-135m"], variable);
        ends_with(&known, 1, &["smollm2-135m is not in the cache", "it would be at", &cache]);
    }
    ends_with(&offline(&["inspect", &place.model(), "--offline"], "IRRELEVANT"), 0, &[]);
}

#[test]
fn names_that_could_leave_the_cache_are_refused() {
    for name in ["hf:../x", "hf:a/b:../../x", "hf:a/b@../..:x", "hf:a/b:/etc/passwd", "hf:a/b@"] {
        let output = command(&["pull", name, "--offline"]).output().unwrap();
        ends_with(&output, 1, &["does not name a model"]);
    }
}

#[cfg(target_os = "linux")]
#[test]
fn without_a_home_the_cache_is_nowhere_rather_than_where_others_write() {
    let place = Place::new();
    let elsewhere = place.path("elsewhere");
    std::fs::create_dir(&elsewhere).unwrap();
    let homeless = |args: &[&str], empty: bool| {
        let mut command = command(args);
        command.env("TMPDIR", &elsewhere).current_dir(&elsewhere);
        for variable in ["HOME", "XDG_CACHE_HOME", "TIDEKV_HOME"] {
            match empty {
                true => command.env(variable, ""),
                false => command.env_remove(variable),
            };
        }
        command.output().unwrap()
    };
    let wanted = ["no place for the model cache", "XDG_CACHE_HOME or HOME", "set TIDEKV_HOME"];
    for empty in [false, true] {
        for args in [
            &["pull", "smollm2-135m", "--offline"][..],
            &["plan", "hf:org/name", "--tokens", "8", "--offline"],
            &["bench", "machine"],
        ] {
            ends_with(&homeless(args, empty), 1, &wanted);
        }
        // A path needs no cache.
        let output = homeless(&["plan", &place.model(), "--tokens", "8"], empty);
        ends_with(&output, 0, &[]);
        assert!(output.stderr.is_empty());
    }
    assert_eq!(elsewhere.read_dir().unwrap().count(), 0);
}
