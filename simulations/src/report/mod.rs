//! The figures of a run, for people: tables, plots, a page that shows both.

pub(crate) mod html;
pub(crate) mod plot;
pub(crate) mod table;
