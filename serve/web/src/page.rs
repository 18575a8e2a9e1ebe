//! The page: one HTML text of the files in `page/`, with a policy against other code.

use std::sync::LazyLock;

use axum::http::{HeaderValue, header};
use axum::response::IntoResponse;
use base64::{Engine as _, engine::general_purpose::STANDARD};
use sha2::{Digest, Sha256};

/// Macros, because `concat!` takes no constants.
macro_rules! style {
    () => {
        include_str!("page/page.css")
    };
}

macro_rules! script {
    () => {
        concat!(
            include_str!("page/store.js"),
            include_str!("page/turns.js"),
            include_str!("page/likelihood.js"),
            include_str!("page/markdown.js"),
            include_str!("page/view.js"),
            include_str!("page/server.js"),
            include_str!("page/answer.js"),
            include_str!("page/exchange.js"),
            include_str!("page/controls.js"),
        )
    };
}

const PAGE: &str = concat!(
    include_str!("page/head.html"),
    "<style>",
    style!(),
    "</style>\n</head>\n",
    include_str!("page/body.html"),
    "<script>",
    script!(),
    "</script>\n</body>\n</html>\n",
);

/// Allows this script and style, and requests to this server.
static POLICY: LazyLock<HeaderValue> = LazyLock::new(|| {
    let policy = format!(
        "default-src 'none'; script-src '{}'; style-src '{}'; connect-src 'self'; img-src data:; base-uri 'none'; \
         form-action 'none'; frame-ancestors 'none'",
        digest(script!()),
        digest(style!()),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_asks_below_its_own_address() {
        for request in ["fetch(\"/", "post(\"/"] {
            assert!(!PAGE.contains(request), "{request}");
        }
        assert!(PAGE.contains("post(\"v1/") && PAGE.contains("fetch(\"v1/"));
    }

    #[test]
    fn the_page_is_one_text_that_names_no_other_and_writes_text_only() {
        for tag in ["<script", "</script", "<style", "</style"] {
            assert_eq!(PAGE.matches(tag).count(), 1, "{tag}");
        }
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
