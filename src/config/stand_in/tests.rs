//! The environments that the gateways set, and odd ones.

use super::*;

/// What Envoy Gateway sets in the pods that it makes.
const ENVOY_GATEWAY: &str = "RUNTIME_ROOT=/data RUNTIME_SUBDIRECTORY=ratelimit RUNTIME_IGNOREDOTFILES=true \
    RUNTIME_WATCH_ROOT=false LOG_LEVEL=info USE_STATSD=false CONFIG_TYPE=GRPC_XDS_SOTW \
    CONFIG_GRPC_XDS_SERVER_URL=envoy-gateway:18001 CONFIG_GRPC_XDS_NODE_ID=envoy-ratelimit GRPC_SERVER_USE_TLS=true \
    GRPC_SERVER_TLS_CERT=/certs/tls.crt GRPC_SERVER_TLS_KEY=/certs/tls.key GRPC_SERVER_TLS_CA_CERT=/certs/ca.crt \
    CONFIG_GRPC_XDS_SERVER_USE_TLS=true CONFIG_GRPC_XDS_CLIENT_TLS_CERT=/certs/tls.crt \
    CONFIG_GRPC_XDS_CLIENT_TLS_KEY=/certs/tls.key CONFIG_GRPC_XDS_SERVER_TLS_CACERT=/certs/ca.crt \
    FORCE_START_WITHOUT_INITIAL_CONFIG=true REDIS_SOCKET_TYPE=tcp REDIS_URL=redis.redis-system.svc:6379 REDIS_TLS=true \
    REDIS_TLS_CLIENT_CERT=/redis-certs/tls.crt REDIS_TLS_CLIENT_KEY=/redis-certs/tls.key USE_PROMETHEUS=true \
    PROMETHEUS_ADDR=:19001 PROMETHEUS_MAPPER_YAML=/etc/statsd-exporter/conf.yaml TRACING_ENABLED=true \
    TRACING_SERVICE_NAME=envoy-ratelimit TRACING_SERVICE_NAMESPACE=n TRACING_SERVICE_INSTANCE_ID=pod \
    TRACING_SAMPLING_RATE=1.0 OTEL_EXPORTER_OTLP_ENDPOINT=http://otel:4318";

fn of(text: &str) -> Result<(Config, StandIn), Vec<String>> {
    let pairs = text.split_whitespace().map(|pair| pair.split_once('=').unwrap());
    stand_in(pairs.map(|(name, value)| (name.to_owned(), value.to_owned())))
}

#[test]
fn envoy_gateways_environment_is_read_whole() {
    let (config, own) = of(ENVOY_GATEWAY).unwrap();
    assert_eq!(config.listen.http.to_string(), "0.0.0.0:8080");
    assert_eq!(config.listen.grpc.to_string(), "0.0.0.0:8081");
    assert_eq!(config.listen.metrics.as_ref().unwrap().to_string(), "0.0.0.0:19001");
    let tls = config.listen.grpc_tls.as_ref().unwrap();
    assert_eq!((&*tls.cert, &tls.clients), (Path::new("/certs/tls.crt"), &None), "no certificate of clients");
    let redis = &config.store.redis;
    assert_eq!(redis.nodes, ["rediss://redis.redis-system.svc:6379"]);
    assert_eq!(redis.tls.cert.as_deref(), Some(Path::new("/redis-certs/tls.crt")));
    let StandInRules::Xds(xds) = &own.rules else { panic!("{own:?}") };
    assert_eq!((&*xds.server, &*xds.node), ("envoy-gateway:18001", "envoy-ratelimit"));
    assert_eq!(xds.tls.as_ref().unwrap().ca.as_deref(), Some(Path::new("/certs/ca.crt")));
    let traces = config.traces.as_ref().unwrap();
    assert_eq!((&*traces.endpoint, &*traces.service_name), ("http://otel:4318", "envoy-ratelimit"));
    assert_eq!(traces.sample.0, 1_000_000);
    assert!(own.healthy_without_rules && own.starts_without_rules);
    assert_eq!((own.debug.as_str(), own.log_level.as_deref()), ("0.0.0.0:6070", Some("info")));
    assert!(own.unused.iter().all(|sentence| sentence.contains("makes no difference")), "{:?}", own.unused);
}

