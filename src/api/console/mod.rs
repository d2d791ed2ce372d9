//! The web console: its files, compiled in, and the headers that keep a browser to them.
//!
//! They are the same for everybody and say nothing of this daemon. The page asks the admin routes for what it
//! shows, with the token that its user types.

use std::sync::LazyLock;

use http::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, ETAG, HeaderMap, HeaderName, IF_NONE_MATCH};
use http::{HeaderValue, StatusCode};

use super::reply::{self, Reply};

/// The rights of the page: it may load and ask this daemon alone, and has no script or style of its own text.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
                      connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// One file of the console.
pub(super) struct Asset {
    path: &'static str,
    content_type: &'static str,
    text: &'static str,
}

/// The page at `/`.
static PAGE: Asset =
    Asset { path: "/", content_type: "text/html; charset=utf-8", text: include_str!("assets/index.html") };

/// A module of the console's script.
macro_rules! script {
    ($name:literal) => {
        Asset {
            path: concat!("/console/", $name, ".js"),
            content_type: "text/javascript; charset=utf-8",
            text: include_str!(concat!("assets/", $name, ".js")),
        }
    };
}

static FILES: [Asset; 17] = [
    Asset { path: "/console/icon.svg", content_type: "image/svg+xml", text: include_str!("assets/icon.svg") },
    Asset {
        path: "/console/console.css",
        content_type: "text/css; charset=utf-8",
        text: include_str!("assets/console.css"),
    },
    Asset {
        path: "/console/LICENSES",
        content_type: "text/plain; charset=utf-8",
        text: include_str!("assets/LICENSES"),
    },
    script!("console"),
    script!("daemon"),
    script!("decisions"),
    script!("form"),
    script!("health"),
    script!("hot"),
    script!("identities"),
    script!("overview"),
    script!("people"),
    script!("preact"),
    script!("quotas"),
    script!("rates"),
    script!("rules"),
    script!("world"),
];

/// Names all files: they change together, with the program.
static TAG: LazyLock<String> = LazyLock::new(|| {
    let mut all = ring::digest::Context::new(&ring::digest::SHA256);
    for asset in FILES.iter().chain([&PAGE]) {
        all.update(asset.text.as_bytes());
    }
    let digest = all.finish();
    let hex: String = digest.as_ref().iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    format!("\"{hex}\"")
});

/// The file at this path. `/` is the page only for a browser; others read there what can be asked.
pub(super) fn find(path: &str, headers: &HeaderMap) -> Option<&'static Asset> {
    let accepted = headers.get(http::header::ACCEPT).and_then(|value| value.to_str().ok());
    if path == PAGE.path && accepted.is_some_and(|accepted| accepted.contains("text/html")) {
        return Some(&PAGE);
    }
    FILES.iter().find(|asset| asset.path == path)
}

impl Asset {
    /// The file, or 304 where the browser has it.
    pub(super) fn answer(&self, headers: &HeaderMap) -> Reply {
        let known = headers.get(IF_NONE_MATCH).is_some_and(|tag| tag.as_bytes() == TAG.as_bytes());
        let text = if known { "" } else { self.text };
        let content_type = HeaderValue::from_static(self.content_type);
        let mut answer = reply::with_type(text.as_bytes().to_vec(), content_type);
        if known {
            *answer.status_mut() = StatusCode::NOT_MODIFIED;
        }
        let said = answer.headers_mut();
        if let Ok(tag) = HeaderValue::from_str(&TAG) {
            said.insert(ETAG, tag);
        }
        said.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
        said.insert(http::header::VARY, HeaderValue::from_static("accept"));
        said.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
        said.insert(HeaderName::from_static("x-content-type-options"), HeaderValue::from_static("nosniff"));
        said.insert(http::header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
        answer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_browser_gets_the_page_and_keeps_it() {
        let mut headers = HeaderMap::new();
        assert!(find("/", &headers).is_none() && find("/console/nothing", &headers).is_none());
        headers.insert(http::header::ACCEPT, HeaderValue::from_static("text/html,*/*"));
        let page = find("/", &headers).unwrap();
        let first = page.answer(&headers);
        assert!(
            first.headers()[CONTENT_SECURITY_POLICY].to_str().unwrap().starts_with("default-src 'none';")
        );
        headers.insert(IF_NONE_MATCH, first.headers()[ETAG].clone());
        assert_eq!(page.answer(&headers).status(), StatusCode::NOT_MODIFIED);
    }

    #[test]
    fn no_file_names_another_place() {
        for asset in FILES.iter().filter(|asset| !asset.path.ends_with("LICENSES")).chain([&PAGE]) {
            let text = asset.text.replace("http://www.w3.org/", "");
            assert!(!text.contains("http://") && !text.contains("https://"), "{}", asset.path);
        }
    }
}
