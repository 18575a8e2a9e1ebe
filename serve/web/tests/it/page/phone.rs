//! The page under a thumb.

use web::Echo;

use super::{ENTER, QUIET, answers, ask, browser, visit};
use crate::client::TestServer;
use crate::webdriver::Screen;

#[test]
fn on_a_phone_enter_breaks_the_line_and_the_keyboard_opens_by_a_tap_only() {
    let Some(browser) = browser(Screen::Phone) else { return };
    let server = TestServer::echo(Echo::default());
    visit(&browser, &server);
    let focused = || browser.run("return document.activeElement.id");
    assert_ne!(focused(), "question");
    browser.write("#question", &format!("two{ENTER}lines"));
    browser.click("#send");
    browser.until(QUIET);
    assert_eq!(answers(&browser), ["two\nlines"]);

    browser.click(".turn:first-child button[aria-label^='Edit']");
    browser.write(".turn textarea", &format!("{ENTER}and more"));
    browser.click(".turn .main");
    browser.until(QUIET);
    assert_eq!(answers(&browser), ["two\nlines\nand more"]);

    browser.click("#menu");
    browser.until("getComputedStyle(document.querySelector('#side')).visibility === 'visible'");
    browser.click("#new");
    assert_ne!(focused(), "question");
    ask(&browser, "another");
    browser.click("#menu");
    browser.until("getComputedStyle(document.querySelector('#side')).visibility === 'visible'");
    browser.click("#list li:last-child .open");
    assert_ne!(focused(), "question");
}
