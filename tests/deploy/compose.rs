//! The compose file: right by the specification, and each daemon in it would start with its variables.

use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;

use crate::support::not_judged;
use crate::{configured, done, shipped, tool};

/// The services of the file, read by the program that also judges it.
fn services(folder: &TempDir) -> Value {
    let file = shipped("compose/compose.yaml");
    let read = "import json, sys, ruamel.yaml\n\
                print(json.dumps(ruamel.yaml.YAML(typ='safe').load(open(sys.argv[1]))['services']))";
    let python = tool("bin/python").unwrap();
    let said = done(Command::new(python).current_dir(folder.path()).args(["-c", read]).arg(file));
    serde_json::from_str(&said).unwrap()
}

#[test]
fn the_compose_file_is_right_and_its_daemons_would_start() {
    let Some(judge) = tool("bin/check-jsonschema") else {
        return not_judged("check-jsonschema is not installed: tests/run does so");
    };
    let file = shipped("compose/compose.yaml");
    done(Command::new(judge).args(["--builtin-schema", "vendor.compose-spec"]).arg(&file));
    let folder = TempDir::new().unwrap();
    let services = services(&folder);
    let mut daemons = 0;
    for (name, service) in services.as_object().unwrap() {
        for volume in service["volumes"].as_array().into_iter().flatten().filter_map(Value::as_str) {
            let from = volume.split(':').next().unwrap();
            assert!(!from.starts_with('.') || shipped("compose").join(from).exists(), "{name}: {volume}");
        }
        if !service["command"].as_array().is_some_and(|command| command[0] == "serve") {
            continue;
        }
        daemons += 1;
        let variables = service["environment"].as_object().unwrap();
        let variables: Vec<(String, String)> = variables
            .iter()
            .map(|(name, value)| (name.clone(), value.as_str().unwrap().to_owned()))
            .chain([("TIDEGATE_CONFIG".to_owned(), shipped("image/tidegate.toml").display().to_string())])
            .collect();
        let settings = configured(folder.path(), &variables);
        assert!(settings.contains(&format!("region = \"{name}\"")), "{settings}");
    }
    assert_eq!(daemons, 3);
}

#[test]
fn what_the_compose_file_makes_once_it_keeps_when_it_starts_a_second_time() {
    if tool("bin/python").is_none() {
        return not_judged("ruamel.yaml is not installed: tests/run does so");
    }
    let folder = TempDir::new().unwrap();
    let peers = folder.path().join("peers");
    let services = services(&folder);
    let commands = services.as_object().unwrap().values().filter_map(|service| service["command"].as_array());
    let words = |command: &Vec<Value>| -> Vec<String> {
        let words = command.iter().map(|word| word.as_str().unwrap());
        words.map(|word| word.replace("/etc/tidegate/peers", peers.to_str().unwrap())).collect()
    };
    let mut once: Vec<Vec<String>> = commands.filter(|command| command[0] == "cert").map(words).collect();
    assert_eq!(once.len(), 4, "an authority, and a certificate for each daemon: {once:?}");
    // The others depend on the authority.
    once.sort_by_key(|words| words[1] != "ca");
    let start = || {
        for words in &once {
            done(crate::support::command::command(folder.path()).args(words));
        }
        let files = ["ca.pem", "ca.key", "eu/node.pem", "eu/node.key", "us/node.pem", "ap/node.pem"];
        files.map(|file| std::fs::read(peers.join(file)).unwrap())
    };
    assert_eq!(start(), start(), "daemons that run know each other by these");
}

#[test]
fn the_rules_of_the_compose_file_are_valid() {
    let folder = TempDir::new().unwrap();
    let file = shipped("compose/rules.toml");
    let mut command = crate::support::command::command(folder.path());
    let said = done(command.args(["rules", "validate"]).arg(file));
    assert!(said.contains("rules: 1"), "{said}");
}
