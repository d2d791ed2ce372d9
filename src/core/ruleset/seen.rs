//! One request as one domain sees it: only the attributes that its rules name, by number.

use std::fmt::Write;
use std::net::IpAddr;
use std::net::Ipv6Addr;
use std::sync::Arc;

use foldhash::fast::FixedState;
use smallvec::SmallVec;

use crate::identity::Who;
use crate::request::{Cost, REQUEST_ID, Request};

/// Attribute names up to this many are compared one by one, which is faster than hashing.
const COMPARED_MAX: usize = 16;
/// Names up to this many bytes are told apart by their tags alone.
const TAGGED_BYTES_MAX: usize = 8;

/// The attribute names of a domain's rules, each with a number.
#[derive(Debug, Clone, Default)]
pub(super) struct Names {
    names: Vec<Name>,
    numbers: std::collections::HashMap<Arc<str>, u32, FixedState>,
    /// The last number of [`REQUEST_ID`], if a rule ever named it. No other name gets a number that is spent.
    request_id: Option<u32>,
}

#[derive(Debug, Clone)]
struct Name {
    tag: (u64, usize),
    text: Arc<str>,
    /// Number of rules of the domain that name it.
    rules: u32,
}

/// No name's tag: none is so long.
const NO_TAG: (u64, usize) = (0, usize::MAX);

/// First and last bytes, and the length: equal for equal names, and different for different short ones.
#[inline]
fn tag(text: &str) -> (u64, usize) {
    let bytes = text.as_bytes();
    let ends = match (bytes.first_chunk(), bytes.last_chunk()) {
        (Some(first), Some(last)) => {
            u64::from(u32::from_le_bytes(*first)) | u64::from(u32::from_le_bytes(*last)) << 32
        }
        _ => bytes.iter().fold(0, |ends, byte| ends << 8 | u64::from(*byte)),
    };
    (ends, bytes.len())
}

impl Names {
    /// The name's number; a new one if it has none yet.
    pub(super) fn add(&mut self, name: &str) -> u32 {
        if let Some(number) = self.numbers.get(name) {
            return *number;
        }
        let number = u32::try_from(self.names.len()).unwrap_or(u32::MAX);
        let text: Arc<str> = name.into();
        self.names.push(Name { tag: tag(name), text: Arc::clone(&text), rules: 0 });
        self.numbers.insert(text, number);
        if name == REQUEST_ID {
            self.request_id = Some(number);
        }
        number
    }

    /// Notes that a rule names these.
    pub(super) fn hold(&mut self, numbers: &[u32]) {
        for number in numbers {
            if let Some(name) = self.at_mut(*number) {
                name.rules += 1;
            }
        }
    }

    /// Notes that a rule which named these is gone. A name that no rule is left to name has no number any
    /// more.
    pub(super) fn let_go(&mut self, numbers: &[u32]) {
        for number in numbers {
            let Some(name) = self.at_mut(*number) else { continue };
            name.rules = name.rules.saturating_sub(1);
            if name.rules == 0 {
                name.tag = NO_TAG;
                let text = Arc::clone(&name.text);
                self.numbers.remove(&text);
            }
        }
    }

    /// Returns how many numbers belong to no name any more.
    pub(super) fn spent(&self) -> usize {
        self.names.len() - self.numbers.len()
    }

    /// Numbers given out, spent ones too.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.names.len()
    }

    fn at_mut(&mut self, number: u32) -> Option<&mut Name> {
        usize::try_from(number).ok().and_then(|place| self.names.get_mut(place))
    }

    #[inline]
    pub(super) fn number(&self, name: &str) -> Option<u32> {
        if self.names.len() > COMPARED_MAX {
            return self.numbers.get(name).copied();
        }
        let tag = tag(name);
        let same = |own: &Name| own.tag == tag && (name.len() <= TAGGED_BYTES_MAX || *own.text == *name);
        self.names.iter().position(same).and_then(|place| u32::try_from(place).ok())
    }

    pub(super) fn name(&self, number: u32) -> &str {
        usize::try_from(number).ok().and_then(|place| self.names.get(place)).map_or("", |name| &name.text)
    }
}

