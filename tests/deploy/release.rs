//! What a release publishes: made by the one script, from a binary that is built already.

use std::path::Path;
use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;

use crate::support::{command, not_judged};
use crate::{done, shipped, tool, with_mdbook};

const VERSION: &str = env!("CARGO_PKG_VERSION");

fn release(folder: &Path) -> Command {
    let mut command = with_mdbook(Command::new(shipped("release")));
    command.arg(VERSION).arg(folder).args(["--binary", command::TIDEGATE]);
    if let Some(helm) = tool("helm") {
        let path = std::env::var("PATH").unwrap();
        command.env("PATH", format!("{}:{path}", helm.parent().unwrap().display()));
    }
    command
}

fn json(file: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap()
}

#[test]
fn a_release_is_whole_and_its_sums_are_right() {
    if tool("helm").is_none() {
        return not_judged("helm is not installed: tests/run does so");
    }
    let folder = TempDir::new().unwrap();
    let made = folder.path().join("release");
    done(&mut release(&made));
    done(Command::new("sha256sum").args(["--check", "--strict", "SHA256SUMS"]).current_dir(&made));
    let machine = done(Command::new("uname").arg("-m")).trim().to_owned();
    let triple = format!("{VERSION}-{machine}-unknown-linux-gnu");

    // What cargo publishes, with the sources of each crate, and the chart.
    for (crate_name, source) in
        [("tidegate", "src/main.rs"), ("tidegate-core", "lib.rs"), ("tidegate-client", "src/lib.rs")]
    {
        let packed = made.join(format!("{crate_name}-{VERSION}.crate"));
        let files = done(Command::new("tar").arg("-tzf").arg(&packed));
        let source = format!("{crate_name}-{VERSION}/{source}");
        assert!(files.lines().any(|line| line == source), "{source}: {files}");
    }
    let files = done(Command::new("tar").arg("-tzf").arg(made.join(format!("tidegate-{VERSION}.tgz"))));
    for packed in ["tidegate/Chart.yaml", "tidegate/templates/statefulset.yaml"] {
        assert!(files.lines().any(|line| line == packed), "{packed}: {files}");
    }

    // The archive's binary runs, and has its manual pages beside it.
    let archive = made.join(format!("tidegate-{triple}.tar.gz"));
    done(Command::new("tar").arg("-xzf").arg(&archive).arg("-C").arg(folder.path()));
    let unpacked = folder.path().join(format!("tidegate-{triple}"));
    let said = done(Command::new(unpacked.join("tidegate")).arg("--version"));
    assert_eq!(said.trim(), format!("tidegate {VERSION}"));
    assert!(unpacked.join("man/tidegate-serve.1").is_file(), "{said}");

    // The image names blobs that are there, by their sums, and runs as the user without rights.
    let image = folder.path().join("image");
    std::fs::create_dir(&image).unwrap();
    let packed = made.join(format!("tidegate-{VERSION}-{machine}.oci.tar"));
    done(Command::new("tar").arg("-xf").arg(&packed).arg("-C").arg(&image));
    let blob = |reference: &Value| {
        let file = image.join("blobs").join(reference["digest"].as_str().unwrap().replace(':', "/"));
        let sum = done(Command::new("sha256sum").arg(&file));
        assert!(reference["digest"].as_str().unwrap().ends_with(&sum[..64]), "{reference}: {sum}");
        file
    };
    let manifest = json(&blob(&json(&image.join("index.json"))["manifests"][0]));
    let config = json(&blob(&manifest["config"]));
    assert_eq!(config["config"]["User"], "65532:65532");
    let layer = blob(&manifest["layers"][0]);
    let files = done(Command::new("tar").arg("-tvzf").arg(&layer));
    assert!(files.contains("usr/bin/tidegate"), "{files}");
    assert!(
        files
            .lines()
            .any(|line| line.contains("65532/65532")
                && line.trim_end_matches('/').ends_with("var/lib/tidegate")),
        "{files}"
    );

    // The list of crates has every one that the daemon links, with the sum that the lock file has.
    let crates = json(&made.join(format!("tidegate-{triple}.cdx.json")));
    let listed = crates["components"].as_array().unwrap();
    for name in ["quinn", "redis", "sqlx", "tidegate-core"] {
        assert!(listed.iter().any(|one| one["name"] == name), "{name} is not listed");
    }
    let hashed = listed.iter().filter(|one| one["hashes"].is_array()).count();
    assert_eq!(hashed, listed.len() - 1, "all but tidegate-core come from crates.io");
    let origin = json(&made.join(format!("tidegate-{triple}.intoto.json")));
    assert!(
        origin["subject"]
            .as_array()
            .unwrap()
            .iter()
            .any(|one| one["name"] == format!("tidegate-{triple}.tar.gz"))
    );
}

#[test]
fn a_release_of_another_version_than_the_sources_is_refused() {
    let folder = TempDir::new().unwrap();
    let output =
        Command::new(shipped("release")).arg("9.9.9").arg(folder.path().join("release")).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains(VERSION) && said.contains("9.9.9"), "{said}");
}

#[test]
fn the_workflows_call_the_commands_that_everybody_runs() {
    let workflow = |name: &str| {
        let text = std::fs::read_to_string(shipped("../.github/workflows").join(name)).unwrap();
        if let Some(judge) = tool("bin/check-jsonschema") {
            let file = shipped("../.github/workflows").join(name);
            done(Command::new(judge).args(["--builtin-schema", "vendor.github-workflows"]).arg(file));
        }
        text
    };
    assert!(workflow("ci.yml").contains("- run: tests/run\n"));
    assert!(workflow("release.yml").contains("deploy/release \"${GITHUB_REF_NAME#v}\" release"));
}
