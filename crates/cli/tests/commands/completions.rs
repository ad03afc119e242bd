//! `tidekv completions` and `tidekv man`, the real binary.

use crate::rig::{Place, ends_with, stderr, tidekv};

fn stdout(args: &[&str]) -> String {
    let output = tidekv(args);
    ends_with(&output, 0, &[]);
    assert!(stderr(&output).is_empty());
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn every_shell_gets_a_script_that_knows_commands_and_flags() {
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let script = stdout(&["completions", shell]);
        for word in ["run", "inspect", "perplexity", "min-p", "context-size"] {
            assert!(script.contains(word), "`{word}` is not in the script for {shell}");
        }
    }
    ends_with(&tidekv(&["completions", "cmd"]), 2, &["cmd", "bash"]);
    ends_with(&tidekv(&["completions"]), 2, &["<SHELL>"]);
}

#[cfg(unix)]
#[test]
fn bash_completes_a_command_and_a_flag() {
    let place = Place::new();
    let script = place.write("tidekv.bash", stdout(&["completions", "bash"]).as_bytes());
    let completed = |words: &str| {
        let program = format!(
            "source {script}; COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); \
             _tidekv tidekv \"${{COMP_WORDS[COMP_CWORD]}}\" \"${{COMP_WORDS[COMP_CWORD-1]}}\"; \
             echo \"${{COMPREPLY[@]}}\""
        );
        let output = std::process::Command::new("bash").args(["-c", &program]).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    assert_eq!(completed("tidekv insp").trim(), "inspect");
    assert_eq!(completed("tidekv run --min").trim(), "--min-p");
}

#[test]
fn every_command_has_a_page() {
    assert!(stdout(&["man"]).contains(".TH tidekv 1"));
    let run = stdout(&["man", "run"]);
    assert!(run.contains(".TH tidekv-run 1") && run.contains("\\-\\-min\\-p"), "{run}");
    ends_with(&tidekv(&["man", "walk"]), 1, &["`walk`"]);

    let place = Place::new();
    let output = tidekv(&["man", "--dir", &place.name("pages/man1")]);
    ends_with(&output, 0, &["14 pages", "man1"]);
    let mut pages: Vec<String> = std::fs::read_dir(place.path("pages/man1"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    pages.sort_unstable();
    assert_eq!(pages.len(), 14);
    assert!(
        pages.contains(&"tidekv.1".to_owned())
            && pages.contains(&"tidekv-bench-machine.1".to_owned())
    );
    let page = std::fs::read_to_string(place.path("pages/man1/tidekv-run.1")).unwrap();
    assert_eq!(page, run);
    let file = place.write("file", b"");
    ends_with(&tidekv(&["man", "--dir", &file]), 1, &["cannot write the pages"]);
}
