//! `/v1/chat/completions` over the echo.

use serde_json::{Value, json};
use web::{Echo, Limits};

use super::client::{TestServer, post_request, settings, streamed_text};

const PATH: &str = "/v1/chat/completions";

fn chat_request(text: &str, mut parameters: Value) -> Value {
    parameters["messages"] = json!([{ "role": "user", "content": text }]);
    parameters
}

#[test]
fn an_answer_has_openais_shape_and_counts_its_tokens() {
    let server = TestServer::echo(Echo::default());
    let answer = server.post_json(PATH, &chat_request("hello", json!({ "model": "echo" })));
    assert_eq!(answer.status, 200);
    let body = answer.json();
    assert_eq!(body["object"], "chat.completion");
    assert!(body["id"].as_str().unwrap().starts_with("chatcmpl-") && body["created"].is_u64());
    assert_eq!(
        body["choices"][0]["message"],
        json!({ "role": "assistant", "content": "hello", "refusal": null })
    );
    assert_eq!(body["choices"][0]["finish_reason"], "stop");
    assert_eq!(body["usage"]["prompt_tokens"], 6);
    assert_eq!(body["usage"]["completion_tokens"], 5);
    assert_eq!(body["usage"]["total_tokens"], 11);
}

#[test]
fn a_stream_joins_to_the_whole_answer_and_ends_with_done_and_its_usage() {
    let server = TestServer::echo(Echo::default());
    let text = "naïve 🌊 words";
    let body = chat_request(text, json!({ "stream": true, "stream_options": { "include_usage": true } }));
    let answer = server.post_json(PATH, &body);
    assert!(answer.head.contains("content-type: text/event-stream"), "{}", answer.head);
    let chunks = answer.chunks();
    assert_eq!(chunks[0]["choices"][0]["delta"]["role"], "assistant");
    assert_eq!(streamed_text(&chunks, 0), text);
    let [.., end, usage] = chunks.as_slice() else { panic!("{chunks:?}") };
    assert_eq!(end["choices"][0]["finish_reason"], "stop");
    assert_eq!((&usage["choices"], &usage["usage"]["completion_tokens"]), (&json!([]), &json!(text.len())));
    assert!(chunks[..chunks.len() - 1].iter().all(|chunk| chunk["usage"].is_null()));
    assert!(
        chunks.iter().all(|chunk| chunk["id"] == end["id"] && chunk["object"] == "chat.completion.chunk")
    );
}

#[test]
fn no_piece_of_a_stream_ends_within_a_character() {
    let server = TestServer::echo(Echo::default());
    let chunks = server.post_json(PATH, &chat_request("é🌊é", json!({ "stream": true }))).chunks();
    let pieces: Vec<&str> =
        chunks.iter().filter_map(|chunk| chunk["choices"][0]["delta"]["content"].as_str()).collect();
    assert_eq!(pieces, ["", "é", "🌊", "é"]);
}

#[test]
fn bytes_that_are_no_character_become_its_replacement_also_at_the_end() {
    let server = TestServer::echo(Echo::default());
    // The limit cuts the last character.
    let body = server.post_json(PATH, &chat_request("aé", json!({ "max_tokens": 2 }))).json();
    assert_eq!(body["choices"][0]["message"]["content"], "a\u{fffd}");
    assert_eq!(body["choices"][0]["finish_reason"], "length");
}

#[test]
fn stop_strings_end_an_answer_and_no_part_of_one_is_sent() {
    let server = TestServer::echo(Echo::default());
    let more = json!({ "stream": true, "stop": ["END", "\n\n"] });
    let chunks = server.post_json(PATH, &chat_request("an EN and EEND of it", more)).chunks();
    assert_eq!(streamed_text(&chunks, 0), "an EN and E");
    assert_eq!(chunks.last().unwrap()["choices"][0]["finish_reason"], "stop");
    for chunk in &chunks {
        let piece = chunk["choices"][0]["delta"]["content"].as_str().unwrap_or_default();
        assert!(!piece.ends_with("EN"), "{piece}");
    }
    let whole = server.post_json(PATH, &chat_request("one, two", json!({ "stop": ", " }))).json();
    assert_eq!(whole["choices"][0]["message"]["content"], "one");
}

#[test]
fn text_held_back_for_a_stop_string_that_did_not_come_is_sent_at_the_end() {
    let server = TestServer::echo(Echo::default());
    for most in [5, 50] {
        let body = server
            .post_json(PATH, &chat_request("an EN", json!({ "stop": "END", "max_tokens": most })))
            .json();
        assert_eq!(body["choices"][0]["message"]["content"], "an EN");
    }
}

