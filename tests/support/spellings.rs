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

/// Other spellings of `admin.example.com`.
pub(crate) const ADMIN_HOST: &[&str] = &[
    "ADMIN.example.com",
    "Admin.Example.Com",
    "admin.example.com:443",
    "admin.example.com:80",
    "admin.example.com.",
    "ADMIN.EXAMPLE.COM.:8443",
];
