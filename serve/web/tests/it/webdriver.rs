//! A browser controlled by `WebDriver`.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Value, json};

use super::client::{Answer, TIMEOUT};

const DRIVER: &str = "chromedriver";

pub(crate) struct Browser {
    driver: Child,
    address: SocketAddr,
    session: String,
}

#[derive(Clone, Copy)]
pub(crate) enum Screen {
    Desktop,
    Phone,
}

pub(crate) fn is_installed() -> bool {
    let starts = |program: &str| {
        let quiet =
            Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
        quiet.is_ok_and(|status| status.success())
    };
    starts(DRIVER) && starts("chromium")
}

impl Browser {
    pub(crate) fn open(screen: Screen) -> Self {
        let mut driver = Command::new(DRIVER)
            .arg("--port=0")
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(driver.stdout.take().unwrap()).lines();
        let port = lines.by_ref().find_map(|line| {
            let line = line.unwrap();
            line.contains("started successfully on port ")
                .then(|| line.rsplit(' ').next().unwrap().trim_end_matches('.').parse().unwrap())
        });
        // A full pipe would stop the driver.
        std::thread::spawn(move || lines.for_each(drop));

        let address = SocketAddr::from(([127, 0, 0, 1], port.expect("the driver says where it listens")));
        let mut browser = Self { driver, address, session: String::new() };
        let mut options = json!({
            "args": ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
                     "--window-size=1280,800", "--disable-background-networking", "--lang=en"],
        });
        if matches!(screen, Screen::Phone) {
            let metrics =
                json!({ "width": 390, "height": 844, "pixelRatio": 2.0, "mobile": true, "touch": true });
            options["mobileEmulation"] = json!({ "deviceMetrics": metrics });
        }

