//! Metrics in Prometheus' text format.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use axum::http::StatusCode;

use crate::engine::Counter;

const PREFIX: &str = "spillway_";

#[derive(Debug, Default)]
pub(crate) struct Total(AtomicU64);

impl Total {
    pub(crate) fn add(&self, count: usize) {
        self.0.fetch_add(count as u64, Relaxed);
    }

    pub(crate) fn value(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

#[derive(Debug, Default)]
pub(crate) struct Gauge(AtomicUsize);

impl Gauge {
    pub(crate) fn set(&self, value: usize) {
        self.0.store(value, Relaxed);
    }

    pub(crate) fn add(&self, count: usize) {
        self.0.fetch_add(count, Relaxed);
    }

    pub(crate) fn sub(&self, count: usize) {
        self.0.fetch_sub(count, Relaxed);
    }

    pub(crate) fn value(&self) -> usize {
        self.0.load(Relaxed)
    }
}

/// In seconds.
const BOUNDS: [f64; 12] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 60.0];

#[derive(Debug, Default)]
pub(crate) struct Histogram {
    buckets: [AtomicU64; BOUNDS.len()],
    count: AtomicU64,
    micros: AtomicU64,
}

impl Histogram {
    pub(crate) fn observe(&self, time: Duration) {
        let seconds = time.as_secs_f64();
        if let Some(at) = BOUNDS.iter().position(|bound| seconds <= *bound) {
            self.buckets[at].fetch_add(1, Relaxed);
        }
        self.count.fetch_add(1, Relaxed);
        self.micros.fetch_add(time.as_micros() as u64, Relaxed);
    }

    fn write(&self, out: &mut String, name: &str, help: &str) {
        write_head(out, name, help, "histogram");
        let mut below = 0;
        for (bound, bucket) in BOUNDS.iter().zip(&self.buckets) {
            below += bucket.load(Relaxed);
            write_line(out, name, &format!("_bucket{{le=\"{bound}\"}}"), below as f64);
        }
        let count = self.count.load(Relaxed) as f64;
        write_line(out, name, "_bucket{le=\"+Inf\"}", count);
        write_line(out, name, "_sum", self.micros.load(Relaxed) as f64 / 1e6);
        write_line(out, name, "_count", count);
    }
}

#[derive(Debug, Default)]
pub(crate) struct Metrics {
    requests: Mutex<BTreeMap<(String, u16), u64>>,
    /// As last published by the inference thread.
    engine: Mutex<Vec<Counter>>,
    pub(crate) request_time: Histogram,
    /// From arrival to a slot.
    pub(crate) queued: Histogram,
    /// From arrival to the first token.
    pub(crate) first_token: Histogram,
    pub(crate) prompt_tokens: Total,
    pub(crate) cached_tokens: Total,
    pub(crate) generated_tokens: Total,
    pub(crate) steps: Total,
    pub(crate) cancelled: Total,
    pub(crate) panics: Total,
    pub(crate) active: Gauge,
    pub(crate) connections: Gauge,
    pub(crate) refused_connections: Total,
    pub(crate) dismissed_connections: Total,
}

impl Metrics {
    /// `route` is a router's pattern: labels are bounded.
    pub(crate) fn request(&self, route: &str, status: StatusCode, time: Duration) {
        let mut requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        *requests.entry((route.to_owned(), status.as_u16())).or_default() += 1;
        drop(requests);
        self.request_time.observe(time);
    }

    pub(crate) fn publish(&self, counters: Vec<Counter>) {
        *self.engine.lock().unwrap_or_else(PoisonError::into_inner) = counters;
    }

    pub(crate) fn memory(&self) -> BTreeMap<&'static str, f64> {
        let counters = self.engine.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes = counters.iter().filter(|counter| !counter.total && counter.name.ends_with("_bytes"));
        bytes.map(|counter| (counter.name, counter.value)).collect()
    }

    pub(crate) fn page(&self, waiting: usize, body_bytes: usize) -> String {
        let mut out = String::new();
        write_head(&mut out, "requests_total", "Requests answered, by route and status.", "counter");
        for ((route, status), count) in &*self.requests.lock().unwrap_or_else(PoisonError::into_inner) {
            let labels = format!("{{route=\"{route}\",status=\"{status}\"}}");
            write_line(&mut out, "requests_total", &labels, *count as f64);
        }

        let totals = [
            ("prompt_tokens_total", "Tokens of prompts.", &self.prompt_tokens),
            (
                "cached_prompt_tokens_total",
                "Prompt tokens reused from earlier requests.",
                &self.cached_tokens,
            ),
            ("generated_tokens_total", "Tokens generated.", &self.generated_tokens),
            ("steps_total", "Steps of the batch; each brings every sequence a token.", &self.steps),
            ("cancelled_total", "Sequences whose client left before their end.", &self.cancelled),
            ("panics_total", "Panics during inference.", &self.panics),
            ("refused_connections_total", "Connections beyond the limit.", &self.refused_connections),
            (
                "dismissed_connections_total",
                "Connections without a request that made room for others.",
                &self.dismissed_connections,
            ),
        ];
        for (name, help, total) in totals {
            write_single(&mut out, name, help, "counter", total.value() as f64);
        }

        let gauges = [
            ("queue_length", "Sequences that wait for a place.", waiting),
            ("active_sequences", "Sequences being continued.", self.active.value()),
            ("connections", "Open connections.", self.connections.value()),
            ("body_bytes", "Bytes of request bodies being read.", body_bytes),
        ];
        for (name, help, value) in gauges {
            write_single(&mut out, name, help, "gauge", value as f64);
        }

        self.request_time.write(&mut out, "request_seconds", "From a request's head to its answer's head.");
        self.queued.write(&mut out, "queue_seconds", "From a request to a place in the engine.");
        self.first_token.write(&mut out, "first_token_seconds", "From a request to its first token.");
        for Counter { name, help, total, value } in
            &*self.engine.lock().unwrap_or_else(PoisonError::into_inner)
        {
            write_single(&mut out, name, help, if *total { "counter" } else { "gauge" }, *value);
        }
        out
    }
}

fn write_head(out: &mut String, name: &str, help: &str, kind: &str) {
    let _infallible = write!(out, "# HELP {PREFIX}{name} {help}\n# TYPE {PREFIX}{name} {kind}\n");
}

fn write_line(out: &mut String, name: &str, rest: &str, value: f64) {
    let _infallible = writeln!(out, "{PREFIX}{name}{rest} {value}");
}

fn write_single(out: &mut String, name: &str, help: &str, kind: &str, value: f64) {
    write_head(out, name, help, kind);
    write_line(out, name, "", value);
}
