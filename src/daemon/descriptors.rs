//! File descriptors: as many as the system allows, and how many of them connections may take.

use rustix::process::{Resource, getrlimit, setrlimit};

/// The part of all descriptors that connections leave for Redis, PostgreSQL, other daemons and files, and its
/// bounds.
const RESERVED_PART: u64 = 4;
const RESERVED_MIN: u64 = 64;
const RESERVED_MAX: u64 = 512;
/// Fewest connections of one listener.
const CONNECTIONS_MIN: u64 = 8;

/// Raises the soft limit of open files to the hard one: each connection takes a descriptor.
pub fn raise_open_files() {
    let limit = getrlimit(Resource::Nofile);
    if limit.current == limit.maximum {
        return;
    }
    let raised = rustix::process::Rlimit { current: limit.maximum, maximum: limit.maximum };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::warn!(%error, "the limit of open files stays as it is");
    }
}

/// Most connections of one of so many listeners of gateways: as configured, or what the limit of open files
/// leaves.
pub(super) fn connections_max(configured: usize, listeners: u64) -> usize {
    let Some(files) = getrlimit(Resource::Nofile).current else { return configured };
    let left = usize::try_from(left_of(files, listeners)).unwrap_or(usize::MAX);
    // Somewhat fewer is how machines are set up; less than half is worth a look.
    if left < configured / 2 {
        tracing::warn!(
            open_files = files,
            configured,
            connections = left,
            "the limit of open files allows fewer connections than listen.max_connections: raise it (LimitNOFILE, ulimit -n)"
        );
    } else if left < configured {
        tracing::info!(
            open_files = files,
            configured,
            connections = left,
            "connections of a listener are bounded by the limit of open files"
        );
    }
    left.min(configured)
}

/// Returns how many places one listener may have of so many descriptors.
fn left_of(files: u64, listeners: u64) -> u64 {
    let reserved = (files / RESERVED_PART).clamp(RESERVED_MIN, RESERVED_MAX);
    let each = files.saturating_sub(reserved) / listeners.max(1);
    // A sixteenth more may be open while idle ones end, and as many wait for a place.
    (each * 16 / 18).max(CONNECTIONS_MIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_leave_room_for_everything_else() {
        for (files, each) in [(256, 85), (1_024, 341), (65_536, 28_899), (40, CONNECTIONS_MIN)] {
            assert_eq!(left_of(files, 2), each, "{files}");
        }
        assert_eq!(left_of(1_024, 3), 227);
        for (files, listeners) in (100..100_000).zip([2, 3].into_iter().cycle()) {
            let each = left_of(files, listeners);
            let most = listeners * (each + 2 * (each / 16 + 1)) + RESERVED_MIN;
            assert!(most <= files + 2 * listeners, "{files}");
        }
    }
}
