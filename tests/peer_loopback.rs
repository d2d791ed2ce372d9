//! Whole peers on loopback: real sockets, real QUIC, real certificates.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on should stop loudly")]

use std::collections::HashMap;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tidegate::core::regions::NodeName;
use tidegate::core::time::{Span, Timestamp};
use tidegate::core::wire::{
    Amounts, CrowdedRules, DecidedBy, Frame, Report, RuleName, Scope, Subject, WireVersion,
};
use tidegate::peer::certificate::{Authority, SERVER_NAME, create_ca, issue};
use tidegate::peer::codec::{self, MESSAGE_BYTES_MAX};
use tidegate::peer::counters::Refusal;
use tidegate::peer::{
    Member, PEER_QUEUE_LEN_MAX, PeerEvent, Peers, PeersConfig, Refuser, StartError, TlsError, TlsPem,
};
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

#[path = "peer_loopback/versions.rs"]
mod versions;

#[allow(clippy::disallowed_methods, reason = "certificates are checked against the real clock")]
fn now() -> Timestamp {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    Timestamp(u64::try_from(since.as_micros()).unwrap())
}

fn name(region: &str, node: &str) -> NodeName {
    NodeName { region: region.into(), node: node.into() }
}

fn pem(ca: &Authority, node: &NodeName) -> TlsPem {
    let issued = issue(ca, node, now()).unwrap();
    TlsPem {
        ca: ca.certificate_pem().into(),
        cert: issued.certificate_pem.into(),
        key: issued.key_pem.into(),
        revoked: Vec::new(),
    }
}

fn config(ca: &Authority, node: &NodeName, join: &[SocketAddr]) -> PeersConfig {
    PeersConfig {
        listen: "127.0.0.1:0".parse().unwrap(),
        advertise: None,
        join: join.iter().map(ToString::to_string).collect(),
        name: node.clone(),
        incarnation: 1,
        gossip_interval: Duration::from_millis(100),
        tls: pem(ca, node),
        tracer: None,
        versions: WireVersion::SPOKEN.into(),
    }
}

fn encode_frame(frame: &Frame) -> Result<Bytes, Refusal> {
    codec::encode_frame(WireVersion::NEWEST, frame)
}

struct Node {
    peers: Peers,
    events: mpsc::Receiver<PeerEvent>,
}

impl Node {
    async fn start(config: PeersConfig) -> Self {
        let (peers, events) = Peers::start(config).await.unwrap();
        Self { peers, events }
    }

    fn address(&self) -> SocketAddr {
        self.peers.bound().unwrap()
    }

    fn refused(&self, why: Refusal) -> u64 {
        self.peers.counters().refused(why)
    }

    /// Waits until the list of members satisfies `is`.
    async fn until(&self, within: Duration, is: impl Fn(&[Member]) -> bool) -> Vec<Member> {
        let mut members = self.peers.members();
        match timeout(within, members.wait_for(|members| is(members))).await {
            Ok(found) => found.unwrap().clone(),
            Err(_) => panic!("not in time: {:#?} {:#?}", self.peers.members().borrow(), self.peers.links()),
        }
    }

    async fn live(&self, count: usize) -> Vec<Member> {
        self.until(Duration::from_secs(2), |members| {
            members.iter().filter(|member| member.live).count() == count
        })
        .await
    }

    async fn next_frame(&mut self) -> (NodeName, Frame, usize) {
        loop {
            let event = timeout(Duration::from_secs(3), self.events.recv()).await.unwrap().unwrap();
            if let PeerEvent::Frame { from, frame, bytes } = event {
                return (from, frame, bytes);
            }
        }
    }
}

async fn eventually(what: &str, is: impl Fn() -> bool) {
    for _ in 0..300 {
        if is() {
            return;
        }
        sleep(Duration::from_millis(20)).await;
    }
    panic!("never: {what}");
}

fn frame(seq: u64, reports: usize, identity_bytes: usize) -> Frame {
    let subject = Subject {
        rule: RuleName { domain: "default".into(), name: "search".into() },
        identity: vec![7; identity_bytes],
        scope: Scope::Node,
        counters: Vec::new(),
        decided_by: DecidedBy::Unknown,
    };
    let report = Report {
        key_id: 1,
        subject: Some(subject),
        window: 1,
        stamp: Timestamp(5),
        amounts: Amounts::new(),
        demand: 0,
    };
    Frame {
        incarnation: 1,
        seq,
        sent: now(),
        seen: None,
        slowest: Span::ZERO,
        crowded: CrowdedRules::NONE,
        reports: vec![report; reports],
    }
}

