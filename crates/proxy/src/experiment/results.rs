//! What an experiment has shown so far: counts of both groups, round trips, and times by client,
//! size class and destination prefix, in bounded memory.

use super::{
    clients::{ByClient, ClientTimes, MANY_PREFIXES, PlaceKey, SOME_PREFIXES, prefix_of},
    connections::{Ended, Event},
    estimate::{Gain, compare, has_unlike_ends},
    log_times::LogTimes,
};
use crate::measure::SIZES;
use intercept::Group;
use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use std::{
    collections::{HashMap, hash_map::Entry},
    net::IpAddr,
    ops::Range,
    time::Duration,
};

/// The most destination prefixes. The one that was used the longest ago makes room for a new one.
const PREFIXES: usize = 256;
/// The most clients of single destination prefixes, of all together. The prefix that was used the
/// longest ago makes room.
const CLIENTS: usize = 12 << 10;

/// Connections of one group.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct GroupCounts {
    /// Connections that began.
    pub begun: u64,
    /// Connections that ended with all answered, and have a time.
    pub complete: u64,
    /// Connections that ended without payload.
    pub empty: u64,
    /// Connections that a reset ended, or that the client closed without an answer.
    pub reset: u64,
    /// Connections of which nothing was seen for too long.
    pub unfinished: u64,
    /// Connections whose SYN was not answered.
    pub unanswered: u64,
    /// Connections of which an end acknowledged what was not sent, or of which the client has
    /// acknowledged more than the proxy has relayed. They have no time.
    #[serde(default)]
    pub suspicious: u64,
    /// Connections of which packets, or the proxy's count of their bytes, were lost. They have no
    /// time.
    #[serde(default)]
    pub missed: u64,
}

/// What the view shows of one group.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct GroupView {
    /// `unsplit` or `split`.
    pub group: String,
    /// How its connections have ended.
    #[serde(flatten)]
    pub counts: GroupCounts,
    /// Connections that are open.
    pub open: u64,
    /// Geometric mean of the handshake's round trip on the client's side, seconds.
    pub near_rtt_s: Option<f64>,
    /// The same on the server's side; absent for split connections: the proxy
    /// answers their handshake.
    pub far_rtt_s: Option<f64>,
}

/// The comparison of both groups, for a size class and a destination prefix.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ExperimentRow {
    /// The destination prefix; absent: all destinations.
    pub prefix: Option<String>,
    /// The size class; absent: all, of which only like ones are compared.
    pub size: Option<String>,
    /// Connections with a time, of the group that passes unsplit.
    pub unsplit: u64,
    /// Of the group that is split.
    pub split: u64,
    /// Of the group that passes unsplit, those that are compared: of size classes in which both
    /// groups have two.
    #[serde(default)]
    pub compared_unsplit: u64,
    /// Of the group that is split.
    #[serde(default)]
    pub compared_split: u64,
    /// Clients of the connections that are compared, at least.
    #[serde(default)]
    pub clients: u64,
    /// Prefixes of these clients, /24 or /48, at least.
    #[serde(default)]
    pub client_prefixes: u64,
    /// More connections of one group have a time than of the other, and not by chance. The times
    /// are then of different kinds of connections. Known of rows of all sizes.
    #[serde(default)]
    pub unlike_ends: bool,
    /// Geometric mean time of unsplit connections, seconds; absent if a group has fewer than two.
    pub unsplit_s: Option<f64>,
    /// Of the group that is split.
    pub split_s: Option<f64>,
    /// How many times as long unsplit connections took; absent if a group has fewer than two.
    pub gain: Option<Gain>,
}

/// Connections to a destination prefix.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
struct OfPrefix {
    clients: ByClient,
    /// The number of the last connection.
    last: u64,
}

/// How it was measured, by all processes that took over from each other.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Course {
    /// A hash of the settings that were compared.
    settings: u64,
    /// For how long earlier processes have measured, seconds.
    pub(super) measured_s: f64,
    /// How often packets were lost before they were read.
    pub(super) lost: u64,
    /// Connections that earlier processes did not follow, because there were too many.
    pub(super) left_out: u64,
}

/// The results so far.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Results {
    #[serde(default)]
    course: Course,
    /// Chooses the places of clients.
    key: PlaceKey,
    counts: [GroupCounts; 2],
    /// Round trips of handshakes on the client's side, by group.
    near: [LogTimes; 2],
    /// On the server's side, of unsplit connections.
    far: LogTimes,
    all: ByClient,
    #[serde(with = "as_list")]
    prefixes: HashMap<IpNet, OfPrefix>,
    ended: u64,
}