#[test]
fn choices_carry_their_index() {
    let server = TestServer::echo(Echo::default());
    let body = server.post_json(PATH, &chat_request("ab", json!({ "n": 3 }))).json();
    let indices: Vec<_> = body["choices"].as_array().unwrap().iter().map(|choice| &choice["index"]).collect();
    assert_eq!(indices, [0, 1, 2]);
    assert_eq!(body["usage"]["completion_tokens"], 6);
    let chunks = server.post_json(PATH, &chat_request("ab", json!({ "n": 2, "stream": true }))).chunks();
    assert_eq!([streamed_text(&chunks, 0), streamed_text(&chunks, 1)], ["ab", "ab"]);
}

#[test]
fn log_probabilities_come_with_bytes_and_as_many_alternatives_as_asked() {
    let server = TestServer::echo(Echo::default());
    let more = json!({ "logprobs": true, "top_logprobs": 2 });
    let body = server.post_json(PATH, &chat_request("é", more)).json();
    let content = body["choices"][0]["logprobs"]["content"].as_array().unwrap();
    let bytes: Vec<_> = content.iter().map(|entry| entry["bytes"][0].as_u64().unwrap()).collect();
    assert_eq!(bytes, [0xc3, 0xa9]);
    assert!(content.iter().all(|entry| entry["top_logprobs"].as_array().unwrap().len() == 2));
    assert!(content.iter().all(|entry| entry["logprob"].as_f64().unwrap() <= 0.0));
    let without = server.post_json(PATH, &chat_request("é", json!({}))).json();
    assert!(without["choices"][0]["logprobs"].is_null());
}

#[test]
fn tokens_that_a_stop_string_cut_off_have_no_log_probabilities() {
    let server = TestServer::echo(Echo::default());
    let more = json!({ "logprobs": true, "stop": "cd" });
    let body = server.post_json(PATH, &chat_request("abcd", more)).json();
    assert_eq!(body["choices"][0]["logprobs"]["content"].as_array().unwrap().len(), 2);
}

#[test]
fn a_conversation_is_accepted_as_it_was_received() {
    let server = TestServer::echo(Echo::default());
    let body = json!({ "messages": [
        { "role": "developer", "content": "Be brief." },
        { "role": "user", "content": [{ "type": "text", "text": "one " }, { "type": "text", "text": "two" }] },
        { "role": "assistant", "content": "one two", "refusal": null, "annotations": null, "audio": null,
          "function_call": null, "tool_calls": null },
        { "role": "user", "content": "three" },
    ] });
    assert_eq!(server.post_json(PATH, &body).json()["choices"][0]["message"]["content"], "three");
}

#[test]
fn parameters_that_clients_send_by_default_are_accepted_and_others_refused_by_name() {
    let server = TestServer::echo(Echo::default());
    let defaults = json!({
        "frequency_penalty": 0, "presence_penalty": 0.0, "logit_bias": {}, "user": "somebody", "n": 1, "stream": false,
        "response_format": { "type": "text" }, "tools": [], "store": false, "service_tier": "auto", "top_p": 1,
        "temperature": 1, "stop": null, "seed": null, "max_tokens": null, "logprobs": false, "tool_choice": "none",
    });
    assert_eq!(server.post_json(PATH, &chat_request("a", defaults)).status, 200);
    for (name, value) in [
        ("modalities", json!(["audio"])),
        ("temperatur", json!(1)),
        ("max_new_tokens", json!(5)),
        ("chat_template", json!("{{ x }}")),
        ("unheard_of", json!(null)),
    ] {
        let answer = server.post_json(PATH, &chat_request("a", json!({ name: value })));
        assert_eq!((answer.status, answer.error("param")), (400, name.to_owned()));
    }
}

#[test]
fn values_by_which_other_clients_say_that_they_do_not_choose_are_accepted() {
    let server = TestServer::echo(Echo::default());
    let off = json!({
        "seed": -1, "top_k": -1, "max_tokens": -1, "stop": "", "service_tier": "default", "repeat_penalty": 1.0
    });
    let answer = server.post_json(PATH, &chat_request("a", off));
    assert_eq!(answer.status, 200, "{}", answer.text());
    let both = json!({ "logprobs": true, "top_logprobs": 20 });
    assert_eq!(server.post_json(PATH, &chat_request("a", both)).status, 200);
}