#[test]
fn what_changes_what_is_enforced_stops_the_start_and_nothing_else_does() {
    for (variable, part) in [
        ("BACKEND_TYPE=memcache", "names a store that there is not here"),
        ("REDIS_PERSECOND=true", "asks for a second Redis"),
        ("STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT=true", "is not done here"),
        ("REDIS_TLS_SKIP_HOSTNAME_VERIFICATION=1", "certificates are not verified"),
        ("REDIS_TYPE=SENTINEL REDIS_URL=m,s:1 REDIS_SENTINEL_AUTH=p", "REDIS_SENTINEL_AUTH needs REDIS_AUTH"),
        ("REDIS_URL=redis:6379 REDIS_SOCKET_TYPE=unix", "the path of one server"),
        ("REDIS_URL=/var/run/redis.sock REDIS_TYPE=cluster", "the path of one server"),
        ("REDIS_URL=/var/run/redis.sock REDIS_TLS=true", "without REDIS_TLS"),
        ("GRPC_SERVER_USE_TLS=true GRPC_CLIENT_TLS_SAN=envoy.example", "needs GRPC_CLIENT_TLS_CACERT"),
        ("SHADOW_MODE=perhaps", "must be true or false"),
        ("NEAR_LIMIT_RATIO=2", "must be a number from 0 to 1"),
        ("CONFIG_TYPE=HTTP", "must be FILE or GRPC_XDS_SOTW"),
        ("PORT=web", "must be a whole number"),
        ("USE_PROMETHEUS=true PROMETHEUS_PATH=prom", "must be a path such as /metrics"),
        (
            "LOG_LEVEL=trace2",
            "LOG_LEVEL must be trace, debug, info, warn, error, fatal or panic, not \"trace2\"",
        ),
        ("TIDEGATE_GLOBAL_MODE=chaos", "must be gossip, split or escrow"),
        ("TIDEGATE_STORE__MAXKEYS=5", "maxkeys"),
    ] {
        let problems = of(variable).unwrap_err();
        assert!(problems.iter().any(|one| one.contains(part)), "{variable}: {problems:?}");
    }
    for variable in [
        "BACKEND_TYPE=redis",
        "REDIS_PERSECOND=false",
        "GRPC_SERVER_TLS_CA_CERT=/ca",
        "REDIS_NEW_SWITCH=1",
        "GRPC_PORT=tcp://10.0.0.7:8081",
        "REDIS_PORT_6379_TCP=tcp://10.0.0.7:6379",
        "MEMCACHE_MAX_IDLE_CONNS=2",
        "PATH=/bin",
    ] {
        let (config, _) = of(variable).unwrap();
        assert_eq!(config.listen.grpc.to_string(), "0.0.0.0:8081", "{variable}");
    }
    let unused = "REDIS_NEW_SWITCH=1 OTEL_RESOURCE_ATTRIBUTES=a=b GRPC_PORT=tcp://10.0.0.7:8081 PATH=/bin";
    assert_eq!(
        of(unused).unwrap().1.unused,
        [
            "GRPC_PORT is of a service in this namespace, and not used",
            "OTEL_RESOURCE_ATTRIBUTES is no variable of the service, and not used",
            "REDIS_NEW_SWITCH is no variable of the service, and not used"
        ]
    );
}

