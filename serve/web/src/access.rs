//! Access control: API key, host names, origins (`a_request_with_a_foreign_host_is_refused_on_every_route`).

use std::net::IpAddr;

use anyhow::{Context, bail};
use axum::http::{HeaderMap, HeaderValue, Uri, header, uri::Authority};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

const SHORTEST_KEY: usize = 16;

#[derive(Debug, Clone, Default)]
pub(crate) struct Access {
    pub(crate) key: Option<ApiKey>,
    pub(crate) hosts: Vec<String>,
    /// Clients may then write `0.0.0.0`.
    pub(crate) everywhere: bool,
    pub(crate) origins: Vec<HeaderValue>,
}

/// An API key, kept as a digest that logs may contain.
#[derive(Clone)]
pub struct ApiKey([u8; 32]);

impl std::fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ApiKey")
    }
}

/// A key that is too short or not visible ASCII.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "an API key has at least {SHORTEST_KEY} characters, all of them visible ASCII; `openssl rand -hex 24` makes one"
)]
pub struct BadKey;

impl ApiKey {
    /// Parses a key without surrounding white space.
    pub fn new(text: &str) -> Result<Self, BadKey> {
        let text = text.trim();
        if text.len() < SHORTEST_KEY || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(BadKey);
        }
        Ok(Self(Sha256::digest(text).into()))
    }

    /// Takes equal time for all keys of a length.
    fn matches(&self, given: &[u8]) -> bool {
        let given: [u8; 32] = Sha256::digest(given).into();
        self.0.ct_eq(&given).into()
    }
}

impl Access {
    pub(crate) fn is_granted(&self, headers: &HeaderMap) -> bool {
        let Some(key) = &self.key else { return true };
        let mut given = headers.get_all(header::AUTHORIZATION).iter();
        let (Some(value), None) = (given.next(), given.next()) else { return false };
        match value.as_bytes().iter().position(|byte| *byte == b' ').map(|at| value.as_bytes().split_at(at)) {
            Some((scheme, key_given)) if scheme.eq_ignore_ascii_case(b"bearer") => {
                key.matches(key_given.trim_ascii())
            }
            Some((scheme, given)) if scheme.eq_ignore_ascii_case(b"basic") => {
                let decoded = STANDARD.decode(given.trim_ascii()).unwrap_or_default();
                let colon = decoded.iter().position(|byte| *byte == b':');
                colon.is_some_and(|at| key.matches(&decoded[at + 1..]))
            }
            _ => false,
        }
    }

    /// Whether `Host` names this server: under DNS rebinding a hostile domain resolves to this machine.
    pub(crate) fn is_for_this_server(
        &self,
        headers: &HeaderMap,
        authority: Option<&Authority>,
        local: IpAddr,
    ) -> bool {
        let mut hosts = headers.get_all(header::HOST).iter();
        let (Some(host), None) = (hosts.next(), hosts.next()) else { return false };
        let Some(host) = host.to_str().ok().and_then(|host| host.parse::<Authority>().ok()) else {
            return false;
        };
        self.has_host(&host, local) && authority.is_none_or(|authority| self.has_host(authority, local))
    }

    fn has_host(&self, authority: &Authority, local: IpAddr) -> bool {
        if authority.as_str().contains('@') {
            return false;
        }
        let host = authority.host().to_ascii_lowercase();
        let address = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
        match address {
            Ok(address) => {
                address.to_canonical() == local.to_canonical()
                    || self.everywhere && address.is_unspecified()
                    || self.hosts.contains(&host)
            }
            Err(_) => host == "localhost" || self.hosts.contains(&host),
        }
    }
}

pub(crate) fn parse_host(text: &str) -> anyhow::Result<String> {
    let host = text.parse::<Authority>().ok().filter(|host| host.host() == text && !text.contains('@'));
    let Some(_) = host.filter(|_| !text.contains('*')) else {
        bail!("`{text}` is no host name; write one without scheme and port, such as box.lan");
    };
    Ok(text.to_ascii_lowercase())
}

/// As browsers send it: scheme, host, perhaps a port.
pub(crate) fn parse_origin(text: &str) -> anyhow::Result<HeaderValue> {
    let origin = text.parse::<Uri>().ok().filter(|uri| {
        let scheme = uri.scheme_str().unwrap_or_default();
        let authority = uri.authority().map(Authority::as_str).unwrap_or_default();
        format!("{scheme}://{authority}") == text
            && !text.contains(['@', '*'])
            && text == text.to_ascii_lowercase()
    });
    if origin.is_none() {
        bail!("`{text}` is no origin; write one as https://example.org, in lower case and without a path");
    }
    HeaderValue::from_str(text).with_context(|| format!("`{text}` is no origin"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_and_origins_that_never_match_are_refused() {
        for host in ["box.lan", "Box", "10.0.0.1", "[::1]"] {
            assert_eq!(parse_host(host).unwrap(), host.to_ascii_lowercase());
        }
        for host in ["box.lan:8080", "https://box", "*", "*.lan", "", "a b", "me@box", "box/"] {
            assert!(parse_host(host).is_err(), "{host}");
        }
        for origin in ["https://example.org", "http://localhost:3000"] {
            assert_eq!(parse_origin(origin).unwrap(), origin);
        }
        for origin in
            ["https://x/", "https://x/a", "example.org", "*", "https://*.org", "HTTPS://X", "", "null"]
        {
            assert!(parse_origin(origin).is_err(), "{origin}");
        }
    }

    #[test]
    fn the_unspecified_address_is_accepted_where_the_server_listens_on_all() {
        for everywhere in [true, false] {
            let access = Access { everywhere, ..Access::default() };
            let host = header(header::HOST, "0.0.0.0:8080");
            let accepted = access.is_for_this_server(&host, None, "127.0.0.1".parse().unwrap());
            assert_eq!(accepted, everywhere);
        }
    }

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
    fn only_hosts_of_this_server_are_accepted() {
        let access = Access { hosts: vec!["box.lan".into()], ..Access::default() };
        let meant = |host: &str, local: &str| {
            access.is_for_this_server(&header(header::HOST, host), None, local.parse().unwrap())
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
        assert!(!access.is_for_this_server(&HeaderMap::new(), None, "127.0.0.1".parse().unwrap()));

        let other = Authority::from_static("evil.example");
        let local = "127.0.0.1".parse().unwrap();
        assert!(!access.is_for_this_server(&header(header::HOST, "localhost"), Some(&other), local));
    }

    #[test]
    fn short_and_unsendable_keys_are_refused() {
        assert!(ApiKey::new("short").is_err());
        assert!(ApiKey::new("0123456789 abcdef").is_err());
        assert!(ApiKey::new(&format!(" {KEY}\n")).is_ok());
        assert!(!format!("{:?}", ApiKey::new(KEY).unwrap()).contains("0123"));
    }
}
