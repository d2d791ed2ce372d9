//! The answers of a daemon that stands in for Envoy's rate limit service, by the variables of that service.

/// The options of the service's answers besides what its rules say.
#[derive(Debug, Clone, PartialEq)]
pub struct ServiceSettings {
    /// `SHADOW_MODE`: whether every call passes; the descriptors are told what they would be.
    pub shadow: bool,
    /// `QUOTA_MODE`: whether every limit is a quota.
    pub quota: bool,
    /// `RESPONSE_DYNAMIC_METADATA`: whether answers carry what was asked.
    pub metadata: bool,
    /// `LIMIT_*_HEADER`: the names of the headers that say limit, remaining permits and seconds; `None`:
    /// Envoy makes them.
    pub headers: Option<[String; 3]>,
    /// `NEAR_LIMIT_RATIO`: from which part of it on a limit is near.
    pub near_limit: f64,
    /// `CACHE_KEY_PREFIX`: what stands before each domain where it is counted.
    pub prefix: String,
}
