//! The page in a real browser.

mod answering;
mod beginnings;
mod exchange;
mod kept;
mod markdown;
mod memory;
mod notices;
mod phone;
mod search;
mod settings;
mod views;

use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::time::Duration;

use serde_json::Value;
use web::{Echo, Limits, Settings};

use crate::client::{TestServer, settings};
use crate::openai::is_client_installed;
use crate::webdriver::{self, Browser, Screen};

const ENTER: &str = "\u{e007}";
const ESCAPE: &str = "\u{e00c}";
const TAB: &str = "\u{e004}";
const QUIET: &str = "!document.querySelector('.live') && document.querySelector('#stop').hidden";

pub(crate) fn browser(screen: Screen) -> Option<Browser> {
    is_client_installed("Chromium with its driver", webdriver::is_installed()).then(|| Browser::open(screen))
}

pub(crate) fn ask(browser: &Browser, question: &str) {
    browser.write("#question", question);
    browser.click("#send");
    browser.until(QUIET);
}

pub(crate) fn answers(browser: &Browser) -> Vec<String> {
    let texts = browser
        .run("return [...document.querySelectorAll('.turn.model .words')].map((one) => one.textContent)");
    texts.as_array().unwrap().iter().map(|text| text.as_str().unwrap().to_owned()).collect()
}

fn visit(browser: &Browser, server: &TestServer) {
    browser.visit(&format!("http://{}/", server.address));
    browser.until("document.querySelector('#model').textContent.startsWith('echo')");
}

#[test]
fn a_conversation_streams_and_is_retried_edited_kept_and_deleted() {
    let Some(browser) = browser(Screen::Desktop) else { return };
    let server = TestServer::echo(Echo::default());
    visit(&browser, &server);
    ask(&browser, "first question");
    ask(&browser, "second 🌊 question");
    assert_eq!(answers(&browser), ["first question", "second 🌊 question"]);
    assert!(
        browser.text(".turn.model .figures").contains("tokens/s"),
        "{}",
        browser.text(".turn.model .figures")
    );

    browser.reload();
    assert_eq!(answers(&browser), ["first question", "second 🌊 question"], "a reload keeps the history");
    browser.until("document.querySelector('#model').textContent.startsWith('echo')");

    let before = server.metric("prompt_tokens_total");
    browser.click(".turn:last-child button[aria-label='Answer again']");
    browser.until(QUIET);
    assert_eq!(answers(&browser).len(), 2);
    assert!(server.metric("prompt_tokens_total") > before, "it was asked again");

    browser.click(".turn:first-child button[aria-label^='Edit']");
    browser.write(".turn textarea", " changed");
    browser.press(&[ENTER]);
    browser.until(QUIET);
    assert_eq!(answers(&browser), ["first question changed"], "what came after an edited question is gone");

    browser.click("#new");
    ask(&browser, "another conversation");
    assert_eq!(browser.count("#list li"), 2);
    browser.click("#list li:last-child .open");
    assert_eq!(answers(&browser), ["first question changed"]);
    browser.click(".turn:last-child button[aria-label^='Delete']");
    assert_eq!(browser.count(".turn"), 1, "the answer is deleted");
    browser.click("#clear");
    assert_eq!((browser.count("#list li"), browser.count(".turn")), (1, 0));
    browser.click("#forget");
    browser.accept_question();
    browser.until("document.querySelectorAll('#list li').length === 0");
    browser.reload();
    assert_eq!(browser.count("#list li"), 0);
    assert_eq!(browser.log_messages(), Vec::<String>::new());
}

#[test]
fn an_answer_is_stopped_by_button_and_by_escape_and_frees_its_slot() {
    let Some(browser) = browser(Screen::Desktop) else { return };
    let server = TestServer::echo(Echo { delay: Duration::from_millis(30), ..Echo::default() });
    visit(&browser, &server);
    let stops: [&dyn Fn(); 2] = [&|| browser.click("#stop"), &|| browser.press(&[ESCAPE])];
    for (at, stop) in stops.into_iter().enumerate() {
        browser.write("#question", &format!("{}{ENTER}", "long ".repeat(100)));
        browser.until("document.querySelector('.live .words')?.textContent.length > 3");
        stop();
        browser.until(QUIET);
        assert!(browser.text(".turn:last-child .figures").ends_with("stopped"));
        server.wait_for("cancelled_total", (at + 1) as f64);
    }
    server.wait_for("active_sequences", 0.0);
    assert!(answers(&browser).iter().all(|answer| answer.len() < 500));
}

