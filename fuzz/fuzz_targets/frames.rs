//! Messages between daemons: counts, rights and membership, in each wire version.
#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use tidegate::core::wire::WireVersion;
use tidegate::peer::codec::{self, Message};

fuzz_target!(|data: &[u8]| {
    let bytes = Bytes::copy_from_slice(data);
    for version in WireVersion::SPOKEN {
        match codec::decode(version, &bytes) {
            // A message that was read is written and read again as the same.
            Ok(Message::Sync(frame)) => {
                let written = codec::encode_frame(version, &frame).expect("it was read");
                assert_eq!(codec::decode(version, &written), Ok(Message::Sync(frame)));
            }
            Ok(Message::Rights(frame)) => {
                let written = codec::encode_rights(version, &frame).expect("it was read");
                assert_eq!(codec::decode(version, &written), Ok(Message::Rights(frame)));
            }
            Ok(Message::Chitchat { .. }) | Err(_) => {}
        }
    }
});
