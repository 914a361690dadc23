//! The transfers of a scenario of networks in parallel: their classes, sizes and times.
//!
//! Class 0 is the foreground, which the bond splits; class k is the background of network k. Loads
//! count payload: a background's as a part of its own network's rate, the foreground's as a part of
//! the first network's.

use crate::{
    bond_values::MOST_NETWORKS,
    foreground_arrivals::PhaseProcess,
    law::SizeLaw,
    link::Link,
    model::Scenario,
    networks::{Bond, Foreground, ParallelNetwork, TransferScheduler},
    random::{Purpose, stream},
    split::{Buffer, Split},
};
use rand::RngExt;
use rand_pcg::Pcg64;
use units::{Bytes, Span};

/// A scenario's networks in parallel.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Parallel<'a> {
    /// The networks, at least one.
    pub networks: &'a [ParallelNetwork],
    /// The links between the sender and the networks; none if the networks begin at the sender.
    pub links: &'a [Link],
    /// The proxy behind these links, which splits every transfer: its connections over the networks
    /// begin there. None: they begin at the sender.
    pub split: Option<&'a Split>,
    /// The random transfers; absent if the scenario lists its flows instead.
    pub foreground: Option<&'a Foreground>,
    /// How transfers are divided among the networks.
    pub bond: Bond,
}

/// A random transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Job {
    /// 0: the foreground; k: the background of network k.
    pub class: usize,
    /// Time at which it begins.
    pub at: Span,
    /// Its payload.
    pub bytes: Bytes,
}

impl Scenario {
    /// The most networks in parallel.
    pub const MOST_NETWORKS: usize = MOST_NETWORKS;

    /// The networks in parallel; none if the scenario has links in series.
    pub fn parallel(&self) -> Option<Parallel<'_>> {
        let bond = self.bond.filter(|_| !self.networks.is_empty())?;
        let (networks, links, split) = (&self.networks[..], &self.links[..], self.splits.first());
        Some(Parallel { networks, links, split, foreground: self.foreground.as_ref(), bond })
    }
}

