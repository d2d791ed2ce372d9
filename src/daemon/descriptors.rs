//! File descriptors: as many as the system allows, and how many of them connections may take.

use rustix::process::{Resource, getrlimit, setrlimit};

/// Listeners of gateways, which share what there is.
const LISTENERS: u64 = 2;
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

/// Most connections of one listener: as configured, or what the limit of open files leaves.
pub(super) fn connections_max(configured: usize) -> usize {
    let Some(files) = getrlimit(Resource::Nofile).current else { return configured };
    let left = usize::try_from(left_of(files)).unwrap_or(usize::MAX);
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

/// What one listener may take of so many descriptors, those above its number of places included.
fn left_of(files: u64) -> u64 {
    let reserved = (files / RESERVED_PART).clamp(RESERVED_MIN, RESERVED_MAX);
    let each = files.saturating_sub(reserved) / LISTENERS;
    // A sixteenth more may be open while idle ones end.
    (each * 16 / 17).max(CONNECTIONS_MIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_leave_room_for_everything_else() {
        for (files, each) in [(256, 90), (1_024, 361), (65_536, 30_599), (40, CONNECTIONS_MIN)] {
            assert_eq!(left_of(files), each, "{files}");
        }
        for files in 100..100_000 {
            let each = left_of(files);
            assert!(LISTENERS * (each + each / 16 + 1) + RESERVED_MIN <= files + 2, "{files}");
        }
    }
}
