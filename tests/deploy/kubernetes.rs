//! The Kubernetes chart: linted and rendered by Helm, judged by Kubernetes' schemas; each pod would start
//! with what it is given.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::not_judged;
use crate::{configured, done, shipped, tool};

/// Values beside the defaults, and what each is for.
const CASES: [(&str, &[&str]); 4] = [
    ("defaults", &[]),
    ("everything", &["--values", "full.values.yaml"]),
    (
        "certificates by hand, no disk",
        &[
            "--values",
            "full.values.yaml",
            "--set",
            "peers.certificates.existingSecret=peers,persistence.enabled=false,autoscaling.enabled=false",
        ],
    ),
    (
        "Redis by name",
        &["--set", "store.backend=redis,replicas=2,store.redis.nodes={redis-0:6379,redis-1:6379}"],
    ),
];

fn helm(arguments: &[&str]) -> Option<Command> {
    let mut command = Command::new(tool("helm")?);
    command.current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/deploy")).args(arguments);
    Some(command)
}

fn chart() -> String {
    shipped("kubernetes/tidegate").display().to_string()
}

/// What Helm renders, a document each.
fn rendered(folder: &TempDir, name: &str, values: &[&str]) -> (PathBuf, Vec<Value>) {
    let mut command = helm(&["template", "tidegate", &chart()]).unwrap();
    let text = done(command.args(values));
    let file = folder.path().join(format!("{}.yaml", name.replace(' ', "-")));
    std::fs::write(&file, text).unwrap();
    let read = "import json, sys, yaml\nprint(json.dumps([one for one in yaml.safe_load_all(open(sys.argv[1])) if one]))";
    let documents = done(Command::new(tool("bin/python").unwrap()).args(["-c", read]).arg(&file));
    (file, serde_json::from_str(&documents).unwrap())
}

fn of_kind<'a>(documents: &'a [Value], kind: &str) -> Vec<&'a Value> {
    documents.iter().filter(|document| document["kind"] == kind).collect()
}

#[test]
fn every_pod_of_the_chart_would_start() {
    let (Some(mut lint), Some(judge)) = (helm(&["lint", &chart()]), tool("bin/kubernetes-validate")) else {
        return not_judged("helm and kubernetes-validate are not installed: tests/run does so");
    };
    done(&mut lint);
    let folder = TempDir::new().unwrap();
    for (name, values) in CASES {
        let (file, documents) = rendered(&folder, name, values);
        let said = done(Command::new(&judge).arg("--strict").arg(&file));
        assert!(said.contains("passed for resource statefulset/tidegate"), "{name}: {said}");
        starts(&folder, name, &documents);
    }
}

/// A pod's configuration, with the variables of its container.
fn starts(folder: &TempDir, name: &str, documents: &[Value]) {
    let [pods] = of_kind(documents, "StatefulSet")[..] else { panic!("{name}: one StatefulSet") };
    let [texts] = of_kind(documents, "ConfigMap")[..] else { panic!("{name}: one ConfigMap") };
    let pod = &pods["spec"]["template"]["spec"];
    assert_eq!(pod["enableServiceLinks"], false, "variables of services would begin with TIDEGATE_");
    let container = &pod["containers"][0];
    assert_eq!(container["securityContext"]["readOnlyRootFilesystem"], true);
    for file in ["tidegate.toml", "rules.toml"] {
        std::fs::write(folder.path().join(file), texts["data"][file].as_str().unwrap()).unwrap();
    }
    let mut variables = Vec::new();
    for variable in container["env"].as_array().unwrap() {
        let name = variable["name"].as_str().unwrap().to_owned();
        let secret = match name.as_str() {
            "TIDEGATE_STORE__REDIS__NODES" => "redis://user:secret@redis:6379",
            "TIDEGATE_POSTGRES__URL" => "postgres://user:secret@postgres/tidegate",
            _ => "10.0.0.7",
        };
        let value = variable["value"].as_str().unwrap_or(secret);
        let value = value.replace("$(POD_NAME)", "tidegate-0").replace("$(POD_IP)", "10.0.0.7");
        let value = value.replace("/etc/tidegate/config", &folder.path().display().to_string());
        variables.push((name, value));
    }
    let settings = configured(folder.path(), &variables);
    assert!(settings.contains("node = \"tidegate-0\""), "{name}: {settings}");
    assert!(settings.contains("http = \"0.0.0.0:8080\""), "{name}: {settings}");
    // Every volume that is mounted is there.
    let claims = pods["spec"]["volumeClaimTemplates"].as_array().into_iter().flatten();
    let claims = claims.map(|claim| &claim["metadata"]["name"]);
    let volumes = pod["volumes"].as_array().unwrap().iter().map(|volume| &volume["name"]);
    let volumes: Vec<&Value> = volumes.chain(claims).collect();
    for mount in container["volumeMounts"].as_array().unwrap() {
        assert!(volumes.contains(&&mount["name"]), "{name}: {mount}");
    }
}

