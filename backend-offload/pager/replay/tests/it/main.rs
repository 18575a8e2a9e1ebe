//! Properties of the pager on recorded training steps.

mod ahead;
mod disk;
mod pace;
mod steps;
mod streamed;
