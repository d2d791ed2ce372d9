//! Bytes that are pinned, bytes that come back as they went, and bytes that are refused.

use proptest::prelude::*;

use super::*;
use crate::core::time::{Span, Timestamp};
use crate::core::wire::rights::{
    ClosedWindow, LevelTotals, MovedTotals, PlacesTotals, RightKind, Statement, Transfer, WindowTotals,
};
use crate::core::wire::{Acknowledgement, Amount, Counter, DecidedBy, OwnLimit, rounded};

mod older_version;

const NEWEST: WireVersion = WireVersion::NEWEST;
const SENT: u64 = 1_760_000_000_000_000;

fn report(identity: &[u8]) -> Report {
    let subject = Subject {
        rule: RuleName { domain: "default".into(), name: "search".into() },
        identity: identity.to_vec(),
        scope: Scope::Region("eu".into()),
        counters: vec![Counter { node: "eu-1".into(), since: Timestamp(SENT - 60_000_000) }],
        decided_by: DecidedBy::Unknown,
    };
    Report {
        key_id: 700,
        subject: Some(subject),
        window: 300,
        stamp: Timestamp(SENT - 2_000),
        amounts: [Amount { admitted: 5, returned: 1 }].into_iter().collect(),
        demand: rounded(2_000_000),
    }
}

/// As it is told from the second time on.
fn known(key_id: u64, admitted: u64) -> Report {
    let amounts = [Amount { admitted, returned: 0 }].into_iter().collect();
    Report { key_id, subject: None, amounts, ..report(b"") }
}

fn subject(report: &mut Report) -> &mut Subject {
    report.subject.as_mut().unwrap()
}

fn frame(reports: Vec<Report>) -> Frame {
    Frame {
        incarnation: 1_760_000_000_000,
        seq: 7,
        sent: Timestamp(SENT),
        seen: Some(Acknowledgement { incarnation: 1_760_000_000_001, seq: 3, before: 0b101 }),
        slowest: Span(80_000),
        crowded: CrowdedRules::NONE,
        reports,
    }
}

prop_compose! {
    fn arbitrary_counter()(node in "\\PC{0,12}", since in any::<u64>()) -> Counter {
        Counter { node: node.into(), since: Timestamp(since) }
    }
}

fn arbitrary_limit() -> impl Strategy<Value = DecidedBy> {
    let own = any::<[u32; 3]>();
    let own = own.prop_map(|[permits, burst, queue]| DecidedBy::Own(OwnLimit { permits, burst, queue }));
    prop_oneof![Just(DecidedBy::Unknown), Just(DecidedBy::Rule), own]
}

prop_compose! {
    fn arbitrary_subject()(
        [domain, name] in ["\\PC{0,12}", "\\PC{0,12}"],
        identity in proptest::collection::vec(any::<u8>(), 0..40),
        region in proptest::option::of("\\PC{0,12}"),
        counters in proptest::collection::vec(arbitrary_counter(), 0..3),
        decided_by in arbitrary_limit(),
    ) -> Subject {
        let scope = region.map_or(Scope::Node, Scope::Region);
        Subject { rule: RuleName { domain, name }, identity, scope, counters, decided_by }
    }
}

prop_compose! {
    fn arbitrary_report()(
        key_id in any::<u64>(),
        subject in proptest::option::of(arbitrary_subject()),
        amounts in proptest::collection::vec(any::<[u64; 2]>(), 0..3),
        plain in any::<bool>(),
        [window, stamp] in [0..3_u64, 0..3_u64],
        demand in any::<u64>(),
    ) -> Report {
        let amount = |[admitted, returned]: [u64; 2]| Amount { admitted, returned: if plain { 0 } else { returned } };
        let amounts = amounts.into_iter().map(amount).collect();
        Report { key_id, subject, window, stamp: Timestamp(stamp << 40), amounts, demand: rounded(demand) }
    }
}

fn arbitrary_crowded() -> impl Strategy<Value = CrowdedRules> {
    let name = ["\\PC{0,12}", "\\PC{0,12}"];
    let name = name.prop_map(|[domain, name]| RuleName { domain, name });
    let named = proptest::collection::vec(name, 0..=CROWDED_MAX).prop_map(CrowdedRules::Named);
    prop_oneof![Just(CrowdedRules::All), named]
}

