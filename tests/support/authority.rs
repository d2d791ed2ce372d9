//! A cluster's own certificate authority, made by the command line as an operator would.

use tempfile::TempDir;

use super::command::run;

/// Certificates of one cluster.
pub(crate) struct Authority(TempDir);

impl Authority {
    /// Makes one.
    pub(crate) fn new() -> Self {
        let folder = TempDir::new().unwrap();
        let ran = run(folder.path(), &["cert", "ca", "--out", "ca"]);
        assert_eq!(ran.code, 0, "{ran:?}");
        Self(folder)
    }

    /// Issues a daemon's certificate, and gives the `[peers.tls]` that names it.
    pub(crate) fn issue(&self, region: &str, node: &str) -> String {
        self.issue_for(region, node, &[])
    }

    /// The same with more words for `tidegate cert issue`.
    pub(crate) fn issue_for(&self, region: &str, node: &str, more: &[&str]) -> String {
        let words = ["cert", "issue", "--ca", "ca", "--region", region, "--node", node, "--out", node];
        let ran = run(self.0.path(), &[&words[..], more].concat());
        assert_eq!(ran.code, 0, "{ran:?}");
        self.issued(node)
    }

    /// Makes an operator's certificate. Returns its folder.
    pub(crate) fn operator(&self, name: &str) -> String {
        let ran = run(self.0.path(), &["cert", "operator", "--ca", "ca", "--name", name, "--out", name]);
        assert_eq!(ran.code, 0, "{ran:?}");
        self.0.path().join(name).display().to_string()
    }

    /// Where its files are.
    pub(crate) fn folder(&self) -> &std::path::Path {
        self.0.path()
    }

    /// The `[peers.tls]` of a certificate that was issued before.
    pub(crate) fn issued(&self, node: &str) -> String {
        let file = |name: &str| self.0.path().join(name).display().to_string();
        let (cert, key) = (file(&format!("{node}/node.pem")), file(&format!("{node}/node.key")));
        format!("[peers.tls]\nca = \"{}\"\ncert = \"{cert}\"\nkey = \"{key}\"\n", file("ca/ca.pem"))
    }
}