async fn pair(ca: &Authority) -> (Node, Node) {
    let a = Node::start(config(ca, &name("eu", "a"), &[])).await;
    let b = Node::start(config(ca, &name("us", "b"), &[a.address()])).await;
    a.live(1).await;
    b.live(1).await;
    (a, b)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_nodes_find_each_other_and_exchange_frames() {
    let ca = create_ca(now()).unwrap();
    let names = [name("eu", "a"), name("us", "b"), name("ap", "c")];
    let a = Node::start(config(&ca, &names[0], &[])).await;
    // Its own address in the list does no harm.
    let mut joining = config(&ca, &names[1], &[a.address()]);
    joining.join.push(format!("localhost:{}", a.address().port()));
    let b = Node::start(joining).await;
    let c = Node::start(config(&ca, &names[2], &[b.address()])).await;
    let mut nodes = [a, b, c];
    for (at, node) in nodes.iter().enumerate() {
        let members = node.live(2).await;
        assert!(members.iter().all(|member| member.name != names[at] && names.contains(&member.name)));
        assert!(members.iter().all(|member| member.incarnation == 1 && !member.draining));
    }
    for from in 0..3_usize {
        for to in (0..3_usize).filter(|to| *to != from) {
            let sent = frame(u64::try_from(from * 3 + to).unwrap(), 2, 10);
            nodes[from].peers.send(&names[to], &sent);
            let (sender, received, bytes) = nodes[to].next_frame().await;
            assert_eq!((&sender, &received), (&names[from], &sent));
            assert_eq!(bytes, encode_frame(&sent).unwrap().len());
        }
    }
    let links = nodes[0].peers.links();
    assert_eq!(links.len(), 2);
    for link in links {
        assert!(link.connected && link.rtt.is_some() && link.error.is_none(), "{link:?}");
        assert!(link.sent_bytes > 0 && link.received_bytes > 0 && link.udp_sent_bytes > link.sent_bytes);
    }
    for node in nodes {
        assert_eq!(node.refused(Refusal::Impostor), 0);
        node.peers.stop(Duration::from_secs(2)).await;
    }
}

#[tokio::test]
async fn a_frame_too_large_for_a_datagram_arrives_whole() {
    let ca = create_ca(now()).unwrap();
    let (a, mut b) = pair(&ca).await;
    let large = frame(1, 50, 1_200);
    assert!(encode_frame(&large).unwrap().len() > 60_000);
    a.peers.send(&name("us", "b"), &large);
    assert_eq!(b.next_frame().await.1, large);
    a.peers.send(&name("us", "b"), &frame(2, 60, 1_200));
    assert_eq!(a.refused(Refusal::Oversize), 1);
}

#[tokio::test]
async fn a_node_of_another_authority_is_refused_and_nobody_else_minds() {
    let ca = create_ca(now()).unwrap();
    let (a, mut b) = pair(&ca).await;
    let stranger_ca = create_ca(now()).unwrap();
    let stranger = Node::start(config(&stranger_ca, &name("eu", "a2"), &[a.address()])).await;
    eventually("the stranger is counted", || a.refused(Refusal::Certificate) > 0).await;
    eventually("the stranger is told", || {
        stranger.peers.links().iter().any(|link| !link.connected && link.error.is_some())
    })
    .await;
    assert!(stranger.peers.members().borrow().is_empty());
    assert_eq!(a.live(1).await.len(), 1);
    a.peers.send(&name("us", "b"), &frame(1, 1, 1));
    b.next_frame().await;
}

/// A certificate of another authority that trusts ours is what a thief of `ca.pem` can make.
#[tokio::test]
async fn one_who_trusts_us_but_is_not_signed_by_us_is_refused() {
    let ca = create_ca(now()).unwrap();
    let a = Node::start(config(&ca, &name("eu", "a"), &[])).await;
    let thief = name("eu", "thief");
    let mut stolen = config(&create_ca(now()).unwrap(), &thief, &[a.address()]);
    stolen.tls.ca = ca.certificate_pem().into();
    let thief = Node::start(stolen).await;
    eventually("the thief is counted", || a.refused(Refusal::Certificate) > 0).await;
    assert!(a.peers.members().borrow().is_empty() && thief.peers.members().borrow().is_empty());
}

/// A client of our own making, with a member's certificate. Without a name of a protocol it offers none.
fn raw_config(tls: &TlsPem, alpn: &[u8]) -> quinn::ClientConfig {
    use rustls::pki_types::pem::PemObject;
    use rustls::pki_types::{CertificateDer, PrivateKeyDer};
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(&tls.ca).unwrap()).unwrap();
    let chain = vec![CertificateDer::from_pem_slice(&tls.cert).unwrap()];
    let mut client =
        rustls::ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .with_root_certificates(roots)
            .with_client_auth_cert(chain, PrivateKeyDer::from_pem_slice(&tls.key).unwrap())
            .unwrap();
    client.alpn_protocols = Some(alpn.to_vec()).filter(|name| !name.is_empty()).into_iter().collect();
    let client = quinn::crypto::rustls::QuicClientConfig::try_from(client).unwrap();
    quinn::ClientConfig::new(Arc::new(client))
}