impl Results {
    /// No results yet, with settings of this hash.
    pub(super) fn with(settings: u64) -> Self {
        Results { course: Course { settings, ..Course::default() }, ..Results::default() }
    }

    /// The hash of the settings.
    pub(super) fn settings(&self) -> u64 {
        self.course.settings
    }

    pub(super) fn course(&self) -> Course {
        self.course
    }

    /// Packets were lost before they were read.
    pub(super) fn lose(&mut self) {
        self.course.lost += 1;
    }

    /// Prepares them for the next process. `open`: connections of which this one has not seen the
    /// end, and the next one not the beginning.
    pub(super) fn pass_on(&mut self, measured: Duration, left_out: u64, open: impl Fn(Group) -> u64) {
        self.course.measured_s += measured.as_secs_f64();
        self.course.left_out += left_out;
        for group in Group::ALL {
            self.counts[group as usize].unfinished += open(group);
        }
    }

    /// Whether nothing was measured.
    pub(crate) fn is_empty(&self) -> bool {
        self.counts.iter().all(|counts| counts.begun == 0)
    }

    /// Adds what was seen of a connection of this group.
    pub(super) fn add(&mut self, group: Group, event: Event) {
        let counts = &mut self.counts[group as usize];
        match event {
            Event::Began => counts.begun += 1,
            Event::Near(time) => self.near[group as usize].add(time.as_secs_f64()),
            Event::Far(time) => self.far.add(time.as_secs_f64()),
            Event::Ended { client, server, how } => {
                let time = match how {
                    Ended::Complete { bytes, time } => Some((size_class(bytes), time.as_secs_f64())),
                    _ => None,
                };
                *match how {
                    Ended::Complete { .. } => &mut counts.complete,
                    Ended::Empty => &mut counts.empty,
                    Ended::Reset => &mut counts.reset,
                    Ended::Unfinished => &mut counts.unfinished,
                    Ended::Unanswered => &mut counts.unanswered,
                    Ended::Suspicious => &mut counts.suspicious,
                    Ended::Missed => &mut counts.missed,
                } += 1;
                self.add_end(group, client, server, time);
            }
        }
    }

    /// Adds a connection that has ended: its size class and its time in seconds, if it has one.
    fn add_end(&mut self, group: Group, client: IpAddr, server: IpAddr, time: Option<(usize, f64)>) {
        self.ended += 1;
        self.all.add((self.key, MANY_PREFIXES), client, group, time);
        let prefix = prefix_of(server);
        if time.is_some() && self.prefixes.len() >= PREFIXES && !self.prefixes.contains_key(&prefix) {
            self.forget_oldest();
        }
        let of = match (self.prefixes.entry(prefix), time) {
            (Entry::Occupied(known), _) => known.into_mut(),
            (Entry::Vacant(place), Some(_)) => place.insert(OfPrefix::default()),
            // A scan of many destinations must not take the places of those with times.
            (Entry::Vacant(_), None) => return,
        };
        if time.is_some() {
            of.last = self.ended;
        }
        of.clients.add((self.key, SOME_PREFIXES), client, group, time);
        while self.prefixes.len() > 1 && self.prefixes.values().map(|of| of.clients.len()).sum::<usize>() > CLIENTS {
            self.forget_oldest();
        }
    }

    /// Forgets the destination prefix that was used the longest ago.
    fn forget_oldest(&mut self) {
        let oldest = self.prefixes.iter().min_by_key(|(_, of)| of.last).map(|(prefix, _)| *prefix);
        oldest.map(|oldest| self.prefixes.remove(&oldest));
    }

    /// The views of both groups, of which so many connections are open.
    pub(super) fn groups(&self, open: impl Fn(Group) -> u64) -> Vec<GroupView> {
        let view = |group: Group| GroupView {
            group: group.name().into(),
            counts: self.counts[group as usize],
            open: open(group),
            near_rtt_s: self.near[group as usize].geometric_mean(),
            far_rtt_s: self.far.geometric_mean().filter(|_| group == Group::Unsplit),
        };
        Group::ALL.map(view).into()
    }

