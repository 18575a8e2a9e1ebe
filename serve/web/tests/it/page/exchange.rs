//! Conversations as files.

use serde_json::{Value, json};
use web::Echo;

use super::kept::titles;
use super::notices::sees_notice;
use super::{answers, ask, browser, visit};
use crate::client::{TIMEOUT, TestServer};
use crate::webdriver::{Browser, Screen};

fn storage(browser: &Browser) -> Value {
    browser.run(
        "const kept = Object.entries(localStorage).filter(([name]) => name.includes('conversation'));
         return Object.fromEntries(kept.map(([name, text]) => [name, JSON.parse(text)]))",
    )
}

fn wait_for_file(folder: &std::path::Path) -> std::path::PathBuf {
    let began = std::time::Instant::now();
    loop {
        let mut found = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        if let Some(path) = found.find(|path| path.extension().is_some_and(|kind| kind == "json")) {
            return path;
        }
        assert!(began.elapsed() < TIMEOUT, "no file");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

#[test]
fn exported_conversations_return_by_import_with_all_versions() {
    let Some(browser) = browser(Screen::Desktop) else { return };
    let folder = tempfile::tempdir().unwrap();
    browser.save_downloads_to(folder.path());
    let server = TestServer::echo(Echo::default());
    visit(&browser, &server);
    browser.click("#adjust");
    browser.click("#set-colour");
    browser.click("#done");
    ask(&browser, "first 🌊");
    browser.click("button[aria-label='Answer again']");
    browser.until(super::QUIET);
    browser.click("button[aria-label='Earlier version']");
    browser.click("#new");
    ask(&browser, "second");
    let before = storage(&browser);
    browser.click("#export");
    sees_notice(&browser, "2 conversations exported.");
    let file = wait_for_file(folder.path());

    browser.write("#file", file.to_str().unwrap());
    sees_notice(&browser, "0 conversations imported; 2 already here.");
    browser.click("#forget");
    browser.accept_question();
    browser.until("document.querySelectorAll('#list li').length === 0");
    browser.write("#file", file.to_str().unwrap());
    sees_notice(&browser, "2 conversations imported.");
    assert_eq!(storage(&browser), before);

    browser.click("#list li:first-child .open");
    ask(&browser, "more");
    browser.write("#file", file.to_str().unwrap());
    sees_notice(&browser, "1 conversation imported; 1 already here.");
    assert_eq!(titles(&browser), json!(["second", "second", "first 🌊"]));
    assert_eq!(answers(&browser), ["second", "more"]);
}

#[test]
fn a_file_of_another_kind_is_refused_and_changes_nothing() {
    let Some(browser) = browser(Screen::Desktop) else { return };
    let server = TestServer::echo(Echo::default());
    visit(&browser, &server);
    ask(&browser, "mine");
    let before = storage(&browser);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file.json");
    let with = |turns: Value| json!({ "format": "spillway.conversations", "version": 1, "conversations": [{ "id": "1-a", "turns": turns }] });
    let turn = |version: Value| json!([{ "role": "user", "at": 0, "versions": [version] }]);
    let deep = format!("{}{}", "[".repeat(200_000), "]".repeat(200_000));
    for (text, notice) in [
        ("not json".to_owned(), "holds no conversations"),
        ("null".to_owned(), "holds no conversations"),
        (deep, "holds no conversations"),
        (json!({ "format": "other" }).to_string(), "holds no conversations"),
        (json!({ "format": "spillway.conversations", "version": 2 }).to_string(), "newer page"),
        (with(json!("text")).to_string(), "holds no conversations"),
        (with(turn(json!({ "content": 1 }))).to_string(), "holds no conversations"),
        (with(turn(json!({ "content": "a", "tokens": [["x", 0]] }))).to_string(), "holds no conversations"),
        (
            with(json!([{ "role": "system", "at": 0, "versions": [{ "content": "a" }] }])).to_string(),
            "holds no conversations",
        ),
        (
            with(json!([{ "role": "user", "at": 1, "versions": [{ "content": "a" }] }])).to_string(),
            "holds no conversations",
        ),
        (with(turn(json!({ "content": "a".repeat(6 << 20) }))).to_string(), "none was imported"),
    ] {
        std::fs::write(&path, &text).unwrap();
        browser.run("document.querySelector('#toast').hidden = true");
        browser.write("#file", path.to_str().unwrap());
        sees_notice(&browser, notice);
        assert_eq!(storage(&browser), before, "{}", &text[..text.len().min(200)]);
        assert_eq!(titles(&browser), json!(["mine"]));
    }

    let foreign =
        json!({ "content": "<img src=x onerror='window.owned=1'>", "figures": "<b>", "own": { "x": 1 } });
    std::fs::write(&path, with(turn(foreign)).to_string()).unwrap();
    browser.write("#file", path.to_str().unwrap());
    sees_notice(&browser, "1 conversation imported.");
    browser.click("#list li:last-child .open");
    assert_eq!(browser.count("#turns img, #turns b, #list img"), 0);
    let kept = storage(&browser)["spillway.conversation.1-a"].to_string();
    assert!(kept.contains("onerror") && !kept.contains("own\""), "{kept}");
}