async fn raw_client(
    tls: &TlsPem,
    alpn: &[u8],
    to: SocketAddr,
) -> Result<quinn::Connection, quinn::ConnectionError> {
    let endpoint = quinn::Endpoint::client("127.0.0.1:0".parse().unwrap()).unwrap();
    endpoint.connect_with(raw_config(tls, alpn), to, SERVER_NAME).unwrap().await
}

/// The first packets of as many handshakes, as somebody sends them who reads no answer.
async fn first_packets(count: usize, tls: &TlsPem, alpn: &[u8]) -> Vec<Vec<u8>> {
    let nobody = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let (to, config) = (nobody.local_addr().unwrap(), raw_config(tls, alpn));
    let endpoint = quinn::Endpoint::client("127.0.0.1:0".parse().unwrap()).unwrap();
    let mut packets = HashMap::new();
    let mut packet = [0; 2_048];
    for _ in 0..count {
        let connecting = endpoint.connect_with(config.clone(), to, SERVER_NAME).unwrap();
        let begun = packets.len();
        while packets.len() == begun {
            let length = timeout(Duration::from_secs(5), nobody.recv(&mut packet)).await.unwrap().unwrap();
            // Flags, version, length of the connection's id, the id. Its farewell has the same one.
            let id = packet[6..6 + usize::from(packet[5])].to_vec();
            packets.entry(id).or_insert_with(|| packet[..length].to_vec());
        }
        drop(connecting);
    }
    packets.into_values().collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn handshakes_that_nobody_goes_on_with_keep_no_daemon_out() {
    let ca = create_ca(now()).unwrap();
    let a = Node::start(config(&ca, &name("eu", "a"), &[])).await;
    let packets = first_packets(1_500, &pem(&ca, &name("us", "x")), b"tidegate/6").await;
    let socket = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
    for packet in &packets {
        socket.send_to(packet, a.address()).await.unwrap();
    }
    let b = Node::start(config(&ca, &name("us", "b"), &[a.address()])).await;
    a.live(1).await;
    b.live(1).await;
    assert_eq!(a.refused(Refusal::Connections), 0, "they are asked to come again");
    sleep(Duration::from_secs(6)).await;
    let unfinished = a.refused(Refusal::SlowHandshake);
    assert!((20..300).contains(&unfinished), "{unfinished} of 1,500 were begun");
}

/// A handshake that fails at once is never under way, so those that were begun are counted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn handshakes_that_fail_at_once_are_begun_seldom_and_cut_no_link() {
    let ca = create_ca(now()).unwrap();
    let mut a = Node::start(config(&ca, &name("eu", "a"), &[])).await;
    let b = Node::start(config(&ca, &name("us", "b"), &[a.address()])).await;
    a.live(1).await;
    b.live(1).await;
    let (mut spent, mut seq) = (0, 0);
    for alpn in [b"h3".as_slice(), b""] {
        let packets = first_packets(1_000, &pem(&ca, &name("us", "x")), alpn).await;
        let socket = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let protocol = a.refused(Refusal::Protocol);
        let begun = tokio::time::Instant::now();
        for some in packets.iter().cycle().take(4_000).collect::<Vec<_>>().chunks(50) {
            for packet in some {
                socket.send_to(packet, a.address()).await.unwrap();
            }
            // What finds the receiver's buffer full would not be asked at all.
            sleep(Duration::from_millis(5)).await;
            assert!(a.peers.members().borrow().iter().all(|member| member.live), "the link was cut");
        }
        // The link carries as before.
        seq += 1;
        b.peers.send(&name("eu", "a"), &frame(seq, 1, 1));
        assert_eq!(a.next_frame().await.1.seq, seq);
        sleep(Duration::from_millis(500)).await;
        // Fifty a second are begun, and a second may have begun before and another end after.
        spent += 50 * (begun.elapsed().as_secs() + 2);
        let failed = a.refused(Refusal::Protocol) - protocol;
        assert!(failed > 0, "{alpn:?}: none was begun");
    }
    let of = |why| a.refused(why);
    let failed = of(Refusal::Protocol) + of(Refusal::Handshake) + of(Refusal::SlowHandshake);
    assert!(failed <= spent && failed < 2_000, "{failed} of 8,000 were begun, and {spent} may be");
    assert_eq!(of(Refusal::Connections), 0, "all others are asked to come again");
    assert_eq!(of(Refusal::Certificate) + of(Refusal::Identity) + of(Refusal::Impostor), 0);
    assert_eq!(a.peers.members().borrow().len(), 1);
}

