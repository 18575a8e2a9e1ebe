//! Each view, on a desktop and a phone, in light and dark.

use web::Echo;

use super::{QUIET, ask, assert_fits, browser, save_picture, visit};
use crate::client::TestServer;
use crate::webdriver::{Browser, Screen};

const LONG: &str = "## Sorting\n\nA **stable** sort keeps equal elements in order; `slice::sort` is one:\n\n\
    ```rust\nfn sorted(mut numbers: Vec<u64>) -> Vec<u64> {\n    numbers.sort(); // stable, and allocates half of the slice's length at most\n    numbers\n}\n```\n\n\
    1. It is *stable*.\n2. It allocates:\n   - for short slices nothing\n   - else half of the length\n\n\
    | Sort | Stable | Worst case | Memory | Remark |\n|---|---|---|---|---|\n| merge | yes | n log n | n/2 | as `sort` |\n| quick | no | n log n | 0 | as `sort_unstable` |\n\n\
    > Measure before you choose.\n\nSee https://doc.rust-lang.org/std/primitive.slice.html#method.sort_unstable_by_key_with_a_long_name_that_no_phone_fits.";

#[test]
fn every_view_fits_a_desktop_and_a_phone_in_light_and_dark() {
    for (screen, name) in [(Screen::Desktop, "desktop"), (Screen::Phone, "phone")] {
        let Some(browser) = browser(screen) else { return };
        let counters = super::memory::counters([2_254_857_830.0, 4_509_715_660.0, 9.0e9, 2.1e10]);
        let examples = ["What day comes after Monday?", "What is 3 plus 4?", "What sound does a dog make?"];
        let script = vec![LONG.to_owned()];
        let examples = examples.map(str::to_owned).to_vec();
        let server = TestServer::echo(Echo { script, examples, counters, ..Echo::default() });
        let picture = |view: &str| {
            for scheme in ["light", "dark"] {
                browser.prefer(scheme);
                assert_fits(&browser, &format!("{name} {view}"));
                save_picture(&browser, &format!("{name}-{view}-{scheme}"));
            }
        };
        visit(&browser, &server);
        browser.until("document.querySelectorAll('#examples button').length === 3");
        browser.until("document.querySelector('#memory').checkVisibility()");
        picture("welcome");

        ask(&browser, "How does Rust sort?");
        browser.click("button[aria-label='Answer again']");
        browser.until(QUIET);
        picture("markdown");
        browser.run("document.querySelector('#log').scrollTop = 0");
        browser.click(".turn:last-child button[aria-label='Delete this answer and all after it']");
        browser.until("document.querySelector('#toast').checkVisibility()");
        picture("notice");
        browser.click("#undo");
        browser.click("#dismiss");

        menu(&browser, screen);
        browser.write("#search", "stable");
        picture("list");
        browser.click("#write");
        ask(&browser, "Once upon a time, ");
        ask(&browser, "and then ");
        picture("text");

        browser.click("#adjust");
        browser.run("document.querySelector('#set-colour').click(); document.querySelector('#set-temperature').value = 9");
        browser.click("#done");
        browser.until("document.querySelector('#settings-fault').textContent !== ''");
        picture("settings");
        browser.click("#defaults");
        browser.run("document.querySelector('#set-colour').checked = true");
        browser.click("#done");
        browser.run("open(null)");
        ask(&browser, "Colours?");
        browser.click(".turn:last-child mark:nth-child(9)");
        browser.run("document.querySelector('#log').scrollTop = 1e9");
        picture("tokens");
    }
}

fn menu(browser: &Browser, screen: Screen) {
    if matches!(screen, Screen::Phone) {
        browser.click("#menu");
        browser.until("getComputedStyle(document.querySelector('#side')).visibility === 'visible'");
    }
}
