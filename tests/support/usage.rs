//! The processor time and memory of another process, as Linux tells them.

use std::time::Duration;

/// What a process has used.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Usage {
    /// Processor time of all its threads, in the program and in the system.
    pub(crate) cpu: Duration,
    /// Resident memory, in bytes.
    pub(crate) resident: u64,
}

impl Usage {
    /// Reads it now.
    pub(crate) fn of(process: u32) -> Self {
        let read = |file: &str| std::fs::read_to_string(format!("/proc/{process}/{file}")).unwrap();
        // Counted from behind the command, which may itself hold blanks and parentheses.
        let stat = read("stat");
        let fields = stat.rsplit_once(')').unwrap().1.split_ascii_whitespace();
        let ticks: u64 = fields.skip(11).take(2).map(|field| field.parse::<u64>().unwrap()).sum();
        let pages = read("statm").split_ascii_whitespace().nth(1).unwrap().parse::<u64>().unwrap();
        Self { cpu: Duration::from_millis(ticks * 10), resident: pages * 4_096 }
    }
}
