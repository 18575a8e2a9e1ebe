//! Clients that share the queue: an address, and a connection from it.
//!
//! One key serves all clients: addresses tell them apart. Behind a proxy, and on one machine, connections do.

use std::net::{IpAddr, Ipv6Addr};

/// An IPv6 host may use any address of its network.
const NETWORK_BITS: u32 = 64;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Client {
    pub(crate) network: IpAddr,
    pub(crate) connection: u64,
}

impl Client {
    pub(crate) fn new(peer: IpAddr, connection: u64) -> Self {
        let network = match peer.to_canonical() {
            IpAddr::V6(address) => {
                let network = address.to_bits() >> NETWORK_BITS << NETWORK_BITS;
                IpAddr::V6(Ipv6Addr::from_bits(network))
            }
            address @ IpAddr::V4(_) => address,
        };
        Self { network, connection }
    }
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Connection {
    pub(crate) local: IpAddr,
    pub(crate) client: Client,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ipv6_network_is_one_client_and_a_mapped_address_the_ipv4_host() {
        let network = |peer: &str| Client::new(peer.parse().unwrap(), 1).network;
        assert_eq!(network("2001:db8::1"), network("2001:db8::ffff:0:0:2"));
        assert_ne!(network("2001:db8::1"), network("2001:db8:0:1::1"));
        assert_eq!(network("::ffff:192.0.2.7"), network("192.0.2.7"));
        assert_ne!(network("192.0.2.7"), network("192.0.2.8"));
    }
}
