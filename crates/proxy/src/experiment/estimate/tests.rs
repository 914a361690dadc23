use super::super::log_times::LogTimes;
use super::*;
use crate::measure::SIZES;
use proptest::prelude::*;
use rand::SeedableRng as _;
use rand_pcg::Pcg64;

/// All size classes.
const ALL: Range<usize> = 0..SIZES.len();

/// A client of a prefix, with times of both groups in one size class.
fn client(prefix: u16, size: usize, unsplit: &[f64], split: &[f64]) -> ClientTimes {
    let mut of = ClientTimes { prefix, ..ClientTimes::default() };
    of.times[size] = [LogTimes::of(unsplit.iter().copied()), LogTimes::of(split.iter().copied())];
    of.ended = [unsplit.len() as u64, split.len() as u64];
    of
}

fn compared(clients: &[ClientTimes]) -> Option<Comparison> {
    compare(&clients.iter().collect::<Vec<_>>(), ALL)
}

fn gain(clients: &[ClientTimes]) -> Option<Gain> {
    compared(clients).map(|compared| compared.gain)
}

/// A number with a standard normal distribution, by the sum of twelve uniform ones.
fn normal(random: &mut Pcg64) -> f64 {
    (0..12).map(|_| random.random::<f64>()).sum::<f64>() - 6.0
}

#[test]
fn the_gain_is_the_ratio_of_geometric_means() {
    let one = [client(0, 1, &[2.0, 8.0, 4.0], &[1.0, 4.0, 2.0])];
    let found = compared(&one).unwrap();
    assert!((found.gain.ratio - 2.0).abs() < 1e-12, "{found:?}");
    // R: t.test(log(c(2,8,4)), log(c(1,4,2)))$conf.int is -0.8782 … 2.2645.
    assert!((found.gain.low.ln() + 0.8782).abs() < 1e-3 && (found.gain.high.ln() - 2.2645).abs() < 1e-3, "{found:?}");
    assert!((found.times[0] - 4.0).abs() < 1e-12 && (found.times[1] - 2.0).abs() < 1e-12);
    assert_eq!((found.counts, found.clients, found.prefixes), ([3, 3], 1, 1));
}

#[test]
fn a_group_with_one_time_has_no_gain() {
    assert_eq!(gain(&[client(0, 1, &[2.0], &[1.0, 2.0])]), None);
    assert_eq!(gain(&[]), None);
    let same = gain(&[client(0, 1, &[2.0, 2.0], &[1.0, 1.0])]).unwrap();
    assert_eq!((same.low, same.high), (same.ratio, same.ratio));
}

#[test]
fn a_class_that_one_group_has_more_of_does_not_count_as_gain() {
    // Split and unsplit take the same time, and only the split group has many large transfers.
    let mut one = client(0, 1, &[1.0, 1.1, 0.9, 1.0], &[1.0, 1.1, 0.9]);
    one.times[4] = client(0, 4, &[99.0, 101.0], &[98.0, 102.0, 100.0, 99.0, 101.0, 100.0]).times[4];
    let found = gain(&[one]).unwrap();
    assert!((found.ratio - 1.0).abs() < 0.02, "{found:?}");
}

#[test]
fn the_largest_value_has_its_share_at_most() {
    let share = |values: &[f64], share: f64| {
        let most = largest(values, share);
        let limited: Vec<f64> = values.iter().map(|value| value.min(most)).collect();
        limited.iter().copied().fold(0.0, f64::max) / limited.iter().sum::<f64>()
    };
    let mut values = vec![1.0; 100];
    values[7] = 400.0;
    values[8] = 90.0;
    assert!((share(&values, 0.05) - 0.05).abs() < 1e-9, "{}", share(&values, 0.05));
    // Of eight, one and a half times the equal share.
    assert!((share(&[1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 400.0], 0.05) - 0.1875).abs() < 1e-9);
    assert_eq!(largest(&[3.0, 4.0], 0.05), 5.25, "two are not limited");
    assert!((share(&[5.0; 20], 0.05) - 0.05).abs() < 1e-9, "equal ones are not limited");
}

/// Honest clients whose connections gain e^0.8, with client effects and heavy tails.
fn honest(random: &mut Pcg64, number: u16, connections: std::ops::RangeInclusive<u32>) -> Vec<ClientTimes> {
    let one = |index| {
        let (mut of, effect) = (ClientTimes { prefix: index / 2, ..ClientTimes::default() }, 0.5 * normal(random));
        for _ in 0..random.random_range(connections.clone()) {
            let (size, group) = (random.random_range(1..4usize), usize::from(random.random::<bool>()));
            let tail = if random.random_range(0..20) == 0 { 1.5 } else { 0.0 };
            let time = size as f64 + effect + 0.5 * normal(random) + tail + if group == 0 { 0.8 } else { 0.0 };
            of.times[size][group].add(time.exp());
            of.ended[group] += 1;
        }
        of
    };
    (0..number).map(one).collect()
}

#[test]
fn four_hundred_connections_of_one_client_do_not_decide() {
    let mut random = Pcg64::seed_from_u64(3);
    let mut covered = 0;
    for _ in 0..100 {
        let mut clients = honest(&mut random, 30, 4..=8);
        let alone = gain(&clients).unwrap();
        // Slow when it is split, fast when it is not.
        let mut attacker = ClientTimes { prefix: 99, ..ClientTimes::default() };
        (0..200).for_each(|_| attacker.times[2][1].add(900.0));
        (0..200).for_each(|_| attacker.times[2][0].add(0.001));
        clients.push(attacker);
        let attacked = gain(&clients).unwrap();
        assert!(attacked.low < alone.ratio && alone.ratio < attacked.high, "{alone:?} {attacked:?}");
        covered += u32::from(attacked.low <= 0.8f64.exp() && 0.8f64.exp() <= attacked.high);
        // Its weight is 1.5/31 of a group, and its times are ten times the median at most, or three
        // deviations.
        assert!((attacked.ratio / alone.ratio).ln().abs() < 0.8, "{alone:?} {attacked:?}");
    }
    assert!(covered >= 90, "{covered} of 100");
}

