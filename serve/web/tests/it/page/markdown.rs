//! Markdown in answers.

use std::time::Duration;

use serde_json::json;
use web::Echo;

use super::{ENTER, QUIET, ask, browser, visit};
use crate::client::TestServer;
use crate::webdriver::{Browser, Screen};

const ANSWER: &str = "# A title\n\nSome **bold**, *slanted* and `a * b` text\nin two lines.\n\n- one\n- two\n  1. inner\n\n\
    ```rust\nfn main() {\n    let x = \"**\";\n}\n```\n\n> quoted\n\n| a | b |\n|---|--:|\n| 1 | `x` |\n\n---\n\
    [a page](https://example.org/a_b_c) and snake_case_name, 2 * 3 * 4, http://example.org/x.";

/// Elements of the last answer, as nested lists of names and texts.
const TREE: &str = "const tree = (node) => node.nodeType === 3 ? node.textContent : [node.tagName.toLowerCase(), ...[...node.childNodes].map(tree)];
    return [...document.querySelector('.turn:last-child .words').childNodes].map(tree)";

fn answered(answer: &str, delay: Duration) -> (TestServer, Option<Browser>) {
    let echo = Echo { script: vec![answer.to_owned()], delay, ..Echo::default() };
    (TestServer::echo(echo), browser(Screen::Desktop))
}

#[test]
fn an_answer_in_markdown_has_its_headings_lists_code_tables_and_links() {
    let (server, Some(browser)) = answered(ANSWER, Duration::ZERO) else { return };
    visit(&browser, &server);
    ask(&browser, "in *what* way?");
    assert_eq!(
        browser.run(TREE),
        json!([
            ["h4", "A title"],
            [
                "p",
                "Some ",
                ["strong", "bold"],
                ", ",
                ["em", "slanted"],
                " and ",
                ["code", "a * b"],
                " text\nin two lines."
            ],
            ["ul", ["li", "one"], ["li", "two", ["ol", ["li", "inner"]]]],
            [
                "figure",
                ["figcaption", ["span", "rust"], ["button", "Copy"]],
                ["pre", ["code", "fn main() {\n    let x = \"**\";\n}"]]
            ],
            ["blockquote", ["p", "quoted"]],
            [
                "div",
                [
                    "table",
                    ["thead", ["tr", ["th", "a"], ["th", "b"]]],
                    ["tbody", ["tr", ["td", "1"], ["td", ["code", "x"]]]]
                ]
            ],
            ["hr"],
            [
                "p",
                ["a", "a page"],
                " and snake_case_name, 2 * 3 * 4, ",
                ["span", ["a", "http://example.org/x"], "."]
            ]
        ])
    );
    assert_eq!(browser.text(".turn.user .words"), "in *what* way?", "a question stands as it was typed");
    let link = browser.run("const a = document.querySelector('.words a'); return [a.href, a.rel, a.target]");
    assert_eq!(link, json!(["https://example.org/a_b_c", "noopener noreferrer", "_blank"]));

    browser.click("button[aria-label='Copy this code']");
    super::notices::sees_notice(&browser, "Copied.");
    assert_eq!(browser.role_and_label(".words pre"), ("region".to_owned(), "Code in rust".to_owned()));

    browser.click("#adjust");
    browser.click("#set-markdown");
    browser.click("#done");
    assert_eq!(browser.text(".turn:last-child .words"), ANSWER);
}

#[test]
fn a_growing_answer_redraws_only_its_last_block() {
    let answer = format!("first\n\n{}", "more and more ".repeat(20));
    let (server, Some(browser)) = answered(&answer, Duration::from_millis(10)) else { return };
    visit(&browser, &server);
    browser.write("#question", &format!("a{ENTER}"));
    browser.until("document.querySelectorAll('.live .words > p').length === 2");
    browser.run("document.querySelector('.live .words > p').marked = true; window.words = document.querySelector('.live .words')");
    browser.until("window.words.textContent.length > 100");
    assert_eq!(browser.run("return words.firstChild.marked"), true);
    browser.until(QUIET);
}

#[test]
fn markdown_of_any_text_makes_safe_elements_only_loses_no_letter_and_takes_little_time() {
    let (server, Some(browser)) = answered("a", Duration::ZERO) else { return };
    visit(&browser, &server);
    let failure = browser.run(
        r##"
        const PIECES = ["*", "**", "***", "_", "__", "`", "``", "```", "~~~", "~~", "[", "]", "](", "(", ")", "<", ">", "> ", "- ", "1. ", "# ",
            "|", "|-", "-", " ", "  ", "    ", "\n", "\n\n", "\\", "&lt;", "x", "word", "é", "🌊", "https://a.b/", "javascript:alert(1)",
            "[x](javascript:0)", "[x](JavaScript:0)", "[x](data:text/html,x)", "[x](//a.b)", "[x](HTTPS://a.b)", "data:text/html,<script>", "<img src=x onerror=window.owned=1>", "<script>window.owned=1</script>", "\u0000", "\t", "\r"];
        const SAFE = new Set("P H4 H5 H6 HR BLOCKQUOTE UL OL LI FIGURE FIGCAPTION SPAN BUTTON PRE CODE DIV TABLE THEAD TBODY TR TH TD STRONG EM S A".split(" "));
        const ATTRIBUTES = new Set("class type aria-label role tabindex start href target rel title".split(" "));
        const letters = (text) => text.replace(/[^a-zé🌊&;]/gu, "");
        let state = 20261127;
        const random = (below) => { state = (state * 1103515245 + 12345) % 2147483648; return Math.floor(state / 2147483648 * below); };
        const draw = (text) => { const made = document.createElement("div"); document.body.append(made); writeMarkdown(made, text); made.remove(); return made; };
        for (let round = 0; round < 4000; round++) {
            const text = Array.from({ length: 1 + random(40) }, () => PIECES[random(PIECES.length)]).join("");
            const made = draw(text);
            for (const one of made.querySelectorAll("*")) {
                if (!SAFE.has(one.tagName)) return ["element", one.tagName, text];
                for (const { name } of one.attributes) if (!ATTRIBUTES.has(name)) return ["attribute", name, text];
                if (one.tagName === "A" && !/^https?:$/.test(one.protocol)) return ["address", one.href, text];
            }
            made.querySelectorAll("figcaption").forEach((one) => one.remove());
            // Addresses of links, languages of code and cells beyond the head are not shown.
            if (!/\]\(|```|~~~|\|/.test(text) && letters(made.textContent) !== letters(text)) return ["lost", made.textContent, text];
        }
        for (const piece of PIECES) for (const end of ["", "x", "`"]) {
            const text = piece.repeat(16384 / piece.length) + end, began = performance.now();
            for (const whole of [text, `a|b\n${text}`, `# ${text}`, `${piece}\n`.repeat(2000)]) draw(whole);
            if (performance.now() - began > 4000) return ["slow", piece, end, performance.now() - began];
        }
        return window.owned ?? null;
        "##,
    );
    assert_eq!(failure, serde_json::Value::Null);
}
