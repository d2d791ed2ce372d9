//! The life of certificates between daemons, as an operator has it: renewed in their place, signed by another
//! authority, and revoked, while daemons run. Files are written and nothing is signalled, unless a test says
//! otherwise: daemons look at them.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use serde_json::Value;
use tempfile::TempDir;

use super::support::command::{Ran, run};
use super::support::daemon::Daemon;
use super::support::web_authority::WebAuthority;
use super::support::{eventually, free_udp};

const REGIONS: [&str; 3] = ["ap", "eu", "us"];
const RULES: &str = "[[rules]]\nname = \"search\"\nper = [\"user\"]\nalgorithm = \"fixed_window\"\nlimit = 100\n\
                     window = \"1m\"\n[rules.global]\nmode = \"gossip\"\n";
const CLOSED: &str = "the other's certificate is not accepted any more";
const TAKEN: &str = "new links use the certificates as they are now";
/// Longer than a daemon takes to stop and to start again on a busy machine.
const RESTART: Duration = Duration::from_secs(15);

/// Authorities, and for each region a daemon with files of its own: `ca.pem`, `node.pem`, `node.key`,
/// `revoked.pem`.
struct Files(TempDir);

impl Files {
    fn new(regions: usize) -> Self {
        let files = Self(TempDir::new().unwrap());
        files.made(&["cert", "ca", "--out", "ca"]);
        for region in &REGIONS[..regions] {
            files.made(&["cert", "issue", "--ca", "ca", "--region", region, "--node", "n", "--out", region]);
            files.write(&format!("{region}/ca.pem"), &files.read("ca/ca.pem"));
            files.write(&format!("{region}/revoked.pem"), "");
        }
        files
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap()
    }

    /// In one step, as tools do that give files to machines.
    fn write(&self, name: &str, text: &str) {
        let (fresh, path) = (self.path("fresh"), self.path(name));
        std::fs::write(&fresh, text).unwrap();
        std::fs::rename(fresh, path).unwrap();
    }

    fn run(&self, words: &[&str]) -> Ran {
        run(self.0.path(), words)
    }

    fn made(&self, words: &[&str]) {
        let ran = self.run(words);
        assert_eq!(ran.code, 0, "{ran:?}");
    }

    fn config(&self, peers: &[SocketAddr], place: usize) -> String {
        let (region, own) = (REGIONS[place], peers[place]);
        let join: Vec<String> = peers.iter().filter(|peer| **peer != own).map(ToString::to_string).collect();
        let file = |name: &str| self.path(&format!("{region}/{name}"));
        format!(
            "region = {region:?}\nnode = \"n\"\n[listen]\npeer = \"{own}\"\n[peers]\njoin = {join:?}\n\
             regions = {:?}\n[peers.tls]\nca = {:?}\ncert = {:?}\nkey = {:?}\nrevoked = {:?}\n",
            &REGIONS[..peers.len()],
            file("ca.pem"),
            file("node.pem"),
            file("node.key"),
            file("revoked.pem")
        )
    }

    fn start(&self, regions: usize) -> Vec<Daemon> {
        let peers: Vec<SocketAddr> = (0..regions).map(|_| free_udp()).collect();
        let daemons: Vec<Daemon> =
            (0..regions).map(|place| Daemon::with(RULES, &self.config(&peers, place), &[])).collect();
        all_connected(&daemons);
        daemons
    }
}

/// The regions whose daemons are there and linked, as this one sees it.
fn linked(daemon: &Daemon) -> usize {
    let regions = daemon.get("/v1/regions").json();
    let peers = regions["peers"].as_array().cloned().unwrap_or_default();
    peers.iter().filter(|peer| peer["connected"] == true && peer["live"] == true).count()
}

fn all_connected(daemons: &[Daemon]) {
    eventually("all daemons are linked", || {
        daemons.iter().all(|daemon| linked(daemon) == daemons.len() - 1).then_some(())
    });
}

fn told(daemon: &Daemon) -> String {
    let ready = daemon.get("/readyz").json();
    let notices = ready["notices"].as_array().cloned().unwrap_or_default();
    notices.iter().filter_map(Value::as_str).collect::<Vec<_>>().join("\n")
}

fn count(daemon: &Daemon, line: &str) -> usize {
    daemon.log().matches(line).count()
}

/// Waits until a daemon has taken what it was given since it had taken so much.
fn takes(daemon: &Daemon, before: usize) {
    eventually("the daemon takes its files", || (count(daemon, TAKEN) > before).then_some(()));
}

