//! `docs/reference/http.md`: routes, limits and counters of a server.

use std::fmt::Write;

use crate::limits::Limits;
use crate::metrics::Metrics;
use crate::routes::{KEYLESS, routes};

const HEAD: &str = "\
# HTTP

<!-- `cargo xtask reference` writes this page. -->

The server speaks OpenAI's API; [serve](../../serve/README.md) lists the parameters. Errors have OpenAI's form, with a
message that names the parameter.

## Routes

| route | |
|---|---|
";

const ROUTES: [(&str, &str, &str); 11] = [
    ("GET", "/", "the page"),
    (
        "GET",
        "/health",
        "200 once there is a model, 503 with the progress before; the only route without a key",
    ),
    ("GET", "/metrics", "counters, in Prometheus' text format"),
    ("POST", "/tokenize", "`{\"content\": \"…\"}` to tokens"),
    ("POST", "/detokenize", "`{\"tokens\": […]}` to text"),
    ("GET", "/models", "the same as `/v1/models`"),
    ("GET", "/v1/models", "the model, its limits in tokens, whether it has a chat template, and examples"),
    ("GET", "/v1/models/{id}", "the model of this name, or 404"),
    ("POST", "/v1/chat/completions", "conversations; `stream` for server-sent events"),
    ("POST", "/v1/completions", "texts, lists of texts, tokens"),
    ("POST", "/v1/responses", "conversations in the form of OpenAI's Responses API; nothing is stored"),
];

const OF_A_MODEL: &str = "
A server with a model also has `spillway_device_bytes`, `spillway_host_bytes`, `spillway_disk_bytes`, `spillway_kv_bytes`,
their limits `spillway_device_budget_bytes`, `spillway_host_budget_bytes`, `spillway_disk_budget_bytes` and
`spillway_kv_budget_bytes`, `spillway_evictions_total`, `spillway_restores_total`, `spillway_bytes_out_total`,
`spillway_bytes_in_total` and `spillway_stall_seconds_total`: bytes held, those of keys and values by themselves, blocks and
bytes spilled and restored, and the time spent waiting for them.
";

fn page() -> String {
    let mut page = HEAD.to_owned();
    for (method, path, meaning) in ROUTES {
        writeln!(page, "| `{method} {path}` | {meaning} |").expect("a string");
    }
    writeln!(page, "\n## Limits\n\n| limit | value |\n|---|---|").expect("a string");
    for (limit, value) in limits() {
        writeln!(page, "| {limit} | {value} |").expect("a string");
    }
    writeln!(page, "\n## Counters of `/metrics`\n\n| name | kind | |\n|---|---|---|").expect("a string");
    let metrics = Metrics::default().page(0, 0);
    let of =
        |word: &'static str| metrics.lines().filter_map(move |line| line.strip_prefix(word)?.split_once(' '));
    for ((name, help), (_, kind)) in of("# HELP ").zip(of("# TYPE ")) {
        writeln!(page, "| `{name}` | {kind} | {help} |").expect("a string");
    }
    page + OF_A_MODEL
}

fn limits() -> Vec<(&'static str, String)> {
    let limits = Limits::default();
    let kib = |bytes: usize| format!("{} KiB", bytes >> 10);
    let seconds = |time: std::time::Duration| format!("{} s", time.as_secs());
    vec![
        ("connections (`--max-connections`)", limits.connections.to_string()),
        ("a connection without a request (`--idle-time`)", seconds(limits.idle_time)),
        ("a head, from its first byte", seconds(limits.head_time)),
        ("a body", seconds(limits.body_time)),
        ("a client that reads nothing", seconds(limits.write_time)),
        ("running answers when the server stops", seconds(limits.drain_time)),
        ("bytes of a head", kib(limits.head_bytes)),
        ("lines of a head", limits.head_lines.to_string()),
        ("bytes of a body", kib(limits.body_bytes)),
        ("bytes of all bodies together", kib(limits.all_body_bytes)),
        ("levels of a body's JSON", limits.json_depth.to_string()),
        ("messages of a conversation", limits.messages.to_string()),
        ("prompts of a completion", limits.prompts.to_string()),
        ("answers to a prompt", limits.choices.to_string()),
        ("tokens of an answer (`--max-tokens`)", limits.tokens.to_string()),
        ("tokens with a bias", limits.biases.to_string()),
        ("stop strings", format!("{} of {} bytes", limits.stop_strings, limits.stop_bytes)),
        ("waiting answers (`--queue`)", limits.queue.to_string()),
    ]
}

#[test]
fn the_reference_has_every_route_limit_and_counter() {
    let served: Vec<_> = routes().into_iter().map(|(method, path, _)| (method.to_string(), path)).collect();
    let told: Vec<_> = ROUTES.into_iter().map(|(method, path, _)| (method.to_owned(), path)).collect();
    assert_eq!(served, told);
    assert!(ROUTES.iter().all(|(_, path, meaning)| meaning.contains("without a key") == (*path == KEYLESS)));
    suite::assert_reference("http.md", &page());
}
