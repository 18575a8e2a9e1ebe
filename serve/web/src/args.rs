//! Command-line arguments of a server.

use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;

use anyhow::Context;
use clap::builder::RangedU64ValueParser;

use crate::access::ApiKey;
use crate::limits::Limits;
use crate::web::Settings;

const KEY_VARIABLE: &str = "SPILLWAY_API_KEY";

/// Where and for whom to serve.
#[derive(Debug, Clone, clap::Args)]
pub struct ServerArgs {
    /// Address to listen on. Any that other machines reach needs an API key, and a proxy with TLS in front of it.
    #[arg(long, default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST))]
    host: IpAddr,
    /// Port to listen on; 0 takes any that is free.
    #[arg(long, default_value_t = 8080)]
    port: u16,
    /// File with the API key that every route but `/health` asks for. `SPILLWAY_API_KEY` in the environment does the same.
    #[arg(long, value_name = "FILE")]
    api_key_file: Option<PathBuf>,
    /// A further name by which requests may call this server; may be repeated.
    #[arg(long, value_name = "NAME")]
    allow_host: Vec<String>,
    /// An origin, such as `https://example.org`, whose pages may ask this server; may be repeated.
    #[arg(long, value_name = "ORIGIN")]
    allow_origin: Vec<String>,
    /// Answers that may wait for a place before clients are told to come back later.
    #[arg(long, default_value_t = Limits::default().queue, value_parser = at_least_one())]
    queue: usize,
    /// Tokens an answer may have at most.
    #[arg(long, default_value_t = Limits::default().tokens, value_parser = at_least_one())]
    max_tokens: usize,
    /// Connections at once; further ones are closed.
    #[arg(long, default_value_t = Limits::default().connections, value_parser = at_least_one())]
    max_connections: usize,
}

fn at_least_one() -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(1..=1 << 20)
}

impl ServerArgs {
    /// The settings, with the key read from its file or the environment.
    pub fn settings(&self) -> anyhow::Result<Settings> {
        let key = match &self.api_key_file {
            Some(path) => {
                let text = fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
                Some(ApiKey::new(&text).with_context(|| format!("{} holds no key", path.display()))?)
            }
            None => match std::env::var_os(KEY_VARIABLE) {
                Some(text) => Some(ApiKey::new(&text.to_string_lossy()).context(KEY_VARIABLE)?),
                None => None,
            },
        };
        Ok(Settings {
            host: self.host,
            port: self.port,
            key,
            hosts: self.allow_host.clone(),
            origins: self.allow_origin.clone(),
            limits: Limits {
                queue: self.queue,
                tokens: self.max_tokens,
                connections: self.max_connections,
                ..Limits::default()
            },
        })
    }
}
