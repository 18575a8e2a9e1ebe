//! `/v1/responses` over the echo.

use serde_json::{Value, json};
use web::Echo;

use super::client::{Answer, TestServer};

const PATH: &str = "/v1/responses";

fn typed_events(answer: &Answer) -> Vec<(String, Value)> {
    let text = answer.text();
    let names = text.lines().filter_map(|line| line.strip_prefix("event: "));
    let data: Vec<Value> = answer.events().iter().map(|data| serde_json::from_str(data).unwrap()).collect();
    assert_eq!(names.clone().count(), data.len(), "{text}");
    for (number, (name, data)) in names.clone().zip(&data).enumerate() {
        assert_eq!(
            (data["type"].as_str(), data["sequence_number"].as_u64()),
            (Some(name), Some(number as u64))
        );
    }
    names.map(str::to_owned).zip(data).collect()
}

#[test]
fn a_response_has_openais_shape_and_counts_its_tokens() {
    let server = TestServer::echo(Echo::default());
    let body = json!({ "model": "echo", "input": "hello", "instructions": "Repeat.", "temperature": 0.5 });
    let answer = server.post_json(PATH, &body);
    assert_eq!(answer.status, 200, "{}", answer.text());
    let response = answer.json();
    assert_eq!((&response["object"], &response["status"]), (&json!("response"), &json!("completed")));
    assert!(response["id"].as_str().unwrap().starts_with("resp_") && response["created_at"].is_u64());
    assert_eq!((&response["instructions"], &response["temperature"]), (&json!("Repeat."), &json!(0.5)));
    let [item] = response["output"].as_array().unwrap().as_slice() else { panic!("{response}") };
    assert_eq!((&item["type"], &item["role"]), (&json!("message"), &json!("assistant")));
    assert!(item["id"].as_str().unwrap().starts_with("msg_"));
    let part = json!({ "type": "output_text", "text": "hello", "annotations": [], "logprobs": [] });
    assert_eq!(item["content"], json!([part]));
    // Two control tokens.
    assert_eq!(response["usage"]["input_tokens"], "Repeat.hello".len() + 2);
    assert_eq!(response["usage"]["output_tokens"], 5);
    assert_eq!(response["usage"]["total_tokens"], 19);
}

#[test]
fn a_streamed_response_sends_the_documented_events_in_order() {
    let server = TestServer::echo(Echo::default());
    let answer = server.post_json(PATH, &json!({ "input": "aé", "stream": true }));
    assert!(answer.head.contains("content-type: text/event-stream"), "{}", answer.head);
    let events = typed_events(&answer);
    let kinds: Vec<&str> = events.iter().map(|(kind, _)| kind.strip_prefix("response.").unwrap()).collect();
    assert_eq!(
        kinds,
        [
            "created",
            "in_progress",
            "output_item.added",
            "content_part.added",
            "output_text.delta",
            "output_text.delta",
            "output_text.done",
            "content_part.done",
            "output_item.done",
            "completed"
        ]
    );
    assert_eq!((&events[4].1["delta"], &events[5].1["delta"]), (&json!("a"), &json!("é")));
    assert_eq!(events[6].1["text"], "aé");
    let (begun, ended) = (&events[0].1["response"], &events[9].1["response"]);
    assert_eq!((&begun["status"], &begun["id"]), (&json!("in_progress"), &ended["id"]));
    assert_eq!(ended["output"], json!([events[8].1["item"]]));
    assert_eq!(ended["usage"]["output_tokens"], 3);
    for (kind, event) in &events[3..8] {
        assert_eq!(event["item_id"], ended["output"][0]["id"], "{kind}");
    }
}

