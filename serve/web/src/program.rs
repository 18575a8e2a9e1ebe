//! A server as a complete program.

use std::io::IsTerminal;
use std::net::{IpAddr, SocketAddr, UdpSocket};

use tracing_subscriber::EnvFilter;

use crate::signals::Signals;
use crate::web::{Settings, Web};
use crate::worker::InferenceWorker;

/// Logs a line per request to standard error; `RUST_LOG=warn` leaves warnings and errors.
pub fn init_logging() {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_unset| EnvFilter::new("info"));
    let coloured = std::io::stderr().is_terminal();
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_ansi(coloured).with_target(false);
    let log = log.with_writer(std::io::stderr);
    let _other = log.try_init();
}

/// Prints the address and serves until a termination signal or the end of `work`.
pub fn run(
    settings: Settings,
    work: impl FnOnce(InferenceWorker) -> anyhow::Result<()> + Send + 'static,
) -> anyhow::Result<()> {
    // Before the address is known.
    let mut signals = Signals::listen()?;
    let mut server = Web::start(settings, work)?;
    for address in reachable(server.address()) {
        println!("http://{address}");
    }
    server.wait(&mut signals);
    server.end_at_next_signal(signals);
    eprintln!("ending; answers under way may finish, and a second signal ends at once");
    server.stop()
}

fn reachable(listening: SocketAddr) -> Vec<String> {
    let (ip, port) = (listening.ip(), listening.port());
    if !ip.is_unspecified() {
        return vec![listening.to_string()];
    }
    let lan = route_address(ip).filter(|address| !address.is_loopback() && !address.is_unspecified());
    let lan = lan.map(|address| SocketAddr::new(address, port).to_string());
    [format!("localhost:{port}")].into_iter().chain(lan).collect()
}

/// The address used towards another network. Connecting a UDP socket sends nothing.
fn route_address(unspecified: IpAddr) -> Option<IpAddr> {
    // Reserved for documentation.
    let elsewhere = if unspecified.is_ipv4() { "192.0.2.1:9" } else { "[2001:db8::1]:9" };
    let socket = UdpSocket::bind((unspecified, 0)).ok()?;
    socket.connect(elsewhere).ok()?;
    Some(socket.local_addr().ok()?.ip())
}
