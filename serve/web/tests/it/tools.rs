//! Answers of a given form: JSON by a schema, and calls of functions.

use serde_json::{Value, json};
use web::Echo;

use super::client::TestServer;

const PATH: &str = "/v1/chat/completions";

fn says(line: &str) -> TestServer {
    TestServer::echo(Echo { script: vec![line.to_owned()], ..Echo::default() })
}

fn ask(server: &TestServer, more: &Value) -> Value {
    let mut body = json!({ "messages": [{ "role": "user", "content": "Go on." }] });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    server.post_json(PATH, &body).json()
}

fn weather() -> Value {
    let parameters = json!({
        "type": "object", "properties": { "city": { "type": "string" }, "days": { "type": "integer" } },
        "required": ["city", "days"], "additionalProperties": false,
    });
    json!([
        { "type": "function", "function": { "name": "weather", "description": "Tells it.", "parameters": parameters } },
        { "type": "function", "function": { "name": "now" } },
    ])
}

#[test]
fn an_answer_follows_the_schema_of_response_format_whatever_the_model_prefers() {
    let schema = json!({
        "type": "object", "properties": { "name": { "type": "string" }, "tags": { "type": "array", "items": { "enum": ["a", "b"] } } },
        "required": ["name", "tags"], "additionalProperties": false,
    });
    for line in ["plain words", "{\"name\":\"Rosa\",\"tags\":[\"b\"]}", "{\"tags\""] {
        let server = says(line);
        let format = json!({ "type": "json_schema", "json_schema": { "name": "person", "schema": schema, "strict": true } });
        let answer = ask(&server, &json!({ "response_format": format }));
        let text = answer["choices"][0]["message"]["content"].as_str().unwrap();
        let value: Value = serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"));
        assert!(
            value["name"].is_string() && value["tags"].is_array() && value.as_object().unwrap().len() == 2,
            "{text}"
        );
        assert_eq!(answer["choices"][0]["finish_reason"], "stop");
        if line.starts_with("{\"name") {
            assert_eq!(text, line);
        }
        let object = ask(&server, &json!({ "response_format": { "type": "json_object" } }));
        let text = object["choices"][0]["message"]["content"].as_str().unwrap();
        assert!(serde_json::from_str::<Value>(text).unwrap().is_object(), "{text}");
    }
}

#[test]
fn a_call_is_reported_in_openais_form() {
    let call = "{\"name\":\"weather\",\"arguments\":{\"city\":\"Rome\",\"days\":3}}";
    for choice in
        [json!("auto"), json!("required"), json!({ "type": "function", "function": { "name": "weather" } })]
    {
        let answer = ask(&says(call), &json!({ "tools": weather(), "tool_choice": choice, "n": 2 }));
        for choice in answer["choices"].as_array().unwrap() {
            assert_eq!(
                (&choice["finish_reason"], &choice["message"]["content"]),
                (&json!("tool_calls"), &json!(null))
            );
            let called = &choice["message"]["tool_calls"][0];
            assert!(
                called["id"].as_str().unwrap().starts_with("call_") && called.get("index").is_none(),
                "{called}"
            );
            let function = json!({ "name": "weather", "arguments": "{\"city\":\"Rome\",\"days\":3}" });
            assert_eq!((&called["type"], &called["function"]), (&json!("function"), &function));
        }
    }
}

#[test]
fn a_call_is_streamed_with_its_name_first_and_arguments_in_pieces() {
    let server = says("{\"name\":\"weather\",\"arguments\":{\"city\":\"Rome\",\"days\":3}}");
    let body =
        json!({ "messages": [{ "role": "user", "content": "?" }], "tools": weather(), "stream": true });
    let chunks = server.post_json(PATH, &body).chunks();
    let choices: Vec<&Value> = chunks.iter().map(|chunk| &chunk["choices"][0]).collect();
    assert_eq!(choices[0]["delta"]["role"], "assistant");
    let calls: Vec<&Value> = choices
        .iter()
        .map(|choice| &choice["delta"]["tool_calls"][0])
        .filter(|call| !call.is_null())
        .collect();
    assert_eq!((&calls[0]["function"]["name"], &calls[0]["type"]), (&json!("weather"), &json!("function")));
    assert!(
        calls[0]["id"].is_string()
            && calls[1..].iter().all(|call| call.get("id").is_none() && call["index"] == 0)
    );
    let arguments: String = calls.iter().filter_map(|call| call["function"]["arguments"].as_str()).collect();
    assert_eq!(arguments, "{\"city\":\"Rome\",\"days\":3}");
    assert!(calls.len() > 10, "{} pieces", calls.len());
    assert!(choices.iter().all(|choice| choice["delta"].get("content").is_none_or(Value::is_null)));
    assert_eq!(choices.last().unwrap()["finish_reason"], "tool_calls");
}