#[test]
fn callers_are_let_in_by_the_name_of_their_certificate() {
    let files =
        "GRPC_SERVER_USE_TLS=true GRPC_SERVER_TLS_CERT=/c GRPC_SERVER_TLS_KEY=/k GRPC_CLIENT_TLS_CACERT=/ca";
    let tls = |more: &str| of(&format!("{files} {more}")).unwrap().0.listen.grpc_tls.unwrap();
    assert_eq!(tls("GRPC_CLIENT_TLS_SAN=envoy.example").names, ["envoy.example"]);
    assert_eq!(tls("GRPC_CLIENT_TLS_SAN=").names, [""; 0]);
    let plain = of("GRPC_CLIENT_TLS_SAN=envoy.example GRPC_CLIENT_TLS_CACERT=/ca").unwrap().0;
    assert_eq!(plain.listen.grpc_tls, None, "without TLS nobody shows a certificate");
}

#[test]
fn levels_of_the_log_are_those_of_the_service() {
    for (theirs, ours) in
        [("Warning", "warn"), ("FATAL", "error"), ("panic", "error"), ("trace", "trace"), ("debug", "debug")]
    {
        let level = of(&format!("LOG_LEVEL={theirs}")).unwrap().1.log_level;
        assert_eq!(level.as_deref(), Some(ours), "{theirs}");
    }
    assert_eq!(of("").unwrap().1.log_level, None);
}

