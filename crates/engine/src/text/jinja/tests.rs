use super::source::MAX_TAG_TOKENS;
use super::*;
use minijinja::machinery::tokenize;
use std::time::Instant;

fn render_with(source: &str, content: &str) -> Result<String, TextError> {
    let options = ChatOptions {
        generation_prompt: GenerationPrompt::Omit,
        now: UNIX_EPOCH + Duration::from_secs(951_827_696),
    };
    let messages = vec![Message::new("user", content)];
    render(Request { source, messages, bos: Some("<s>"), eos: None, options: &options })
}

fn rendered(source: &str) -> String {
    render_with(source, "a \"b\" <c> é\n").unwrap()
}

#[test]
fn blocks_are_trimmed_as_in_transformers() {
    assert_eq!(rendered("{% if true %}\nx\n  {% endif %}\ny"), "x\ny");
    assert_eq!(rendered("{{ bos_token }}|{{ eos_token }}|{{ tools is none }}"), "<s>||True");
    assert_eq!(
        rendered(
            "{% for i in [1,2,3] %}{% if i == 2 %}{% continue %}{% endif %}{{ i }}{% endfor %}"
        ),
        "13"
    );
}

#[test]
fn python_methods_work_and_nothing_is_escaped() {
    assert_eq!(rendered("{{ messages[0].content.strip() }}"), "a \"b\" <c> é");
    assert_eq!(rendered("{{ messages[0]['content'].split('<')[-1].startswith('c') }}"), "True");
}

#[test]
fn lists_are_joined_as_in_jinja() {
    assert_eq!(
        rendered("{{ ['a', 1, none] | join(', ') }}|{{ ['a', 'b'] | join }}"),
        "a, 1, None|ab"
    );
    assert_eq!(rendered("{{ '-'.join(['a', 'b', 'c']) }}|{{ 'abc' | join('.') }}"), "a-b-c|a.b.c");
    assert_eq!(rendered("{{ [] | join('x') }}|{{ none | join }}|{{ missing | join }}"), "||");
}