impl Parallel<'_> {
    /// Number of classes of transfers.
    pub fn classes(&self) -> usize {
        self.networks.len() + 1
    }

    /// The law of a class's sizes; none for a class without transfers.
    pub fn size(&self, class: usize) -> Option<SizeLaw> {
        let foreground = self.foreground.map(|foreground| foreground.size);
        match class.checked_sub(1) {
            None => foreground,
            Some(network) => self.networks[network].size.or(foreground).filter(|_| self.networks[network].load > 0.0),
        }
    }

    /// The receivers' window of a class, if it is a limit.
    pub fn window(&self, class: usize) -> Option<Bytes> {
        let foreground = self.foreground.and_then(|foreground| foreground.window);
        class.checked_sub(1).and_then(|network| self.networks[network].window).or(foreground)
    }

    /// Offered load of a class, in payload bits a second.
    pub fn work(&self, class: usize) -> f64 {
        let of = |network: usize, load: f64| load * self.networks[network].link.rate.bits_per_s() as f64;
        match class.checked_sub(1) {
            None => of(0, self.foreground.map_or(0.0, |foreground| foreground.load)),
            Some(network) => of(network, self.networks[network].load),
        }
    }

    /// Arrival rate of a class, in transfers a second.
    pub fn arrivals_per_s(&self, class: usize) -> f64 {
        self.size(class).map_or(0.0, |size| self.work(class) / (8.0 * size.mean.0 as f64))
    }

    /// The network, from 0, that the scheduler `single` uses: the one whose own load leaves the largest
    /// rate, the first of equals.
    pub fn best(&self) -> usize {
        let left = |network: usize| self.networks[network].link.rate.bits_per_s() as f64 - self.work(network + 1);
        (0..self.networks.len()).fold(0, |best, network| if left(network) > left(best) { network } else { best })
    }

    /// The part of the foreground that each network gets, if the scheduler fixes it beforehand.
    pub fn parts(&self) -> Option<Vec<f64>> {
        let count = self.networks.len();
        match self.bond.scheduler {
            TransferScheduler::RoundRobin => Some(vec![1.0 / count as f64; count]),
            TransferScheduler::Static => Some(self.bond.fractions.map_or_else(|| self.tail_optimal(), |given| given.as_slice().to_vec())),
            TransferScheduler::Single => Some((0..count).map(|network| f64::from(u8::from(network == self.best()))).collect()),
            _ => None,
        }
    }

    /// Parts in proportion to what each network's own transfers leave of it: the static rule that is
    /// optimal for the tail of the transfer times if the foreground is light (Hoekstra, van der Mei,
    /// Nazarathy and Zwart 2009).
    fn tail_optimal(&self) -> Vec<f64> {
        let left = |network: usize| self.networks[network].link.rate.bits_per_s() as f64 - self.work(network + 1);
        let all: f64 = (0..self.networks.len()).map(left).sum();
        (0..self.networks.len()).map(|network| left(network) / all).collect()
    }

    /// The first network, from 1, that such parts overload, and its load over its rate, at least 1.
    /// Sojourn times then grow without bound.
    pub fn overload(&self) -> Option<(usize, f64)> {
        let parts = self.parts()?;
        let load = |network: usize| {
            let work = self.work(network + 1) + parts[network] * self.work(0);
            work / self.networks[network].link.rate.bits_per_s() as f64
        };
        (0..parts.len()).map(|network| (network + 1, load(network))).find(|(_, load)| *load >= 1.0)
    }

    /// Payload that the proxy before the networks holds at most of a transfer; none: no limit. By
    /// default the larger BDP beside it, at least 256 KiB: that of the links, or of all networks.
    pub fn buffer_limit(&self) -> Option<Bytes> {
        match self.split?.buffer {
            Buffer::Bytes(bytes) => Some(bytes),
            Buffer::Unlimited => None,
            Buffer::Adaptive => Some(Buffer::MOST_ADAPTIVE),
            Buffer::Auto => {
                let rtt = Span(2 * self.links.iter().map(|link| link.delay.0).sum::<u64>());
                let before = self.links.iter().map(|link| link.rate.bytes_in(rtt)).min().unwrap_or_default();
                let bdp = |network: &ParallelNetwork| network.link.rate.bytes_in(network.link.delay * 2).0;
                let behind = Bytes(self.networks.iter().map(bdp).sum());
                Some(before.max(behind).max(Bytes(256 * 1024)))
            }
        }
    }

    /// The random transfers in the order of time: none, or infinitely many. They depend on the seed and
    /// not on the scheduler.
    pub fn jobs(&self, seed: u64) -> Jobs {
        let classes = (0..self.classes()).filter_map(|class| {
            let rate = self.arrivals_per_s(class);
            let size = self.size(class).filter(|_| rate > 0.0)?;
            let [times, sizes] = [Purpose::Arrivals, Purpose::Sizes].map(|purpose| stream(seed, purpose, class as u64));
            let phases = self.foreground.filter(|_| class == 0).and_then(|foreground| foreground.arrivals.phases());
            let mut times = times;
            let phase = phases.map(|phases| PhaseProcess::new(phases, &mut times));
            let mut arrivals = Arrivals { class, rate, size, times, sizes, next_s: 0.0, phase };
            arrivals.wait();
            Some(arrivals)
        });
        Jobs { classes: classes.collect() }
    }
}

/// The future transfers of a class.
#[derive(Debug, Clone)]
struct Arrivals {
    class: usize,
    rate: f64,
    size: SizeLaw,
    times: Pcg64,
    sizes: Pcg64,
    next_s: f64,
    /// Of modulated arrivals.
    phase: Option<PhaseProcess>,
}

impl Arrivals {
    /// Draws the time of the next one.
    fn wait(&mut self) {
        match &mut self.phase {
            Some(phase) => self.next_s = phase.next(self.next_s, self.rate, &mut self.times),
            None => self.next_s -= (1.0 - self.times.random::<f64>()).ln() / self.rate,
        }
    }
}