#[test]
fn neighbouring_messages_of_one_role_are_one_message() {
    let server = TestServer::echo(Echo::default());
    let messages = json!([
        { "role": "user", "content": "ab", "name": "Ann" }, { "role": "user", "content": "cd", "name": "Ben" }
    ]);
    let apart = server.post_json(PATH, &json!({ "messages": messages })).json();
    let joined = server.post_json(PATH, &chat_request("ab\n\ncd", json!({}))).json();
    assert_eq!(apart["usage"], joined["usage"]);
    assert_eq!(apart["choices"], joined["choices"]);
}

#[test]
fn empty_messages_are_left_out_and_a_conversation_needs_a_text() {
    let server = TestServer::echo(Echo::default());
    let said = |role: &str, content: Value| json!({ "role": role, "content": content });
    let joined = server.post_json(PATH, &chat_request("ab\n\ncd", json!({}))).json();
    for empty in [said("assistant", json!("")), said("assistant", json!(null)), said("system", json!([]))] {
        let messages = json!([said("user", json!("ab")), empty, said("user", json!("cd"))]);
        let apart = server.post_json(PATH, &json!({ "messages": messages })).json();
        assert_eq!((&apart["usage"], &apart["choices"]), (&joined["usage"], &joined["choices"]));
    }

    let input = json!([said("user", json!("ab")), said("assistant", json!("")), said("user", json!("cd"))]);
    let response = server.post_json("/v1/responses", &json!({ "input": input })).json();
    assert_eq!(response["output"][0]["content"][0]["text"], "ab\n\ncd");

    for messages in [
        json!([said("user", json!(""))]),
        json!([said("assistant", json!(null))]),
        json!([said("user", json!("a")), said("assistant", json!("b")), said("user", json!(""))]),
    ] {
        assert_eq!(server.post_json(PATH, &json!({ "messages": messages })).status, 400, "{messages}");
    }
    let nothing = server.post_json(PATH, &chat_request("", json!({})));
    assert_eq!((nothing.status, nothing.error("param").as_str()), (400, "messages"));
}

#[test]
fn a_call_goes_back_as_it_was_streamed() {
    let server = TestServer::echo(Echo::default());
    let function = json!({ "name": "weather", "arguments": "{\"city\":\"Rome\"}" });
    let call = json!({ "index": 0, "id": "c1", "type": "function", "function": function });
    let messages = json!([
        { "role": "user", "content": "Rome?" },
        { "role": "assistant", "content": null, "tool_calls": [call] },
        { "role": "tool", "tool_call_id": "c1", "content": "sunny" },
    ]);
    let answer = server.post_json(PATH, &json!({ "messages": messages }));
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(answer.json()["choices"][0]["message"]["content"], "weather returned: sunny");
}

#[test]
fn numbers_out_of_range_are_refused_by_name() {
    let server = TestServer::echo(Echo::default());
    let huge = "1e400";
    for (name, value) in [
        ("temperature", "-0.1"),
        ("frequency_penalty", "2.1"),
        ("presence_penalty", "-2.1"),
        ("logit_bias", "{\"5\": 100.5}"),
        ("logit_bias", "{\"260\": 1}"),
        ("logit_bias", "{\"-1\": 1}"),
        ("logit_bias", "{\"+5\": 1}"),
        ("logit_bias", "{\"a\": 1}"),
        ("logit_bias", "[5]"),
        ("temperature", "2.1"),
        ("temperature", "\"hot\""),
        ("top_p", "-0.1"),
        ("top_p", "1.1"),
        ("top_k", "-2"),
        ("min_p", "2"),
        ("repetition_penalty", "0"),
        ("max_tokens", "0"),
        ("max_tokens", "-5"),
        ("max_completion_tokens", "99999999999999999999999"),
        ("n", "5"),
        ("n", "0"),
        ("seed", "-2"),
        ("seed", "9223372036854775808"),
        ("top_logprobs", "21"),
        ("stop", "[\"a\",\"b\",\"c\",\"d\",\"e\"]"),
        ("stop", "[\"\"]"),
        ("repeat_penalty", "0"),
        ("stop", "[1]"),
        ("stream", "1"),
    ] {
        let messages = "\"messages\": [{\"role\": \"user\", \"content\": \"a\"}], \"logprobs\": true";
        let answer = server.post(PATH, &format!("{{{messages}, \"{name}\": {value}}}"));
        assert_eq!((answer.status, answer.error("param").as_str()), (400, name), "{name} = {value}");
    }
    assert_eq!(server.post(PATH, &format!("{{\"temperature\": {huge}}}")).status, 400);
}

