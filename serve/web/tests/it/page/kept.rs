//! A browser's conversations: over tabs, versions and deletions.

use std::time::Duration;

use serde_json::json;
use web::Echo;

use super::{ENTER, QUIET, answers, ask, browser, visit};
use crate::client::TestServer;
use crate::webdriver::{Browser, Screen};

pub(super) fn titles(browser: &Browser) -> serde_json::Value {
    browser.run("return [...document.querySelectorAll('#list .open')].map((one) => one.textContent)")
}

#[test]
fn two_tabs_keep_each_others_conversations() {
    let Some(browser) = browser(Screen::Desktop) else { return };
    let server = TestServer::echo(Echo { delay: Duration::from_millis(20), ..Echo::default() });
    visit(&browser, &server);
    ask(&browser, "before");
    let first = browser.tab();
    let second = browser.open_tab();
    visit(&browser, &server);
    browser.click("#new");
    ask(&browser, "of the second");
    browser.switch_to(&first);
    browser.until("document.querySelectorAll('#list li').length === 2");
    assert_eq!(answers(&browser), ["before"], "this tab shows its own conversation");
    browser.click("#new");
    ask(&browser, "of the first");
    browser.reload();
    assert_eq!(titles(&browser), json!(["of the first", "of the second", "before"]));
    assert_eq!(answers(&browser), ["of the first"]);

    browser.switch_to(&second);
    assert_eq!(titles(&browser), json!(["of the first", "of the second", "before"]));
    browser.write("#question", &format!("{}{ENTER}", "long ".repeat(20)));
    browser.until("document.querySelector('.live .words')?.textContent.length > 3");
    browser.switch_to(&first);
    browser.click("#list li:nth-child(2) .quiet");
    browser.switch_to(&second);
    browser.until(QUIET);
    browser.until("document.querySelectorAll('#list li').length === 2");
    assert_eq!(browser.count(".turn"), 0);
    browser.reload();
    assert_eq!(titles(&browser), json!(["of the first", "before"]));
}

#[test]
fn conversations_of_an_earlier_page_are_kept() {
    let Some(browser) = browser(Screen::Desktop) else { return };
    let server = TestServer::echo(Echo::default());
    visit(&browser, &server);
    browser.run(
        "localStorage.setItem('spillway.conversations', JSON.stringify([
           { id: '1764000000001-b', turns: [{ role: 'user', content: 'younger' }, { role: 'assistant', content: 'yes' }] },
           { id: '1764000000000-a', turns: [{ role: 'user', content: 'older' }] }]))",
    );
    browser.run("localStorage.setItem('spillway.current', '\"1764000000001-b\"'); sessionStorage.clear()");
    browser.reload();
    assert_eq!(titles(&browser), json!(["younger", "older"]));
    assert_eq!(answers(&browser), ["yes"]);
    ask(&browser, "and on");
    browser.reload();
    assert_eq!(answers(&browser), ["yes", "and on"]);
}

const RETRY: &str = "button[aria-label='Answer again']";

#[test]
fn a_retried_answer_and_an_edited_question_keep_their_earlier_versions_and_what_followed() {
    let Some(browser) = browser(Screen::Desktop) else { return };
    let script = ["one", "two", "three", "four"].map(str::to_owned).to_vec();
    let server = TestServer::echo(Echo { script, ..Echo::default() });
    visit(&browser, &server);
    ask(&browser, "first");
    ask(&browser, "second");
    browser.click(&format!(".turn:nth-child(2) {RETRY}"));
    browser.until(QUIET);
    assert_eq!(answers(&browser), ["three"], "an answer to what was said before");
    assert_eq!(browser.text(".turn:nth-child(2) [role=img]"), "2/2");
    assert!(
        browser.role_and_label(".turn:nth-child(2) [role=img]").1.contains("Version 2 of 2"),
        "a screen reader hears it"
    );

    browser.click("button[aria-label='Earlier version']");
    assert_eq!(answers(&browser), ["one", "two"]);
    assert_eq!(browser.text(".turn:nth-child(2) [role=img]"), "1/2");
    browser.click(".turn:first-child button[aria-label^='Edit']");
    browser.write(".turn textarea", " edited");
    browser.press(&[ENTER]);
    browser.until(QUIET);
    assert_eq!(answers(&browser), ["four"]);
    browser.reload();
    assert_eq!(browser.text(".turn:first-child .words"), "first edited");
    browser.click(".turn:first-child button[aria-label='Earlier version']");
    assert_eq!(answers(&browser), ["one", "two"]);
    browser.click(".turn:nth-child(2) button[aria-label='Later version']");
    assert_eq!(answers(&browser), ["three"]);

    browser.click(".turn:nth-child(2) button[aria-label^='Delete']");
    assert_eq!(answers(&browser), ["one", "two"]);
    assert_eq!(browser.count(".turn:nth-child(2) [role=img]"), 0);
}

