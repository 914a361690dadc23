//! Bytes that both ends know.

pub(crate) use testbed::Payload;