/// The part of a request that a domain sees.
#[derive(Debug, Default)]
pub(super) struct SeenAttributes<'r> {
    values: SmallVec<[(u32, &'r str); 8]>,
    /// Further values of attributes that the request brought more than once.
    more: Vec<(u32, &'r str)>,
    /// Values that stand for longer texts, and those.
    whole: &'r [(&'r str, &'r str)],
    /// Leading bits by which addresses of IPv6 share a bucket; zero: all of them.
    ipv6_prefix: u8,
    /// An attribute that no rule of the domain names.
    foreign: Option<&'r str>,
    /// Attributes that an exact rule need not name: the user of a key and the tier, which were looked up
    /// rather than brought, and the request's name, which says nothing of who asks for what.
    unasked: [Option<u32>; 3],
    /// The attribute last read as an address.
    address: Option<(u32, Option<IpAddr>)>,
    /// True if the request asks to hold places.
    holds: bool,
}

impl<'r> SeenAttributes<'r> {
    /// Reads the request; what is known of `who` stands in for what it does not bring.
    #[inline]
    pub(super) fn read<'q: 'r>(&mut self, names: &Names, request: &'r Request<'q>, who: &Who<'r>) {
        self.holds = matches!(request.cost, Cost::Hold(_));
        self.whole = &request.forms.whole;
        self.ipv6_prefix = request.forms.ipv6_prefix;
        for (name, value) in &request.attributes {
            match names.number(name) {
                Some(number) if self.value(number).is_none() => self.values.push((number, *value)),
                Some(number) => self.more.push((number, *value)),
                None if *name == REQUEST_ID => {}
                None => self.foreign = self.foreign.or(Some(name)),
            }
        }
        let [user, tier] = [("user", who.user), ("tier", who.tier)].map(|(name, value)| {
            let (value, number) = (value?, names.number(name)?);
            match self.values.iter_mut().find(|(own, _)| *own == number) {
                None => self.values.push((number, value)),
                // Somebody who is known is not hidden by an empty text.
                Some((_, brought)) if brought.is_empty() => *brought = value,
                Some(_) => return None,
            }
            Some(number)
        });
        self.unasked = [user, tier, names.request_id];
    }

    /// Puts another value in the place of an attribute's first, where rules name the attribute.
    pub(super) fn replace(&mut self, names: &Names, attribute: &str, value: &'r str) {
        let Some(number) = names.number(attribute) else { return };
        if let Some((_, own)) = self.values.iter_mut().find(|(own, _)| *own == number) {
            *own = value;
        }
    }

    #[inline]
    pub(super) const fn holds(&self) -> bool {
        self.holds
    }

    #[inline]
    pub(super) fn value(&self, number: u32) -> Option<&'r str> {
        self.values.iter().find(|(own, _)| *own == number).map(|(_, value)| *value)
    }

    /// True if some attribute has several values.
    #[inline]
    pub(super) fn repeats(&self) -> bool {
        !self.more.is_empty()
    }

    /// The values of an attribute behind the first.
    pub(super) fn more(&self, number: u32) -> impl Iterator<Item = &'r str> + use<'r, '_> {
        self.more.iter().filter(move |(own, _)| *own == number).map(|(_, value)| *value)
    }

    /// The attributes with several values, once for each further one.
    pub(super) fn all_repeated(&self) -> impl Iterator<Item = u32> + use<'_> {
        self.more.iter().map(|(number, _)| *number)
    }

    /// Returns what globs look at: the value, or the text that it stands for.
    #[inline]
    pub(super) fn written(&self, value: &'r str) -> &'r str {
        let stands_for = |(stand_in, _): &&(&str, &str)| *stand_in == value;
        self.whole.iter().find(stands_for).map_or(value, |(_, whole)| whole)
    }

    pub(super) const fn ipv6_prefix(&self) -> u8 {
        self.ipv6_prefix
    }

    /// The attribute's value as an address, parsed once; an IPv4-mapped one is IPv4.
    pub(super) fn address(&mut self, number: u32) -> Option<IpAddr> {
        if let Some((own, address)) = self.address
            && own == number
        {
            return address;
        }
        let address = self.value(number).and_then(|text| text.parse::<IpAddr>().ok());
        let address = address.map(|address| address.to_canonical());
        self.address = Some((number, address));
        address
    }

    /// An attribute that the request brought besides these, which are sorted.
    pub(super) fn surplus(&self, named: &[u32]) -> Option<Surplus<'r>> {
        if let Some(foreign) = self.foreign {
            return Some(Surplus::Foreign(foreign));
        }
        let mut brought = self.values.iter().filter(|(number, _)| !self.unasked.contains(&Some(*number)));
        let surplus = brought.find(|(number, _)| named.binary_search(number).is_err());
        surplus.map(|(number, _)| Surplus::Known(*number))
    }

    /// True if the attribute is the request's name.
    pub(super) fn is_request_id(&self, number: u32) -> bool {
        let [.., request_id] = self.unasked;
        request_id == Some(number)
    }
}