#[test]
fn an_answer_outlives_a_retry_that_fails() {
    let Some(browser) = browser(Screen::Desktop) else { return };
    let server = TestServer::echo(Echo::default());
    visit(&browser, &server);
    ask(&browser, "first");
    ask(&browser, "second");
    server.stop();
    browser.click(&format!(".turn:nth-child(2) {RETRY}"));
    super::notices::sees_notice(&browser, "The server could not be reached. The earlier answer stays.");
    browser.until(QUIET);
    assert_eq!(answers(&browser), ["first", "second"]);
    let kept = browser.run(
        "return Object.entries(localStorage).find(([name]) => name.startsWith('spillway.conversation.'))[1]",
    );
    let kept: serde_json::Value = serde_json::from_str(kept.as_str().unwrap()).unwrap();
    let versions = |at: usize| kept["turns"][at]["versions"].as_array().unwrap().len();
    assert_eq!([0, 1, 2, 3].map(versions), [1, 1, 1, 1]);
}

#[test]
fn deleted_turns_and_conversations_return_by_undo() {
    let Some(browser) = browser(Screen::Desktop) else { return };
    let server = TestServer::echo(Echo::default());
    visit(&browser, &server);
    ask(&browser, "first");
    ask(&browser, "second");
    browser.click("#new");
    ask(&browser, "another");
    browser.click("#list li:last-child .open");

    let all = ["first", "second"];
    for (delete, left) in [
        (".turn:nth-child(3) button[aria-label^='Delete']", &["first"][..]),
        (".turn:nth-child(2) button[aria-label^='Delete']", &[]),
        (".turn:nth-child(1) button[aria-label^='Delete']", &[]),
        ("#clear", &[]),
        ("#list li:last-child .quiet", &[]),
    ] {
        browser.click(delete);
        super::notices::sees_notice(&browser, "deleted.");
        assert_eq!(answers(&browser), left, "{delete}");
        browser.click("#undo");
        super::notices::sees_notice(&browser, "It is back.");
        assert_eq!(answers(&browser), all, "{delete}");
        assert_eq!(titles(&browser), json!(["another", "first"]));
    }

    browser.click("#forget");
    browser.accept_question();
    browser.until("document.querySelectorAll('#list li').length === 0");
    browser.click("#undo");
    browser.reload();
    assert_eq!(answers(&browser), all);
    assert_eq!(titles(&browser), json!(["another", "first"]));
}

#[test]
fn a_conversation_keeps_the_title_it_is_given() {
    let Some(browser) = browser(Screen::Desktop) else { return };
    let server = TestServer::echo(Echo::default());
    visit(&browser, &server);
    ask(&browser, "first");
    browser.click("#rename");
    browser.answer_question("On <b>herons</b>");
    browser.until("document.title.startsWith('On <b>herons</b>')");
    browser.reload();
    assert_eq!(browser.text("#title"), "On <b>herons</b>");
    assert_eq!(titles(&browser), json!(["On <b>herons</b>"]));
    browser.click("#rename");
    browser.answer_question(" ");
    browser.until("document.title.startsWith('first')");
}