        let wanted = json!({ "goog:chromeOptions": options, "goog:loggingPrefs": { "browser": "ALL" } });
        let made = browser.request("POST", "/session", &json!({ "capabilities": { "alwaysMatch": wanted } }));
        browser.session = format!("/session/{}", made["sessionId"].as_str().unwrap());
        browser
    }

    fn attempt(&self, method: &str, path: &str, body: &Value) -> Result<Value, String> {
        let body = if method == "GET" || method == "DELETE" { String::new() } else { body.to_string() };
        let mut stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all((head + &body).as_bytes()).unwrap();
        let answer = Answer::read_measured(&mut stream);
        let mut value = answer.json()["value"].take();
        if answer.status == 200 { Ok(value.take()) } else { Err(format!("{method} {path}: {value}")) }
    }

    fn request(&self, method: &str, path: &str, body: &Value) -> Value {
        self.attempt(method, path, body).unwrap()
    }

    fn command(&self, method: &str, path: &str, body: &Value) -> Value {
        self.request(method, &format!("{}{path}", self.session), body)
    }

    pub(crate) fn visit(&self, url: &str) {
        self.command("POST", "/url", &json!({ "url": url }));
    }

    pub(crate) fn reload(&self) {
        self.command("POST", "/refresh", &json!({}));
    }

    pub(crate) fn tab(&self) -> Value {
        self.command("GET", "/window", &Value::Null)
    }

    /// Commands go to the new tab.
    pub(crate) fn open_tab(&self) -> Value {
        let tab = self.command("POST", "/window/new", &json!({ "type": "tab" }))["handle"].take();
        self.switch_to(&tab);
        tab
    }

    pub(crate) fn switch_to(&self, tab: &Value) {
        self.command("POST", "/window", &json!({ "handle": tab }));
    }

    pub(crate) fn run(&self, script: &str) -> Value {
        self.command("POST", "/execute/sync", &json!({ "script": script, "args": [] }))
    }

    pub(crate) fn text(&self, css: &str) -> String {
        let script = format!("return document.querySelector({})?.textContent ?? null", json!(css));
        let text = self.run(&script);
        text.as_str().unwrap_or_else(|| panic!("nothing is {css}")).to_owned()
    }

    pub(crate) fn count(&self, css: &str) -> u64 {
        self.run(&format!("return document.querySelectorAll({}).length", json!(css))).as_u64().unwrap()
    }

    pub(crate) fn until(&self, expression: &str) {
        for _ in 0..6000 {
            if self.run(&format!("return Boolean({expression})")) == true {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!(
            "{expression} never became true; the page says:\n{}",
            self.run("return document.body.innerText")
        );
    }

    fn find(&self, css: &str) -> String {
        let found = self.command("POST", "/element", &json!({ "using": "css selector", "value": css }));
        let (_, id) = found.as_object().unwrap().iter().next().unwrap();
        format!("/element/{}", id.as_str().unwrap())
    }

    /// The page may redraw an element before the click.
    pub(crate) fn click(&self, css: &str) {
        let began = Instant::now();
        loop {
            let path = format!("{}{}/click", self.session, self.find(css));
            match self.attempt("POST", &path, &json!({})) {
                Ok(_) => return,
                Err(error) if error.contains("stale element reference") && began.elapsed() < TIMEOUT => {}
                Err(error) => panic!("{error}"),
            }
        }
    }

    pub(crate) fn write(&self, css: &str, text: &str) {
        self.command("POST", &format!("{}/value", self.find(css)), &json!({ "text": text }));
    }

    pub(crate) fn press(&self, keys: &[&str]) {
        let strokes = keys.iter().flat_map(|key| {
            [json!({ "type": "keyDown", "value": key }), json!({ "type": "keyUp", "value": key })]
        });
        let actions = json!([{ "type": "key", "id": "keys", "actions": strokes.collect::<Value>() }]);
        self.command("POST", "/actions", &json!({ "actions": actions }));
    }

    pub(crate) fn role_and_label(&self, css: &str) -> (String, String) {
        let element = self.find(css);
        let ask = |what: &str| self.command("GET", &format!("{element}/{what}"), &Value::Null);
        let text = |value: Value| value.as_str().unwrap().to_owned();
        (text(ask("computedrole")), text(ask("computedlabel")))
    }

    pub(crate) fn accept_question(&self) {
        self.command("POST", "/alert/accept", &json!({}));
    }

    pub(crate) fn answer_question(&self, text: &str) {
        self.command("POST", "/alert/text", &json!({ "text": text }));
        self.accept_question();
    }

    pub(crate) fn log_messages(&self) -> Vec<String> {
        let log = self.command("POST", "/se/log", &json!({ "type": "browser" }));
        log.as_array().unwrap().iter().map(|entry| entry["message"].to_string()).collect()
    }

    pub(crate) fn prefer(&self, scheme: &str) {
        let features = json!([{ "name": "prefers-color-scheme", "value": scheme }]);
        let body = json!({ "cmd": "Emulation.setEmulatedMedia", "params": { "features": features } });
        self.command("POST", "/goog/cdp/execute", &body);
    }

    pub(crate) fn save_downloads_to(&self, folder: &Path) {
        let params = json!({ "behavior": "allow", "downloadPath": folder });
        let body = json!({ "cmd": "Browser.setDownloadBehavior", "params": params });
        self.command("POST", "/goog/cdp/execute", &body);
    }

    pub(crate) fn screenshot(&self) -> Vec<u8> {
        let image = self.command("GET", "/screenshot", &Value::Null);
        STANDARD.decode(image.as_str().unwrap()).unwrap()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // A browser outlives its driver unless its session is deleted.
        let head =
            format!("DELETE {} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n", self.session);
        if let Ok(mut stream) = TcpStream::connect(self.address) {
            let _asked =
                stream.set_read_timeout(Some(TIMEOUT)).and_then(|()| stream.write_all(head.as_bytes()));
            let _answered = stream.read(&mut [0; 1]);
        }
        let _gone = self.driver.kill();
        let _ended = self.driver.wait();
    }
}