/// Looks at every daemon all the time: the longest that one of them had another region cut off.
struct Outages {
    stop: Arc<AtomicBool>,
    thread: std::thread::JoinHandle<Duration>,
}

impl Outages {
    fn watch(daemons: &[Daemon]) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (ending, ports) =
            (Arc::clone(&stop), daemons.iter().map(|daemon| daemon.http).collect::<Vec<_>>());
        let thread = std::thread::spawn(move || {
            let mut since: Vec<Option<Instant>> = vec![None; ports.len()];
            let mut longest = Duration::ZERO;
            while !ending.load(Ordering::SeqCst) {
                for (since, port) in since.iter_mut().zip(&ports) {
                    let regions = super::support::http::get(*port, "/v1/regions", &[]).json();
                    if regions["cut_off"].as_array().is_some_and(Vec::is_empty) {
                        *since = None;
                    } else {
                        longest = longest.max(since.get_or_insert_with(Instant::now).elapsed());
                    }
                }
                std::thread::sleep(Duration::from_millis(50));
            }
            longest
        });
        Self { stop, thread }
    }

    fn longest(self) -> Duration {
        self.stop.store(true, Ordering::SeqCst);
        self.thread.join().unwrap()
    }
}

/// The walk of `docs/tasks/rotate-certificates.md`.
#[test]
fn the_authority_is_changed_and_nobody_is_cut_off() {
    let files = Files::new(3);
    let daemons = files.start(3);
    let outages = Outages::watch(&daemons);
    let each = || REGIONS.iter().zip(&daemons);

    // 1. Every daemon accepts both.
    files.made(&["cert", "ca", "--out", "ca2"]);
    let both = files.read("ca/ca.pem") + &files.read("ca2/ca.pem");
    for (region, daemon) in each() {
        let before = count(daemon, TAKEN);
        files.write(&format!("{region}/ca.pem"), &both);
        takes(daemon, before);
    }
    all_connected(&daemons);

    // 2. One daemon after the other has a certificate of the new one.
    for (region, daemon) in each() {
        let before = count(daemon, TAKEN);
        files.made(&["cert", "renew", "--ca", "ca2", "--from", region, "--change-authority"]);
        takes(daemon, before);
        all_connected(&daemons);
    }
    for daemon in &daemons {
        assert_eq!(count(daemon, CLOSED), 0, "links stay while both are accepted: {}", daemon.log());
    }

    // 3. The old one is taken out: links that it signed end, and come back with the new certificates.
    for (region, daemon) in each() {
        let before = count(daemon, TAKEN);
        files.write(&format!("{region}/ca.pem"), &files.read("ca2/ca.pem"));
        takes(daemon, before);
        all_connected(&daemons);
    }
    // The first one to take it out met links of the old authority only; the last one may have met none.
    assert!(count(&daemons[0], CLOSED) > 0, "{}", daemons[0].log());
    let longest = outages.longest();
    assert!(longest < RESTART, "a region was cut off for {longest:?}");
    for daemon in &daemons {
        assert_eq!(count(daemon, "were not replaced"), 0, "{}", daemon.log());
        assert_eq!(daemon.metric("tidegate_frames_rejected_total{reason=\"certificate\"}"), Some(0.0));
        assert_eq!(daemon.metric("tidegate_notices{about=\"refused\"}"), Some(0.0), "{}", told(daemon));
    }
}

/// Who was forgotten in a change of the authority is cut off, both sides say so, and a certificate is enough
/// to bring it back.
#[test]
fn who_still_shows_a_certificate_of_the_old_authority_is_cut_off_until_it_has_another() {
    let files = Files::new(2);
    let daemons = files.start(2);
    let [ap, eu] = &daemons[..] else { panic!("two daemons") };
    files.made(&["cert", "ca", "--out", "ca2"]);
    for (region, daemon) in REGIONS.iter().zip([ap, eu]) {
        let before = count(daemon, TAKEN);
        files.write(&format!("{region}/ca.pem"), &(files.read("ca/ca.pem") + &files.read("ca2/ca.pem")));
        takes(daemon, before);
    }
    let before = count(ap, TAKEN);
    files.made(&["cert", "renew", "--ca", "ca2", "--from", "ap", "--change-authority"]);
    takes(ap, before);
    files.write("ap/ca.pem", &files.read("ca2/ca.pem"));
    eventually("the link ends", || (count(ap, CLOSED) > 0 && linked(ap) == 0).then_some(()));
    eventually("it is told here", || told(ap).contains("is not accepted here").then_some(()));
    eventually("and there", || told(eu).contains("does not accept this daemon's certificate").then_some(()));
    eventually("the region is cut off", || told(ap).contains("region eu is cut off").then_some(()));
    assert!(ap.metric("tidegate_frames_rejected_total{reason=\"certificate\"}") > Some(0.0));
    files.made(&["cert", "renew", "--ca", "ca2", "--from", "eu", "--change-authority"]);
    all_connected(&daemons);
    eventually("nothing is wrong any more", || told(ap).is_empty().then_some(()));
}

