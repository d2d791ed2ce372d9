//! Daemons of neighbouring wire versions: real handshakes, and both ways of every message.

use std::sync::Mutex;

use tidegate::peer::RulesStatement;

use super::*;

const OLDER: WireVersion = WireVersion::PREVIOUS;
/// What builds of version 5 offer in the handshake, and nothing else.
const OLDER_PROTOCOL: &[u8] = b"tidegate/1";
/// Made by the last build of version 5, commit 6c1c138: see `src/peer/codec/tests/older_version.rs`.
const OLDER_FRAME: &str = concat!(
    "05018080b3c19c33078080b8f6de96900380f10400010164067365617263680109bc050764656661",
    "756c7406736561726368016b00010465752d31809c9c39ac02900300a01fac02010501a12f",
);

fn unhex(text: &str) -> Bytes {
    let digits = text.as_bytes().chunks(2).map(|two| std::str::from_utf8(two).unwrap());
    digits.map(|two| u8::from_str_radix(two, 16).unwrap()).collect()
}

fn older(mut config: PeersConfig) -> PeersConfig {
    config.versions = vec![OLDER];
    config
}

/// The version of each connection that a node dialled.
fn spoken(node: &Node) -> Vec<Option<WireVersion>> {
    node.peers.links().iter().map(|link| link.version).collect()
}

fn deciding(decided_by: DecidedBy) -> Frame {
    let mut frame = frame(1, 1, 10);
    frame.reports[0].subject.as_mut().unwrap().decided_by = decided_by;
    frame
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn neighbouring_versions_understand_each_other_and_an_upgrade_is_noticed() {
    let ca = create_ca(now()).unwrap();
    let (eu, us, ap) = (name("eu", "a"), name("us", "b"), name("ap", "c"));
    let mut a = Node::start(config(&ca, &eu, &[])).await;
    let of_b = older(config(&ca, &us, &[a.address()]));
    let mut b = Node::start(of_b.clone()).await;
    let mut c = Node::start(config(&ca, &ap, &[b.address()])).await;
    for node in [&a, &b, &c] {
        node.live(2).await;
    }
    let version_of = |node: &Node, of: &NodeName| {
        node.peers.links().iter().find(|link| link.peer.as_ref() == Some(of)).and_then(|link| link.version)
    };
    assert_eq!([version_of(&a, &us), version_of(&a, &ap)], [Some(OLDER), Some(WireVersion::NEWEST)]);
    assert_eq!(spoken(&b), [Some(OLDER); 2]);

    // Each hears what the version of its connection can say.
    let said = deciding(DecidedBy::Rule);
    a.peers.send(&ap, &said);
    assert_eq!(c.next_frame().await.1, said);
    a.peers.send(&us, &said);
    assert_eq!(b.next_frame().await.1, deciding(DecidedBy::Unknown).sent_at(&said));
    b.peers.send(&eu, &said);
    assert_eq!(a.next_frame().await.1, deciding(DecidedBy::Unknown).sent_at(&said));

    // A set of rules is asked for in the version of the connection, too.
    let set = Bytes::from_static(b"a set of rules");
    let digest = ring::digest::digest(&ring::digest::SHA256, &set).as_ref().try_into().unwrap();
    let word = RulesStatement { generation: 1, revision: 1, length: set.len(), digest };
    for (from, to, at) in [(&a, &b, &eu), (&b, &a, &us)] {
        from.peers.offer_rules(word, set.clone());
        assert_eq!(
            to.peers.fetch_rules(at, word, Duration::from_secs(2)).await.map(|(set, _)| set),
            Ok(set.to_vec())
        );
    }
    let refusals =
        [Refusal::Version, Refusal::Malformed, Refusal::Kind, Refusal::Protocol, Refusal::Trailing];
    assert!(refusals.iter().all(|why| [&a, &b, &c].iter().all(|node| node.refused(*why) == 0)));

    // b is upgraded: the same daemon comes back and speaks the newest.
    let at = b.address();
    b.peers.stop(Duration::from_secs(2)).await;
    drop(b);
    let mut again = config(&ca, &us, &[a.address()]);
    (again.incarnation, again.listen) = (2, at);
    let mut b = loop {
        match Peers::start(again.clone()).await {
            Ok((peers, events)) => break Node { peers, events },
            Err(StartError::Bind { .. }) => sleep(Duration::from_millis(20)).await,
            Err(error) => panic!("{error}"),
        }
    };
    eventually("both speak the newest", || {
        version_of(&a, &us) == Some(WireVersion::NEWEST) && version_of(&b, &eu) == Some(WireVersion::NEWEST)
    })
    .await;
    a.live(2).await;
    a.peers.send(&us, &said);
    assert_eq!(b.next_frame().await.1, said);
}

trait SentAt {
    fn sent_at(self, other: &Frame) -> Frame;
}

impl SentAt for Frame {
    fn sent_at(self, other: &Frame) -> Frame {
        Frame { sent: other.sent, ..self }
    }
}

/// A build of version 5 as it is seen from the network: its protocol, and bytes that it made.
#[tokio::test]
async fn what_a_build_of_the_older_version_sends_is_understood_and_nothing_of_another_is() {
    let ca = create_ca(now()).unwrap();
    let mut a = Node::start(config(&ca, &name("eu", "a"), &[])).await;
    let tls = pem(&ca, &name("us", "x"));
    let connection = raw_client(&tls, OLDER_PROTOCOL, a.address()).await.unwrap();
    connection.send_datagram(encode_frame(&frame(1, 2, 30)).unwrap()).unwrap();
    eventually("the newest is not what was agreed on", || a.refused(Refusal::Version) == 1).await;
    connection.send_datagram(unhex(OLDER_FRAME)).unwrap();
    let (from, heard, _) = a.next_frame().await;
    assert_eq!(from, name("us", "x"));
    assert!(
        matches!(heard.reports[0].subject.as_ref().unwrap().decided_by, DecidedBy::Own(own) if own.permits == 300)
    );

    let newest = raw_client(&tls, b"tidegate/6", a.address()).await.unwrap();
    newest.send_datagram(unhex(OLDER_FRAME)).unwrap();
    eventually("nor the older one here", || a.refused(Refusal::Version) == 2).await;
}

/// Lines of the log.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Log {
    fn lines(&self, with: &str) -> Vec<String> {
        let text = String::from_utf8(self.0.lock().unwrap().clone()).unwrap();
        text.lines().filter(|line| line.contains(with)).map(str::to_owned).collect()
    }
}

