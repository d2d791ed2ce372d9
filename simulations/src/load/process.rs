//! The processor time and memory that another process has used, as Linux tells it under `/proc`.

use anyhow::Context as _;

/// Clock ticks a second in `/proc`: fixed at 100 by the kernel's interface, whatever the kernel's own rate
/// is.
const TICKS_PER_SECOND: u64 = 100;

/// CPU time and memory of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Usage {
    /// CPU time, user and system, of all threads, in ms.
    pub(super) cpu_ms: u64,
    /// Resident memory, in KiB.
    pub(super) rss_kib: u64,
}

impl Usage {
    /// Reads it now.
    ///
    /// # Errors
    /// When there is no such process, or its files cannot be understood.
    pub(super) fn of(pid: u32) -> anyhow::Result<Self> {
        let read = |file: &str| {
            std::fs::read_to_string(format!("/proc/{pid}/{file}"))
                .with_context(|| format!("cannot read /proc/{pid}/{file}"))
        };
        let cpu_ms = cpu_ms(&read("stat")?).with_context(|| format!("cannot understand /proc/{pid}/stat"))?;
        let rss_kib =
            rss_kib(&read("status")?).with_context(|| format!("cannot understand /proc/{pid}/status"))?;
        Ok(Self { cpu_ms, rss_kib })
    }

    /// The CPU time used since `earlier`, and the memory now.
    pub(super) fn since(self, earlier: Self) -> Self {
        Self { cpu_ms: self.cpu_ms.saturating_sub(earlier.cpu_ms), ..self }
    }
}

/// Fields 14 and 15, counted from behind the command, which may itself hold spaces and parentheses.
fn cpu_ms(stat: &str) -> Option<u64> {
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_ascii_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some((user + system) * 1_000 / TICKS_PER_SECOND)
}

fn rss_kib(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.split_ascii_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_with_spaces_and_parentheses_does_not_shift_the_fields() {
        let stat = "77 (a (b) c) S 1 77 77 0 -1 4194560 1 0 0 0 150 50 0 0 20 0 3 0 100 1 2";
        assert_eq!(cpu_ms(stat), Some(2_000));
    }

    #[test]
    fn memory_is_read_from_its_line() {
        assert_eq!(rss_kib("Name:\tx\nVmRSS:\t   1234 kB\nThreads:\t1\n"), Some(1_234));
        assert_eq!(rss_kib("Name:\tkthread\n"), None);
    }

    #[test]
    fn this_process_has_used_memory() {
        assert!(Usage::of(std::process::id()).unwrap().rss_kib > 0);
    }
}
