//! Access: the key, names, types, origins, headers.

use web::{ApiKey, Echo, Limits, Settings, Web};

use super::client::{Answer, TestServer, settings};

const KEY: &str = "0123456789abcdef0123456789abcdef";

const ROUTES: [(&str, &str); 10] = [
    ("GET", "/"),
    ("GET", "/health"),
    ("GET", "/metrics"),
    ("POST", "/tokenize"),
    ("POST", "/detokenize"),
    ("GET", "/models"),
    ("GET", "/v1/models"),
    ("GET", "/v1/models/echo"),
    ("POST", "/v1/chat/completions"),
    ("POST", "/v1/completions"),
];

fn with(change: impl FnOnce(&mut Settings)) -> TestServer {
    let mut settings = settings(Limits::default());
    change(&mut settings);
    TestServer::start(settings, |worker| Echo::default().answer(worker))
}

fn ask(server: &TestServer, method: &str, path: &str, headers: &str) -> Answer {
    server.send(format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{headers}\r\n"))
}

#[test]
fn only_health_answers_without_the_key() {
    let server = with(|settings| settings.key = Some(ApiKey::new(KEY).unwrap()));
    let unknown = [("GET", "/nowhere"), ("DELETE", "/v1/models"), ("OPTIONS", "/"), ("HEAD", "/metrics")];
    for (method, path) in ROUTES.into_iter().chain(unknown) {
        let expected = if path == "/health" { 200 } else { 401 };
        for headers in ["", "Authorization: Bearer wrong\r\n", "Authorization: Basic OndlYg==\r\n"] {
            assert_eq!(
                ask(&server, method, path, headers).status,
                expected,
                "{method} {path} with {headers:?}"
            );
        }
        let key = format!("Authorization: Bearer {KEY}\r\n");
        assert_ne!(ask(&server, method, path, &key).status, 401, "{method} {path}");
    }
    let refused = ask(&server, "GET", "/v1/models", "");
    assert_eq!(refused.error("code"), "invalid_api_key");
    assert!(refused.head.contains("\r\nwww-authenticate: bearer"), "{}", refused.head);
    let browser = ask(&server, "GET", "/", "Accept: text/html,*/*\r\n");
    assert!(browser.head.contains("\r\nwww-authenticate: basic"), "a browser asks its user for the key");
}

#[test]
fn an_address_other_than_loopback_needs_a_key() {
    let open = Settings { host: "0.0.0.0".parse().unwrap(), ..settings(Limits::default()) };
    let refused = Web::start(open.clone(), |_desk| Ok(())).err().expect("it must not listen");
    assert!(refused.to_string().contains("--api-key-file"), "{refused}");
    let with_key = Settings { key: Some(ApiKey::new(KEY).unwrap()), ..open };
    Web::start(with_key, |_desk| Ok(())).unwrap().stop().unwrap();
}

#[test]
fn a_request_with_a_foreign_host_is_refused_on_every_route() {
    let server = with(|settings| settings.hosts = vec!["box.lan".into()]);
    for (method, path) in ROUTES {
        let head = |host: &str| format!("{method} {path} HTTP/1.1\r\n{host}Connection: close\r\n\r\n");
        for host in ["Host: evil.example\r\n", "Host: localhost\r\nHost: evil.example\r\n", ""] {
            let status = server.send(head(host)).status;
            assert!(matches!(status, 400 | 403), "{method} {path} with {host:?}: {status}");
        }
        let absolute = format!(
            "{method} http://evil.example{path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        );
        assert_eq!(server.send(absolute).status, 403, "{method} {path}");
        assert_ne!(server.send(head("Host: BOX.lan:80\r\n")).status, 403, "{method} {path}");
    }
}

#[test]
fn every_answer_has_the_security_headers() {
    let server = with(|_| ());
    for (method, path) in ROUTES.into_iter().chain([("GET", "/nowhere"), ("PUT", "/")]) {
        let head = ask(&server, method, path, "").head;
        for line in [
            "x-request-id: ",
            "x-content-type-options: nosniff",
            "content-security-policy: default-src 'none'",
            "cache-control: no-store",
        ] {
            assert!(head.contains(&format!("\r\n{line}")), "{method} {path} lacks {line}: {head}");
        }
        assert!(!head.contains("access-control-"), "{head}");
    }
}

#[test]
fn only_json_is_read() {
    let server = with(|_| ());
    let body = "{\"prompt\": \"a\"}";
    let send = |kind: &str| {
        let length = body.len();
        server.send(format!(
            "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{kind}Content-Length: {length}\r\n\r\n{body}"
        ))
    };
    for kind in ["Content-Type: application/json\r\n", "content-type: Application/JSON; charset=UTF-8\r\n"] {
        assert_eq!(send(kind).status, 200, "{kind}");
    }
    for kind in [
        "",
        "Content-Type: text/plain\r\n",
        "Content-Type: application/x-www-form-urlencoded\r\n",
        "Content-Type: application/json; charset=latin1\r\n",
        "Content-Type: application/json\r\nContent-Type: text/plain\r\n",
    ] {
        assert_eq!(send(kind).status, 415, "{kind}");
    }
}

#[test]
fn other_origins_are_allowed_only_by_name() {
    let origin = "https://pages.example";
    let preflight = format!("Origin: {origin}\r\nAccess-Control-Request-Method: POST\r\n");
    let closed = with(|_| ());
    assert!(
        !ask(&closed, "OPTIONS", "/v1/completions", &preflight).head.contains("access-control-allow-origin")
    );
    let open = with(|settings| {
        settings.origins = vec![origin.to_owned()];
        settings.key = Some(ApiKey::new(KEY).unwrap());
    });
    let allowed = ask(&open, "OPTIONS", "/v1/completions", &preflight);
    assert!(allowed.head.contains(&format!("access-control-allow-origin: {origin}")), "{}", allowed.head);
    // OpenAI's JavaScript package sends it.
    let more = format!("{preflight}Access-Control-Request-Headers: authorization,x-stainless-lang\r\n");
    let allowed = ask(&open, "OPTIONS", "/v1/completions", &more).head;
    assert!(allowed.contains("access-control-allow-headers: authorization,x-stainless-lang"), "{allowed}");
    assert!(allowed.contains("access-control-max-age: 600"), "{allowed}");
    let answered = ask(&open, "GET", "/health", &format!("Origin: {origin}\r\n")).head;
    assert!(answered.contains("access-control-expose-headers: retry-after"), "{answered}");
    let other = preflight.replace("pages", "evil");
    assert!(!ask(&open, "OPTIONS", "/v1/completions", &other).head.contains("access-control-allow-origin"));
    assert_eq!(ask(&open, "GET", "/v1/models", &format!("Origin: {origin}\r\n")).status, 401);
}

#[test]
fn a_clients_request_id_returns_and_one_unfit_for_a_log_is_replaced() {
    let server = TestServer::echo(Echo::default());
    let ids = |lines: &str| {
        let request = format!("GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{lines}\r\n");
        let answer = server.send(request);
        let ids = answer.head.lines().filter_map(|line| line.strip_prefix("x-request-id: "));
        ids.map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(ids("X-Request-Id: job-7.retry_2\r\n"), ["job-7.retry_2"]);
    let long = "a".repeat(65);
    for unfit in ["", "a b", "a\"b", "a=b", "é", &long, "a\r\nX-Request-Id: b"] {
        let [ours] = ids(&format!("X-Request-Id: {unfit}\r\n")).try_into().unwrap();
        assert!(ours.len() == 16 && ours.bytes().all(|byte| byte.is_ascii_hexdigit()), "{unfit}: {ours}");
    }
}
