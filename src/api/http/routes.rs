//! The routes of gateways and of those who watch the daemon: their paths, and the methods they know.

use super::authorize;

/// Every route of gateways and of those who watch the daemon. What operators use is in
/// [`crate::api::admin`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::api) enum Route {
    Check,
    Report,
    Authorize,
    Explain,
    Acquire,
    Renew,
    Release,
    Reserve,
    Commit,
    Cancel,
    Metrics,
    Healthz,
    Readyz,
    OpenApi,
    Home,
}

/// Paths and the methods they know.
pub(in crate::api) const ROUTES: &[(&str, Route, &str)] = &[
    ("/v1/check", Route::Check, "POST"),
    ("/v1/report", Route::Report, "POST"),
    ("/v1/authorize", Route::Authorize, "GET, HEAD, POST"),
    ("/v1/explain", Route::Explain, "POST"),
    ("/v1/acquire", Route::Acquire, "POST"),
    ("/v1/renew", Route::Renew, "POST"),
    ("/v1/release", Route::Release, "POST"),
    ("/v1/reserve", Route::Reserve, "POST"),
    ("/v1/commit", Route::Commit, "POST"),
    ("/v1/cancel", Route::Cancel, "POST"),
    ("/metrics", Route::Metrics, "GET, HEAD"),
    ("/healthz", Route::Healthz, "GET, HEAD"),
    ("/readyz", Route::Readyz, "GET, HEAD"),
    ("/openapi.json", Route::OpenApi, "GET, HEAD"),
    ("/", Route::Home, "GET, HEAD"),
];

impl Route {
    /// Whether gateways ask it for each request.
    pub(super) const fn decides(self) -> bool {
        match self {
            Self::Check
            | Self::Report
            | Self::Authorize
            | Self::Acquire
            | Self::Renew
            | Self::Release
            | Self::Reserve
            | Self::Commit
            | Self::Cancel => true,
            Self::Explain | Self::Metrics | Self::Healthz | Self::Readyz | Self::OpenApi | Self::Home => {
                false
            }
        }
    }

    /// Whether the listener of those who watch the daemon answers it.
    pub(super) const fn watches(self) -> bool {
        matches!(self, Self::Metrics | Self::Healthz | Self::Readyz)
    }

    pub(super) fn find(path: &str) -> Option<(Self, &'static str)> {
        if path.starts_with(authorize::APPENDED) {
            return Some((Self::Authorize, authorize::ANY_METHOD));
        }
        ROUTES.iter().find(|(known, ..)| *known == path).map(|(_, route, methods)| (*route, *methods))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_route_is_found_by_its_path_and_nothing_else_is() {
        for (path, route, methods) in ROUTES {
            assert_eq!(Route::find(path), Some((*route, *methods)));
        }
        for path in ["/v1/rules/", "/v1", "/v1/check/", "//", ""] {
            assert_eq!(Route::find(path), None, "{path}");
        }
    }
}
