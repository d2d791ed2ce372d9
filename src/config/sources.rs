//! The sources of values: the file, over it the environment, over that the command line. All become one tree,
//! which is then read once, so that the same checks speak of lines, of variables and of flags.

use std::path::Path;

use super::{Config, Problem, TextPlace, read};
use crate::core::written::{At, Problems, TreeNode};

/// Largest configuration file, in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// The prefix of every variable of the configuration.
pub(super) const PREFIX: &str = "TIDEGATE_";
/// Variables that are no configuration: those of the client commands and of the process, then those of the
/// scripts beside it, which may be exported where a daemon is started.
const NOT_CONFIGURATION: [&str; 16] = [
    "SERVER",
    "TOKEN",
    "OPERATOR",
    "TLS_CA",
    "TLS_CERT",
    "TLS_KEY",
    "CONFIG",
    "LOG",
    "REDIS_DIR",
    "REDIS_PORT",
    "BINARY",
    "HISTORIES",
    "TEST_ENVOY",
    "TEST_NGINX",
    "TEST_UNJUDGED",
    "WRITE_GOLDEN",
];

/// The options that the command line of `tidegate serve` may have. `None` and empty: not given.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Flags {
    /// `--region`, which comes before `region` of the file and of the environment.
    pub region: Option<String>,
    /// `--node`, which comes before `node` of the file and of the environment.
    pub node: Option<String>,
    /// `--rules`, which comes before `rules.file` of the file and of the environment.
    pub rules: Option<String>,
    /// `--http`, which comes before `listen.http` of the file and of the environment.
    pub http: Option<String>,
    /// `--grpc`, which comes before `listen.grpc` of the file and of the environment.
    pub grpc: Option<String>,
    /// `--peer`, which comes before `listen.peer` of the file and of the environment.
    pub peer: Option<String>,
    /// `--join`, once for each daemon; together they replace `peers.join`.
    pub join: Vec<String>,
}

impl Config {
    /// Reads the file, if one is given, and puts the environment and the flags over it.
    ///
    /// # Errors
    /// Every problem, each at its line and column, or with the name of its variable or flag.
    pub fn load(
        path: Option<&Path>,
        env: impl Iterator<Item = (String, String)>,
        flags: &Flags,
    ) -> Result<Self, Vec<Problem>> {
        let Some(path) = path else { return Self::from_text("", "", Path::new(""), env, flags) };
        let name = path.display().to_string();
        let text = read_file(path)
            .map_err(|message| vec![Problem { place: TextPlace::File(name.clone()), message }])?;
        let folder = path.parent().unwrap_or_else(|| Path::new(""));
        Self::from_text(&name, &text, folder, env, flags)
    }

    /// The same from a text. `folder` is where its relative paths begin.
    ///
    /// # Errors
    /// Every problem; a text that is no TOML has one.
    pub fn from_text(
        file: &str,
        text: &str,
        folder: &Path,
        env: impl Iterator<Item = (String, String)>,
        flags: &Flags,
    ) -> Result<Self, Vec<Problem>> {
        let mut problems = Problems::new(file, text);
        let mut root = match TreeNode::from_toml(text) {
            Ok(root) => root,
            Err((at, message)) => {
                problems.report(&at, message);
                return Err(problems.into_list());
            }
        };
        overlay_env(&mut root, env, &mut problems);
        overlay_flags(&mut root, flags, &mut problems);
        match read::config(&root, folder, &mut problems) {
            Some(config) if problems.is_empty() => Ok(config),
            _ => Err(problems.into_list()),
        }
    }
}

fn read_file(path: &Path) -> Result<String, String> {
    use std::io::Read;
    let file = std::fs::File::open(path).map_err(|error| format!("cannot be read: {error}"))?;
    let mut bytes = Vec::new();
    file.take(FILE_BYTES_MAX + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| format!("cannot be read: {error}"))?;
    if u64::try_from(bytes.len()).is_ok_and(|len| len > FILE_BYTES_MAX) {
        return Err(format!("must have at most {FILE_BYTES_MAX} bytes"));
    }
    String::from_utf8(bytes).map_err(|_| "is not UTF-8".to_owned())
}

fn overlay_env(
    root: &mut TreeNode,
    env: impl Iterator<Item = (String, String)>,
    problems: &mut Problems<'_>,
) {
    let ours = |(name, value): (String, String)| {
        let key = name.strip_prefix(PREFIX)?;
        let skipped = NOT_CONFIGURATION.contains(&key) || is_kubernetes(key, &value);
        (!skipped).then(|| (name.clone(), key.to_lowercase(), value))
    };
    let mut variables: Vec<(String, String, String)> = env.filter_map(ours).collect();
    variables.sort();
    for (name, key, value) in &variables {
        overlay(root, &key.split("__").collect::<Vec<_>>(), name, value, problems);
    }
}

/// Returns whether Kubernetes made this variable for a service whose name begins with `tidegate`.
pub(super) fn is_kubernetes(key: &str, value: &str) -> bool {
    let is_url = value.starts_with("tcp://") || value.starts_with("udp://");
    let numbered = |(_, rest): (&str, &str)| rest.starts_with(|letter: char| letter.is_ascii_digit());
    key.contains("SERVICE_HOST")
        || key.contains("SERVICE_PORT")
        || (key.ends_with("PORT") && is_url)
        || key.split_once("PORT_").is_some_and(numbered)
}

fn overlay_flags(root: &mut TreeNode, flags: &Flags, problems: &mut Problems<'_>) {
    let join = (!flags.join.is_empty()).then(|| flags.join.join(","));
    let said: [(&[&str], &str, Option<&String>); 7] = [
        (&["region"], "--region", flags.region.as_ref()),
        (&["node"], "--node", flags.node.as_ref()),
        (&["rules", "file"], "--rules", flags.rules.as_ref()),
        (&["listen", "http"], "--http", flags.http.as_ref()),
        (&["listen", "grpc"], "--grpc", flags.grpc.as_ref()),
        (&["listen", "peer"], "--peer", flags.peer.as_ref()),
        (&["peers", "join"], "--join", join.as_ref()),
    ];
    for (path, flag, value) in said {
        if let Some(value) = value {
            overlay(root, path, flag, value, problems);
        }
    }
}

fn overlay(root: &mut TreeNode, path: &[&str], outside: &str, value: &str, problems: &mut Problems<'_>) {
    if let Err(key) = root.overlay(path, outside, value) {
        problems.report(
            &At::Outside(outside.to_owned()),
            format!("there is no {key:?}: what holds it is no section"),
        );
    }
}
