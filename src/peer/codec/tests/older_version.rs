//! The version before the newest: bytes that its last build made, and what passes between two daemons of
//! which one has it.

use super::*;

const OLDER: WireVersion = WireVersion::PREVIOUS;

/// Made by the last build of version 5, commit 6c1c138: the frame of `the_bytes_of_this_version_are_pinned`,
/// of a bucket that has no limit of its own.
const FRAME: &str = concat!(
    "05018080b3c19c33078080b8f6de96900380f104018180b3c19c330305000301bc05076465666175",
    "6c74067365617263680375007801026575010465752d31809c9c39a01fac02010501a12f06bc0506",
    "a12f06f0a204e807a12f",
);
/// By the same build: a daemon's own report of a bucket with its own limit, and a crowded rule.
const OWN_LIMIT: &str = concat!(
    "05018080b3c19c33078080b8f6de96900380f10400010164067365617263680109bc050764656661",
    "756c7406736561726368016b00010465752d31809c9c39ac02900300a01fac02010501a12f",
);
/// By the same build: no reports, and all rules crowded.
const ALL_CROWDED: &str = "05018080b3c19c33078080b8f6de96900380f104018180b3c19c3303050900";
/// By the same build: the rights of `the_bytes_of_rights_are_pinned`.
const RIGHTS: &str = concat!(
    "0503fd0000ceeeb5400600010764656661756c740673656172636803750078fc701101000928fc80",
    "841e000300fb2c0101026575fd0000ceeeb54006000501026575fd0000ceeeb54006000701fb2b01",
    "64010764656661756c74067365617263680375007800fb2c01090a07",
);
/// By the same build: a statement of a level that others say to have a limit of its own, and a transfer of
/// places.
const RIGHTS_OF_OWN_LIMITS: &str = concat!(
    "0504fd0000ceeeb5400600010764656661756c740673656172636803750078fc701101000928fc80",
    "841e000301010265750904010265750902010764656661756c74067365617263680375007802090a",
    "070201fb2c01fb900100010000",
);
const GOSSIP: &str = "050200cb007107fb0a1f616263";
const GOSSIP_V6: &str = "05020100000000000000000000000000000001fb0a1f";

fn unhex(text: &str) -> Bytes {
    let digits = text.as_bytes().chunks(2).map(|two| std::str::from_utf8(two).unwrap());
    digits.map(|two| u8::from_str_radix(two, 16).unwrap()).collect()
}

fn own_limit() -> Frame {
    let mut own = report(b"k");
    subject(&mut own).decided_by = DecidedBy::Own(OwnLimit { permits: 300, burst: 400, queue: 0 });
    subject(&mut own).scope = Scope::Node;
    let rule = RuleName { domain: "d".into(), name: "search".into() };
    Frame { seen: None, crowded: CrowdedRules::Named(vec![rule]), ..frame(vec![own]) }
}

fn rights_of_own_limits() -> RightsFrame {
    let mut owned = rights();
    let own = Some(OwnLimit { permits: 300, burst: 400, queue: 0 });
    let total = |permits| vec![Total { region: "eu".into(), session: 9, permits }];
    owned.statements[0].limit = CountedLimit { own, said_by_others: true };
    owned.statements[0].totals = MovedTotals::Level(LevelTotals { settled: total(4), kept: total(2) });
    owned.transfers[0].kind = RightKind::Places;
    owned
}

/// Everything with its bytes in version 5.
fn golden() -> Vec<(&'static str, Message)> {
    let reports = vec![report(b"u\0x"), known(700, 6), known(70_000, 1_000)];
    let all = Frame { crowded: CrowdedRules::All, ..frame(Vec::new()) };
    let gossip =
        |from: &str, body| Message::Chitchat { from: from.parse().unwrap(), body: Bytes::from_static(body) };
    vec![
        (FRAME, Message::Sync(frame(reports))),
        (OWN_LIMIT, Message::Sync(own_limit())),
        (ALL_CROWDED, Message::Sync(all)),
        (RIGHTS, Message::Rights(rights())),
        (RIGHTS_OF_OWN_LIMITS, Message::Rights(rights_of_own_limits())),
        (GOSSIP, gossip("203.0.113.7:7946", b"abc")),
        (GOSSIP_V6, gossip("[::1]:7946", b"")),
    ]
}

