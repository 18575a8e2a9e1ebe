//! A server's command line.

use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use clap::builder::RangedU64ValueParser;

use crate::access::ApiKey;
use crate::limits::Limits;
use crate::web::Settings;

/// Environment variable with the API key.
pub const KEY_VARIABLE: &str = "SPILLWAY_API_KEY";

/// Command-line options of a server.
#[derive(Debug, Clone, clap::Args)]
pub struct ServerArgs {
    /// Address to listen on. Any other than loopback needs an API key, and should have a TLS proxy in front.
    #[arg(long, default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST))]
    host: IpAddr,
    /// Port to listen on; 0 picks a free one.
    #[arg(long, default_value_t = 8080)]
    port: u16,
    /// File with the API key that every route but `/health` requires; by default `SPILLWAY_API_KEY` in the environment.
    #[arg(long, value_name = "FILE")]
    api_key_file: Option<PathBuf>,
    /// Additional host name to accept; may be repeated.
    #[arg(long, value_name = "NAME")]
    allow_host: Vec<String>,
    /// Origin whose pages may use this server, such as `https://example.org`; may be repeated.
    #[arg(long, value_name = "ORIGIN")]
    allow_origin: Vec<String>,
    /// Answers that may wait for a slot; requests beyond get a 429.
    #[arg(long, default_value_t = Limits::default().queue, value_parser = at_least_one())]
    queue: usize,
    /// Maximum number of tokens of an answer.
    #[arg(long, default_value_t = Limits::default().tokens, value_parser = at_least_one())]
    max_tokens: usize,
    /// Maximum number of connections. One more closes the connection idle for longest, or is closed itself if all have
    /// requests.
    #[arg(long, default_value_t = Limits::default().connections, value_parser = at_least_one())]
    max_connections: usize,
    /// Seconds until a connection without a request is closed; more than a proxy keeps its own.
    #[arg(long, value_name = "SECONDS", default_value_t = Limits::default().idle_time.as_secs() as usize, value_parser = at_least_one())]
    idle_time: usize,
}

fn at_least_one() -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(1..=1 << 20)
}

impl ServerArgs {
    /// Builds the settings; the key is from its file or the environment.
    pub fn settings(&self) -> anyhow::Result<Settings> {
        let key = match &self.api_key_file {
            Some(path) => {
                warn_of_readers(path);
                let text = fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
                Some(ApiKey::new(&text).with_context(|| format!("{} holds no key", path.display()))?)
            }
            None => match std::env::var_os(KEY_VARIABLE).filter(|text| !text.is_empty()) {
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
                idle_time: Duration::from_secs(self.idle_time as u64),
                ..Limits::default()
            },
        })
    }
}

/// Not refused: container secrets are readable by all.
#[cfg(unix)]
fn warn_of_readers(key: &Path) {
    use std::os::unix::fs::PermissionsExt;
    if fs::metadata(key).is_ok_and(|file| file.permissions().mode() & 0o044 != 0) {
        let path = key.display();
        tracing::warn!(
            "other users of this machine may read the API key; `chmod 600 {path}` makes it private"
        );
    }
}

#[cfg(not(unix))]
fn warn_of_readers(_key: &Path) {}