#[tokio::test]
async fn another_protocol_is_refused_in_the_handshake() {
    let ca = create_ca(now()).unwrap();
    let a = Node::start(config(&ca, &name("eu", "a"), &[])).await;
    let tls = pem(&ca, &name("eu", "x"));
    assert!(raw_client(&tls, b"h3", a.address()).await.is_err());
    eventually("it is counted", || a.refused(Refusal::Protocol) == 1).await;
}

#[tokio::test]
async fn bad_messages_of_a_member_are_counted_and_good_ones_still_read() {
    let ca = create_ca(now()).unwrap();
    let mut a = Node::start(config(&ca, &name("eu", "a"), &[])).await;
    let connection = raw_client(&pem(&ca, &name("us", "x")), b"tidegate/6", a.address()).await.unwrap();
    let good = encode_frame(&frame(1, 2, 30)).unwrap();
    let mut other_version = good.to_vec();
    other_version[0] = 9;
    let mut trailing = good.to_vec();
    trailing.push(1);
    let mut unknown = good.to_vec();
    unknown[1] = 77;
    for bad in [other_version, good[..good.len() - 3].to_vec(), trailing, unknown, vec![]] {
        connection.send_datagram(bad.into()).unwrap();
    }
    let mut stream = connection.open_uni().await.unwrap();
    // Refused while it is still being written.
    let _ = stream.write_all(&vec![1; MESSAGE_BYTES_MAX + 10_000]).await;
    let _ = stream.finish();
    for why in [Refusal::Version, Refusal::Malformed, Refusal::Trailing, Refusal::Kind, Refusal::Oversize] {
        eventually(why.as_str(), || a.refused(why) > 0).await;
    }
    connection.send_datagram(good).unwrap();
    assert_eq!(a.next_frame().await.0, name("us", "x"));
}

#[tokio::test]
async fn garbage_datagrams_are_counted_and_harm_nobody() {
    let ca = create_ca(now()).unwrap();
    let (a, mut b) = pair(&ca).await;
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    for length in 0..400_usize {
        let bytes: Vec<u8> = (0..length * 3)
            .map(|_| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                state.to_le_bytes()[3]
            })
            .collect();
        socket.send_to(&bytes, b.address()).unwrap();
    }
    eventually("garbage is counted", || b.refused(Refusal::Garbage) > 50).await;
    a.peers.send(&name("us", "b"), &frame(1, 1, 1));
    b.next_frame().await;
    assert_eq!(b.live(1).await.len(), 1);
}

#[tokio::test]
async fn a_dead_node_is_noticed_in_seconds_and_its_next_incarnation_too() {
    let ca = create_ca(now()).unwrap();
    let (a, b) = pair(&ca).await;
    let at = b.address();
    drop(b);
    a.until(Duration::from_secs(4), |members| members.iter().all(|member| !member.live)).await;
    let mut again = config(&ca, &name("us", "b"), &[a.address()]);
    again.incarnation = 2;
    again.listen = at;
    let b = loop {
        // The socket is let go when the last task of the dead node has ended.
        match Peers::start(again.clone()).await {
            Ok((peers, events)) => break Node { peers, events },
            Err(StartError::Bind { .. }) => sleep(Duration::from_millis(20)).await,
            Err(error) => panic!("{error}"),
        }
    };
    let members = a.until(Duration::from_secs(5), |members| members.iter().any(|member| member.live)).await;
    assert_eq!(members.iter().map(|member| member.incarnation).collect::<Vec<_>>(), [2]);
    b.live(1).await;
}

