//! The client's address, taken out of what proxies wrote: it says whose request it is.

use std::borrow::Cow;
use std::net::{IpAddr, Ipv6Addr};

/// The client's address out of the values of `X-Forwarded-For`, in the order they came.
///
/// The `trusted` rightmost hops were written by our own proxies, and the leftmost of those is the client;
/// what stands further left is the client's own claim and is not read. With fewer hops than that the leftmost
/// one counts. An entry that is no address, like no hop at all, leaves `peer`: who connected to us.
pub(super) fn client<'a>(
    forwarded: impl DoubleEndedIterator<Item = &'a str>,
    trusted: u8,
    peer: Option<IpAddr>,
) -> Option<IpAddr> {
    let hops = forwarded.rev().flat_map(|value| value.rsplit(',')).map(str::trim);
    let hop = hops.filter(|hop| !hop.is_empty()).take(trusted.into()).last();
    // A zone names an interface of one machine: no client from outside has one.
    hop.and_then(read).filter(|hop| !hop.is_zoned).map(|hop| hop.address).or(peer)
}

/// An address as somebody wrote it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct WrittenAddress {
    address: IpAddr,
    /// True where it names the zone of an interface.
    is_zoned: bool,
}

/// Reads an address as proxies and gateways write it: bare, with a port, in brackets, with a zone.
fn read(text: &str) -> Option<WrittenAddress> {
    let text = text.trim();
    if let Ok(address) = text.parse() {
        return Some(WrittenAddress { address, is_zoned: false });
    }
    if let Some((address, zone)) = text.split_once('%')
        && !address.starts_with('[')
    {
        let address = IpAddr::V6(address.parse().ok().filter(|_| !zone.is_empty())?);
        return Some(WrittenAddress { address, is_zoned: true });
    }
    if let Some(rest) = text.strip_prefix('[') {
        let (address, port) = rest.split_once(']')?;
        let port_is_right = port.is_empty() || port.strip_prefix(':')?.parse::<u16>().is_ok();
        return read(address).filter(|inner| port_is_right && inner.address.is_ipv6());
    }
    let (address, port) = text.split_once(':')?;
    port.parse::<u16>().ok()?;
    let address = IpAddr::V4(address.parse().ok()?);
    Some(WrittenAddress { address, is_zoned: false })
}

/// The one text of an address, whatever a gateway wrote around it; any other text as it is.
pub(super) fn canonical(text: &str) -> Cow<'_, str> {
    // IPv4 addresses have one valid spelling each.
    if text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.') {
        return Cow::Borrowed(text);
    }
    match read(text).map(|written| written.address.to_canonical().to_string()) {
        Some(canonical) if canonical != text => Cow::Owned(canonical),
        _ => Cow::Borrowed(text),
    }
}

/// The address that a descriptor's own limit counts by: IPv4 as it is, also where it came mapped into IPv6;
/// of IPv6 only the first `prefix` bits, since one client commands all that follow.
pub(super) fn grouped(address: IpAddr, prefix: u8) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(prefix.min(128))).unwrap_or(0);
            IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & mask))
        }
        v4 => v4,
    }
}

/// The text of the group that an address belongs to, where that text is another one.
pub(super) fn regrouped(text: &str, prefix: u8) -> Option<String> {
    // Only IPv6 has more than one text for a group.
    if !text.contains(':') {
        return None;
    }
    let grouped = grouped(text.parse().ok()?, prefix).to_string();
    (grouped != text).then_some(grouped)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(forwarded: &[&str], trusted: u8) -> String {
        let peer = "9.9.9.9".parse().ok();
        client(forwarded.iter().copied(), trusted, peer).unwrap().to_string()
    }

    #[test]
    fn the_client_is_what_our_outermost_proxy_wrote() {
        assert_eq!(read(&["6.6.6.6, 1.1.1.1, 2.2.2.2"], 1), "2.2.2.2");
        assert_eq!(read(&["6.6.6.6, 1.1.1.1, 2.2.2.2"], 2), "1.1.1.1");
        assert_eq!(read(&["6.6.6.6", "1.1.1.1, 2.2.2.2"], 2), "1.1.1.1");
        assert_eq!(read(&["6.6.6.6, 1.1.1.1", "2.2.2.2"], 2), "1.1.1.1");
    }

    #[test]
    fn with_fewer_hops_than_proxies_the_leftmost_counts() {
        assert_eq!(read(&["1.1.1.1"], 3), "1.1.1.1");
    }

    #[test]
    fn what_is_no_address_leaves_the_peer() {
        assert_eq!(read(&["unknown"], 1), "9.9.9.9");
        assert_eq!(read(&["1.1.1.1, <script>"], 1), "9.9.9.9");
        assert_eq!(read(&[], 1), "9.9.9.9");
        assert_eq!(read(&["1.1.1.1"], 0), "9.9.9.9");
        assert_eq!(read(&["1.1.1.1:99999"], 1), "9.9.9.9");
    }

    #[test]
    fn ten_malformed_hops_leave_the_peer_and_never_the_claim_beside_them() {
        for bad in [
            "256.1.1.1",
            "1.1.1",
            "01.1.1.1",
            "1.1.1.1:",
            "1.1.1.1:x",
            "[2001:db8::1",
            "[2001:db8::1]x",
            "2001:db8:::1",
            "for=1.1.1.1",
            "_hidden",
            "1.1.1.1;2.2.2.2",
            "2001:db8::1%eth0",
            "\u{ff11}.1.1.1",
        ] {
            assert_eq!(read(&[&format!("6.6.6.6, {bad}")], 1), "9.9.9.9", "{bad}");
        }
    }

    #[test]
    fn ports_and_brackets_are_no_part_of_an_address() {
        assert_eq!(read(&["1.1.1.1:4711"], 1), "1.1.1.1");
        assert_eq!(read(&["[2001:db8::1]:4711"], 1), "2001:db8::1");
        assert_eq!(read(&["[2001:db8::1]"], 1), "2001:db8::1");
    }

    #[test]
    fn ipv6_is_grouped_by_its_prefix_and_mapped_ipv4_unified() {
        let group = |text: &str, prefix| grouped(text.parse().unwrap(), prefix).to_string();
        assert_eq!(group("2001:db8:1:2:3:4:5:6", 64), "2001:db8:1:2::");
        assert_eq!(group("2001:db8:1:2:3:4:5:6", 48), "2001:db8:1::");
        assert_eq!(group("2001:db8::1", 128), "2001:db8::1");
        assert_eq!(group("2001:db8::1", 0), "::");
        assert_eq!(group("::ffff:1.2.3.4", 64), "1.2.3.4");
        assert_eq!(regrouped("1.2.3.4", 64), None);
        assert_eq!(regrouped("2001:db8::1", 64).as_deref(), Some("2001:db8::"));
        assert_eq!(regrouped("a:b", 64), None);
    }

    proptest! {
        #[test]
        fn any_header_is_read_without_panic(value in ".*", trusted: u8) {
            let _ = client([value.as_str()].into_iter(), trusted, None);
        }
    }
}