#[test]
fn json_is_pythons() {
    assert_eq!(rendered("{{ messages[0].content | tojson }}"), r#""a \"b\" <c> é\n""#);
    let nested = "{{ {'b': [1, 2.5, true, none], 'a': {}} | tojson";
    assert_eq!(rendered(&format!("{nested} }}}}")), r#"{"b": [1, 2.5, true, null], "a": {}}"#);
    assert_eq!(
        rendered(&format!("{nested}(indent=2) }}}}")),
        "{\n  \"b\": [\n    1,\n    2.5,\n    true,\n    null\n  ],\n  \"a\": {}\n}"
    );
}

#[test]
fn none_is_not_iterable() {
    let ask = "{{ tools is iterable and tools | length > 0 }}";
    let all = "|{{ [] is iterable }}|{{ 'a' is iterable }}|{{ 1 is iterable }}";
    assert_eq!(rendered(&format!("{ask}{all}")), "False|True|True|False");
}

#[test]
fn dates_are_utc() {
    // 2000-02-29 12:34:56, a Tuesday.
    assert_eq!(
        rendered("{{ strftime_now('%d %b %Y|%A %H:%M:%S|%F %%') }}"),
        "29 Feb 2000|Tuesday 12:34:56|2000-02-29 %"
    );
    assert_eq!(civil_from_days(0), (1970, 1, 1));
    assert_eq!(civil_from_days(20_453), (2025, 12, 31));
    assert_eq!(civil_from_days(47_541), (2100, 3, 1));
    let error = render_with("{{ strftime_now('%Q') }}", "").unwrap_err().to_string();
    assert!(error.contains("the directive `%Q` is not supported"), "{error}");
}

#[test]
fn errors_are_sentences() {
    let message = |source| render_with(source, "").unwrap_err().to_string();
    assert_eq!(
        message("{{ raise_exception('roles must alternate') }}"),
        "the model's chat template refuses these messages: roles must alternate"
    );
    let undefined = message("a\n{{ x.y.z }}");
    assert!(
        undefined.starts_with("the model's chat template fails at line 2: undefined value"),
        "{undefined}"
    );
    let filter = message("{{ 1 | nosuch }}");
    assert!(filter.contains("unknown filter"), "{filter}");
    assert!(matches!(check("{% if %}"), Err(TextError::Template { line: Some(1), .. })));
}

/// The error of a template that must end soon, and soon it must be.
fn refused(source: &str) -> String {
    let start = Instant::now();
    let text = render_with(source, "hello").unwrap_err().to_string();
    // Seconds on the slowest machine; minutes or never without the limits.
    assert!(start.elapsed() < Duration::from_secs(5), "{text}: {:?}", start.elapsed());
    text
}

#[test]
fn templates_cannot_run_for_ever() {
    let loops = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}";
    for source in [
        loops,
        "{{ 'x' * 90000000 }}",
        "{% set ns = namespace(s='x') %}{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
        "{{ [1] * 90000000 }}",
        "{{ [[[1] * 90000000] * 90000000] }}",
        "{{ {'a': [1] * 90000000} | string }}",
        "{{ ([1] * 90000000) | tojson }}",
        "{{ [1] | tojson(indent=900000000) }}",
        "{{ ('x' * 100000).replace('', 'y' * 100000) }}",
        "{{ ('x' * 10000).join(['a'] * 10000) }}",
        "{{ (['x' * 100000] * 100000) | join }}",
        "{{ (['x'] * 90000) | join('y' * 100000) }}",
        "{{ strftime_now('%A' * 1000000) }}",
        // Lists that are twice as long each time.
        "{% set ns = namespace(v=[1]) %}{% for i in range(40) %}{% set ns.v = ns.v + ns.v %}{% endfor %}",
        &"{% set v = [1] %}{% set v = v + v %}"
            .replace("{% set v = v + v %}", &"{% set v = v + v %}".repeat(40)),
        // A list that holds itself twice, sixty deep.
        "{% set ns = namespace(v=['a']) %}{% for i in range(60) %}{% set ns.v = [ns.v, ns.v] %}{% endfor %}{{ ns.v }}",
    ] {
        let error = refused(source);
        assert!(error.contains("out of fuel"), "{source}: {error}");
    }
    for (source, part) in [
        ("{% for i in range(1000000000) %}{% endfor %}", "too many elements"),
        ("{{ '{:>900000000}'.format(1) }}", "a width beyond 9999"),
        ("{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}", "recursion limit"),
        ("{% for i in [1] recursive %}{{ loop([1]) }}{% endfor %}", "recursion limit"),
    ] {
        let error = refused(source);
        assert!(error.contains(part), "{source}: {error}");
    }
    let deep = "{% set ns = namespace(v=[]) %}{% for i in range(100) %}{% set ns.v = [ns.v] %}{% endfor %}{{ ns.v | tojson }}";
    assert!(refused(deep).contains("nested deeper than 64"));
}

#[test]
fn what_costs_no_fuel_ends_in_time() {
    // A list added to itself 40 times has 10^12 elements. No call keeps it.
    let doubled = "{% macro f(v, n) %}{% if n %}{{ f(v + v, n - 1) }}{% endif %}{% endmacro %}{{ f([1], 40) }}";
    let limits = Limits { fuel: FUEL, time: Duration::from_millis(50) };
    let render = |source: &str| {
        let environment = environment(UNIX_EPOCH, FUEL)?;
        environment.template_from_str(source).map_err(explain)?.render(()).map_err(explain)
    };
    let start = Instant::now();
    let error = within(limits, doubled.to_owned(), render).unwrap_err().to_string();
    assert!(error.contains("takes more than 0 s"), "{error}");
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    // Fewer are no trouble.
    assert_eq!(within(limits, doubled.replace("40", "10"), render).unwrap(), "");

    let options = ChatOptions { generation_prompt: GenerationPrompt::Omit, now: UNIX_EPOCH };
    let messages = vec![Message::new("user", "x".repeat(3 << 20))];
    let request = Request { source: "", messages, bos: None, eos: None, options: &options };
    assert_eq!(request.limits().time, TIME + 3 * TIME_PER_MEGABYTE);
}

#[test]
fn a_namespace_cannot_hold_itself() {
    let set = "{% set ns = namespace(a=1) %}{% set m = namespace() %}";
    for use_ in [
        "{% set ns.a = ns %}",
        "{%- set ns.a = [[1, m]] -%}",
        "{% set x = {'k': ns} %}{% set ns.a = x %}",
        "{% for x in [m] %}{% set ns.a = x if true else 1 %}{% endfor %}",
        "{% macro f(x) %}{% set x.a = x, 1 %}{% endmacro %}{{ f(m) }}",
        "{% set ns.a = namespace() %}",
        "{% set make = namespace %}{% set ns.a = [1] + [make()] %}",
    ] {
        let error = refused(&format!("{set}\n{use_}"));
        assert!(error.contains("cannot hold a namespace"), "{use_}: {error}");
        assert!(error.contains("line 2"), "{use_}: {error}");
    }
    for (use_, text) in [
        ("{% set ns.a = ns.a + 1 %}{{ ns.a }}", "2"),
        ("{% macro f(x) %}{% set x.a = x.a, 5 %}{% endmacro %}{{ f(ns) }}{{ ns.a[1] }}", "5"),
        ("{% set x, y = 1, 2 %}{{ x }}{{ y }}", "12"),
        ("{% set x = ns %}{% set x.a = [3,] -%}  {{ ns.a[0] }}", "3"),
        ("{% set x %}a = b{% endset %}{{ x }}", "a = b"),
        ("{% raw %}{% set x = 1 %}{% endraw %}", "{% set x = 1 %}"),
        ("{% set x = 'a}%' ~ \"%}\" %}{{ x }}", "a}%%}"),
        ("{% set x = dict(a=1).a %}{{ x }}{% if x == 1 %}{{ dict(b=2).b }}{% endif %}", "12"),
    ] {
        assert_eq!(rendered(&format!("{set}{use_}")), text, "{use_}");
    }
    let name = check("{% macro tidekv_stored(x) %}{% endmacro %}").unwrap_err().to_string();
    assert!(name.contains("must not begin with"), "{name}");
}

#[test]
fn a_panic_while_rendering_reaches_the_caller() {
    let limits = Limits { fuel: FUEL, time: TIME };
    let panics = || within::<()>(limits, String::new(), |_| panic!("as before"));
    let panic = std::panic::catch_unwind(panics).unwrap_err();
    assert_eq!(panic.downcast_ref::<&str>(), Some(&"as before"));
}

#[test]
fn nesting_does_not_overflow_the_stack() {
    // As deep as the fuel allows, then shown, compared and freed.
    let nested = |n: usize, last: &str| {
        let set = "{% set ns.v = [ns.v] %}{% set ns.w = [ns.w] %}";
        format!(
            "{{% set ns = namespace(v=[], w=[]) %}}{{% for i in range({n}) %}}{set}{{% endfor %}}{last}"
        )
    };
    assert_eq!(rendered(&nested(2_000, "{{ ns.v == ns.w }}")), "True");
    assert!(rendered(&nested(2_000, "{{ ns.v }}")).starts_with("[[["));
    assert!(refused(&nested(9_000, "")).contains("out of fuel"));
    // The longest expression there may be, and one after the other.
    for repeated in ["not ", "-"] {
        // Its end is a part too.
        let expression = format!("{{{{ {}1 }}}}", repeated.repeat(MAX_TAG_TOKENS - 2));
        rendered(&expression.repeat(MAX_CHAT_TEMPLATE_BYTES / expression.len()));
    }
    for repeated in [" if 1 else 1", " + 1", " and 1", " ** 1"] {
        rendered(&format!("{{{{ 1{} }}}}", repeated.repeat(MAX_TAG_TOKENS / 4 - 1)));
    }
    rendered(&format!("{{%if 0%}}{}{{%endif%}}", "{%elif 0%}".repeat(6_000)));
    let parentheses = refused(&format!("{{{{ {}1{} }}}}", "(".repeat(200), ")".repeat(200)));
    assert!(parentheses.contains("recursion"), "{parentheses}");
    let long = check(&"x".repeat(MAX_CHAT_TEMPLATE_BYTES + 1)).unwrap_err().to_string();
    assert!(long.contains("65537 bytes"), "{long}");
}

#[test]
fn compiling_is_bounded_as_rendering_is() {
    // As many as the source holds, each as long as it may be.
    for (first, repeated) in [("x", "~x"), ("''", "~'aaaaaaa'"), ("1", "+1"), ("[1]", "+[1]")] {
        let per_tag = (MAX_TAG_TOKENS - 1) / tokens(repeated);
        let tag = format!("{{{{{first}{}}}}}", repeated.repeat(per_tag - 1));
        let source = tag.repeat(MAX_CHAT_TEMPLATE_BYTES / tag.len());
        let start = Instant::now();
        check(&source).unwrap();
        assert!(start.elapsed() < Duration::from_secs(2), "{repeated}: {:?}", start.elapsed());
    }
    for long in ["{{ x~x }}\n{{ x~ x }}", "{% if x~ x %}{% endif %}"] {
        let source = long.replace("x~ ", &"x~".repeat(MAX_TAG_TOKENS));
        let error = check(&source).unwrap_err();
        assert!(error.to_string().contains("more than 512 parts"), "{long}: {error}");
    }
    let raw = format!("{{% raw %}}{{{{ x{} }}}}{{% endraw %}}", "~x".repeat(9_000));
    check(&raw).unwrap();
}

/// Jinja tokens of an expression.
fn tokens(expression: &str) -> usize {
    tokenize(expression, true, syntax().unwrap()).count()
}

#[test]
fn long_chats_have_fuel() {
    let all = "{% for m in messages %}{% if m.content is string and 'zz' not in m.content %}{{ '<|' ~ m.role ~ '|>' ~ m.content | trim ~ '</s>' }}{% endif %}{% endfor %}";
    let one = "long ".repeat(1 << 20);
    assert_eq!(render_with(all, &one).unwrap().len(), "<|user|></s>".len() + one.len() - 1);
    let options = ChatOptions { generation_prompt: GenerationPrompt::Omit, now: UNIX_EPOCH };
    let messages = vec![Message::new("user", "hello"); 5_000];
    let request = Request { source: all, messages, bos: None, eos: None, options: &options };
    assert_eq!(render(request).unwrap().len(), 5_000 * "<|user|>hello</s>".len());
}
