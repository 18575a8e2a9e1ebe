//! New conversations and texts.

use web::Echo;

use super::{ENTER, QUIET, answers, ask, browser, visit};
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

#[test]
fn a_model_without_a_chat_template_continues_texts() {
    let Some(browser) = browser(Screen::Desktop) else { return };
    let echo = Echo { chats: false, examples: vec!["What?".into()], context: 400, ..Echo::default() };
    let server = TestServer::echo(echo);
    visit(&browser, &server);
    assert_eq!(browser.run("return document.querySelector('#new').checkVisibility()"), false);
    assert_eq!(browser.role_and_label("#question").1, "Your text");
    assert_eq!(browser.text("#send"), "Continue");
    assert_eq!(browser.count("#examples button"), 0, "questions are no beginnings of a text");
    super::settings::record_requests(&browser);

    ask(&browser, "Once upon **a** time ");
    assert_eq!(answers(&browser), ["Once upon **a** time "], "spaces count, and no Markdown is made");
    assert_eq!(super::settings::last_question(&browser)["prompt"], "Once upon **a** time ");
    browser.click("#send");
    browser.until("document.querySelectorAll('.turn.model').length === 2");
    browser.until(QUIET);
    let whole = "Once upon **a** time ".repeat(4);
    assert_eq!(answers(&browser).concat(), "Once upon **a** time ".repeat(3));
    browser.run("navigator.clipboard.writeText = async (text) => { window.copied = text }");
    browser.click(".turn:last-child button[aria-label='Copy the text up to here']");
    super::notices::sees_notice(&browser, "Copied.");
    assert_eq!(browser.run("return window.copied"), whole.as_str());
    ask(&browser, "and mine");
    assert_eq!(*answers(&browser).last().unwrap(), format!("{whole}and mine"));

    browser.click(".turn:last-child button[aria-label='Continue otherwise']");
    browser.until(QUIET);
    assert_eq!(browser.text(".turn:last-child [role=img]"), "2/2");
    browser.reload();
    assert_eq!(answers(&browser).len(), 3);

    browser.until("document.querySelector('#model').textContent !== ''");
    super::settings::record_requests(&browser);
    ask(&browser, &format!("{}end", "long ".repeat(90)));
    let sent = super::settings::last_question(&browser);
    let tokens = sent["prompt"].as_array().unwrap();
    assert_eq!((tokens.len(), tokens.last().unwrap().as_u64()), (301, Some(u64::from(b'd'))));
    assert!(browser.text(".turn:last-child .figures").contains("the beginning left out"));
}

#[test]
fn a_chat_model_continues_texts_too() {
    let Some(browser) = browser(Screen::Phone) else { return };
    let server = TestServer::echo(Echo::default());
    visit(&browser, &server);
    browser.click("#menu");
    browser.until("getComputedStyle(document.querySelector('#side')).visibility === 'visible'");
    browser.click("#write");
    ask(&browser, &format!("two{ENTER}lines"));
    assert_eq!(answers(&browser), ["two\nlines"]);
    assert_eq!(browser.text("#title"), "two lines");
    browser.run("open(null)");
    assert_eq!(browser.text("#send"), "Send");
    browser.click("#menu");
    browser.until("getComputedStyle(document.querySelector('#side')).visibility === 'visible'");
    browser.click("#list .open");
    assert_eq!(browser.text("#send"), "Continue");
}

#[test]
fn an_answer_is_asked_for_within_the_servers_limit_of_tokens() {
    let Some(browser) = browser(Screen::Desktop) else { return };
    let server = TestServer::echo(Echo { context: 1 << 17, ..Echo::default() });
    visit(&browser, &server);
    ask(&browser, "a");
    assert_eq!(answers(&browser), ["a"]);
}
