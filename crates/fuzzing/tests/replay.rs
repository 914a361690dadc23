//! Runs the fuzz targets on a stable compiler: each with its seeds, with mutations of them, and
//! with random inputs, which are the same in every run. With `TANDEM_FUZZ_SECONDS` each target
//! continues for that many seconds with new inputs. An input that fails is printed.

use rand::{Rng as _, RngExt as _, SeedableRng as _};
use rand_pcg::Pcg64;
use std::{
    env, fs,
    path::Path,
    thread,
    time::{Duration, Instant},
};

/// Maximum length of a random input, bytes.
const LONGEST: usize = 2000;
/// The variable that sets how long each target runs with new inputs, in seconds.
const SECONDS: &str = "TANDEM_FUZZ_SECONDS";

/// The seeds of a target.
fn seeds(target: &str) -> Vec<Vec<u8>> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds").join(target);
    let mut files: Vec<_> = fs::read_dir(directory).into_iter().flatten().map(|entry| entry.expect("a seed is there").path()).collect();
    files.sort();
    files.iter().map(|file| fs::read(file).expect("a seed can be read")).collect()
}

/// A seed with random truncations, insertions, changes and repetitions.
fn mutate(seed: &[u8], random: &mut Pcg64) -> Vec<u8> {
    let mut bytes = seed.to_vec();
    for _ in 0..random.random_range(1..6) {
        let at = random.random_range(0..=bytes.len());
        match random.random_range(0..5) {
            0 => bytes.truncate(at),
            1 => bytes.insert(at, random.random()),
            2 if at < bytes.len() => bytes[at] = random.random(),
            3 if at < bytes.len() => bytes[at] ^= 1 << random.random_range(0..8),
            _ => {
                let part = bytes[at..bytes.len().min(at + 20)].to_vec();
                let to = random.random_range(0..=bytes.len());
                bytes.splice(to..to, part);
            }
        }
    }
    bytes
}

/// An input of a running target; printed if the target panics.
struct Input<'a> {
    target: &'a str,
    bytes: &'a [u8],
}

impl Drop for Input<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("{} fails on this input: b\"{}\"", self.target, self.bytes.escape_ascii());
        }
    }
}

/// A target and its seeds.
struct TargetReplay {
    name: &'static str,
    target: fn(&[u8]),
    seeds: Vec<Vec<u8>>,
}

impl TargetReplay {
    fn run_once(&self, bytes: &[u8]) {
        let _printed = Input { target: self.name, bytes };
        (self.target)(bytes);
    }

    /// Input `number`: a mutation of each seed in turn, then random bytes.
    fn input(&self, number: usize, random: &mut Pcg64) -> Vec<u8> {
        match self.seeds.get(number % (self.seeds.len() + 1)) {
            Some(seed) => mutate(seed, random),
            None => {
                let mut bytes = vec![0; random.random_range(0..LONGEST)];
                random.fill_bytes(&mut bytes);
                bytes
            }
        }
    }
}

/// Runs a target with its seeds, with `inputs` fixed inputs, and with new inputs for as long as the
/// environment variable says.
fn replay(name: &'static str, target: fn(&[u8]), inputs: usize) {
    let replay = TargetReplay { name, target, seeds: seeds(name) };
    replay.seeds.iter().for_each(|seed| replay.run_once(seed));
    let mut random = Pcg64::seed_from_u64(1);
    (0..inputs).for_each(|number| replay.run_once(&replay.input(number, &mut random)));
    let seconds = env::var(SECONDS).ok().map(|text| text.parse().expect("a number of seconds"));
    let (begun, seconds) = (Instant::now(), Duration::from_secs(seconds.unwrap_or(0)));
    let mut random = Pcg64::seed_from_u64(rand::random());
    let mut number = 0;
    while begun.elapsed() < seconds {
        replay.run_once(&replay.input(number, &mut random));
        number += 1;
    }
    println!("{name}: {} seeds, {inputs} fixed inputs, {number} new ones", replay.seeds.len());
}

macro_rules! targets {
    ($($name:ident: $inputs:expr,)*) => {
        $(#[test]
        fn $name() {
            replay(stringify!($name), fuzzing::$name, $inputs);
        })*

        /// Fails if a target is missing here or in `fuzz/`.
        #[test]
        fn all_targets_are_here() {
            let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/fuzz_targets");
            let mut there: Vec<String> = fs::read_dir(directory).expect("the targets are there").map(|entry| entry.expect("one is there").path())
                .filter_map(|path| Some(path.file_stem()?.to_str()?.to_owned())).collect();
            there.sort();
            let mut here = vec![$(stringify!($name)),*];
            here.sort_unstable();
            assert_eq!(there, here);
            let manifest = include_str!("../../../fuzz/Cargo.toml");
            for name in here {
                assert!(manifest.contains(&format!("path = \"fuzz_targets/{name}.rs\"")), "fuzz/Cargo.toml has no program {name}");
            }
        }
    };
}

targets! {
    bond_handshake: 200,
    handshake: 500,
    exchange: 20,
    frames: 5000,
    greeting: 5000,
    inbound: 2000,
    message: 2000,
    netlink: 5000,
    open_message: 5000,
    outbound: 2000,
    picture: 200,
    probe_messages: 5000,
    segments: 100,
    trace: 200,
}
