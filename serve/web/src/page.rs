//! The page: one HTML file, and a policy against other code.

use std::sync::LazyLock;

use axum::http::{HeaderValue, header};
use axum::response::IntoResponse;
use base64::{Engine as _, engine::general_purpose::STANDARD};
use sha2::{Digest, Sha256};

const PAGE: &str = include_str!("page.html");

/// Allows this script and style by digest, and requests to this server.
static POLICY: LazyLock<HeaderValue> = LazyLock::new(|| {
    let policy = format!(
        "default-src 'none'; script-src '{}'; style-src '{}'; connect-src 'self'; img-src data:; base-uri 'none'; \
         form-action 'none'; frame-ancestors 'none'",
        digest(between(PAGE, "<script>", "</script>")),
        digest(between(PAGE, "<style>", "</style>")),
    );
    HeaderValue::from_str(&policy).expect("base64 is visible ASCII")
});

pub(crate) async fn page() -> impl IntoResponse {
    let html = HeaderValue::from_static("text/html; charset=utf-8");
    ([(header::CONTENT_TYPE, html), (header::CONTENT_SECURITY_POLICY, POLICY.clone())], PAGE)
}

fn digest(text: &str) -> String {
    format!("sha256-{}", STANDARD.encode(Sha256::digest(text)))
}

fn between<'a>(text: &'a str, open: &str, close: &str) -> &'a str {
    let (_, rest) = text.split_once(open).expect("the page has a style and a script");
    rest.split_once(close).expect("which end").0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_one_file_that_names_no_other_and_writes_text_only() {
        assert_eq!((PAGE.matches("<script").count(), PAGE.matches("<style").count()), (1, 1));
        for forbidden in [
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            "src=",
            "http://",
            "https://",
            "@import",
            " style=\"",
            " onclick",
        ] {
            assert!(!PAGE.contains(forbidden), "{forbidden}");
        }
    }
}