    /// The comparisons: of all destinations together and by size class, then of each prefix, those
    /// with the most connections first.
    pub(super) fn rows(&self) -> Vec<ExperimentRow> {
        let mut rows = rows_of(None, &self.all);
        let mut prefixes: Vec<_> =
            self.prefixes.iter().map(|(prefix, of)| (rows_of(Some(prefix.to_string()), &of.clients), prefix)).collect();
        let count = |rows: &[ExperimentRow]| rows.first().map_or(0, |row| row.unsplit + row.split);
        prefixes.sort_by(|(a, net_a), (b, net_b)| count(b).cmp(&count(a)).then(net_a.cmp(net_b)));
        rows.extend(prefixes.into_iter().flat_map(|(rows, _)| rows));
        rows
    }
}

/// The class of so much payload.
fn size_class(bytes: u64) -> usize {
    SIZES.iter().position(|(_, bound)| bytes < *bound).unwrap_or(SIZES.len() - 1)
}

/// The row of all sizes, then those of the sizes that occurred; none if no connection has a time.
fn rows_of(prefix: Option<String>, clients: &ByClient) -> Vec<ExperimentRow> {
    let clients: Vec<&ClientTimes> = clients.clients().collect();
    let row = |size: Option<&str>, sizes: Range<usize>| {
        let count =
            |group: Group| clients.iter().flat_map(|of| &of.times[sizes.clone()]).map(|pair| pair[group as usize].count()).sum::<u64>();
        let compared = compare(&clients, sizes.clone());
        let [compared_unsplit, compared_split] = compared.map_or([0; 2], |compared| compared.counts);
        ExperimentRow {
            prefix: prefix.clone(),
            size: size.map(str::to_owned),
            unsplit: count(Group::Unsplit),
            split: count(Group::Split),
            compared_unsplit,
            compared_split,
            clients: compared.map_or(0, |compared| compared.clients),
            client_prefixes: compared.map_or(0, |compared| compared.prefixes),
            unlike_ends: size.is_none() && has_unlike_ends(&clients),
            unsplit_s: compared.map(|compared| compared.times[Group::Unsplit as usize]),
            split_s: compared.map(|compared| compared.times[Group::Split as usize]),
            gain: compared.map(|compared| compared.gain),
        }
    };
    let of_size = |(index, (name, _)): (usize, &(&str, u64))| row(Some(name), index..index + 1);
    let sizes = SIZES.iter().enumerate().map(of_size).filter(|row| row.unsplit + row.split > 0);
    std::iter::once(row(None, 0..SIZES.len())).chain(sizes).collect()
}