/// All of this runs in one thread, so that all of it is logged to the same place.
#[tokio::test]
async fn the_log_names_the_versions_of_both_sides_once() {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).finish();
    let _logged = tracing::subscriber::set_default(subscriber);
    let ca = create_ca(now()).unwrap();
    let a = Node::start(config(&ca, &name("eu", "a"), &[])).await;
    let tls = pem(&ca, &name("us", "x"));
    for _ in 0..3 {
        assert!(raw_client(&tls, b"tidegate/99\n", a.address()).await.is_err());
    }
    eventually("all are counted", || a.refused(Refusal::Protocol) == 3).await;
    let refused = log.lines("share no wire version");
    let [line] = refused.as_slice() else { panic!("{refused:?}") };
    let versions = "spoken=6 (tidegate/6), 5 (tidegate/1) offered=tidegate/99\\n";
    assert!(line.contains("WARN") && line.contains(versions), "{line}");

    let b = Node::start(older(config(&ca, &name("us", "b"), &[a.address()]))).await;
    b.live(1).await;
    let older = || log.lines("a peer is older").iter().filter(|line| line.contains("region=us")).count();
    eventually("the older one is named", || older() == 1).await;
}

/// A server that speaks a version that is not known here.
#[tokio::test]
async fn daemons_that_share_no_version_say_so_and_count_it() {
    use rustls::pki_types::pem::PemObject;
    use rustls::pki_types::{CertificateDer, PrivateKeyDer};
    let ca = create_ca(now()).unwrap();
    let tls = pem(&ca, &name("us", "x"));
    let chain = vec![CertificateDer::from_pem_slice(&tls.cert).unwrap()];
    let mut server =
        rustls::ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(chain, PrivateKeyDer::from_pem_slice(&tls.key).unwrap())
            .unwrap();
    server.alpn_protocols = vec![b"tidegate/99".to_vec()];
    let server = quinn::crypto::rustls::QuicServerConfig::try_from(server).unwrap();
    let server = quinn::ServerConfig::with_crypto(Arc::new(server));
    let endpoint = quinn::Endpoint::server(server, "127.0.0.1:0".parse().unwrap()).unwrap();
    let at = endpoint.local_addr().unwrap();
    tokio::spawn(async move {
        while let Some(incoming) = endpoint.accept().await {
            let _ = incoming.accept();
        }
    });
    let a = Node::start(config(&ca, &name("eu", "a"), &[at])).await;
    let link = || a.peers.links().into_iter().find(|link| link.address == at);
    eventually("the link says so", || {
        link().is_some_and(|link| link.refused == Some(Refuser::Versions) && link.version.is_none())
    })
    .await;
    let error = link().unwrap().error.unwrap();
    assert!(error.starts_with("it speaks none of this daemon's wire versions"), "{error}");
    assert!(a.refused(Refusal::Protocol) > 0);
}