#[test]
fn an_answer_at_its_longest_length_is_an_incomplete_response() {
    let server = TestServer::echo(Echo::default());
    let body = json!({ "input": "abcd", "max_output_tokens": 2 });
    let response = server.post_json(PATH, &body).json();
    assert_eq!((&response["status"], &response["max_output_tokens"]), (&json!("incomplete"), &json!(2)));
    assert_eq!(response["incomplete_details"], json!({ "reason": "max_output_tokens" }));
    let body = json!({ "input": "abcd", "max_output_tokens": 2, "stream": true });
    let events = typed_events(&server.post_json(PATH, &body));
    assert_eq!(events.last().unwrap().0, "response.incomplete");
}

#[test]
fn a_conversation_goes_back_as_it_was_received() {
    let server = TestServer::echo(Echo::default());
    let first = server.post_json(PATH, &json!({ "input": "one" })).json();
    let part = json!({ "type": "input_text", "text": "two" });
    let input = json!([
        { "role": "developer", "content": "Be brief." },
        { "role": "user", "content": "one" },
        first["output"][0],
        { "type": "message", "role": "user", "content": [part] },
    ]);
    let again = server.post_json(PATH, &json!({ "input": input })).json();
    assert_eq!(again["output"][0]["content"][0]["text"], "two");
    // Four control tokens.
    assert_eq!(again["usage"]["input_tokens"], "Be brief.oneonetwo".len() + 4);
}

#[test]
fn a_failure_is_a_500_or_the_last_event() {
    let server = TestServer::echo(Echo { fail_every: Some(1), ..Echo::default() });
    assert_eq!(server.post_json(PATH, &json!({ "input": "a" })).status, 500);
    let events = typed_events(&server.post_json(PATH, &json!({ "input": "a", "stream": true })));
    let (kind, last) = events.last().unwrap();
    assert_eq!((kind.as_str(), &last["response"]["status"]), ("response.failed", &json!("failed")));
    assert_eq!(last["response"]["error"]["code"], "server_error");
}

#[test]
fn defaults_of_clients_are_accepted_and_other_fields_refused_by_name() {
    let server = TestServer::echo(Echo::default());
    let defaults = json!({
        "input": "a", "tools": [], "tool_choice": "auto", "parallel_tool_calls": true, "store": false, "metadata": {},
        "text": { "format": { "type": "text" } }, "truncation": "disabled", "top_p": 1, "user": "somebody",
        "previous_response_id": null, "reasoning": null, "include": [], "background": false, "max_output_tokens": null,
    });
    let answer = server.post_json(PATH, &defaults);
    assert_eq!(answer.status, 200, "{}", answer.text());
    for (name, value, param) in [
        ("max_tokens", json!(5), "max_tokens"),
        ("messages", json!([]), "messages"),
        ("n", json!(1), "n"),
        ("store", json!(true), "store"),
        ("previous_response_id", json!("resp_1"), "previous_response_id"),
        ("tools", json!([{ "type": "web_search" }]), "tools"),
        ("top_p", json!(2), "top_p"),
        ("max_output_tokens", json!(0), "max_output_tokens"),
        ("instructions", json!(5), "instructions"),
        ("input", json!(null), "input"),
        ("input", json!([]), "input"),
        ("input", json!(5), "input"),
        ("input", json!([{ "role": "user", "content": "a", "text": "b" }]), "input[0].text"),
        ("input", json!([{ "role": "user", "content": "a", "type": "reasoning" }]), "input[0].type"),
        ("input", json!([{ "role": "user", "content": [{ "type": "input_image" }] }]), "input[0].content"),
    ] {
        let mut body = json!({ "input": "a" });
        body[name] = value;
        let answer = server.post_json(PATH, &body);
        assert_eq!((answer.status, answer.error("param").as_str()), (400, param), "{body}");
    }
}

#[test]
fn an_input_too_long_for_the_context_is_refused() {
    let server = TestServer::echo(Echo { context: 8, ..Echo::default() });
    let refused = server.post_json(PATH, &json!({ "input": "abcdefgh" }));
    assert_eq!((refused.status, refused.error("code").as_str()), (400, "context_length_exceeded"));
}