#[test]
fn a_certificate_that_is_revoked_ends_its_links_and_a_new_one_makes_them_again() {
    let files = Files::new(2);
    let daemons = files.start(2);
    let [ap, eu] = &daemons[..] else { panic!("two daemons") };
    let ran = files.run(&["cert", "revoke", "--ca", "ca", "eu/node.pem"]);
    assert!(ran.code == 0 && ran.out.contains("ca/revoked.pem revokes 1 certificate:"), "{ran:?}");
    files.write("ap/revoked.pem", &files.read("ca/revoked.pem"));
    eventually("the link ends", || (count(ap, CLOSED) > 0 && linked(ap) == 0).then_some(()));
    eventually("it is told here", || told(ap).contains("is not accepted here").then_some(()));
    eventually("and there", || told(eu).contains("does not accept this daemon's certificate").then_some(()));
    assert!(ap.metric("tidegate_frames_rejected_total{reason=\"certificate\"}") > Some(0.0));
    // What is no list changes nothing.
    let authority = files.read("ca/ca.pem");
    let no_lists = ["-----BEGIN X509 CRL-----\nAAAA\n-----END X509 CRL-----\n", "junk\n", authority.as_str()];
    for text in no_lists {
        let before = count(ap, "were not replaced");
        files.write("ap/revoked.pem", text);
        eventually("it is refused", || (count(ap, "were not replaced") > before).then_some(()));
        assert_eq!(linked(ap), 0, "{text}");
    }
    files.write("ap/revoked.pem", &files.read("ca/revoked.pem"));
    files.made(&["cert", "renew", "--ca", "ca", "--from", "eu"]);
    all_connected(&daemons);
    // A daemon is not started with a certificate that its own list revokes.
    files.made(&["cert", "revoke", "--ca", "ca", "eu/node.pem"]);
    files.write("eu/revoked.pem", &files.read("ca/revoked.pem"));
    eventually("it is told", || eu.log().contains("the node's certificate is revoked").then_some(()));
    let shown = files.run(&["cert", "show", "ca/revoked.pem"]);
    assert!(shown.code == 0 && shown.out.contains("  revokes    2"), "{shown:?}");
}

#[test]
fn a_file_that_holds_no_list_of_revoked_certificates_is_refused_by_whoever_reads_it() {
    let files = Files::new(1);
    files.write("rules.toml", RULES);
    let peers = files.config(&[free_udp()], 0);
    let authority = WebAuthority::new();
    let made = authority.issue(2);
    for (name, text) in [("clients.pem", &authority.pem), ("web.pem", &made.cert), ("web.key", &made.key)] {
        files.write(name, text);
    }
    let listener = "[listen.http_tls]\ncert = \"web.pem\"\nkey = \"web.key\"\nclients = \"clients.pem\"\n\
                    revoked = \"web-revoked.pem\"\n";
    files.write("tidegate.toml", &format!("{peers}{listener}"));
    let signer = files.read("ca/ca.pem");
    let readers: [&[&str]; 3] = [
        &["config", "check", "--config", "tidegate.toml"],
        &["doctor", "--config", "tidegate.toml"],
        &["serve", "--config", "tidegate.toml", "--rules", "rules.toml"],
    ];
    files.write("web-revoked.pem", "\n");
    let well = files.run(readers[0]);
    assert_eq!(well.code, 0, "{well:?}");
    for name in ["ap/revoked.pem", "web-revoked.pem"] {
        let before = files.read(name);
        for text in ["junk\n", "# nobody\n", signer.as_str()] {
            files.write(name, text);
            for words in readers {
                let ran = files.run(words);
                let told = ran.both();
                let refused =
                    ran.code != 0 && told.contains("the list of revoked certificates cannot be read");
                assert!(refused, "{words:?} with {name} {text:?}: {ran:?}");
            }
        }
        files.write(name, &before);
    }
}

