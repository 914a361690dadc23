//! What a message's fields say.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| cache::strange::message(bytes));
