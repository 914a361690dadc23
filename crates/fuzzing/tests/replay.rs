//! The fuzz targets on a stable compiler: each with its seeds, with inputs that are made from them,
//! and with random ones; always the same.

use rand::{Rng as _, RngExt as _, SeedableRng as _};
use rand_pcg::Pcg64;
use std::{fs, path::Path};

/// The longest input.
const LONGEST: usize = 2000;

/// The seeds of a target.
fn seeds(target: &str) -> Vec<Vec<u8>> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds").join(target);
    let mut files: Vec<_> = fs::read_dir(directory).into_iter().flatten().map(|entry| entry.expect("a seed is there").path()).collect();
    files.sort();
    files.iter().map(|file| fs::read(file).expect("a seed can be read")).collect()
}

/// A seed that is cut, repeated, and changed here and there.
fn changed(seed: &[u8], random: &mut Pcg64) -> Vec<u8> {
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

/// Runs a target on its seeds, and on so many inputs more.
fn replay(name: &str, target: fn(&[u8]), inputs: usize) {
    let (seeds, mut random) = (seeds(name), Pcg64::seed_from_u64(1));
    seeds.iter().for_each(|seed| target(seed));
    for input in 0..inputs {
        let bytes = match seeds.get(input % (seeds.len() + 1)) {
            Some(seed) => changed(seed, &mut random),
            None => {
                let mut bytes = vec![0; random.random_range(0..LONGEST)];
                random.fill_bytes(&mut bytes);
                bytes
            }
        };
        target(&bytes);
    }
}

macro_rules! targets {
    ($($name:ident: $inputs:expr,)*) => {
        $(#[test]
        fn $name() {
            replay(stringify!($name), fuzzing::$name, $inputs);
        })*

        /// A target that is not tried here, or not fuzzed, is forgotten.
        #[test]
        fn all_targets_are_here() {
            let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/fuzz_targets");
            let mut there: Vec<String> = fs::read_dir(directory).expect("the targets are there").map(|entry| entry.expect("one is there").path())
                .filter_map(|path| Some(path.file_stem()?.to_str()?.to_owned())).collect();
            there.sort();
            let mut here = vec![$(stringify!($name)),*];
            here.sort_unstable();
            assert_eq!(there, here);
        }
    };
}

targets! {
    call: 5000,
    handshake: 500,
    exchange: 20,
    frames: 5000,
    greeting: 5000,
    hello: 200,
    inbound: 2000,
    message: 2000,
    netlink: 5000,
    outbound: 2000,
    picture: 200,
    segments: 100,
    trace: 200,
    words: 5000,
}
