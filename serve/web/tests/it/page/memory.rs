//! The line about the device's memory.

use web::{Counter, Echo};

use super::{ask, browser, visit};
use crate::client::TestServer;
use crate::webdriver::Screen;

pub(super) fn counters(values: [f64; 4]) -> Vec<Counter> {
    let names = ["device_bytes", "host_bytes", "bytes_out_total", "bytes_in_total"];
    let counter = |(name, value)| Counter { name, help: "A number.", total: false, value };
    names.into_iter().zip(values).map(counter).collect()
}

#[test]
fn the_page_says_what_the_device_holds_and_what_has_spilled() {
    for (screen, values, line) in [
        (Screen::Desktop, [16_777_216.0, 0.0, 0.0, 0.0], "Device: 16.0 MiB · nothing spilled"),
        (
            Screen::Phone,
            [16_777_216.0, 36_700_160.0, 1_073_741_824.0, 214_748_364.8],
            "Device: 16.0 MiB · spilled to RAM: 35.0 MiB · moved: 1.2 GiB",
        ),
    ] {
        let Some(browser) = browser(screen) else { return };
        let server = TestServer::echo(Echo { counters: counters(values), ..Echo::default() });
        visit(&browser, &server);
        ask(&browser, "a");
        browser
            .until(&format!("document.querySelector('#memory').innerText.replace(/\\s/g, ' ') === {line:?}"));
        server.stop();
        browser.run("watch()");
        browser.until("!document.querySelector('#memory').checkVisibility()");
    }
}

#[test]
fn the_page_names_budgets_the_disk_and_keys_and_values() {
    let Some(browser) = browser(Screen::Desktop) else { return };
    let counters = [
        ("device_bytes", 16.0),
        ("device_budget_bytes", 24.0),
        ("host_bytes", 8.0),
        ("host_budget_bytes", 32.0),
        ("disk_bytes", 4.0),
        ("disk_budget_bytes", 64.0),
        ("kv_bytes", 1.0),
        ("kv_budget_bytes", 2.0),
    ];
    let mebibytes =
        |(name, value)| Counter { name, help: "A number.", total: false, value: value * 1_048_576.0 };
    let counters = counters.into_iter().map(mebibytes).collect();
    let server = TestServer::echo(Echo { counters, ..Echo::default() });
    visit(&browser, &server);
    ask(&browser, "a");
    let line = "Device: 16.0 MiB of 24.0 MiB · spilled to RAM: 8.0 MiB of 32.0 MiB · on the disk: 4.0 MiB of 64.0 MiB · \
                keys and values: 1.0 MiB of 2.0 MiB";
    browser.until(&format!("document.querySelector('#memory').innerText.replace(/\\s/g, ' ') === {line:?}"));
}

#[test]
fn an_engine_without_a_device_has_no_line_about_memory() {
    let Some(browser) = browser(Screen::Desktop) else { return };
    let server = TestServer::echo(Echo::default());
    visit(&browser, &server);
    ask(&browser, "a");
    assert_eq!(browser.run("return document.querySelector('#memory').checkVisibility()"), false);
}