/// The iterator of [`Parallel::jobs`].
#[derive(Debug, Clone)]
pub struct Jobs {
    classes: Vec<Arrivals>,
}

impl Iterator for Jobs {
    type Item = Job;

    fn next(&mut self) -> Option<Job> {
        let next = self.classes.iter_mut().min_by(|a, b| a.next_s.total_cmp(&b.next_s))?;
        let job = Job { class: next.class, at: Span::from_secs_f64(next.next_s), bytes: next.size.draw(&mut next.sizes) };
        next.wait();
        Some(job)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ScenarioFile;

    const WLANS: &str = include_str!("../tests/two-wlans.toml");

    fn scenario(text: &str) -> Scenario {
        ScenarioFile::parse(text, "two-wlans.toml").unwrap().variants(&[]).unwrap().remove(0).scenario
    }

    /// The key that a wrong text is wrong at, and what is said of it.
    fn wrong(text: &str) -> String {
        let error = ScenarioFile::parse(text, "wrong.toml").expect_err("it is wrong");
        format!("{}: {}", error.key, error.message)
    }

    #[test]
    fn the_whole_schema_is_read() {
        let scenario = scenario(WLANS);
        let parallel = scenario.parallel().unwrap();
        assert_eq!(parallel.bond, Bond { piece: Some(Bytes(32_768)), ..Bond::of(TransferScheduler::RoundRobin) });
        assert_eq!(parallel.window(0), Some(Bytes(8760)));
        assert_eq!(parallel.window(2), Some(Bytes(65_536)));
        assert_eq!(parallel.size(1), parallel.size(0));
        assert_eq!(parallel.size(2).unwrap().mean, Bytes(1_000_000));
        // 0.5 × 5.28 Mbit/s in files of 2 MB, and 0.7 × 10 Mbit/s in files of 1 MB.
        assert!((parallel.arrivals_per_s(0) - 0.165).abs() < 1e-12 && (parallel.arrivals_per_s(2) - 0.875).abs() < 1e-12);
        assert_eq!(parallel.best(), 0, "3.696 Mbit/s are left of the first, 3 of the second");
    }

    #[test]
    fn what_is_printed_is_read_back() {
        let whole = scenario(WLANS);
        let text = toml::to_string(&whole).unwrap();
        assert_eq!(scenario(&text), whole, "{text}");
    }

    #[test]
    fn loads_sweep_and_schedulers_are_cases() {
        let file = ScenarioFile::parse(WLANS, "x").unwrap();
        let variants = file.variants(&["network.1.load=0.1,0.5".parse().unwrap(), "bond.scheduler=fluid,single".parse().unwrap()]).unwrap();
        let seen: Vec<_> =
            variants.iter().map(|variant| (variant.scenario.networks[0].load, variant.scenario.bond.unwrap().scheduler)).collect();
        use TransferScheduler::{Fluid, Single};
        assert_eq!(seen, [(0.1, Fluid), (0.1, Single), (0.5, Fluid), (0.5, Single)]);
    }

    #[test]
    fn jobs_come_in_order_at_the_rates_asked_and_are_the_same_for_every_scheduler() {
        let scenario = scenario(WLANS);
        let parallel = scenario.parallel().unwrap();
        let jobs: Vec<Job> = parallel.jobs(3).take(60_000).collect();
        assert!(jobs.is_sorted_by_key(|job| job.at));
        let time = jobs.last().unwrap().at.secs();
        for class in 0..3 {
            let of: Vec<f64> = jobs.iter().filter(|job| job.class == class).map(|job| job.bytes.0 as f64).collect();
            let (rate, mean) = (of.len() as f64 / time, of.iter().sum::<f64>() / of.len() as f64);
            assert!((rate / parallel.arrivals_per_s(class) - 1.0).abs() < 4.0 / (of.len() as f64).sqrt(), "{class}: {rate}");
            let size = parallel.size(class).unwrap();
            assert!((mean / size.mean.0 as f64 - 1.0).abs() < 4.0 * (size.shape.scv() / of.len() as f64).sqrt(), "{class}: {mean}");
        }
        let other = Scenario { bond: Some(Bond { scheduler: TransferScheduler::Fluid, ..parallel.bond }), ..scenario.clone() };
        assert!(other.parallel().unwrap().jobs(3).take(1000).eq(jobs.iter().copied().take(1000)));
        assert!(!parallel.jobs(4).take(1000).eq(jobs.into_iter().take(1000)));
    }

    #[test]
    fn parts_that_are_settled_beforehand_can_be_too_much() {
        let heavy = scenario(&WLANS.replace("load   = 0.5", "load   = 0.9").replace("load  = 0.3", "load  = 0.6"));
        // 0.6 + 0.9/2
        assert!(heavy.parallel().unwrap().overload().is_some_and(|(network, load)| network == 1 && (load - 1.05).abs() < 1e-12));
        let light = scenario(WLANS);
        assert_eq!(light.parallel().unwrap().overload(), None);
    }

    #[test]
    fn errors_name_key_reason_and_cure() {
        let with = |extra: &str| wrong(&format!("{WLANS}{extra}"));
        let but = |old: &str, new: &str| {
            assert!(WLANS.contains(old), "{old}");
            wrong(&WLANS.replace(old, new))
        };
        insta::assert_snapshot!(with("[[link]]\nrate = \"1Mbit\"\ndelay = \"1ms\"\n"),
            @"link: stands beside a [foreground]: links before the networks carry listed flows; give [[flow]]s instead, or leave [[link]] out");
        insta::assert_snapshot!(with("[[flow]]\nbytes = \"1MB\"\n"),
            @"flow: stands beside a [foreground]: transfers are either listed or random; leave one of them out");
        insta::assert_snapshot!(but("load  = 0.3", "load  = 1.3"),
            @r#"network[1].load: is 1.3, but a network's own load is from 0 to below 1, such as 0.3 or "30%""#);
        insta::assert_snapshot!(but("per_packet = 0.001", "per_packet = 2"),
            @"network[2].loss.per_packet: is 2, but a probability lies between 0 and 1");
        insta::assert_snapshot!(but("load   = 0.5", "load   = 0"),
            @"foreground.load: is 0, but must be above 0: a part of the first network's rate");
        // 1.4 × 5.28 + 0.3 × 5.28 + 0.7 × 10 of 15.28 Mbit/s
        insta::assert_snapshot!(but("load   = 0.5", "load   = 1.4"),
            @"foreground.load: is 1.4, which with the networks' own loads is 1.046 of what all of them carry: transfers would take ever longer; give less than 1 in all");
        insta::assert_snapshot!(but("jobs   = 2000", "jobs   = 10"),
            @"foreground.jobs: is 10, but a mean with an interval takes at least 100");
        insta::assert_snapshot!(but("window = \"8760B\"", "window = \"1kB\""),
            @"foreground.window: is less than one packet: nothing could be sent");
        insta::assert_snapshot!(but("\"round-robin\"", "\"robin\""),
            @r#"bond.scheduler: cannot be "robin": it can be fluid, score, score-paper, round-robin, single, static, redundant, tiers or mptcp"#);
        insta::assert_snapshot!(but("piece", "pice"), @"bond.pice: is not a key here: did you mean piece? The keys are scheduler, piece, queue, alpha, tau, foresight, window, fractions");
        insta::assert_snapshot!(but("32KiB", "0B"), @"bond.piece: is 0: nothing would ever be given out");
        insta::assert_snapshot!(but("[bond]", "[bond]\nqueue = \"0B\""), @"bond.queue: is 0: nothing would ever be given out");
        insta::assert_snapshot!(but("[bond]", "[bond]\nalpha = 1.0"), @"bond.alpha: is 1, but must be from 0 to below 1: how much the past counts");
        insta::assert_snapshot!(but("[bond]", "[bond]\ntau = 0"), @r#"bond.tau: must be above 0: round trips, or a time such as "100ms", over which throughput is measured"#);
        insta::assert_snapshot!(but("\"exponential\"", "\"normal\""),
            @r#"foreground.size: there is no law "normal": law is one of deterministic, exponential, hyperexponential, pareto, lomax, shifted-exponential"#);
        insta::assert_snapshot!(but("[bond]", "[control]\nproxy = \"reno\"\n[bond]"),
            @"control.proxy: is for proxies, but there is none: leave it out, or put a [[split]] between a [[link]] and the networks");
        insta::assert_snapshot!(but("seed = 7", "duration = \"60s\""),
            @"duration: stands beside a [foreground], which ends with its jobs: leave one of them out");
        let fifth = "[[network]]\nrate = \"1Mbit\"\ndelay = \"5ms\"\n".repeat(3) + "[foreground]";
        insta::assert_snapshot!(but("[foreground]", &fifth), @"network[5]: is one too many: there can be 4 networks in parallel");
    }

    #[test]
    fn keys_of_the_topics_for_further_research_are_read_back_and_checked() {
        let text = WLANS
            .replace("load   = 0.5", "load   = 0.5\nweight = 2.5\narrivals = { mmpp = { rates = [4, 1], lasts = [\"10s\", \"40s\"] } }")
            .replace("load  = 0.3", "load  = 0.3\nstreams = { every = \"20s\", lasts = \"60s\", rate = \"500kbit\", most = 8 }")
            .replace("\"round-robin\"", "\"static\"\nfractions = [0.25, 0.75]\ntau = \"100ms\"\nwindow = \"64KiB\"");
        let whole = scenario(&text);
        assert_eq!(scenario(&toml::to_string(&whole).unwrap()), whole);
        let parallel = whole.parallel().unwrap();
        assert_eq!(parallel.parts(), Some(vec![0.25, 0.75]));
        // 0.7 × 5.28 of the first and 0.3 × 10 of the second are left.
        let bond = Bond { fractions: None, ..parallel.bond };
        let parts = Parallel { bond, ..parallel }.parts().unwrap();
        assert!((parts[0] - 3.696 / 6.696).abs() < 1e-12, "{parts:?}");
        // Modulated arrivals keep their rate, and the other classes their times.
        let jobs: Vec<Job> = parallel.jobs(3).take(50_000).collect();
        let rate = jobs.iter().filter(|job| job.class == 0).count() as f64 / jobs.last().unwrap().at.secs();
        assert!((rate / parallel.arrivals_per_s(0) - 1.0).abs() < 0.1, "{rate}");
        let but = |old: &str, new: &str| {
            assert!(text.contains(old), "{old}");
            wrong(&text.replace(old, new))
        };
        insta::assert_snapshot!(but("weight = 2.5", "weight = 0"), @"foreground.weight: is 0, but must be above 0: 1 is fair");
        insta::assert_snapshot!(but("[4, 1]", "[4, 1, 1]"),
            @"foreground.arrivals.mmpp: has 3 rates and 2 lengths: give both for each phase, of which there are at least two");
        insta::assert_snapshot!(but("most = 8", "most = 11"),
            @"network[1].streams.most: is 11, but as many streams of 500kbit do not fit into the network: give fewer");
        insta::assert_snapshot!(but("[0.25, 0.75]", "[0.25, 0.7]"), @"bond.fractions: has the sum 0.95: give fractions from 0 to 1 whose sum is 1");
        insta::assert_snapshot!(but("\"static\"", "\"score\""),
            @r#"bond.fractions: is for scheduler = "static" only: leave it out, or take that scheduler"#);
        insta::assert_snapshot!(but("window = \"64KiB\"", "window = \"32KiB\""),
            @"bond.window: holds less than two pieces, so that one network would wait for the other: give at least 64KiB");
    }

    #[test]
    fn the_score_of_the_paper_is_a_preset() {
        let preset = Bond::of(TransferScheduler::ScorePaper);
        let settings = preset.settings().unwrap();
        assert_eq!((settings.piece, settings.queue, settings.lookahead), (Bytes(1460), Bytes(65_536), Span::ZERO));
        assert!(settings.scheduler == bond::Scheduler::Score && !settings.foresight && !settings.probes);
        // Its sizes can be changed.
        let larger = Bond { piece: Some(Bytes(4096)), queue: Some(Bytes(8192)), ..preset }.settings().unwrap();
        assert_eq!((larger.piece, larger.queue), (Bytes(4096), Bytes(8192)));
    }

    #[test]
    fn what_is_missing_is_said() {
        let Some((networks, rest)) = WLANS.split_once("[foreground]") else { panic!("it has one") };
        let (loaded, idle) = (networks, networks.replace("load  = 0.3", ""));
        let flow = "[bond]\nscheduler = \"fluid\"\n[[flow]]\nbytes = \"1MB\"\n";
        insta::assert_snapshot!(wrong(&format!("{loaded}{flow}")),
            @"network[1].size: is absent, and there is no [foreground] to take it from: give the size of the transfers that make up the load");
        insta::assert_snapshot!(wrong(&idle),
            @r#"bond: is missing: say how transfers are divided, as in [bond] scheduler = "score""#);
        insta::assert_snapshot!(wrong(&format!("{idle}[bond]\nscheduler = \"fluid\"\n")),
            @"flow: is missing, and so is [foreground]: networks in parallel carry one or the other");
        insta::assert_snapshot!(wrong(&format!("{idle}{flow}access_delay = \"1ms\"\n")),
            @"flow[1].access_delay: is a delay on the first link, but networks in parallel have no links: give the networks their delays");
        insta::assert_snapshot!(wrong(&format!("name = \"x\"\n[foreground]{rest}")),
            @"foreground: is for networks in parallel, but there is no [[network]]: add some, or leave [foreground] out");
        let given = scenario(&format!("{idle}{flow}"));
        assert!(given.parallel().is_some_and(|parallel| parallel.foreground.is_none() && parallel.arrivals_per_s(0) == 0.0));
    }

    #[test]
    fn links_and_a_proxy_stand_before_the_networks() {
        let of = |more: &str| {
            let network = "[[network]]\nrate = \"10Mbit\"\ndelay = \"50ms\"\n".repeat(2);
            let text = format!("name = \"x\"\n[[flow]]\nbytes = \"1MB\"\n[bond]\nscheduler = \"score\"\n{network}{more}");
            ScenarioFile::parse(&text, "x").map_err(|error| format!("{}: {}", error.key, error.message))
        };
        let link = "[[link]]\nrate = \"100Mbit\"\ndelay = \"10ms\"\n";
        let split = "[[split]]\nafter = 1\n";
        let scenario = of(&format!("{link}{split}")).unwrap().variants(&[]).unwrap().remove(0).scenario;
        let parallel = scenario.parallel().unwrap();
        assert_eq!((parallel.links.len(), parallel.split.map(|split| split.after)), (1, Some(1)));
        // 250 kB of the link, 125 kB of each network.
        assert_eq!(parallel.buffer_limit(), Some(Bytes(256 * 1024)));
        let far = of(&format!("{}{split}", link.replace("10ms", "40ms"))).unwrap().variants(&[]).unwrap().remove(0).scenario;
        assert_eq!(far.parallel().unwrap().buffer_limit(), Some(Bytes(1_000_000)));
        assert_eq!(of(link).unwrap().variants(&[]).unwrap()[0].scenario.parallel().unwrap().buffer_limit(), None);
        insta::assert_snapshot!(of(split).unwrap_err(),
            @"split: stands between links and networks in parallel, but there is no [[link]]: add one, or leave [[split]] out");
        insta::assert_snapshot!(of(&format!("{link}{link}{split}")).unwrap_err(),
            @"split[1].after: is 1, but beside networks in parallel a proxy stands behind the last link: give 2");
        insta::assert_snapshot!(of(&format!("{link}{split}{split}")).unwrap_err(),
            @"split[2]: is one too many: one proxy stands between links and networks in parallel");
    }
}