#[test]
fn text_that_looks_like_markup_is_shown_as_text() {
    let Some(browser) = browser(Screen::Desktop) else { return };
    let attack = "<img src=x onerror=\"window.owned=1\"><script>window.owned=2</script>&lt;b&gt; [a](javascript:alert(1)) [b](javascript:owned=3)";
    let server = TestServer::echo(Echo { script: vec![attack.to_owned()], ..Echo::default() });
    visit(&browser, &server);
    browser.run(&format!("document.querySelector('#question').value = {}", Value::from(attack)));
    browser.click("#send");
    browser.until(QUIET);
    browser.until("document.querySelectorAll('.turn').length === 2");
    assert_eq!(answers(&browser), [attack]);
    assert_eq!(browser.text(".turn.user .words"), attack);

    for colour in [false, true] {
        if colour {
            browser.click("#adjust");
            browser.click("#set-colour");
            browser.click("#done");
            browser.click(".turn:last-child button[aria-label='Answer again']");
            browser.until(QUIET);
            browser.until("document.querySelectorAll('.turn.model mark').length > 20");
            assert_eq!(answers(&browser), [attack]);
        }
        browser.reload();
        assert_eq!(browser.run("return window.owned ?? null"), Value::Null);
        assert_eq!(
            browser.count("#turns img, #turns script, #turns a, #turns b, #list img, #list script"),
            0
        );
    }

    // The policy also blocks scripts that the page inserts.
    browser.run(
        "const made = document.createElement('script'); made.textContent = 'window.owned = 3'; document.body.append(made)",
    );
    assert_eq!(browser.run("return window.owned ?? null"), Value::Null);
}

#[test]
fn the_page_announces_when_the_server_goes_away_and_returns() {
    let Some(browser) = browser(Screen::Desktop) else { return };
    let settings = settings_of_a_port_of_its_own(2);
    let server = TestServer::start(settings.clone(), |worker| Echo::default().answer(worker));
    let again = Settings { port: server.address.port(), ..settings };
    visit(&browser, &server);
    server.stop();
    ask(&browser, "is anybody there?");
    browser.until("!document.querySelector('#banner').hidden");
    assert!(browser.text("#banner").contains("The server is away"));
    assert_eq!(browser.role_and_label("#banner").0, "alert");
    assert!(browser.text(".turn.model .fault").contains("could not be reached"));
    let _server = TestServer::start(again, |worker| Echo::default().answer(worker));
    browser.until("document.querySelector('#banner').hidden");
    ask(&browser, "and there again?");
    assert_eq!(
        answers(&browser),
        ["and there again?"],
        "a question without an answer is no part of the conversation"
    );
}

fn settings_of_a_port_of_its_own(last: u8) -> Settings {
    let last = if cfg!(target_os = "linux") { last } else { 1 };
    Settings { host: IpAddr::from(Ipv4Addr::new(127, 0, 0, last)), ..settings(Limits::default()) }
}

#[test]
fn settings_reach_the_server_and_a_refusal_is_shown_verbatim() {
    let Some(browser) = browser(Screen::Desktop) else { return };
    let server = TestServer::echo(Echo { context: 40, ..Echo::default() });
    visit(&browser, &server);
    browser.click("#adjust");
    browser.write("#set-max_tokens", "4");
    browser.click("#done");
    ask(&browser, "abcdefgh");
    assert_eq!(answers(&browser), ["abcd"]);
    assert!(browser.text(".turn.model .figures").contains("cut at the longest length"));
    ask(&browser, &"i".repeat(30));
    assert!(browser.text(".turn:last-child .figures").contains("the oldest question left out"));
    ask(&browser, &"j".repeat(60));
    assert!(browser.text(".turn:last-child .fault").contains("the model's context holds 40"));
}

