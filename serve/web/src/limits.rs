//! How much one client may ask for, and how long it may take.

use std::time::Duration;

/// Bounds on requests, connections and the queue. The defaults suit one machine on a desk.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Connections at once. A further one takes the place of whoever has asked nothing for longest; where all have
    /// requests, it is closed unanswered.
    pub connections: usize,
    /// Time until a request's head is complete, also on a connection that waits for its next request.
    pub head_time: Duration,
    /// Time until a request's body is complete.
    pub body_time: Duration,
    /// A client that takes nothing for so long is disconnected.
    pub write_time: Duration,
    /// Time for answers under way when the server is asked to end.
    pub drain_time: Duration,
    /// Bytes of a request's head.
    pub head_bytes: usize,
    /// Lines of a request's head.
    pub head_lines: usize,
    /// Bytes of a request's body.
    pub body_bytes: usize,
    /// Brackets within brackets in a body.
    pub json_depth: usize,
    /// Turns of a conversation.
    pub messages: usize,
    /// Prompts of one request for completions.
    pub prompts: usize,
    /// Answers to one prompt.
    pub choices: u64,
    /// Tokens of one answer, besides the model's context.
    pub tokens: usize,
    /// Stop strings of one request.
    pub stop_strings: usize,
    /// Bytes of each.
    pub stop_bytes: usize,
    /// Sequences that wait; requests beyond are told to come back.
    pub queue: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 1024,
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