/// An attribute that an exact rule does not name.
#[derive(Debug, Clone, Copy)]
pub(super) enum Surplus<'r> {
    /// Another rule of the domain names it.
    Known(u32),
    /// No rule of the domain does.
    Foreign(&'r str),
}

/// One spelling for all addresses that share a bucket: IPv4 as it is, also where it came mapped into IPv6; of
/// IPv6 the first `prefix` bits, since one client commands all that follow (zero: all bits). Any other text
/// as it is.
pub(super) fn bucket_address<'a>(text: &'a str, prefix: u8, buffer: &'a mut AddressText) -> &'a str {
    match text.parse::<IpAddr>().map(|address| address.to_canonical()) {
        Ok(IpAddr::V6(address)) => {
            let shift = 128 - u32::from(if prefix == 0 { 128 } else { prefix.min(128) });
            let mask = u128::MAX.checked_shl(shift).unwrap_or(0);
            buffer.write(IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & mask))).unwrap_or(text)
        }
        // Only one spelling of an IPv4 address parses.
        Ok(IpAddr::V4(_)) if !text.contains(':') => text,
        Ok(address) => buffer.write(address).unwrap_or(text),
        Err(_) => text,
    }
}

/// Room for the text of any address, on the stack.
#[derive(Debug)]
pub(super) struct AddressText {
    bytes: [u8; Self::LEN],
    len: usize,
}

impl AddressText {
    /// The longest text of an IPv6 address has 45 bytes.
    const LEN: usize = 48;

    pub(super) const fn new() -> Self {
        Self { bytes: [0; Self::LEN], len: 0 }
    }

    fn write(&mut self, address: IpAddr) -> Option<&str> {
        self.len = 0;
        write!(self, "{address}").ok()?;
        Some(self.text())
    }

    fn text(&self) -> &str {
        self.bytes.get(..self.len).and_then(|bytes| std::str::from_utf8(bytes).ok()).unwrap_or_default()
    }
}

impl Write for AddressText {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        let end = self.len + text.len();
        self.bytes.get_mut(self.len..end).ok_or(std::fmt::Error)?.copy_from_slice(text.as_bytes());
        self.len = end;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn addresses_share_a_bucket_by_their_prefix_and_mapped_ones_are_ipv4() {
        let group = |text: &str, prefix| bucket_address(text, prefix, &mut AddressText::new()).to_owned();
        assert_eq!(group("2001:db8:1:2:3:4:5:6", 64), "2001:db8:1:2::");
        assert_eq!(group("2001:DB8:1:2:3:4:5:6", 48), "2001:db8:1::");
        assert_eq!(group("2001:db8:0::1", 128), "2001:db8::1");
        assert_eq!(group("2001:db8:0::1", 0), "2001:db8::1");
        assert_eq!(group("2001:db8::1", 1), "::");
        assert_eq!(group("::ffff:1.2.3.4", 64), "1.2.3.4");
        assert_eq!(group("1.2.3.4", 64), "1.2.3.4");
        assert_eq!(group("a:b", 64), "a:b");
    }

    proptest! {
        #[test]
        fn names_are_numbered_apart(names in proptest::collection::btree_set("[ab]{1,10}", 1..20), other in "[ab]{1,10}") {
            let mut numbered = Names::default();
            let numbers: Vec<u32> = names.iter().map(|name| numbered.add(name)).collect();
            for (name, number) in names.iter().zip(numbers) {
                prop_assert_eq!((numbered.number(name), numbered.name(number)), (Some(number), name.as_str()));
            }
            prop_assert_eq!(numbered.number(&other).is_some(), names.contains(&other));
        }
    }
}
