//! Search over conversations.

use serde_json::json;
use web::Echo;

use super::kept::titles;
use super::{ENTER, ESCAPE, ask, browser, visit};
use crate::client::TestServer;
use crate::webdriver::Screen;

#[test]
fn conversations_are_found_by_any_text_of_any_version_and_open_there() {
    let Some(browser) = browser(Screen::Desktop) else { return };
    let server = TestServer::echo(Echo::default());
    visit(&browser, &server);
    ask(&browser, "about herons");
    browser.click(".turn:first-child button[aria-label^='Edit']");
    browser.write(".turn textarea", &format!(" and geese{ENTER}"));
    browser.until(super::QUIET);
    browser.click(".turn:first-child button[aria-label='Earlier version']");
    for number in 0..12 {
        ask(&browser, &format!("{number} {}", "line ".repeat(80)));
    }
    browser.click("#new");
    ask(&browser, "about the weather");

    browser.write("#search", "GEESE");
    browser.until("document.querySelectorAll('#list li').length === 1");
    assert!(browser.text("#list .extract").contains("and geese"));
    assert_eq!(browser.text("#found"), "1 conversation found");
    assert_eq!(browser.role_and_label("#found").0, "status");
    assert_eq!(
        browser.role_and_label("#search"),
        ("searchbox".to_owned(), "Search conversations".to_owned())
    );
    browser.press(&["\u{e015}", ENTER]);
    browser.until("document.querySelectorAll('.turn').length === 26");

    browser.click("#search");
    browser.press(&[ESCAPE]);
    browser.until("document.querySelectorAll('#list li').length === 2");
    browser.write("#search", "herons");
    browser.click("#list .open");
    browser.until("document.querySelector('#log').scrollTop < 20");
    browser.write("#search", "x and more");
    browser.until("document.querySelector('#found').textContent === '0 conversations found'");
    assert_eq!(titles(&browser), json!([]));
}
