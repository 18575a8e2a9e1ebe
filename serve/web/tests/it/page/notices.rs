//! Notices for all: copying, and a browser without room.

use web::Echo;

use super::{QUIET, answers, ask, browser, visit};
use crate::client::TestServer;
use crate::webdriver::{Browser, Screen};

const COPY: &str = ".turn:last-child button[aria-label='Copy this text']";

pub(super) fn sees_notice(browser: &Browser, text: &str) {
    browser.until(&format!(
        "document.querySelector('#toast')?.checkVisibility() \
         && document.querySelector('#toast').innerText.includes({text:?})"
    ));
    assert!(browser.text("#told").contains(text), "a screen reader hears it");
    let width = browser.run("return document.querySelector('#toast').getBoundingClientRect().width");
    assert!(width.as_f64().unwrap() > 50.0, "{width}");
}

#[test]
fn a_copy_is_announced_and_works_without_the_clipboard() {
    for screen in [Screen::Desktop, Screen::Phone] {
        let Some(browser) = browser(screen) else { return };
        let server = TestServer::echo(Echo::default());
        visit(&browser, &server);
        ask(&browser, "copy me");
        browser.click(COPY);
        sees_notice(&browser, "Copied.");
        browser.click("#dismiss");
        assert_eq!(browser.run("return document.querySelector('#toast').checkVisibility()"), false);

        // As over plain http.
        browser.run("Object.defineProperty(navigator, 'clipboard', { value: undefined })");
        browser.run("document.addEventListener('copy', () => { window.copied = String(getSelection()) })");
        browser.click(COPY);
        sees_notice(&browser, "Copied.");
        assert_eq!(browser.run("return window.copied"), "copy me");

        browser.run("document.execCommand = () => false");
        browser.click(COPY);
        browser.until("document.querySelector('#copying').open");
        assert_eq!(browser.run("const box = document.querySelector('#copied'); return box.value.slice(box.selectionStart, box.selectionEnd)"), "copy me");
        assert_eq!(browser.role_and_label("#copied"), ("textbox".to_owned(), "Text to copy".to_owned()));
    }
}

#[test]
fn a_browser_without_room_for_conversations_says_so_and_goes_on() {
    let Some(browser) = browser(Screen::Desktop) else { return };
    let server = TestServer::echo(Echo::default());
    visit(&browser, &server);
    browser.run(
        "for (let size = 1 << 22; size >= 1; size >>= 1) \
           try { for (let at = 0; at < 99; at++) localStorage.setItem(`${size} ${at}`, 'x'.repeat(size)); } catch {}",
    );
    ask(&browser, "anything");
    sees_notice(&browser, "no room left");
    browser.until(QUIET);
    assert_eq!(answers(&browser), ["anything"]);
}
