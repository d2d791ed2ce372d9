//! Addresses for the daemons of a test.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::sync::atomic::{AtomicU16, Ordering};

/// Below the ports that the kernel gives to clients, so that no connection takes one between choosing and
/// binding it.
const FIRST: u16 = 2_000;
/// Tests that run at once are processes of their own: each begins at another place of the range.
const PLACES: u16 = 500;
const PLACE: u16 = 20;

/// Ports of the range that browsers ask nothing at, since other services have them (Fetch standard, 2.9).
const BAD: [u16; 16] = [
    2_049, 3_659, 4_045, 4_190, 5_060, 5_061, 6_000, 6_566, 6_665, 6_666, 6_667, 6_668, 6_669, 6_679, 6_697,
    10_080,
];

/// A TCP address on loopback that was free a moment ago.
pub(crate) fn free_tcp() -> SocketAddr {
    free(|address| TcpListener::bind(address).is_ok())
}

/// A UDP address on loopback that was free a moment ago.
pub(crate) fn free_udp() -> SocketAddr {
    free(|address| UdpSocket::bind(address).is_ok())
}

fn free(binds: impl Fn(SocketAddr) -> bool) -> SocketAddr {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let begin = u16::try_from(std::process::id() % u32::from(PLACES)).unwrap() * PLACE;
    for _ in 0..PLACES * PLACE {
        let port = FIRST + (begin + NEXT.fetch_add(1, Ordering::Relaxed)) % (PLACES * PLACE);
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        if !BAD.contains(&port) && binds(address) {
            return address;
        }
    }
    panic!("no port of {FIRST} to {} is free", FIRST + PLACES * PLACE);
}