/// Nothing tells of a killed process: what its next one answers to a connection that it does not know does.
#[tokio::test]
async fn who_was_killed_says_so_when_it_is_back() {
    let ca = create_ca(now()).unwrap();
    let a = Node::start(config(&ca, &name("eu", "a"), &[])).await;
    let mut of_b = config(&ca, &name("us", "b"), &[a.address()]);
    let process = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let first = process.spawn(Node::start(of_b.clone())).await.unwrap();
    a.live(1).await;
    of_b.listen = first.address();
    // Its tasks end before anything of it is dropped: a killed process does not say that it leaves.
    std::thread::spawn(move || process.shutdown_timeout(Duration::from_secs(5))).join().unwrap();
    drop(first);
    of_b.incarnation = 2;
    let mut b = loop {
        match Peers::start(of_b.clone()).await {
            Ok((peers, events)) => break Node { peers, events },
            Err(StartError::Bind { .. }) => sleep(Duration::from_millis(5)).await,
            Err(error) => panic!("{error}"),
        }
    };
    let mut why = None;
    let heard = timeout(Duration::from_secs(3), b.next_frame());
    tokio::pin!(heard);
    loop {
        tokio::select! {
            heard = &mut heard => break assert!(heard.is_ok(), "{why:?}"),
            () = sleep(Duration::from_millis(5)) => a.peers.send(&name("us", "b"), &frame(1, 1, 1)),
        }
        why = a.peers.links().into_iter().find_map(|link| link.error).or(why);
    }
    assert_eq!(why.as_deref(), Some("reset by peer"));
}

#[tokio::test]
async fn messages_for_a_peer_that_is_away_are_dropped_and_counted() {
    let ca = create_ca(now()).unwrap();
    let (a, b) = pair(&ca).await;
    drop(b);
    eventually("the link is down", || a.peers.links().iter().all(|link| !link.connected)).await;
    for seq in 0..1_000 {
        a.peers.send(&name("us", "b"), &frame(seq, 1, 1));
    }
    let link = a.peers.links().remove(0);
    assert!(link.queue_len <= PEER_QUEUE_LEN_MAX);
    assert!(link.dropped >= 1_000 - u64::try_from(PEER_QUEUE_LEN_MAX).unwrap());
    assert!(a.refused(Refusal::QueueFull) + a.refused(Refusal::Unconnected) >= link.dropped);
    a.peers.send(&name("ap", "nobody"), &frame(1, 1, 1));
    assert_eq!(a.refused(Refusal::UnknownNode), 1);
}

#[tokio::test]
async fn who_leaves_is_seen_draining_before_it_is_gone() {
    let ca = create_ca(now()).unwrap();
    let (a, mut b) = pair(&ca).await;
    b.peers.leave(Duration::from_secs(1)).await;
    let members = a.peers.members().borrow().clone();
    assert!(members.iter().all(|member| member.draining && member.live), "{members:?}");
    a.peers.send(&name("us", "b"), &frame(1, 1, 1));
    b.next_frame().await;
    b.peers.stop(Duration::from_secs(2)).await;
    a.until(Duration::from_secs(4), |members| members.iter().all(|member| !member.live)).await;
}

#[tokio::test]
async fn a_node_that_claims_anothers_address_is_not_believed() {
    let ca = create_ca(now()).unwrap();
    let (a, b) = pair(&ca).await;
    let mut impostor = config(&ca, &name("ap", "mallory"), &[a.address()]);
    impostor.advertise = Some(b.address());
    let impostor = Node::start(impostor).await;
    eventually("the impostor is counted", || a.refused(Refusal::Impostor) > 0).await;
    sleep(Duration::from_millis(500)).await;
    let members = a.live(1).await;
    assert!(members.iter().all(|member| member.name == name("us", "b")), "{members:?}");
    drop(impostor);
}

