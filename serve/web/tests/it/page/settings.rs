//! The dialogue with the settings.

use serde_json::json;
use web::Echo;

use super::{ESCAPE, ask, browser, visit};
use crate::client::TestServer;
use crate::webdriver::{Browser, Screen};

pub(super) fn record_requests(browser: &Browser) {
    browser.run(
        "const send = window.fetch; window.sent = [];
         window.fetch = (path, options) => { sent.push([path, options?.body ?? '']); return send(path, options); }",
    );
}

pub(super) fn last_question(browser: &Browser) -> serde_json::Value {
    let body = browser.run("return sent.filter(([path]) => path.includes('completions')).at(-1)[1]");
    serde_json::from_str(body.as_str().unwrap()).unwrap()
}

fn set(browser: &Browser, id: &str, value: &str) {
    browser.run(&format!("document.querySelector({id:?}).value = ''"));
    browser.write(id, value);
}

#[test]
fn settings_outside_their_range_are_refused_and_all_others_reach_the_server() {
    let Some(browser) = browser(Screen::Desktop) else { return };
    let server = TestServer::echo(Echo::default());
    visit(&browser, &server);
    record_requests(&browser);
    browser.click("#adjust");
    set(&browser, "#set-temperature", "0.75");
    set(&browser, "#set-top_p", "0.925");
    browser.click("#done");
    ask(&browser, "a");
    let sent = last_question(&browser);
    assert_eq!((&sent["temperature"], &sent["top_p"]), (&json!(0.75), &json!(0.925)));

    browser.click("#adjust");
    set(&browser, "#set-temperature", "3");
    browser.click("#done");
    assert_eq!(browser.run("return document.querySelector('#settings').open"), true);
    let fault = browser.text("#settings-fault");
    assert!(fault.starts_with("Temperature: ") && fault.contains('2'), "{fault}");
    assert_eq!(browser.role_and_label("#settings-fault").0, "alert");
    assert_eq!(browser.run("return document.activeElement.id"), "set-temperature");
    browser.press(&[ESCAPE]);
    browser.until("!document.querySelector('#settings').open");
    ask(&browser, "b");
    assert_eq!(last_question(&browser)["temperature"], 0.75, "Escape leaves all settings alone");

    browser.click("#adjust");
    set(&browser, "#set-temperature", "1.5");
    browser.click("#defaults");
    set(&browser, "#set-temperature", "1");
    browser.click("#cancel");
    ask(&browser, "c");
    let sent = last_question(&browser);
    assert_eq!((&sent["temperature"], &sent["top_p"]), (&json!(0.75), &json!(0.925)), "so does Cancel");
}

#[test]
fn stop_texts_end_an_answer_and_a_chosen_theme_outlives_a_reload() {
    let Some(browser) = browser(Screen::Desktop) else { return };
    let server = TestServer::echo(Echo::default());
    visit(&browser, &server);
    browser.click("#adjust");
    browser.run("document.querySelector('#set-stop').value = 'END\\n\\n stop'");
    browser.run("document.querySelector('#set-theme').value = 'dark'");
    browser.click("#done");
    ask(&browser, "one two END three");
    ask(&browser, "one stop two");
    assert_eq!(super::answers(&browser), ["one two ", "one"]);

    let back = || browser.run("return getComputedStyle(document.body).backgroundColor");
    let dark = "rgb(23, 22, 21)";
    assert_eq!(back(), dark);
    browser.prefer("light");
    browser.reload();
    assert_eq!(back(), dark);
    browser.click("#adjust");
    browser.click("#defaults");
    browser.click("#done");
    assert_eq!(back(), "rgb(251, 250, 248)");
    browser.prefer("dark");
    assert_eq!(back(), dark);
}
