//! A picture worker for the tests of this crate. Its arguments are those that the cache appends.

use std::{env, process::ExitCode};

fn main() -> ExitCode {
    let numbers: Vec<u64> = env::args().skip(1).filter_map(|argument| argument.parse().ok()).collect();
    let [quality, most_pixels, cpu_seconds] = numbers[..] else { return ExitCode::from(2) };
    let Ok(quality) = u8::try_from(quality) else { return ExitCode::from(2) };
    match cache::picture_worker::run(cache::shrink::ShrinkOptions { quality, most_pixels }, cpu_seconds) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}
