//! Answers under way, and requests for them.

use std::time::Duration;

use web::Echo;

use super::{ENTER, QUIET, answers, ask, browser, visit};
use crate::client::TestServer;
use crate::webdriver::Screen;

#[test]
fn an_answer_goes_on_while_another_conversation_is_asked() {
    let Some(browser) = browser(Screen::Desktop) else { return };
    let server = TestServer::echo(Echo { delay: Duration::from_millis(20), ..Echo::default() });
    visit(&browser, &server);
    ask(&browser, "short");
    browser.click("#new");
    let long = format!("begin {}", "long ".repeat(30));
    browser.write("#question", &format!("{long}{ENTER}"));
    browser.until("document.querySelector('.live .words')?.textContent.length > 3");

    browser.click("#list li:last-child .open");
    assert_eq!(answers(&browser), ["short"]);
    assert!(browser.role_and_label("#list li:first-child .open").1.ends_with("is being answered"));
    ask(&browser, "another");
    assert_eq!(answers(&browser), ["short", "another"]);
    super::notices::sees_notice(&browser, "is answered.");
    browser.click("#list li:first-child .open");
    browser.until(QUIET);
    assert_eq!(answers(&browser), [long.trim()]);
    assert_eq!(server.metric("cancelled_total").to_bits(), 0.0_f64.to_bits());

    // A page that closes keeps the piece it has.
    browser.write("#question", &format!("{long}{ENTER}"));
    browser.until("document.querySelector('.live .words')?.textContent.length > 3");
    browser.reload();
    assert!(answers(&browser)[1].starts_with("beg"));
}
