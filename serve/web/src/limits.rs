//! Limits on the sizes and times of requests and connections.
//!
//! Everything that a client can make the server hold has a limit in number and time. An excess is refused, never cut
//! (`a_prompt_with_its_answer_must_fit_the_context_and_is_never_cut`).

use std::time::Duration;

/// Bounds on requests, connections and the queue. The defaults suit a single workstation.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Open connections. One more displaces the one idle for longest, or is closed if all have requests.
    pub connections: usize,
    /// Time until a connection without a request is closed.
    pub idle_time: Duration,
    /// Time from the first byte of a request's head to its last.
    pub head_time: Duration,
    /// Time until a request's body is complete.
    pub body_time: Duration,
    /// Time after which a client that reads nothing is disconnected.
    pub write_time: Duration,
    /// Time for running answers once the server is stopping.
    pub drain_time: Duration,
    /// Bytes of a request's head.
    pub head_bytes: usize,
    /// Lines of a request's head.
    pub head_lines: usize,
    /// Bytes of a request's body.
    pub body_bytes: usize,
    /// Nesting depth of a body's JSON.
    pub json_depth: usize,
    /// Messages of a conversation.
    pub messages: usize,
    /// Prompts of one completion request.
    pub prompts: usize,
    /// Answers to one prompt.
    pub choices: u64,
    /// Tokens of one answer; the model's context limits them too.
    pub tokens: usize,
    /// Stop strings of one request.
    pub stop_strings: usize,
    /// Bytes of one stop string.
    pub stop_bytes: usize,
    /// Waiting sequences; requests beyond get a 429.
    pub queue: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 1024,
            idle_time: Duration::from_secs(75),
            head_time: Duration::from_secs(15),
            body_time: Duration::from_secs(30),
            write_time: Duration::from_secs(30),
            drain_time: Duration::from_secs(30),
            head_bytes: 16 << 10,
            head_lines: 64,
            body_bytes: 1 << 20,
            json_depth: 16,
            messages: 512,
            prompts: 8,
            choices: 4,
            tokens: 4096,
            stop_strings: 4,
            stop_bytes: 256,
            queue: 64,
        }
    }
}
