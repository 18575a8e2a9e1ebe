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
    let long = format!("begin {}", "long ".repeat(80));
    browser.write("#question", &format!("{long}{ENTER}"));
    browser.until("document.querySelector('.live .words')?.textContent.length > 3");

    let busy = browser.run(
        "document.querySelector('#list li:last-child .open').click();
         return document.querySelector('#list li:first-child .busy')?.ariaLabel",
    );
    assert_eq!((busy.as_str(), answers(&browser)), (Some("is being answered"), vec!["short".to_owned()]));
    ask(&browser, "another");
    assert_eq!(answers(&browser), ["short", "another"]);
    browser.until("document.querySelector('#told').textContent.endsWith('is answered.')");
    browser.click("#list li:first-child .open");
    browser.until(QUIET);
    assert_eq!(answers(&browser), [long.trim()]);
    assert_eq!(server.metric("cancelled_total").to_bits(), 0.0_f64.to_bits());

    // A page that closes keeps its piece.
    browser.write("#question", &format!("{long}{ENTER}"));
    browser.until("document.querySelector('.live .words')?.textContent.length > 3");
    browser.reload();
    assert!(answers(&browser)[1].starts_with("beg"));
}

#[test]
fn a_long_conversation_is_cut_to_the_context_in_few_requests() {
    let Some(browser) = browser(Screen::Desktop) else { return };
    let server = TestServer::echo(Echo { context: 400, ..Echo::default() });
    visit(&browser, &server);
    browser.run(
        "const turns = Array.from({ length: 400 }, (_, at) => ({ role: at % 2 ? 'assistant' : 'user', content: `number ${at}` }));
         localStorage.setItem('spillway.conversation.1', JSON.stringify({ id: '1', turns }));
         sessionStorage.setItem('spillway.current', '\"1\"')",
    );
    browser.reload();
    browser.until("document.querySelector('#model').textContent.startsWith('echo')");
    super::settings::record_requests(&browser);
    ask(&browser, "the last");
    assert_eq!(answers(&browser).last().unwrap(), "the last");
    let asked = browser.run("return sent.filter(([path]) => path.includes('completions')).length");
    assert!(asked.as_u64().unwrap() <= 5, "{asked} requests");

    let sent = super::settings::last_question(&browser);
    let contents = sent["messages"].as_array().unwrap().iter().map(|one| one["content"].as_str().unwrap());
    let tokens: usize = contents.map(|content| content.len() + 1).sum();
    assert!((270..=301).contains(&tokens), "{tokens}");
    assert!(browser.text(".turn:last-child .figures").contains("questions left out"));
}

#[test]
fn a_model_is_shown_anew_after_a_restart_that_no_poll_saw() {
    let Some(browser) = browser(Screen::Desktop) else { return };
    let settings = super::settings_of_a_port_of_its_own(3);
    let first = TestServer::start(settings.clone(), |worker| Echo::default().answer(worker));
    let again = web::Settings { port: first.address.port(), ..settings };
    visit(&browser, &first);
    ask(&browser, "anything");
    browser.run("watch()");
    browser.until("answered > 0");
    first.stop();
    let _second = TestServer::start(again, |worker| Echo { context: 40, ..Echo::default() }.answer(worker));
    browser.run("watch()");
    browser.until("document.querySelector('#model').textContent.includes('reads 40 tokens')");
}

#[test]
fn a_failed_question_has_no_figures() {
    let Some(browser) = browser(Screen::Desktop) else { return };
    let server = TestServer::echo(Echo { context: 40, ..Echo::default() });
    visit(&browser, &server);
    ask(&browser, &"i".repeat(60));
    assert!(browser.text(".turn:last-child .fault").contains("the model's context holds 40"));
    assert_eq!(browser.count(".turn:last-child .figures"), 0);
}

#[test]
fn a_token_shows_its_probability_and_the_likeliest_others_by_click_and_by_key() {
    let Some(browser) = browser(Screen::Desktop) else { return };
    let server = TestServer::echo(Echo::default());
    visit(&browser, &server);
    browser.click("#adjust");
    browser.click("#set-colour");
    browser.click("#done");
    ask(&browser, "héron");
    browser.until("document.querySelectorAll('.turn.model mark').length === 6");
    browser.click(".turn.model mark:nth-child(4)");
    let detail = || browser.text(".turn.model .detail");
    let first = detail();
    assert!(first.starts_with("“r” ") && first.contains(" %; others: “s” "), "{first}");
    assert_eq!(first.matches('%').count(), 4, "{first}");
    assert_eq!(browser.role_and_label(".turn.model .detail").0, "status");

    browser.run("document.querySelector('.turn.model .words').focus()");
    browser.press(&["\u{e014}"]);
    assert!(detail().starts_with("“o” "), "{}", detail());
    browser.press(&["\u{e012}", "\u{e012}"]);
    assert!(detail().starts_with("“é” "), "{}", detail());
    browser.reload();
    browser.click(".turn.model mark:nth-child(4)");
    assert_eq!(detail(), first);

    let hues = browser.run(
        "return [...document.querySelectorAll('mark')].map((one) => getComputedStyle(one).backgroundColor.match(/\\d+/g).slice(0, 3).join())",
    );
    let hues: std::collections::BTreeSet<&str> =
        hues.as_array().unwrap().iter().map(|hue| hue.as_str().unwrap()).collect();
    assert_eq!(hues.len(), 1, "strength differs, not the hue: {hues:?}");
}