/// The prefixes as a list, since keys of JSON objects are texts.
mod as_list {
    use super::{HashMap, IpNet, OfPrefix};
    use serde::{Deserialize as _, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(map: &HashMap<IpNet, OfPrefix>, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(map)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<HashMap<IpNet, OfPrefix>, D::Error> {
        Ok(Vec::<(IpNet, OfPrefix)>::deserialize(deserializer)?.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complete(server: &str, bytes: u64, seconds: f64) -> Event {
        let [client, server] = ["192.0.2.1", server].map(|address| address.parse().unwrap());
        Event::Ended { client, server, how: Ended::Complete { bytes, time: Duration::from_secs_f64(seconds) } }
    }

    fn ended(how: Ended) -> Event {
        let [client, server] = ["192.0.2.1", "198.51.100.7"].map(|address| address.parse().unwrap());
        Event::Ended { client, server, how }
    }

    #[test]
    fn times_are_compared_by_size_and_by_prefix() {
        let mut results = Results::default();
        for (server, slower) in [("192.0.2.7", 2.0), ("192.0.2.200", 2.0), ("2001:db8:1:2::3", 4.0)] {
            for jitter in [0.9, 1.0, 1.1] {
                results.add(Group::Unsplit, complete(server, 5_000, slower * jitter));
                results.add(Group::Split, complete(server, 5_000, jitter));
            }
        }
        results.add(Group::Split, complete("192.0.2.7", 20_000_000, 9.0));
        let rows = results.rows();
        let names: Vec<_> = rows.iter().map(|row| (row.prefix.as_deref(), row.size.as_deref(), row.unsplit, row.split)).collect();
        assert_eq!(
            names,
            [
                (None, None, 9, 10),
                (None, Some("<10kB"), 9, 9),
                (None, Some(">=10MB"), 0, 1),
                (Some("192.0.2.0/24"), None, 6, 7),
                (Some("192.0.2.0/24"), Some("<10kB"), 6, 6),
                (Some("192.0.2.0/24"), Some(">=10MB"), 0, 1),
                (Some("2001:db8:1::/48"), None, 3, 3),
                (Some("2001:db8:1::/48"), Some("<10kB"), 3, 3),
            ]
        );
        let ratio = |row: &ExperimentRow| row.gain.unwrap().ratio;
        assert!((ratio(&rows[4]) - 2.0).abs() < 1e-9 && (ratio(&rows[7]) - 4.0).abs() < 1e-9);
        // Large transfers of one group alone change nothing.
        assert_eq!((rows[3].gain, rows[2].gain), (rows[4].gain, None));
        let compared: Vec<_> = rows[..4].iter().map(|row| (row.compared_unsplit, row.compared_split)).collect();
        assert_eq!(compared, [(9, 9), (9, 9), (0, 0), (6, 6)]);
        let json = serde_json::to_string(&results).unwrap();
        assert_eq!(serde_json::from_str::<Results>(&json).unwrap().rows(), rows);
    }

    #[test]
    fn a_new_prefix_replaces_the_one_that_was_used_the_longest_ago() {
        let mut results = Results::default();
        let server = |number: usize| format!("10.{}.{}.1", number / 256, number % 256);
        for number in 0..PREFIXES {
            results.add(Group::Split, complete(&server(number), 100, 1.0));
        }
        results.add(Group::Split, complete(&server(0), 100, 1.0));
        results.add(Group::Split, complete(&server(PREFIXES), 100, 1.0));
        let known = |number: usize| results.prefixes.contains_key(&prefix_of(server(number).parse().unwrap()));
        assert_eq!(results.prefixes.len(), PREFIXES);
        assert!(known(0) && !known(1) && known(PREFIXES));
        assert_eq!(results.rows()[0].split as usize, PREFIXES + 2, "all destinations count on");
    }

    #[test]
    fn results_pass_to_the_next_process() {
        let mut results = Results::with(7);
        results.add(Group::Split, Event::Began);
        results.add(Group::Split, Event::Began);
        results.lose();
        results.pass_on(Duration::from_secs(60), 3, |group| if group == Group::Split { 2 } else { 0 });
        let json = serde_json::to_string(&results).unwrap();
        let mut next: Results = serde_json::from_str(&json).unwrap();
        assert_eq!((next.settings(), next.course().lost, next.course().left_out), (7, 1, 3));
        assert_eq!(next.groups(|_| 0)[Group::Split as usize].counts, GroupCounts { begun: 2, unfinished: 2, ..GroupCounts::default() });
        next.pass_on(Duration::from_secs(30), 0, |_| 0);
        assert_eq!(next.course().measured_s, 90.0);
    }

    #[test]
    fn a_scan_of_destinations_takes_no_place_of_those_with_times() {
        let mut results = Results::default();
        results.add(Group::Split, complete("10.0.0.1", 100, 1.0));
        for net in 0..=255 {
            let [client, server] = ["192.0.2.1".into(), format!("10.1.{net}.1")].map(|address: String| address.parse().unwrap());
            results.add(Group::Split, Event::Ended { client, server, how: Ended::Unanswered });
        }
        assert_eq!((results.prefixes.len(), results.all.len()), (1, 1));
    }

    #[test]
    fn the_number_of_clients_is_bounded() {
        let mut results = Results::default();
        for number in 0..200_000u32 {
            let client = IpAddr::from((10 << 24 | number.wrapping_mul(2_654_435_761) >> 8).to_be_bytes());
            let server = format!("10.1.{}.1", number % 100).parse().unwrap();
            results.add(Group::Split, Event::Ended { client, server, how: Ended::Complete { bytes: 7, time: Duration::from_secs(1) } });
        }
        let of_prefixes: usize = results.prefixes.values().map(|of| of.clients.len()).sum();
        assert!(results.all.len() <= 8192 && of_prefixes <= CLIENTS, "{} and {of_prefixes}", results.all.len());
        assert_eq!(results.rows()[0].split, 200_000);
    }

    #[test]
    fn groups_are_counted() {
        let mut results = Results::default();
        results.add(Group::Unsplit, Event::Began);
        results.add(Group::Unsplit, Event::Far(Duration::from_millis(20)));
        results.add(Group::Unsplit, Event::Near(Duration::from_millis(600)));
        results.add(Group::Unsplit, ended(Ended::Reset));
        let [unsplit, split] = &results.groups(|_| 3)[..] else { panic!() };
        assert_eq!((unsplit.counts.begun, unsplit.counts.reset, unsplit.open), (1, 1, 3));
        assert!((unsplit.near_rtt_s.unwrap() - 0.6).abs() < 1e-9 && (unsplit.far_rtt_s.unwrap() - 0.02).abs() < 1e-9);
        assert_eq!((split.far_rtt_s, split.near_rtt_s), (None, None));
    }
}
