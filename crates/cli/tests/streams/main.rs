//! Send and receive, on images and mounts.

#[path = "../common/mod.rs"]
mod common;

mod encoded;
mod receive;
mod receive_calls;
mod receive_served;
mod send;
mod send_turns;
mod sent_held;
