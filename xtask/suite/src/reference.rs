//! Pages of `docs/reference/`, which tests compare with what the code says.

use std::{env, fs, path::Path};

/// Set to write pages.
pub const WRITE_REFERENCE: &str = "SPILLWAY_WRITE_REFERENCE";

/// Compares the page `name` with `text`, or writes it.
///
/// # Panics
/// If the page is another text.
pub fn assert_reference(name: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference").join(name);
    if env::var_os(WRITE_REFERENCE).is_some() {
        fs::write(&path, text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        return;
    }
    let page = fs::read_to_string(&path).unwrap_or_default();
    if page != text {
        let differs = page.lines().zip(text.lines()).position(|(page, text)| page != text);
        let at = differs.unwrap_or_else(|| page.lines().count().min(text.lines().count()));
        let [page, text] = [&page, text].map(|text| text.lines().nth(at).unwrap_or("(its end)"));
        let line = at + 1;
        panic!(
            "docs/reference/{name}:{line} is stale; `cargo xtask reference` writes it\n  has:    {page}\n  should: {text}"
        );
    }
}
