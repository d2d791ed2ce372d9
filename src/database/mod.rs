//! Where rules come from: files today. What is read here is checked here; the layers within trust it.

pub mod document;
pub mod file;
