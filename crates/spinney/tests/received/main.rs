//! Streams by the library.

mod encoded;
mod receive_gone;
mod sent;
mod streams;
