//! New conversations and texts.

use web::Echo;

use super::{QUIET, answers, browser, visit};
use crate::client::TestServer;
use crate::webdriver::Screen;

#[test]
fn three_examples_of_the_server_are_offered_and_a_click_asks_one() {
    for screen in [Screen::Desktop, Screen::Phone] {
        let Some(browser) = browser(screen) else { return };
        let examples = ["What is <b>1</b>?", "And 2?", "And 3?", "And 4?"].map(str::to_owned).to_vec();
        let server = TestServer::echo(Echo { examples, ..Echo::default() });
        visit(&browser, &server);
        browser.until("document.querySelectorAll('#examples button').length === 3");
        browser.click("#examples button");
        browser.until(QUIET);
        assert_eq!(answers(&browser), ["What is <b>1</b>?"]);
        assert_eq!(browser.run("return document.querySelector('#examples').checkVisibility()"), false);
    }
}
