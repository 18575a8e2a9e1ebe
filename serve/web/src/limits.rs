//! Limits on requests and connections.
//!
//! They bound everything that a client makes the server hold. An excess is refused; only an answer's length is cut
//! (`an_answer_is_cut_to_the_room_left_and_a_prompt_never`).

use std::time::Duration;

/// The defaults suit a workstation.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Connections.
    pub connections: usize,
    /// Time of a connection without a request.
    pub idle_time: Duration,
    /// Time of a request's head, from its first byte.
    pub head_time: Duration,
    /// Time of a request's body.
    pub body_time: Duration,
    /// Time of a client that reads nothing.
    pub write_time: Duration,
    /// Time for running answers when the server stops.
    pub drain_time: Duration,
    /// Bytes of a head.
    pub head_bytes: usize,
    /// Lines of a head.
    pub head_lines: usize,
    /// Bytes of a body.
    pub body_bytes: usize,
    /// Bytes of all bodies together; never below those of one.
    pub all_body_bytes: usize,
    /// Depth of a body's JSON.
    pub json_depth: usize,
    /// Messages of a conversation.
    pub messages: usize,
    /// Prompts of a completion.
    pub prompts: usize,
    /// Answers to a prompt.
    pub choices: u64,
    /// Tokens of an answer, within the model's context.
    pub tokens: usize,
    /// Tokens with a bias of a request.
    pub biases: usize,
    /// Stop strings of a request.
    pub stop_strings: usize,
    /// Bytes of a stop string.
    pub stop_bytes: usize,
    /// Waiting sequences.
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
            all_body_bytes: 32 << 20,
            json_depth: 16,
            messages: 512,
            prompts: 8,
            choices: 4,
            tokens: 4096,
            biases: 1024,
            stop_strings: 4,
            stop_bytes: 256,
            queue: 64,
        }
    }
}