#[tokio::test]
async fn a_node_recognises_itself_at_an_address_it_does_not_know() {
    let ca = create_ca(now()).unwrap();
    let mut alone = config(&ca, &name("eu", "a"), &[]);
    let port = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    alone.listen = SocketAddr::from(([0, 0, 0, 0], port));
    alone.advertise = Some(SocketAddr::from(([127, 0, 0, 2], port)));
    alone.join = vec![format!("127.0.0.1:{port}")];
    let a = Node::start(alone).await;
    eventually("it finds itself", || {
        a.peers
            .links()
            .iter()
            .any(|link| link.error.as_deref().is_some_and(|error| error.contains("own certificate")))
    })
    .await;
    assert!(a.peers.members().borrow().is_empty());
    assert_eq!(a.refused(Refusal::Impostor), 0);
}

#[tokio::test]
async fn certificates_are_replaced_while_running() {
    let (old, new) = (create_ca(now()).unwrap(), create_ca(now()).unwrap());
    let (a, mut b) = pair(&old).await;
    let newcomer = config(&new, &name("ap", "c"), &[a.address()]);
    assert!(matches!(a.peers.reload(&pem(&new, &name("eu", "z"))), Err(TlsError::OtherNode { .. })));
    // Both authorities are trusted while nodes move from one to the other.
    let mut moving = pem(&new, &name("eu", "a"));
    moving.ca.extend(old.certificate_pem().as_bytes());
    a.peers.reload(&moving).unwrap();
    let c = Node::start(newcomer).await;
    a.live(2).await;
    assert!(c.live(1).await.iter().any(|member| member.name == name("eu", "a")));
    a.peers.send(&name("us", "b"), &frame(1, 1, 1));
    b.next_frame().await;
}

/// The authority is taken out while a node still shows its certificate: the link ends in both directions, and
/// comes back by itself when the node has another one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_open_link_ends_when_its_certificate_is_accepted_no_more() {
    let (old, new) = (create_ca(now()).unwrap(), create_ca(now()).unwrap());
    let (a, mut b) = pair(&old).await;
    let both = |node: &NodeName| {
        let mut pem = pem(&new, node);
        pem.ca.extend(old.certificate_pem().as_bytes());
        pem
    };
    let connected = |node: &Node| node.peers.links().iter().any(|link| link.connected);
    eventually("both are connected", || connected(&a) && connected(&b)).await;
    a.peers.reload(&both(&name("eu", "a"))).unwrap();
    let mut trusting = pem(&old, &name("us", "b"));
    trusting.ca.extend(new.certificate_pem().as_bytes());
    b.peers.reload(&trusting).unwrap();
    sleep(Duration::from_millis(300)).await;
    assert!(connected(&a) && connected(&b), "links whose certificates are accepted stay");
    a.peers.reload(&pem(&new, &name("eu", "a"))).unwrap();
    eventually("it is refused", || a.refused(Refusal::Certificate) > 0).await;
    eventually("the link is down", || !connected(&a) && !connected(&b)).await;
    let refused = |node: &Node| node.peers.links().iter().find_map(|link| link.refused);
    eventually("each side says whose certificate it is", || {
        refused(&a) == Some(Refuser::Here) && refused(&b) == Some(Refuser::There)
    })
    .await;
    b.peers.reload(&both(&name("us", "b"))).unwrap();
    eventually("the link is back", || connected(&a) && connected(&b)).await;
    a.live(1).await;
    b.live(1).await;
    a.peers.send(&name("us", "b"), &frame(1, 1, 1));
    b.next_frame().await;
}

#[tokio::test]
async fn a_wrong_configuration_is_told_in_a_sentence() {
    let ca = create_ca(now()).unwrap();
    let good = config(&ca, &name("eu", "a"), &[]);
    let mut other = good.clone();
    other.name = name("us", "a");
    let mut unreachable = good.clone();
    unreachable.listen = "0.0.0.0:0".parse().unwrap();
    let mut join = good.clone();
    join.join = vec!["nowhere".into()];
    let taken = UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut bound = good;
    bound.listen = taken.local_addr().unwrap();
    for (config, says) in [
        (other, "issued to node \"a\" of region \"eu\""),
        (unreachable, "peers.advertise"),
        (join, "\"nowhere\" in peers.join"),
        (bound, "cannot be bound"),
    ] {
        let error = Peers::start(config).await.err().unwrap().to_string();
        assert!(error.contains(says), "{error}");
    }
}