prop_compose! {
    fn arbitrary_frame()(
        [incarnation, seq, sent, slowest] in any::<[u64; 4]>(),
        seen in proptest::option::of(any::<[u64; 3]>()),
        crowded in arbitrary_crowded(),
        reports in proptest::collection::vec(arbitrary_report(), 0..12),
    ) -> Frame {
        let seen = seen.map(|[incarnation, seq, before]| Acknowledgement { incarnation, seq, before });
        Frame { incarnation, seq, sent: Timestamp(sent), seen, slowest: Span(slowest), crowded, reports }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// If this fails the format has changed: daemons of the old and new build would refuse each other's
/// messages. Add a version.
#[test]
fn the_bytes_of_this_version_are_pinned() {
    let reports = vec![report(b"u\0x"), known(700, 6), known(70_000, 1_000)];
    assert_eq!(hex(&encode_frame(NEWEST, &frame(reports)).unwrap()), GOLDEN_FRAME);
    let rule = RuleName { domain: "d".into(), name: "search".into() };
    let crowded = [CrowdedRules::Named(vec![rule]), CrowdedRules::All].map(|crowded| {
        let bytes = encode_frame(NEWEST, &Frame { crowded, ..frame(Vec::new()) }).unwrap();
        hex(&bytes)[GOLDEN_HEAD_DIGITS..].to_owned()
    });
    assert_eq!(crowded, ["0101640673656172636800", "0900"]);
    let chitchat = encode_chitchat(NEWEST, "203.0.113.7:7946".parse().unwrap(), b"abc").unwrap();
    assert_eq!(hex(&chitchat), GOLDEN_CHITCHAT);
    let chitchat = encode_chitchat(NEWEST, "[::1]:7946".parse().unwrap(), b"").unwrap();
    assert_eq!(hex(&chitchat), GOLDEN_CHITCHAT_V6);
}

/// So much of a frame comes before the crowded rules.
const GOLDEN_HEAD_DIGITS: usize = 58;
const GOLDEN_FRAME: &str = concat!(
    "06018080b3c19c33078080b8f6de96900380f104018180b3c19c330305000301bc05076465",
    "6661756c74067365617263680375007801026575010465752d31809c9c39a01fac02010501a1",
    "2f06bc0506a12f06f0a204e807a12f",
);
const GOLDEN_RIGHTS: &str = concat!(
    "0603fd0000ceeeb5400600010764656661756c740673656172636803750078fc70110100",
    "0928fc80841e000300fb2c0101026575fd0000ceeeb54006000501026575fd0000ceeeb5",
    "4006000701fb2b0164010764656661756c74067365617263680375007800fb2c01090a07",
);
const GOLDEN_CHITCHAT: &str = "060200cb007107fb0a1f616263";
const GOLDEN_CHITCHAT_V6: &str = "06020100000000000000000000000000000001fb0a1f";

fn rights() -> RightsFrame {
    let rule = || RuleName { domain: "default".into(), name: "search".into() };
    let total = |permits| Total { region: "eu".into(), session: 1_760_000_000_000_000, permits };
    RightsFrame {
        sent: Timestamp(1_760_000_000_000_000),
        statements: vec![Statement {
            rule: rule(),
            identity: b"u\0x".to_vec(),
            stamp: Timestamp(70_000),
            session: 9,
            free: 40,
            demand: 2_000_000,
            wanted: 3,
            totals: MovedTotals::Window(WindowTotals {
                window: 300,
                taken: vec![total(5)],
                given: vec![total(7)],
                closed: Some(ClosedWindow { window: 299, used: 100 }),
            }),
            limit: CountedLimit::default(),
        }],
        transfers: vec![Transfer {
            rule: rule(),
            identity: b"u\0x".to_vec(),
            kind: RightKind::Window(300),
            session: 9,
            to_session: 10,
            permits: 7,
            limit: CountedLimit::default(),
        }],
    }
}

/// See `the_bytes_of_this_version_are_pinned`.
#[test]
fn the_bytes_of_rights_are_pinned() {
    assert_eq!(hex(&encode_rights(NEWEST, &rights()).unwrap()), GOLDEN_RIGHTS);
    assert_eq!(decode(NEWEST, &encode_rights(NEWEST, &rights()).unwrap()), Ok(Message::Rights(rights())));
}

#[test]
fn permits_of_levels_and_places_come_as_they_went() {
    let total = |permits| vec![Total { region: "eu".into(), session: 9, permits }];
    let mut frame = rights();
    let level = LevelTotals { settled: total(4), kept: total(2) };
    let places = PlacesTotals { taken: total(3), given: total(1) };
    for (totals, kind) in
        [(MovedTotals::Level(level), RightKind::Level), (MovedTotals::Places(places), RightKind::Places)]
    {
        frame.statements[0].totals = totals;
        frame.transfers[0].kind = kind;
        assert_eq!(
            decode(NEWEST, &encode_rights(NEWEST, &frame).unwrap()),
            Ok(Message::Rights(frame.clone()))
        );
    }
}

#[test]
fn own_limits_follow_the_rights_of_their_buckets() {
    let mut owned = rights();
    let own = Some(OwnLimit { permits: 300, burst: 400, queue: 0 });
    owned.statements[0].limit = CountedLimit { own, said_by_others: true };
    owned.transfers[0].limit = CountedLimit { own, said_by_others: false };
    owned.statements.push(rights().statements.remove(0));
    let whole = encode_rights(NEWEST, &owned).unwrap();
    assert_eq!(decode(NEWEST, &whole), Ok(Message::Rights(owned)));
    for len in 0..whole.len() {
        assert!(decode(NEWEST, &whole.slice(..len)).is_err());
    }
    let mut more = whole.to_vec();
    more.push(0);
    assert_eq!(decode(NEWEST, &more.into()), Err(Refusal::Trailing));
    // Limits of other statements than there are.
    let mut plain = encode_rights(NEWEST, &rights()).unwrap().to_vec();
    plain[1] = KIND_OWN_RIGHTS;
    plain.push(0);
    assert_eq!(decode(NEWEST, &plain.into()), Err(Refusal::Malformed));
}

#[test]
fn rights_that_are_too_many_or_cut_short_are_refused() {
    let mut many = rights();
    many.transfers = vec![many.transfers[0].clone(); RIGHTS_ENTRIES_MAX];
    let mut totals = rights();
    let total = Total { region: "eu".into(), session: 1, permits: 1 };
    let (taken, given) = (vec![total; TOTALS_MAX + 1], Vec::new());
    totals.statements[0].totals = MovedTotals::Places(PlacesTotals { taken, given });
    for too_big in [many, totals] {
        assert_eq!(encode_rights(NEWEST, &too_big), Err(Refusal::Oversize));
        let mut bytes = vec![NEWEST.number(), KIND_RIGHTS];
        bytes.extend(bincode::serde::encode_to_vec(&too_big, bincode::config::standard()).unwrap());
        assert_eq!(decode(NEWEST, &bytes.into()), Err(Refusal::Oversize));
    }
    let whole = encode_rights(NEWEST, &rights()).unwrap();
    for len in 0..whole.len() {
        assert!(decode(NEWEST, &whole.slice(..len)).is_err());
    }
}

#[test]
fn other_versions_and_kinds_are_refused() {
    let good = encode_frame(NEWEST, &frame(vec![])).unwrap().to_vec();
    for (at, value, why) in
        [(0, 0, Refusal::Version), (0, 1, Refusal::Version), (1, 0, Refusal::Kind), (1, 5, Refusal::Kind)]
    {
        let mut bytes = good.clone();
        bytes[at] = value;
        assert_eq!(decode(NEWEST, &bytes.into()), Err(why));
    }
    assert_eq!(decode(NEWEST, &Bytes::new()), Err(Refusal::Malformed));
    assert_eq!(decode(NEWEST, &Bytes::from(vec![NEWEST.number()])), Err(Refusal::Malformed));
}

#[test]
fn a_byte_behind_a_frame_is_refused() {
    let mut bytes = encode_frame(NEWEST, &frame(vec![report(b"x")])).unwrap().to_vec();
    bytes.push(0);
    assert_eq!(decode(NEWEST, &bytes.into()), Err(Refusal::Trailing));
}

#[test]
fn what_is_too_big_is_refused_on_both_sides() {
    let many = frame(vec![report(b""); REPORTS_MAX + 1]);
    let long_identity = frame(vec![report(&[7; IDENTITY_BYTES_MAX + 1])]);
    let mut long_name = frame(vec![report(b"")]);
    subject(&mut long_name.reports[0]).rule.name = "n".repeat(RULE_NAME_BYTES_MAX + 1);
    let mut many_counters = frame(vec![report(b"")]);
    let counters = &mut subject(&mut many_counters.reports[0]).counters;
    *counters = vec![counters[0].clone(); COUNTS_MAX + 1];
    let mut many_amounts = frame(vec![report(b"")]);
    many_amounts.reports[0].amounts = std::iter::repeat_n(Amount::default(), COUNTS_MAX + 1).collect();
    let mut long_region = frame(vec![report(b"")]);
    subject(&mut long_region.reports[0]).scope = Scope::Region("r".repeat(NAME_BYTES_MAX + 1));
    let mut many_crowded = frame(Vec::new());
    let rule = RuleName { domain: "d".into(), name: "r".into() };
    many_crowded.crowded = CrowdedRules::Named(vec![rule; CROWDED_MAX + 2]);
    for too_big in [many, many_crowded, long_identity, long_name, many_counters, many_amounts, long_region] {
        assert_eq!(encode_frame(NEWEST, &too_big), Err(Refusal::Oversize));
        let mut bytes = vec![NEWEST.number(), KIND_SYNC];
        compact::write(NEWEST, &too_big, &mut bytes);
        assert_eq!(decode(NEWEST, &bytes.into()), Err(Refusal::Oversize));
    }
    let sum_too_big = frame(vec![report(&[7; IDENTITY_BYTES_MAX]); 5]);
    assert_eq!(encode_frame(NEWEST, &sum_too_big), Err(Refusal::Oversize));
    assert_eq!(decode(NEWEST, &vec![NEWEST.number(); MESSAGE_BYTES_MAX + 1].into()), Err(Refusal::Oversize));
    let address = "127.0.0.1:1".parse().unwrap();
    assert_eq!(encode_chitchat(NEWEST, address, &vec![0; CHITCHAT_BYTES_MAX + 1]), Err(Refusal::Oversize));
    assert!(encode_chitchat(NEWEST, "[::1]:65535".parse().unwrap(), &vec![0; CHITCHAT_BYTES_MAX]).is_ok());
}

/// A hundred reports of buckets that the other side knows: what ten thousand hot buckets cost.
#[test]
fn a_report_of_a_known_bucket_takes_eight_bytes() {
    let reports = (0..100).map(|n| known(10_000 + n, 100 + n)).collect();
    let bytes = encode_frame(NEWEST, &frame(reports)).unwrap().len();
    assert!(bytes <= 64 + 100 * 8, "{bytes}");
}

#[test]
fn a_demand_is_off_by_no_more_than_one_in_two_thousand() {
    for demand in [0, 1, 2_047, 2_048, 2_049, 4_095, 33_333_333, 999_999_999_999_999, u64::MAX] {
        let carried = rounded(demand);
        assert!(carried.abs_diff(demand) <= demand / 2_048, "{demand} {carried}");
        assert_eq!(rounded(carried), carried);
    }
}

#[test]
fn an_absurd_length_is_refused_before_it_is_allocated() {
    let mut bytes = vec![NEWEST.number(), KIND_SYNC, 0, 0, 0, 0, 0];
    bytes.extend([0xff; 9]);
    bytes.push(1);
    assert_eq!(decode(NEWEST, &bytes.into()), Err(Refusal::Oversize));
}

proptest! {
    #[test]
    fn every_frame_comes_back(frame in arbitrary_frame()) {
        let bytes = encode_frame(NEWEST, &frame).unwrap();
        prop_assert_eq!(decode(NEWEST, &bytes), Ok(Message::Sync(frame)));
    }

    #[test]
    fn every_gossip_comes_back(
        ip in any::<std::net::IpAddr>(),
        port in any::<u16>(),
        body in proptest::collection::vec(any::<u8>(), 0..200),
    ) {
        let from = SocketAddr::new(ip, port);
        let bytes = encode_chitchat(NEWEST, from, &body).unwrap();
        prop_assert_eq!(decode(NEWEST, &bytes), Ok(Message::Chitchat { from, body: body.into() }));
    }

    #[test]
    fn a_truncated_frame_is_always_refused(frame in arbitrary_frame(), cut in any::<proptest::sample::Index>()) {
        let bytes = encode_frame(NEWEST, &frame).unwrap();
        let short = bytes.slice(..cut.index(bytes.len()));
        prop_assert!(decode(NEWEST, &short).is_err());
    }

    #[test]
    fn random_bytes_never_panic(mut bytes in proptest::collection::vec(any::<u8>(), 0..400), sync in any::<bool>()) {
        for version in WireVersion::SPOKEN {
            let _ = decode(version, &bytes.clone().into());
            if bytes.len() >= 2 {
                bytes[0] = version.number();
                bytes[1] = if sync { KIND_SYNC } else { KIND_CHITCHAT };
                let _ = decode(version, &bytes.clone().into());
                bytes[1] = KIND_RIGHTS;
                let _ = decode(version, &bytes.clone().into());
            }
        }
    }
}
