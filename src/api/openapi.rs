//! The OpenAPI document. It lies in `docs/openapi.json`; [`made`] makes it of the tables of routes and of the
//! types that they read and write, and holds that it is current.

#[cfg(test)]
mod made;
#[cfg(test)]
mod schemas;

/// The document, as JSON.
#[must_use]
pub const fn openapi_json() -> &'static str {
    include_str!("../../docs/openapi.json")
}
