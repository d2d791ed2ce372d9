//! How else a client may write a path or a host: an origin undoes all of this.

/// Other spellings of `/api/search`.
pub(crate) const SEARCH: &[&str] = &[
    "//api/search",
    "/api//search",
    "///api///search",
    "/%61pi/search",
    "/api/s%65arch",
    "/%61%70%69/%73%65%61rch",
    "/./api/search",
    "/api/./search",
    "/x/../api/search",
    "/x/y/../../api/search",
    "/api/x/../search",
    "/%2e/api/search",
    "/x/%2e%2e/api/search",
    "/x/%2E./api/search",
    "/api%2fsearch",
    "/api%2Fsearch",
    "/x/..%2fapi/search",
    "/api\\search",
    "/api%5csearch",
    "/api;v=1/search",
    "/api/search;v=1",
    "/x/..;/api/search",
    "/;a=b/api/search",
    "/api/search?x=1",
    "/api/search?",
];

/// Other spellings of `admin.example.com`: what stands behind a colon is a port to an origin, whatever it is.
pub(crate) const ADMIN_HOST: &[&str] = &[
    "ADMIN.example.com",
    "Admin.Example.Com",
    "admin.example.com:443",
    "admin.example.com:80",
    "admin.example.com.",
    "ADMIN.EXAMPLE.COM.:8443",
    "admin.example.com:",
    "admin.example.com:x",
    "admin.example.com:80x",
    "admin.example.com:-1",
    "admin.example.com:80:80",
    "admin.example.com.:x",
    "admin.example.com::1",
    "admin.example.com:99999999999999999999",
];

/// What some origins take for `admin.example.com` and others for another host: refused.
pub(crate) const ODD_HOST: &[&str] = &[
    "x@admin.example.com",
    "x:y@admin.example.com",
    "admin.example.com:@x",
    "%61dmin.example.com",
    "admin%2eexample.com",
    "admin.example.com/x",
    "admin.example.com?x",
    "admin.example.com#x",
    "admin.example.com\\x",
    "admin.example.com: 80",
    "admin.example.com x",
];
