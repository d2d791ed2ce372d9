//! Networks by length: one look-up for each length that occurs, whatever the number of networks.

use std::collections::HashMap;
use std::net::IpAddr;

use foldhash::fast::FixedState;
use ipnet::IpNet;

/// Entries by network. IPv4 and IPv6 never meet: what is mapped has become IPv4 before it comes here.
#[derive(Debug)]
pub(super) struct Networks<T> {
    four: Vec<Length<T>>,
    six: Vec<Length<T>>,
}

/// The networks of one prefix length, by their leading bits.
#[derive(Debug)]
struct Length<T> {
    mask: u128,
    entries: HashMap<u128, T, FixedState>,
}

impl<T> Default for Networks<T> {
    fn default() -> Self {
        Self { four: Vec::new(), six: Vec::new() }
    }
}

impl<T> Networks<T> {
    pub(super) fn is_empty(&self) -> bool {
        self.four.is_empty() && self.six.is_empty()
    }

    /// Puts an entry in place of what this network had.
    pub(super) fn insert(&mut self, network: IpNet, entry: T) {
        let lengths = match network {
            IpNet::V4(_) => &mut self.four,
            IpNet::V6(_) => &mut self.six,
        };
        let mask = bits(network.netmask());
        let place = lengths.iter().position(|length| length.mask == mask).unwrap_or_else(|| {
            lengths.push(Length { mask, entries: HashMap::default() });
            lengths.len() - 1
        });
        lengths[place].entries.insert(bits(network.network()), entry);
    }

    /// Visits the entry of every network that holds the address.
    pub(super) fn walk(&self, address: IpAddr, mut visit: impl FnMut(&T)) {
        let lengths = if address.is_ipv4() { &self.four } else { &self.six };
        let bits = bits(address);
        for length in lengths {
            if let Some(entry) = length.entries.get(&(bits & length.mask)) {
                visit(entry);
            }
        }
    }
}

fn bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(four) => u128::from(four.to_bits()),
        IpAddr::V6(six) => six.to_bits(),
    }
}