#[test]
fn a_size_class_of_one_client_does_not_decide() {
    let mut random = Pcg64::seed_from_u64(3);
    let mut clients = honest(&mut random, 30, 4..=8);
    let alone = gain(&clients).unwrap();
    let (fast, slow) = ([0.001; 200], [900.0; 200]);
    clients.push(client(99, 4, &fast, &slow));
    let attacked = gain(&clients).unwrap();
    assert!((attacked.ratio / alone.ratio).ln().abs() < 0.1, "{alone:?} {attacked:?}");
}

#[test]
fn all_clients_of_one_prefix_do_not_decide() {
    let mut random = Pcg64::seed_from_u64(3);
    let mut clients = honest(&mut random, 40, 4..=8);
    let alone = gain(&clients).unwrap();
    clients.extend((0..16).map(|_| client(99, 2, &[0.1; 50], &[90.0; 50])));
    let attacked = gain(&clients).unwrap();
    assert!(attacked.low < alone.ratio && alone.ratio < attacked.high, "{alone:?} {attacked:?}");
    assert!((attacked.ratio / alone.ratio).ln().abs() < 0.9, "{alone:?} {attacked:?}");
}

/// The true gain in the simulations.
const TRUE_GAIN: f64 = 0.8;

/// In how many of these experiments the interval holds the true gain, and its mean width as a
/// ratio.
fn coverage(seed: u64, experiments: u32, clients: u16, connections: std::ops::RangeInclusive<u32>) -> (u32, f64) {
    let mut random = Pcg64::seed_from_u64(seed);
    let (mut covered, mut widths) = (0, 0.0);
    for _ in 0..experiments {
        let found = gain(&honest(&mut random, clients, connections.clone())).unwrap();
        covered += u32::from(found.low.ln() <= TRUE_GAIN && TRUE_GAIN <= found.high.ln());
        widths += (found.high / found.low).ln() / f64::from(experiments);
    }
    (covered, widths.exp())
}

/// A simulation of experiments without an attack. Welch's interval alone, which takes each
/// connection by itself, holds the true gain in 95 % of them.
#[test]
fn intervals_cover_the_gain_about_as_often_as_they_say() {
    for (clients, connections, range) in [
        (1, 100..=100, 930..=970),
        (3, 40..=60, 930..=970),
        (8, 10..=30, 940..=1000),
        (20, 5..=20, 940..=1000),
        (20, 1..=200, 930..=1000),
        (200, 1..=4, 930..=985),
    ] {
        let (covered, width) = coverage(5, 1000, clients, connections.clone());
        println!("{clients} clients with {connections:?} connections: {covered} of 1000, width {width:.3}");
        assert!(range.contains(&covered), "{clients} clients: {covered} of 1000");
    }
}

#[test]
fn groups_that_end_differently_are_not_comparable() {
    let of = |ended: [u64; 2], timed: [usize; 2]| {
        let mut of = client(0, 1, &vec![1.0; timed[0]], &vec![1.0; timed[1]]);
        of.ended = ended;
        of
    };
    let unlike = |clients: &[ClientTimes]| has_unlike_ends(&clients.iter().collect::<Vec<_>>());
    assert!(!unlike(&[of([100, 100], [90, 85])]) && unlike(&[of([100, 100], [90, 50])]));
    assert!(!unlike(&[of([3, 2], [0, 2])]), "it may be chance");
    assert!(!unlike(&[]) && !unlike(&[of([0, 50], [0, 50])]));
    // One client that keeps only what it likes has no such weight.
    let mut clients = vec![of([10, 10], [9, 9]); 40];
    clients.push(of([1000, 1000], [1000, 0]));
    assert!(!unlike(&clients));
}

proptest! {
    /// Whatever one client's connections are, what the others show is in the interval, and the
    /// estimate moves by no more than the weight of the client.
    #[test]
    fn one_client_moves_the_estimate_by_its_weight_at_most(
        seed in 0..1000u64,
        honest_clients in 12..60u16,
        times in prop::collection::vec((0..5usize, 0..2usize, -13.0..12.0f64, 1..100usize), 1..8),
    ) {
        let mut random = Pcg64::seed_from_u64(seed);
        let mut clients = honest(&mut random, honest_clients, 4..=8);
        let Some(alone) = gain(&clients) else { return Ok(()) };
        let mut attacker = ClientTimes { prefix: 999, ..ClientTimes::default() };
        for (size, group, logarithm, count) in times {
            (0..count).for_each(|_| attacker.times[size][group].add(logarithm.exp()));
        }
        clients.push(attacker);
        let attacked = gain(&clients).unwrap();
        prop_assert!(attacked.low <= alone.ratio && alone.ratio <= attacked.high, "{:?} {:?}", alone, attacked);
        let share = CLIENT_SHARE.max(FEW / f64::from(honest_clients + 1));
        // The range of the honest times is wider than ten times the median.
        let range = 2.0 * 6.0 * LEAST_RATIO.ln();
        prop_assert!((attacked.ratio / alone.ratio).ln().abs() <= share * range, "{:?} {:?}", alone, attacked);
    }
}