#[test]
fn each_pod_has_a_certificate_that_names_it() {
    if helm(&[]).is_none() {
        return not_judged("helm is not installed: tests/run does so");
    }
    let folder = TempDir::new().unwrap();
    let (_, documents) = rendered(&folder, "everything", CASES[1].1);
    let certificates = of_kind(&documents, "Certificate");
    // As many as autoscaling may make pods, and a service for each, by which other clusters reach it.
    assert_eq!(certificates.len(), 4);
    let reached: Vec<&str> = of_kind(&documents, "Service")
        .iter()
        .filter_map(|service| service["spec"]["selector"]["statefulset.kubernetes.io/pod-name"].as_str())
        .collect();
    assert_eq!(reached, ["tidegate-0", "tidegate-1", "tidegate-2", "tidegate-3"]);
    assert_eq!(certificates[3]["spec"]["uris"][0], "tidegate://eu-west/tidegate-3");
    assert_eq!(
        of_kind(&documents, "PrometheusRule")[0]["spec"]["groups"].as_array().map(Vec::is_empty),
        Some(false)
    );
}

#[test]
fn files_and_variables_of_ones_own_and_probes_under_tls_reach_the_pod() {
    if helm(&[]).is_none() {
        return not_judged("helm is not installed: tests/run does so");
    }
    let folder = TempDir::new().unwrap();
    let (_, documents) = rendered(&folder, "everything", CASES[1].1);
    let pod = &of_kind(&documents, "StatefulSet")[0]["spec"]["template"]["spec"];
    let container = &pod["containers"][0];
    let has = |list: &Value, name: &str| list.as_array().unwrap().iter().any(|one| one["name"] == name);
    assert!(has(&pod["volumes"], "listener") && has(&container["volumeMounts"], "listener"), "{pod}");
    assert!(has(&container["env"], "TIDEGATE_LOG"), "{container}");
    assert_eq!(container["envFrom"][0]["secretRef"]["name"], "more");
    for probe in ["livenessProbe", "readinessProbe", "startupProbe"] {
        assert_eq!(container[probe]["httpGet"]["scheme"], "HTTPS", "{probe}");
    }
}

#[test]
fn prometheus_and_gateways_are_let_in_and_nobody_else() {
    if helm(&[]).is_none() {
        return not_judged("helm is not installed: tests/run does so");
    }
    let folder = TempDir::new().unwrap();
    let (_, documents) = rendered(&folder, "defaults", CASES[0].1);
    let [policy] = of_kind(&documents, "NetworkPolicy")[..] else { panic!("one NetworkPolicy") };
    let spec = &policy["spec"];
    let [pods] = of_kind(&documents, "StatefulSet")[..] else { panic!("one StatefulSet") };
    let labels = &pods["spec"]["template"]["metadata"]["labels"];
    for (name, value) in spec["podSelector"]["matchLabels"].as_object().unwrap() {
        assert_eq!(labels[name], *value, "the policy is about the daemons");
    }
    let named = pods["spec"]["template"]["spec"]["containers"][0]["ports"].as_array().unwrap();
    let ports = |rule: &Value| -> Vec<String> {
        let ports = rule["ports"].as_array().unwrap().iter().map(|port| port["port"].as_str().unwrap());
        ports
            .inspect(|port| assert!(named.iter().any(|one| one["name"] == *port), "{port}"))
            .map(str::to_owned)
            .collect()
    };
    let [gateways, metrics, peers] = &spec["ingress"].as_array().unwrap()[..] else { panic!("{spec}") };
    assert_eq!(
        (ports(gateways), &gateways["from"]),
        (vec!["http".to_owned(), "grpc".to_owned()], &json!([{ "podSelector": {} }]))
    );
    // As its operator and its charts label it, in whichever namespace.
    let prometheus = json!({ "matchLabels": { "app.kubernetes.io/name": "prometheus" } });
    let anywhere = json!([{ "namespaceSelector": {}, "podSelector": prometheus }]);
    assert_eq!((ports(metrics), &metrics["from"]), (vec!["http".to_owned()], &anywhere));
    assert_eq!((ports(peers), &peers["from"]), (vec!["peer".to_owned()], &Value::Null));

    let mine = "networkPolicy.metrics[0].podSelector.matchLabels.app=metrics";
    let (_, documents) = rendered(&folder, "metrics", &["--set", mine]);
    let policies = of_kind(&documents, "NetworkPolicy");
    let from = &policies[0]["spec"]["ingress"][1]["from"];
    assert_eq!(*from, json!([{ "podSelector": { "matchLabels": { "app": "metrics" } } }]));
    let (_, documents) = rendered(&folder, "open", &["--set", "networkPolicy.enabled=false"]);
    assert!(of_kind(&documents, "NetworkPolicy").is_empty());
}

#[test]
fn what_cannot_work_is_refused_before_anything_is_installed() {
    if helm(&[]).is_none() {
        return not_judged("helm is not installed: tests/run does so");
    }
    for (values, why) in [
        ("replicas=2", "each daemon counts for itself"),
        ("store.backend=redis", "name its servers"),
        ("peers.enabled=true,peers.regions={local}", "daemons need certificates"),
        ("peers.enabled=true,peers.certificates.existingSecret=x", "peers.regions must list"),
        ("replicaz=2", "replicaz"),
        ("store.backend=disk", "store.backend"),
        ("drain=soon", "drain"),
    ] {
        let mut command = helm(&["template", "tidegate", &chart(), "--set", values]).unwrap();
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains(why), "{values}: {said}");
    }
}

#[test]
fn the_chart_carries_the_alerts_that_are_tested() {
    let carried = std::fs::read_to_string(shipped("kubernetes/tidegate/files/tidegate.rules.yml")).unwrap();
    let tested = std::fs::read_to_string(shipped("prometheus/tidegate.rules.yml")).unwrap();
    assert!(carried == tested, "copy deploy/prometheus/tidegate.rules.yml into the chart's files");
}