#[test]
fn every_control_has_a_name_and_the_keyboard_reaches_it() {
    let Some(browser) = browser(Screen::Desktop) else { return };
    let server = TestServer::echo(Echo::default());
    visit(&browser, &server);
    browser.press(&["h", "i", ENTER]);
    browser.until(QUIET);
    assert_eq!(answers(&browser), ["hi"], "the question has the focus from the start");
    assert_eq!(
        browser.text("#said"),
        "The model says: hi",
        "a screen reader hears the answer once it is whole"
    );

    let on_the_page = all_have_names(&browser, "body");
    browser.click("#adjust");
    let in_the_settings = all_have_names(&browser, "#settings");
    assert!(on_the_page >= 12 && in_the_settings >= 11, "{on_the_page} and {in_the_settings}");
    browser.press(&[ESCAPE]);
    browser.until("!document.querySelector('#settings').open");
    browser.run("document.activeElement.blur()");

    let mut reached = Vec::new();
    for _ in 0..30 {
        browser.press(&[TAB]);
        reached.push(
            browser.run("return document.activeElement.id || document.activeElement.ariaLabel").to_string(),
        );
    }
    for wanted in ["\"new\"", "\"question\"", "\"adjust\"", "\"log\"", "\"Answer again\""] {
        assert!(reached.iter().any(|found| found == wanted), "{wanted} is not among {reached:?}");
    }
}

fn all_have_names(browser: &Browser, within: &str) -> u64 {
    let marked = browser.run(&format!(
        "const seen = [...document.querySelector('{within}').querySelectorAll('button, input, textarea, a')];
         return seen.filter((one) => one.checkVisibility()).map((one, at) => {{ one.dataset.at = at; return at; }}).length"
    ));
    let marked = marked.as_u64().unwrap();
    for at in 0..marked {
        let css = format!("{within} [data-at='{at}']");
        let (role, label) = browser.role_and_label(&css);
        assert!(!label.is_empty(), "a {role} without a name: {}", browser.text(&css));
    }
    marked
}

#[test]
fn the_page_fits_a_desktop_and_a_phone_in_light_and_dark() {
    // The toy model knows them too, for pictures by `SERVE_AT`.
    let script = ["Tuesday comes after Monday.", "A dog says woof."].map(str::to_owned);
    for (screen, name) in [(Screen::Desktop, "desktop"), (Screen::Phone, "phone")] {
        let Some(browser) = browser(screen) else { return };
        let echo = Echo { delay: Duration::from_millis(3), script: script.to_vec(), ..Echo::default() };
        let server = TestServer::echo(echo);
        let address = std::env::var("SERVE_AT").unwrap_or_else(|_unset| server.address.to_string());
        browser.prefer("light");
        browser.visit(&format!("http://{address}/"));
        browser.until("document.querySelector('#model').textContent !== ''");

        for question in ["What day comes after Monday?", "What sound does a dog make?"] {
            ask(&browser, question);
        }

        assert_eq!(browser.count(".turn.model .figures"), 2);
        assert_fits(&browser, name);
        save_picture(&browser, &format!("{name}-light"));
        browser.prefer("dark");
        assert_fits(&browser, name);
        save_picture(&browser, &format!("{name}-dark"));

        if matches!(screen, Screen::Phone) {
            assert_eq!(
                browser.run("return getComputedStyle(document.querySelector('#side')).visibility"),
                "hidden"
            );
            browser.click("#menu");
            browser.until("getComputedStyle(document.querySelector('#side')).visibility === 'visible'");
            save_picture(&browser, "phone-list");
            browser.click("#new");
            assert_eq!(browser.text("#title"), "New conversation");
        }
    }
}

fn assert_fits(browser: &Browser, name: &str) {
    let sizes = browser.run("return [document.documentElement.scrollWidth, innerWidth, \
         document.querySelector('#send').getBoundingClientRect().bottom, innerHeight, document.documentElement.scrollHeight]");
    let size = |at: usize| sizes[at].as_f64().unwrap();
    assert!(size(0) <= size(1) && size(2) <= size(3) && size(4) <= size(3), "{name}: {sizes}");
}

/// For `docs/`, to the folder `SERVE_SCREENSHOTS`.
fn save_picture(browser: &Browser, name: &str) {
    let image = browser.screenshot();
    assert!(image.starts_with(b"\x89PNG"));
    if let Some(folder) = std::env::var_os("SERVE_SCREENSHOTS") {
        std::fs::write(Path::new(&folder).join(format!("page-{name}.png")), image).unwrap();
    }
}