#[test]
fn a_certificate_is_renewed_in_its_place_while_its_daemon_runs() {
    let files = Files::new(2);
    let daemons = files.start(2);
    let ends = |daemon: &Daemon| {
        daemon.metric("tidegate_certificate_expires_timestamp_seconds{certificate=\"node\"}").unwrap()
    };
    let before = ends(&daemons[0]);
    let mut days = 100_u64;
    for signal in [false, true, false] {
        days += 100;
        files.made(&["cert", "renew", "--ca", "ca", "--from", "ap", "--days", &days.to_string()]);
        if signal {
            daemons[0].process.signal("HUP");
        }
        let expected = since_epoch() + f64::from(u32::try_from(days).unwrap()) * 86_400.0;
        eventually("it is in force", || ((ends(&daemons[0]) - expected).abs() < 3_600.0).then_some(()));
    }
    assert!((ends(&daemons[0]) - before).abs() > 1.0);
    assert_eq!(count(&daemons[0], "were not replaced"), 0, "{}", daemons[0].log());
    assert_eq!(count(&daemons[0], CLOSED) + count(&daemons[1], CLOSED), 0);
    all_connected(&daemons);

    // A certificate without its key is not used, and is as soon as its key is there.
    let issue = ["cert", "issue", "--ca", "ca", "--region", "ap", "--node", "n", "--days", "900"];
    files.made(&[&issue[..], &["--out", "other"]].concat());
    let taken = count(&daemons[0], TAKEN);
    files.write("ap/node.pem", &files.read("other/node.pem"));
    eventually("it is refused", || {
        daemons[0].log().contains("private key does not belong to its certificate").then_some(())
    });
    assert!(count(&daemons[0], TAKEN) == taken && linked(&daemons[0]) == 1);
    files.write("ap/node.key", &files.read("other/node.key"));
    takes(&daemons[0], taken);
}

fn since_epoch() -> f64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs_f64()
}

#[test]
fn what_cannot_be_renewed_or_has_ended_is_told_by_sentence_and_exit_code() {
    let files = Files::new(1);
    files.made(&["cert", "ca", "--out", "ca2", "--days", "30"]);
    let before = [files.read("ap/node.pem"), files.read("ap/node.key")];
    let renew = |ca: &str, from: &str, more: &[&str]| {
        files.run(&[&["cert", "renew", "--ca", ca, "--from", from][..], more].concat())
    };
    let ran = renew("ca", "ap", &["--dry-run", "--days", "7"]);
    assert!(
        ran.code == 0 && ran.out.starts_with("ap/node.pem would be renewed for node n of region ap"),
        "{ran:?}"
    );
    assert!(ran.out.contains(", 7 days left") && ran.out.lines().all(|line| line.len() <= 80), "{ran:?}");
    for (ca, from, more, why) in [
        ("ca2", "ap", &["--days", "9"][..], "and not by ca2/ca.pem; in a change of the authority say"),
        ("ca2", "ap", &["--change-authority"], ": ask for at most "),
        ("nowhere", "ap", &[], "nowhere/ca.pem cannot be read"),
        ("ca", "ca", &[], "ca/node.pem cannot be read"),
        ("ap", "ap", &[], "ap/ca.key cannot be read"),
    ] {
        let ran = renew(ca, from, more);
        assert!(ran.code == 1 && ran.out.is_empty() && ran.err.contains(why), "{why}: {ran:?}");
    }
    assert_eq!(before, [files.read("ap/node.pem"), files.read("ap/node.key")]);
    assert_eq!(renew("ca", "ap", &["--days", "0"]).code, 2);
    let ran = renew("ca", "ap", &[]);
    assert!(
        ran.code == 0 && ran.out.contains("is renewed for node n of region ap; node.key is new"),
        "{ran:?}"
    );
    private(&files.path("ap/node.key"));
    let ran = renew("ca", "ap", &["--keep-key"]);
    assert!(ran.code == 0 && ran.out.contains("its key is the same"), "{ran:?}");

    let ended = WebAuthority::new().issue_until(5, SystemTime::now() - Duration::from_secs(3 * 86_400));
    files.write("ended.pem", &ended.cert);
    let ran = files.run(&["cert", "show", "ap/node.pem", "ended.pem"]);
    assert!(ran.code == 1 && ran.out.contains("ap/node.pem: node n of region ap"), "{ran:?}");
    assert!(ran.out.contains(", it has ended"), "{ran:?}");
    let ran = files.run(&["cert", "revoke", "--ca", "ca2", "ap/node.pem"]);
    assert!(ran.code == 1 && ran.err.contains("and not by ca2/ca.pem"), "{ran:?}");
    assert!(!files.path("ca2/revoked.pem").exists());
}

fn private(key: &Path) {
    use std::os::unix::fs::PermissionsExt as _;
    let mode = std::fs::metadata(key).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode, 0o600, "{}", key.display());
}