fn encode(version: WireVersion, message: &Message) -> Bytes {
    match message {
        Message::Sync(frame) => encode_frame(version, frame),
        Message::Rights(frame) => encode_rights(version, frame),
        Message::Chitchat { from, body } => encode_chitchat(version, *from, body),
    }
    .unwrap()
}

#[test]
fn the_older_version_is_read_and_written_as_its_own_builds_did() {
    for (bytes, message) in golden() {
        assert_eq!(decode(OLDER, &unhex(bytes)), Ok(message.clone()), "{bytes}");
        assert_eq!(hex(&encode(OLDER, &message)), bytes);
        assert_eq!(decode(NEWEST, &unhex(bytes)), Err(Refusal::Version), "it was agreed on another version");
    }
}

/// A build of version 5 has one word for a bucket that its rule's limit decides and one of which nothing is
/// known, so it hears both as the first, and both are heard of it as the second.
#[test]
fn the_older_version_says_no_more_of_a_limit_than_it_can() {
    for decided_by in [DecidedBy::Rule, DecidedBy::Unknown] {
        let mut said = frame(vec![report(b"u\0x"), known(700, 6), known(70_000, 1_000)]);
        subject(&mut said.reports[0]).decided_by = decided_by;
        assert_eq!(hex(&encode_frame(OLDER, &said).unwrap()), FRAME);
    }
    // The flag of version 6 is none of version 5.
    let mut by_rule = report(b"x");
    subject(&mut by_rule).decided_by = DecidedBy::Rule;
    let mut bytes = encode_frame(NEWEST, &frame(vec![by_rule])).unwrap().to_vec();
    assert!(decode(NEWEST, &bytes.clone().into()).is_ok());
    bytes[0] = OLDER.number();
    assert_eq!(decode(OLDER, &bytes.into()), Err(Refusal::Malformed));
}

#[test]
fn a_message_that_waited_for_a_connection_is_said_in_its_version() {
    for (bytes, message) in golden() {
        let newest = encode(NEWEST, &message);
        assert_eq!(hex(&in_version(OLDER, newest.clone()).unwrap()), bytes);
        assert_eq!(in_version(NEWEST, newest.clone()), Ok(newest.clone()));
        assert_eq!(in_version(NEWEST, unhex(bytes)), Ok(newest), "a peer that was upgraded");
    }
    assert_eq!(in_version(OLDER, Bytes::from_static(&[4, KIND_SYNC])), Err(Refusal::Version));
    assert_eq!(in_version(OLDER, Bytes::new()), Err(Refusal::Malformed));
}

/// What the older version leaves of a frame.
fn as_older(mut frame: Frame) -> Frame {
    for subject in frame.reports.iter_mut().filter_map(|report| report.subject.as_mut()) {
        if subject.decided_by == DecidedBy::Rule {
            subject.decided_by = DecidedBy::Unknown;
        }
    }
    frame
}

proptest! {
    #[test]
    fn every_frame_comes_back_but_for_what_the_older_version_cannot_say(frame in arbitrary_frame()) {
        let bytes = encode_frame(OLDER, &frame).unwrap();
        prop_assert!(bytes.len() <= encode_frame(NEWEST, &frame).unwrap().len(), "frames are filled by the newest");
        prop_assert_eq!(decode(OLDER, &bytes), Ok(Message::Sync(as_older(frame))));
    }

    #[test]
    fn a_truncated_frame_of_the_older_version_is_always_refused(
        frame in arbitrary_frame(),
        cut in any::<proptest::sample::Index>(),
    ) {
        let bytes = encode_frame(OLDER, &frame).unwrap();
        prop_assert!(decode(OLDER, &bytes.slice(..cut.index(bytes.len()))).is_err());
    }
}