#[test]
fn a_call_counts_as_one_if_its_text_is_complete_whatever_ended_it() {
    let arguments = "{\"city\":\"Rome\",\"days\":3}";
    let call = format!("{{\"name\":\"weather\",\"arguments\":{arguments}}}");
    let cut = |at: &str| arguments[..arguments.find(at).unwrap()].to_owned();
    for (more, said, finish) in [
        (json!({}), arguments.to_owned(), "tool_calls"),
        (json!({ "max_tokens": call.len() }), arguments.to_owned(), "tool_calls"),
        (json!({ "max_tokens": call.len() - 1 }), arguments.to_owned(), "length"),
        (json!({ "max_tokens": call.len() - 2 }), cut("}"), "length"),
        (json!({ "stop": ",\"days" }), cut(",\"days"), "stop"),
        (json!({ "stop": "}}" }), cut("}"), "stop"),
    ] {
        let mut body = more.clone();
        body["tools"] = weather();
        let choice = ask(&says(&call), &body)["choices"][0].clone();
        let called = &choice["message"]["tool_calls"][0]["function"]["arguments"];
        assert_eq!((called, &choice["finish_reason"]), (&json!(said), &json!(finish)), "{more}");

        body["stream"] = json!(true);
        body["messages"] = json!([{ "role": "user", "content": "?" }]);
        let chunks = says(&call).post_json(PATH, &body).chunks();
        let pieces = chunks.iter().filter_map(|chunk| {
            chunk["choices"][0]["delta"]["tool_calls"][0]["function"]["arguments"].as_str()
        });
        assert_eq!(pieces.collect::<String>(), said, "{more}");
        assert_eq!(chunks.last().unwrap()["choices"][0]["finish_reason"], finish, "{more}");
    }
}

#[test]
fn a_choice_decides_whether_and_which_function_is_called() {
    let server = says("Hello.");
    let ask = |choice: Value| {
        ask(&server, &json!({ "tools": weather(), "tool_choice": choice }))["choices"][0].clone()
    };
    for choice in [json!("auto"), json!("none")] {
        let spoken = ask(choice);
        assert_eq!(
            (&spoken["message"]["content"], &spoken["finish_reason"]),
            (&json!("Hello."), &json!("stop"))
        );
        assert!(spoken["message"].get("tool_calls").is_none());
    }
    let now = ask(json!({ "type": "function", "function": { "name": "now" } }));
    assert_eq!(now["message"]["tool_calls"][0]["function"]["name"], "now");
    let required = ask(json!("required"))["message"]["tool_calls"][0]["function"].clone();
    assert!(["now", "weather"].contains(&required["name"].as_str().unwrap()));
    assert!(serde_json::from_str::<Value>(required["arguments"].as_str().unwrap()).unwrap().is_object());
}

#[test]
fn functions_calls_and_results_are_texts_of_the_prompt() {
    let server = TestServer::echo(Echo::default());
    let call = json!({ "id": "c1", "type": "function", "function": { "name": "weather", "arguments": "{\"city\":\"Rome\"}" } });
    let history = json!([
        { "role": "user", "content": "Rome?" },
        { "role": "assistant", "content": null, "tool_calls": [call] },
        { "role": "tool", "tool_call_id": "c1", "content": "sunny" },
    ]);
    let answer = server.post_json(PATH, &json!({ "messages": history, "tools": weather() })).json();
    assert_eq!(answer["choices"][0]["message"]["content"], "weather returned: sunny");
    let prompt = answer["usage"]["prompt_tokens"].as_u64().unwrap();
    let without = server.post_json(PATH, &json!({ "messages": history })).json();
    assert!(prompt > without["usage"]["prompt_tokens"].as_u64().unwrap() + 100, "functions are described");
}

#[test]
fn a_request_with_wrong_functions_is_refused_by_name() {
    let server = TestServer::echo(Echo::default());
    let said = json!([{ "role": "user", "content": "a" }]);
    let twice = json!([weather()[1], weather()[1]]);
    let refuse = json!({ "type": "function", "function": { "name": "unknown" } });
    let schema = json!({ "type": "json_schema", "json_schema": { "name": "x", "schema": { "type": "number", "minimum": 3, "maximum": 2 } } });
    for (more, param) in [
        (json!({ "tools": twice }), "tools"),
        (json!({ "tools": [{ "type": "function", "function": { "name": "a b" } }] }), "tools"),
        (json!({ "tools": weather(), "tool_choice": refuse }), "tool_choice"),
        (json!({ "tool_choice": "required" }), "tool_choice"),
        (json!({ "tools": weather(), "response_format": { "type": "json_object" } }), "response_format"),
        (json!({ "response_format": { "type": "xml" } }), "response_format.type"),
        (
            json!({ "messages": [{ "role": "tool", "tool_call_id": "c9", "content": "a" }] }),
            "messages[0].tool_call_id",
        ),
        (json!({ "messages": [{ "role": "user", "content": null }] }), "messages[0].content"),
        (json!({ "response_format": schema }), "null"),
    ] {
        let mut body = json!({ "messages": said });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let refused = server.post_json(PATH, &body);
        assert_eq!((refused.status, refused.error("param").as_str()), (400, param), "{}", refused.text());
    }
}
