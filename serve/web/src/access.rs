//! Who may ask: the API key, the names this server goes by, other origins.

use std::net::IpAddr;

use axum::http::{HeaderMap, HeaderValue, header, uri::Authority};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

/// Characters of the shortest key that is accepted.
const SHORTEST_KEY: usize = 16;

/// Decides before anything else of a request is looked at.
#[derive(Debug, Clone, Default)]
pub(crate) struct Access {
    pub(crate) key: Option<ApiKey>,
    /// Names beside `localhost` and the address a request came to.
    pub(crate) hosts: Vec<String>,
    /// Pages of these origins may ask.
    pub(crate) origins: Vec<HeaderValue>,
}

/// A secret, kept as its digest. It has no readable form, so that no log can hold it.
#[derive(Clone)]
pub struct ApiKey([u8; 32]);

impl std::fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ApiKey")
    }
}

/// A key that is too easy to guess or cannot be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "an API key has at least {SHORTEST_KEY} characters, all of them visible ASCII; `openssl rand -hex 24` makes one"
)]
pub struct BadKey;

impl ApiKey {
    /// The key in `text`, around which white space does not count.
    pub fn new(text: &str) -> Result<Self, BadKey> {
        let text = text.trim();
        if text.len() < SHORTEST_KEY || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(BadKey);
        }
        Ok(Self(Sha256::digest(text).into()))
    }

    /// Takes the same time for every wrong key of a length.
    fn is(&self, given: &[u8]) -> bool {
        let given: [u8; 32] = Sha256::digest(given).into();
        self.0.ct_eq(&given).into()
    }
}

impl Access {
    /// Whether a request carries the key, where there is one: as a bearer, or as the password a browser asked for.
    pub(crate) fn is_granted(&self, headers: &HeaderMap) -> bool {
        let Some(key) = &self.key else { return true };
        let mut given = headers.get_all(header::AUTHORIZATION).iter();
        let (Some(value), None) = (given.next(), given.next()) else { return false };
        match value.as_bytes().iter().position(|byte| *byte == b' ').map(|at| value.as_bytes().split_at(at)) {
            Some((scheme, key_given)) if scheme.eq_ignore_ascii_case(b"bearer") => {
                key.is(key_given.trim_ascii())
            }
            Some((scheme, given)) if scheme.eq_ignore_ascii_case(b"basic") => {
                let decoded = STANDARD.decode(given.trim_ascii()).unwrap_or_default();
                let colon = decoded.iter().position(|byte| *byte == b':');
                colon.is_some_and(|at| key.is(&decoded[at + 1..]))
            }
            _ => false,
        }
    }

    /// Whether a request means this server. A page of a hostile site can have its own name resolve to this machine,
    /// but it cannot change the name its requests carry.
    pub(crate) fn is_meant(&self, headers: &HeaderMap, authority: Option<&Authority>, local: IpAddr) -> bool {
        let mut hosts = headers.get_all(header::HOST).iter();
        let (Some(host), None) = (hosts.next(), hosts.next()) else { return false };
        let Some(host) = host.to_str().ok().and_then(|host| host.parse::<Authority>().ok()) else {
            return false;
        };
        self.goes_by(&host, local) && authority.is_none_or(|authority| self.goes_by(authority, local))
    }

    fn goes_by(&self, authority: &Authority, local: IpAddr) -> bool {
        if authority.as_str().contains('@') {
            return false;
        }
        let host = authority.host().to_ascii_lowercase();
        let address = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
        match address {
            Ok(address) => address.to_canonical() == local.to_canonical() || self.hosts.contains(&host),
            Err(_) => host == "localhost" || self.hosts.contains(&host),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "0123456789abcdef";

    fn header(name: header::HeaderName, value: &str) -> HeaderMap {
        HeaderMap::from_iter([(name, HeaderValue::from_str(value).unwrap())])
    }

    #[test]
    fn a_key_is_accepted_as_bearer_or_password_and_nothing_else_is() {
        let access = Access { key: Some(ApiKey::new(KEY).unwrap()), ..Access::default() };
        let granted = |value: &str| access.is_granted(&header(header::AUTHORIZATION, value));
        assert!(granted(&format!("Bearer {KEY}")));
        assert!(granted(&format!("Basic {}", STANDARD.encode(format!("me:{KEY}")))));
        for wrong in ["", "Bearer", "Bearer 0123456789abcdeF", KEY, "Basic 0123456789abcdef", "Basic %%%"] {
            assert!(!granted(wrong), "{wrong}");
        }
        assert!(!access.is_granted(&HeaderMap::new()));
    }

    #[test]
    fn only_names_of_this_server_are_meant() {
        let access = Access { hosts: vec!["box.lan".into()], ..Access::default() };
        let meant = |host: &str, local: &str| {
            access.is_meant(&header(header::HOST, host), None, local.parse().unwrap())
        };
        for (host, local) in [
            ("localhost:8080", "127.0.0.1"),
            ("LOCALHOST", "127.0.0.1"),
            ("127.0.0.1:1", "127.0.0.1"),
            ("[::1]:8080", "::1"),
            ("192.168.1.5", "192.168.1.5"),
            ("192.168.1.5", "::ffff:192.168.1.5"),
            ("box.lan:8080", "10.0.0.1"),
        ] {
            assert!(meant(host, local), "{host}");
        }
        for host in [
            "evil.example",
            "localhost.evil.example",
            "localhost@evil.example",
            "10.0.0.1",
            "",
            "a b",
            "box.lan.:1",
        ] {
            assert!(!meant(host, "127.0.0.1"), "{host}");
        }
        assert!(!access.is_meant(&HeaderMap::new(), None, "127.0.0.1".parse().unwrap()));
        let other = Authority::from_static("evil.example");
        let local = "127.0.0.1".parse().unwrap();
        assert!(!access.is_meant(&header(header::HOST, "localhost"), Some(&other), local));
    }

    #[test]
    fn a_key_that_is_short_or_cannot_be_sent_is_none() {
        assert!(ApiKey::new("short").is_err());
        assert!(ApiKey::new("0123456789 abcdef").is_err());
        assert!(ApiKey::new(&format!(" {KEY}\n")).is_ok());
        assert!(!format!("{:?}", ApiKey::new(KEY).unwrap()).contains("0123"));
    }
}
