//! Clocks of regions that are wrong: libfaketime stands between their processes and the machine's clock.

use std::path::{Path, PathBuf};

use anyhow::Context as _;

use crate::plan::{FaultKind, Plan};

/// The places in Debian's package, by processor.
const PLACES: [&str; 3] = [
    "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1",
    "/usr/lib/aarch64-linux-gnu/faketime/libfaketimeMT.so.1",
    "/usr/lib/faketime/libfaketimeMT.so.1",
];

/// Debian's redis-server takes its memory from jemalloc, which asks for the time before libfaketime is ready
/// and waits for that in vain. With the C library before it, memory comes from there.
const LIBC: &str = "libc.so.6";

fn library() -> Option<PathBuf> {
    PLACES.iter().map(PathBuf::from).find(|path| path.exists())
}

/// Returns whether libfaketime is there.
pub(super) fn can_be_moved() -> bool {
    library().is_some()
}

/// The clocks of all regions.
#[derive(Debug)]
pub(super) struct Clocks {
    library: PathBuf,
    folder: PathBuf,
    /// By region: how far it is ahead, in microseconds, and how much faster it runs.
    regions: Vec<(i64, i64)>,
}

/// Returns whether the clock of any region is ever wrong.
pub(super) fn any_is_wrong(plan: &Plan) -> bool {
    plan.faults.iter().any(|fault| matches!(fault.kind, FaultKind::ClockStep { .. }))
        || plan.regions.iter().any(|region| region.ahead != 0 || region.drift_ppm != 0)
}

impl Clocks {
    /// `None` where all clocks are right, so that nothing is needed.
    pub(super) fn new(plan: &Plan, folder: PathBuf) -> anyhow::Result<Option<Self>> {
        if !any_is_wrong(plan) {
            return Ok(None);
        }
        let library = library().context(
            "clocks of real daemons are moved by libfaketime, which is not installed: apt-get install libfaketime",
        )?;
        std::fs::create_dir_all(&folder)?;
        let regions = plan.regions.iter().map(|region| (region.ahead, region.drift_ppm)).collect();
        let clocks = Self { library, folder, regions };
        (0..plan.regions.len()).try_for_each(|region| clocks.write(region))?;
        Ok(Some(clocks))
    }

    /// For every process of a region that looks at the clock.
    pub(super) fn variables(&self, region: usize) -> Vec<(String, String)> {
        let file = self.file(region).display().to_string();
        let all = [
            ("LD_PRELOAD", format!("{}:{LIBC}", self.library.display())),
            ("FAKETIME_TIMESTAMP_FILE", file),
            // Only the time of day is wrong: how long something took is not.
            ("DONT_FAKE_MONOTONIC", "1".to_owned()),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned()),
            // A step is seen at once.
            ("FAKETIME_NO_CACHE", "1".to_owned()),
        ];
        all.map(|(name, value)| (name.to_owned(), value)).into()
    }

    /// Moves a region's clock by so many microseconds.
    pub(super) fn step(&mut self, region: usize, by: i64) -> anyhow::Result<()> {
        if let Some((ahead, _)) = self.regions.get_mut(region) {
            *ahead += by;
        }
        self.write(region)
    }

    fn file(&self, region: usize) -> PathBuf {
        self.folder.join(format!("clock-{region}"))
    }

    fn write(&self, region: usize) -> anyhow::Result<()> {
        let (ahead, drift) = self.regions.get(region).copied().unwrap_or_default();
        replace(&self.file(region), &text(ahead, drift))
    }
}

/// In one step, so that nobody reads half of it.
fn replace(path: &Path, text: &str) -> anyhow::Result<()> {
    let new = path.with_extension("new");
    std::fs::write(&new, text)?;
    Ok(std::fs::rename(&new, path)?)
}

/// Returns the text that libfaketime reads: seconds ahead, and how fast the clock runs where that is not the
/// usual pace.
fn text(ahead: i64, drift_ppm: i64) -> String {
    let sign = if ahead < 0 { '-' } else { '+' };
    let micros = ahead.unsigned_abs();
    let pace = match drift_ppm {
        0 => String::new(),
        drift => {
            let pace = 1_000_000_i64.saturating_add(drift).unsigned_abs();
            format!(" x{}.{:06}", pace / 1_000_000, pace % 1_000_000)
        }
    };
    format!("{sign}{}.{:06}{pace}\n", micros / 1_000_000, micros % 1_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_redis_server_goes_by_the_clock_that_was_moved() {
        use crate::chaos::daemon::Redis;

        if !can_be_moved() {
            println!("skipped: libfaketime is not installed");
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let text = "[rule]\nlimit = 10\nwindow = \"1s\"\n[demand]\npattern = \"bal2\"\n[[regions]]\nname = \"eu\"\nahead = \"30s\"\n";
        let plan = crate::plan::read("s.toml", text).unwrap();
        let clocks = Clocks::new(&plan, folder.path().join("clocks")).unwrap().unwrap();
        let redis = Redis::start(folder.path().join("redis"), clocks.variables(0)).unwrap();
        let shown = redis.seconds().unwrap();
        let now = crate::chaos::clients::since_epoch().as_secs();
        assert!((25..=40).contains(&shown.saturating_sub(now)), "{shown} where it is {now}");
    }

    #[test]
    fn a_clock_is_written_as_libfaketime_reads_it() {
        assert_eq!(text(60_000, 0), "+0.060000\n");
        assert_eq!(text(-1_300_000, 200), "-1.300000 x1.000200\n");
        assert_eq!(text(0, -50), "+0.000000 x0.999950\n");
    }
}
