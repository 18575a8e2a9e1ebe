//! Conversations that a browser keeps: over tabs, versions and deletions.

use std::time::Duration;

use serde_json::json;
use web::Echo;

use super::{ENTER, QUIET, answers, ask, browser, visit};
use crate::client::TestServer;
use crate::webdriver::{Browser, Screen};

fn titles(browser: &Browser) -> serde_json::Value {
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
    // Deleted in one tab, and answered in the other.
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
