//! `docs/reference/serve.md`: the server's options.

use std::process::Command;

const HEAD: &str = "\
# serve

<!-- `cargo xtask reference` writes this page. -->

From a clone, `cargo run -p serve --release --` stands for `serve`. [Its page](../../serve/README.md) explains the options.
Exit code 0: ended by a signal; 1: an error; 2: a wrong option.

```text
";

#[test]
fn the_reference_has_every_option_of_the_server() {
    let help = Command::new(env!("CARGO_BIN_EXE_serve")).arg("--help").output().expect("it starts").stdout;
    let help = String::from_utf8(help).expect("UTF-8");
    suite::assert_reference("serve.md", &format!("{HEAD}{}\n```\n", help.trim_end()));
}

#[test]
fn the_reference_has_every_counter_of_a_model() {
    let page = include_str!("../../../docs/reference/http.md");
    let (_, of_device) = include_str!("../../src/model.rs").split_once("fn counters").expect("the counters");
    let (of_batch, _) =
        include_str!("../../src/engine.rs").split_once("struct BatchEngine").expect("the counters before it");
    let texts = [of_device, of_batch].into_iter().flat_map(|source| source.split('"').skip(1).step_by(2));
    let names: Vec<&str> =
        texts.filter(|text| text.bytes().all(|byte| byte == b'_' || byte.is_ascii_lowercase())).collect();
    assert!(names.len() >= 9 && names.contains(&"kv_budget_bytes"), "{names:?}");
    for name in names {
        assert!(page.contains(&format!("`spillway_{name}`")), "{name} is not in docs/reference/http.md");
    }
}