#[test]
fn a_wrong_message_is_named_by_its_path() {
    let server = TestServer::echo(Echo::default());
    for (messages, param) in [
        (json!([{ "role": "critic", "content": "a" }]), "messages[0].role"),
        (json!([{ "role": "user" }]), "messages[0].content"),
        (json!([{ "role": "user", "content": "a", "name": 1 }]), "messages[0].name"),
        (json!([{ "role": "user", "content": [{ "type": "image_url" }] }]), "messages[0].content"),
        (json!("a"), "messages"),
        (json!([]), "messages"),
        (json!(null), "messages"),
    ] {
        let answer = server.post_json(PATH, &json!({ "messages": messages }));
        assert_eq!((answer.status, answer.error("param").as_str()), (400, param), "{messages}");
    }
    let last = json!({ "messages": [{ "role": "assistant", "content": "a" }] });
    assert_eq!(server.post_json(PATH, &last).status, 400);
}

#[test]
fn an_answer_is_cut_to_the_room_left_and_a_prompt_never() {
    let server = TestServer::echo(Echo { context: 8, ..Echo::default() });
    let asked =
        |text: &str, most: Value| server.post_json(PATH, &chat_request(text, json!({ "max_tokens": most })));
    // Six tokens with the control token; an answer's last is never read.
    for most in [json!(3), json!(4), json!(1_000_000), json!(null)] {
        let choice = asked("abcde", most).json()["choices"][0].clone();
        assert_eq!(
            (&choice["message"]["content"], &choice["finish_reason"]),
            (&json!("abc"), &json!("length"))
        );
    }
    assert_eq!(asked("abcdefg", json!(9)).json()["choices"][0]["message"]["content"], "a");
    for most in [json!(1), json!(null)] {
        let refused = asked("abcdefgh", most);
        assert_eq!((refused.status, refused.error("code").as_str()), (400, "context_length_exceeded"));
    }
}

#[test]
fn an_answer_is_cut_to_the_servers_longest() {
    let limits = Limits { tokens: 2, ..Limits::default() };
    let server = TestServer::start(settings(limits), |worker| Echo::default().answer(worker));
    let choice = server.post_json(PATH, &chat_request("abcd", json!({ "max_tokens": 5 }))).json()["choices"]
        [0]
    .clone();
    assert_eq!((&choice["message"]["content"], &choice["finish_reason"]), (&json!("ab"), &json!("length")));
}

#[test]
fn a_client_that_prefers_strict_handling_gets_a_400_instead_of_a_shorter_answer() {
    let limits = Limits { tokens: 6, ..Limits::default() };
    let roomy = TestServer::start(settings(limits), |worker| Echo::default().answer(worker));
    let server = TestServer::echo(Echo { context: 8, ..Echo::default() });
    let asked = |server: &TestServer, prefer: &str, most: u64| {
        let request = post_request(PATH, &chat_request("abcd", json!({ "max_tokens": most })).to_string());
        server.send(request.replacen("\r\n", &format!("\r\nPrefer: {prefer}\r\n"), 1))
    };
    for prefer in ["handling=strict", "respond-async, Handling=STRICT"] {
        assert_eq!(asked(&server, prefer, 4).status, 200);
        let refused = asked(&server, prefer, 5);
        assert_eq!((refused.status, refused.error("code").as_str()), (400, "context_length_exceeded"));

        assert_eq!(asked(&roomy, prefer, 6).status, 200);
        let refused = asked(&roomy, prefer, 7);
        assert!(
            refused.status == 400 && refused.error("message").contains("--max-tokens"),
            "{}",
            refused.text()
        );
    }
    for server in [&server, &roomy] {
        assert_eq!(asked(server, "handling=lenient", 7).status, 200);
    }
}

#[test]
fn an_unknown_model_is_a_404() {
    let server = TestServer::echo(Echo::default());
    let answer = server.post_json(PATH, &chat_request("a", json!({ "model": "gpt-4o" })));
    assert_eq!((answer.status, answer.error("code").as_str()), (404, "model_not_found"));
}

#[cfg(not(feature = "structured"))]
#[test]
fn a_build_without_grammars_refuses_them_by_the_name_of_the_feature() {
    let server = TestServer::echo(Echo::default());
    let tools = json!([{ "type": "function", "function": { "name": "now" } }]);
    for more in [json!({ "response_format": { "type": "json_object" } }), json!({ "tools": tools })] {
        let refused = server.post_json(PATH, &chat_request("a", more));
        assert!(
            refused.status == 400 && refused.error("message").contains("`structured`"),
            "{}",
            refused.text()
        );
    }
    assert_eq!(
        server.post_json(PATH, &chat_request("a", json!({ "tools": tools, "tool_choice": "none" }))).status,
        200
    );
}