#[test]
fn spans_are_asked_for_as_the_service_is_asked_for_them() {
    let traces = |text: &str| {
        let (config, own) = of(text).unwrap();
        (config.traces, own.unused)
    };
    let (asked, unused) =
        traces("TRACING_ENABLED=true OTEL_EXPORTER_OTLP_HEADERS=authorization=Bearer%20x,b=c");
    let asked = asked.unwrap();
    assert_eq!((&*asked.endpoint, &*asked.service_name), ("http://localhost:4318", "RateLimit"));
    let header = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    assert_eq!(asked.headers, [header("authorization", "Bearer x"), header("b", "c")]);
    assert_eq!(unused, [""; 0]);
    let off = "TRACING_SERVICE_NAME=n TRACING_SAMPLING_RATE=50 OTEL_EXPORTER_OTLP_ENDPOINT=otel:4317";
    assert_eq!(traces(off), (None, Vec::new()), "nobody asked for spans");
    for (text, why) in [
        ("TRACING_EXPORTER_PROTOCOL=grpc", "spans go by OTLP over HTTP alone"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT=otel:4317", "spans go to http://host:port"),
    ] {
        let (asked, unused) = traces(&format!("TRACING_ENABLED=true {text}"));
        assert!(asked.is_none() && unused.iter().any(|one| one.contains(why)), "{text}: {unused:?}");
    }
    let (asked, _) = traces("TRACING_ENABLED=1 TIDEGATE_TRACES__SAMPLE=0.25 TRACING_SAMPLING_RATE=1");
    assert_eq!(asked.unwrap().sample.0, 250_000, "variables of our own stand over these");
}

#[test]
fn redis_is_named_as_the_service_names_it() {
    let redis = |text: &str| of(text).unwrap().0.store.redis;
    let one = redis("REDIS_URL=r:6379 REDIS_AUTH=user:p@ss:word REDIS_TIMEOUT=2s");
    assert_eq!(one.nodes, ["redis://user:p%40ss%3Aword@r:6379"]);
    assert_eq!(one.timeout.to_std(), Duration::from_secs(2));
    assert_eq!(redis("REDIS_URL=rediss://r:6379 REDIS_AUTH=secret").nodes, ["rediss://:secret@r:6379"]);
    for (text, node) in [
        ("REDIS_SOCKET_TYPE=unix REDIS_URL=/run/nut/ratelimit.sock", "redis+unix:///run/nut/ratelimit.sock"),
        ("REDIS_URL=/r%.sock REDIS_AUTH=p:&q", "redis+unix:///r%25.sock?user=p&pass=%26q"),
        ("REDIS_URL=/r.sock REDIS_AUTH=secret", "redis+unix:///r.sock?pass=secret"),
    ] {
        let unix = redis(text);
        assert_eq!(
            (unix.nodes, unix.topology),
            (vec![node.to_owned()], crate::config::Topology::Single),
            "{text}"
        );
    }
    let sentinel = redis("REDIS_TYPE=SENTINEL REDIS_URL=mymaster,a:26379,b:26379");
    assert_eq!((&*sentinel.sentinel_master, sentinel.nodes.len()), ("mymaster", 2));
    for (auth, node, of_servers) in [
        ("REDIS_AUTH=a:b REDIS_SENTINEL_AUTH=c", "redis://:c@s:1", Some("a:b")),
        ("REDIS_AUTH=a", "redis://s:1", Some("a")),
        ("", "redis://s:1", None),
    ] {
        let asked = redis(&format!("REDIS_TYPE=SENTINEL REDIS_URL=mymaster,s:1 {auth}"));
        assert_eq!((&*asked.nodes[0], asked.sentinel_master_auth.as_deref()), (node, of_servers), "{auth}");
    }
    assert_eq!(redis("REDIS_TYPE=cluster REDIS_URL=a:1,b:2").topology, crate::config::Topology::Cluster);
    assert_eq!(of("").unwrap().0.store.backend, crate::config::Backend::Memory);
}

#[test]
fn files_and_modes_are_read() {
    let (config, own) =
        of("RUNTIME_ROOT=/data RUNTIME_SUBDIRECTORY=ratelimit TIDEGATE_REGION=eu LIMIT_RESPONSE_HEADERS_ENABLED=true \
            LIMIT_LIMIT_HEADER=X-A CONFIG_GRPC_XDS_NODE_METADATA=a=b,c,d=e TIDEGATE_GLOBAL_MODE=shop.*=escrow,gossip")
        .unwrap();
    let path = PathBuf::from("/data/ratelimit/config");
    assert_eq!(own.rules, StandInRules::Folder { path, ignores_dotfiles: false });
    assert_eq!(config.region, "eu");
    assert_eq!(own.answers.headers.as_ref().unwrap(), &["X-A", "RateLimit-Remaining", "RateLimit-Reset"]);
    assert_eq!((own.mode_of("shop.k"), own.mode_of("d.k")), (Some(Mode::Escrow), Some(Mode::Gossip)));
    let (_, own) = of("CONFIG_TYPE=GRPC_XDS_SOTW CONFIG_GRPC_XDS_NODE_METADATA=a=b,c,d=e").unwrap();
    let StandInRules::Xds(xds) = own.rules else { panic!() };
    assert_eq!(
        xds.metadata,
        [("a".to_owned(), "b".to_owned()), ("d".to_owned(), "e".to_owned())],
        "case 125"
    );
}

fn manual() -> String {
    let page = "/docs/tasks/stand-in-for-the-envoy-rate-limit-service.md";
    std::fs::read_to_string(format!("{}{page}", env!("CARGO_MANIFEST_DIR"))).unwrap()
}

#[test]
fn the_manual_names_every_variable() {
    let page = manual();
    let missing: Vec<&str> = variables::names().filter(|name| !page.contains(name)).collect();
    assert_eq!(missing, [""; 0]);
}

#[test]
fn the_deployments_of_the_manual_are_read_whole() {
    let page = manual();
    let mut read = 0;
    for block in page.split("```yaml").skip(1).filter_map(|after| after.split("```").next()) {
        let words: Vec<&str> = block.split_whitespace().map(|word| word.trim_end_matches(',')).collect();
        let named = words.windows(4).filter(|words| (words[0], words[2]) == ("name:", "value:"));
        let pairs: Vec<(String, String)> =
            named.map(|words| (words[1].to_owned(), words[3].trim_matches('"').to_owned())).collect();
        if !pairs.is_empty() {
            let (_, own) = stand_in(pairs.clone().into_iter()).unwrap();
            assert_eq!(own.unused, [""; 0], "{pairs:?}");
            read += pairs.len();
        }
        // Envoy Gateway's chart splits an image at its first slash: without one it names none.
        for image in words.windows(2).filter(|words| words[0] == "image:").map(|words| words[1]) {
            assert!(image.split_once('/').is_some_and(|(_, name)| name.contains(':')), "{image}");
        }
    }
    assert_eq!(read, 15, "variables of the two deployments");
}
