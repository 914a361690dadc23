//! A scenario file: its text, its cases, and changes from the command line. Errors name the line
//! and the key.

use crate::{
    assignment::{Assignment, set},
    attached_files::{AttachedFiles, OpenFile},
    model::{Interval, Scenario},
    set_value::SetValue,
};
use schemars::{JsonSchema, Schema, generate::SchemaSettings, json_schema};
use serde::Deserialize;
use std::{collections::BTreeMap, io, sync::Arc};
use toml::{Table, Value};
use toml_file::{Fault, FileError, from_one, place, under};

/// The most variants that are kept in memory together.
const MOST_VARIANTS: usize = 100_000;
/// The most bytes that they take.
const MOST_MEMORY: u64 = 1 << 30;

/// A scenario file that has been parsed and checked, with all its cases.
#[derive(Debug, Clone)]
pub struct ScenarioFile {
    files: AttachedFiles,
    origin: String,
    text: String,
    /// The file without its cases.
    base: Table,
    cases: Vec<Case>,
}

/// A variant of the file. All variants are played, unless `--case` selects some.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Case {
    /// Name of the case in tables, and for `--case`.
    name: String,
    /// Keys that differ from the file, with their values: `{ "control.proxy" = "bbr", split = []
    /// }`. Members of a list are counted from 1: `"link.2.rate"`; `"split.*.buffer"` is the key of
    /// all of them.
    #[serde(default)]
    #[schemars(with = "std::collections::BTreeMap<String, serde_json::Value>")]
    set: Table,
}

/// A scenario with the changes of a case and of the command line.
#[derive(Debug, Clone, PartialEq)]
pub struct Variant {
    /// The case's name and the swept values; empty if there are none.
    pub case: String,
    /// The scenario to play.
    pub scenario: Scenario,
    /// The keys that the command line changed, with their values.
    pub set: BTreeMap<String, SetValue>,
}

impl Variant {
    /// A scenario without changes, as the case of this name.
    pub fn new(case: impl Into<String>, scenario: Scenario) -> Self {
        Variant { case: case.into(), scenario, set: BTreeMap::new() }
    }
}

impl ScenarioFile {
    /// As [`parse_with`](Self::parse_with), of a scenario that names no other files.
    ///
    /// # Errors
    /// As there, or the scenario names a file.
    pub fn parse(text: &str, origin: &str) -> Result<Self, FileError> {
        let refuse = |_: &str| Err(io::Error::new(io::ErrorKind::Unsupported, "this scenario cannot name other files"));
        ScenarioFile::parse_with(text, origin, Arc::new(refuse))
    }

    /// Parses `text`; errors call the file `origin`. Every case is checked too. `open` opens the
    /// files that the scenario names, such as the traces of links.
    ///
    /// # Errors
    /// The text is not TOML, or not a scenario that can be played, by itself or in one of its
    /// cases.
    pub fn parse_with(text: &str, origin: &str, open: Arc<OpenFile>) -> Result<Self, FileError> {
        let files = AttachedFiles::new(open);
        let mut base = toml_file::table(text, origin)?;
        let cases = base.remove("case");
        // The file itself first: an error in it must not be hidden by one in its cases, nor be
        // blamed on them.
        let scenario = scenario_of(&base, &files).map_err(|fault| place(text, origin, &fault))?;
        scenario.check_ends_of_intervals(&[]).map_err(|fault| place(text, origin, &fault))?;
        let cases = cases.map_or(Ok(Vec::new()), |cases| toml_file::deserialize::<Vec<Case>>(cases, |_| &[])).map_err(|fault| {
            let path = under("case", &fault.path);
            // Without the path of the list serde's message has been explained as one of the whole
            // file.
            let message = if fault.path.is_empty() { "has to be a list of tables: write [[case]] for each".into() } else { fault.message };
            place(text, origin, &Fault::new(path, message))
        })?;
        let file = ScenarioFile { files, origin: origin.into(), text: text.into(), base, cases };
        file.variants(&[])?;
        Ok(file)
    }

    /// The scenarios of the file with the changes `sets`: every case with every combination of the
    /// values.
    ///
    /// # Errors
    /// A change makes the scenario wrong, or is of a key that does not exist.
    pub fn variants(&self, sets: &[Assignment]) -> Result<Vec<Variant>, FileError> {
        self.variants_of_cases(sets, |_| true)
    }

    /// The scenarios of the cases that `names` select, with the changes `sets`. A name selects the
    /// variants that have it, or that begin with it and a comma: `"end to end"` selects `"end to
    /// end, control.sender=reno"`. Other cases need not work with these changes. All cases if there
    /// are no names; no variant if a name selects nothing.
    ///
    /// # Errors
    /// As [`variants`](Self::variants), of the selected cases.
    pub fn select(&self, sets: &[Assignment], names: &[String]) -> Result<Vec<Variant>, FileError> {
        let covers = |name: &str, case: &str| case.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with(", "));
        let may_match = |case: &str| case.is_empty() || names.iter().any(|name| covers(name, case) || covers(case, name));
        let variants = self.variants_of_cases(sets, |case| names.is_empty() || may_match(case))?;
        if names.iter().any(|name| !variants.iter().any(|variant| covers(name, &variant.case))) {
            return Ok(Vec::new());
        }
        let is_wanted = |variant: &Variant| names.is_empty() || names.iter().any(|name| covers(name, &variant.case));
        Ok(variants.into_iter().filter(is_wanted).collect())
    }

    /// Passes the scenarios of the case with exactly this name (absent: of all cases), with the
    /// changes `sets`, to `found`, one after the other: not all of a large study need to fit into
    /// memory. None: the file has no such case.
    ///
    /// # Errors
    /// As [`variants`](Self::variants), of this case.
    pub fn each_variant(&self, name: Option<&str>, sets: &[Assignment], found: &mut dyn FnMut(Variant)) -> Result<(), FileError> {
        self.each_of_cases(sets, |case| name.is_none_or(|name| case == name), &mut |variant| {
            found(variant);
            Ok(())
        })
    }

    /// The names of the file's cases.
    pub fn case_names(&self) -> Vec<String> {
        self.cases.iter().map(|case| case.name.clone()).collect()
    }

    fn variants_of_cases(&self, sets: &[Assignment], is_wanted: impl Fn(&str) -> bool) -> Result<Vec<Variant>, FileError> {
        self.variants_within(MOST_MEMORY, sets, is_wanted)
    }

    /// As [`variants_of_cases`](Self::variants_of_cases), with at most this many bytes in all.
    fn variants_within(&self, most: u64, sets: &[Assignment], is_wanted: impl Fn(&str) -> bool) -> Result<Vec<Variant>, FileError> {
        let cases = self.cases.iter().filter(|case| is_wanted(&case.name)).count().max(1);
        let of_case = sets.iter().map(|assignment| assignment.values().len());
        let count = of_case.fold(cases, usize::saturating_mul);
        if count > MOST_VARIANTS {
            let factors: Vec<String> = sets.iter().map(|assignment| assignment.values().len().to_string()).collect();
            return Err(self.whole(format!(
                "has {count} variants (cases: {cases}, values of --set: {}), but at most {MOST_VARIANTS} are played at once: \
                 give fewer values, choose a --case, or play parts one after the other",
                if factors.is_empty() { "none".to_owned() } else { factors.join(" × ") }
            )));
        }
        let (mut variants, mut bytes) = (Vec::new(), 0);
        self.each_of_cases(sets, is_wanted, &mut |variant| {
            bytes += variant.scenario.memory();
            variants.push(variant);
            if bytes <= most {
                return Ok(());
            }
            Err(self.whole(format!(
                "has {count} variants, the first {} of which take {} MiB of memory, mostly for changes and steps of links: give shorter \
                 files of steps, fewer values, or choose a --case",
                variants.len(),
                bytes >> 20
            )))
        })?;
        Ok(variants)
    }

    /// An error of the whole file.
    fn whole(&self, message: String) -> FileError {
        FileError { origin: self.origin.clone(), line: None, key: String::new(), message, excerpt: None }
    }

    fn each_of_cases(
        &self,
        sets: &[Assignment],
        is_wanted: impl Fn(&str) -> bool,
        found: &mut dyn FnMut(Variant) -> Result<(), FileError>,
    ) -> Result<(), FileError> {
        let plain = scenario_of(&self.base, &self.files).map_err(|fault| place(&self.text, &self.origin, &fault))?;
        let no_case = [Case { name: String::new(), set: Table::new() }];
        for (index, case) in if self.cases.is_empty() { &no_case[..] } else { &self.cases }.iter().enumerate() {
            if !is_wanted(&case.name) {
                continue;
            }
            let mut table = self.base.clone();
            let mut changes: Vec<(&String, &Value)> = case.set.iter().collect();
            // In the order of the keys: a table is set before the keys inside it ("split" before
            // "split.1.buffer"), in whatever order the case lists them.
            changes.sort_by_key(|(key, _)| *key);
            for (key, value) in changes {
                set(&mut table, key, value.clone()).map_err(|fault| self.at_case(index, &fault))?;
            }
            let scenario = scenario_of(&table, &self.files).map_err(|fault| self.at_case(index, &fault))?;
            scenario.check_ends_of_intervals(&[]).map_err(|fault| self.at_case(index, &fault))?;
            if sets.is_empty() {
                found(Variant::new(&case.name, if case.set.is_empty() { plain.clone() } else { scenario }))?;
            } else {
                sweep((&table, &self.files), &case.name, &scenario.intervals, sets, found)?;
            }
        }
        Ok(())
    }

    /// The error of a change that case `index` makes.
    fn at_case(&self, index: usize, fault: &Fault) -> FileError {
        let name = &self.cases[index].name;
        let mut error = place(&self.text, &self.origin, &Fault::new(format!("case[{index}].set"), fault.message.clone()));
        error.message = format!("in case {name:?}, {}: {}", from_one(&fault.path), fault.message);
        error
    }
}

/// Passes on a variant for every combination of the values of `sets`. `written` are the intervals
/// before these changes.
fn sweep(
    (table, files): (&Table, &AttachedFiles),
    case: &str,
    written: &[Interval],
    sets: &[Assignment],
    found: &mut dyn FnMut(Variant) -> Result<(), FileError>,
) -> Result<(), FileError> {
    let combinations = sets.iter().try_fold(1, |product: usize, assignment| product.checked_mul(assignment.values().len()));
    let Some(combinations) = combinations else {
        let fault = Fault::new("", "has more combinations of values than can be counted: give fewer values");
        return Err(from_set(case, &[], &fault));
    };
    for number in 0..combinations {
        let (mut table, mut rest) = (table.clone(), number);
        let mut names: Vec<String> = if case.is_empty() { vec![] } else { vec![case.into()] };
        let (mut made, mut values) = (Vec::new(), BTreeMap::new());
        // The last assignment varies fastest, as a reader of the command line expects.
        for (after, assignment) in sets.iter().enumerate() {
            let inner: usize = sets[after + 1..].iter().map(|assignment| assignment.values().len()).product();
            let value = &assignment.values()[rest / inner];
            rest %= inner;
            let shown = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            made.push(format!("{}={shown}", assignment.key()));
            if assignment.values().len() > 1 {
                names.push(format!("{}={shown}", assignment.key()));
            }
            set(&mut table, assignment.key(), value.clone()).map_err(|fault| from_set(case, &made, &fault))?;
            values.insert(assignment.key().to_owned(), SetValue::from(value));
        }
        let scenario = scenario_of(&table, files).map_err(|fault| from_set(case, &made, &fault))?;
        scenario.check_ends_of_intervals(written).map_err(|fault| from_set(case, &made, &fault))?;
        for assignment in sets {
            scenario.check_override(assignment.key()).map_err(|fault| from_set(case, &made, &fault))?;
        }
        found(Variant { case: names.join(", "), scenario, set: values })?;
    }
    Ok(())
}

fn scenario_of(table: &Table, files: &AttachedFiles) -> Result<Scenario, Fault> {
    let mut scenario: Scenario = toml_file::deserialize(Value::Table(table.clone()), hint)?;
    files.attach_to(&mut scenario)?;
    scenario.check()?;
    Ok(scenario)
}

/// The keys that may be meant by a word for the same thing.
fn hint(written: &str) -> &'static [&'static str] {
    match written {
        "bandwidth" | "bitrate" | "speed" | "throughput" | "bw" => &["rate"],
        "latency" | "propagation" => &["delay"],
        "rtt" | "ping" | "round_trip" => &["delay, which is one way: half of the round trip"],
        "buffer" | "queue_size" | "queue_limit" => &["queue", "limit"],
        "plr" | "loss_rate" | "per_packet" | "per_second" | "gilbert" => &["loss = { per_packet = 0.001 }"],
        "size" | "volume" | "length" | "amount" => &["bytes", "limit"],
        "flows" | "number" | "n" | "connections" => &["count"],
        "cc" | "congestion" | "congestion_control" => &["control"],
        "description" | "title" => &["about"],
        "time" | "runtime" => &["duration"],
        "position" | "link" => &["after"],
        "depends" | "depends_on" | "requires" => &["needs"],
        "near" | "client" | "server" => &["sender"],
        "far" => &["proxy"],
        _ => &[],
    }
}

/// The error of changes `made` to `case`, whose name is empty if the file has no cases.
fn from_set(case: &str, made: &[String], fault: &Fault) -> FileError {
    let of_case = if case.is_empty() { String::new() } else { format!(" (case {case:?})") };
    FileError {
        origin: format!("--set {}{of_case}", made.join(" --set ")),
        line: None,
        key: from_one(&fault.path),
        message: fault.message.clone(),
        excerpt: None,
    }
}

/// The JSON Schema of a scenario file, from which the reference page of its keys is generated. The
/// descriptions are the doc comments of the fields.
pub fn schema() -> Schema {
    let mut generator = SchemaSettings::draft2020_12().into_generator();
    let mut cases = json_schema!({ "type": "array", "items": generator.subschema_for::<Case>() });
    cases.insert("description".into(), "Variants of the file, which are played side by side. None: the file as it is.".into());
    let mut schema = generator.into_root_schema_for::<Scenario>();
    schema.insert("title".into(), "Scenario file".into());
    if let Some(properties) = schema.get_mut("properties").and_then(serde_json::Value::as_object_mut) {
        properties.insert("case".into(), cases.to_value());
    }
    schema
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Buffer, Draw, Loss, Opens};
    use units::{Bytes, Rate, Span};

    const SATELLITE: &str = include_str!("../tests/satellite.toml");

    fn wrong(text: &str) -> String {
        ScenarioFile::parse(text, "wrong.toml").expect_err("it is wrong").to_string()
    }

    #[test]
    fn the_whole_schema_is_read() {
        let file = ScenarioFile::parse(SATELLITE, "satellite.toml").unwrap();
        let variants = file.variants(&[]).unwrap();
        assert_eq!(variants.iter().map(|variant| variant.case.as_str()).collect::<Vec<_>>(), ["end to end", "cubic"]);
        assert!(variants[0].scenario.splits.is_empty());
        let scenario = &variants[1].scenario;
        assert_eq!(scenario.links[1].rate, Rate(10_000_000));
        assert_eq!(scenario.links[1].loss.forward, Some(Loss::PerPacket(0.01)));
        assert_eq!(scenario.splits[0].buffer, Buffer::Bytes(Bytes(30_000)));
        assert_eq!(scenario.control.proxy, ["cubic"]);
        assert_eq!(scenario.flows[0].start, Draw::Uniform([Span::ZERO, Span(5_000_000_000)]));
        assert_eq!(scenario.flows[0].opens, Opens::Receiver);
        assert_eq!(scenario.base_rtt(scenario.legs()[1]), Span(800_000_000));
        // 10 Mbit/s × 0.8 s
        assert_eq!(scenario.queue_size(1), units::QueueSize::Bytes(Bytes(1_000_000)));
        assert_eq!(variants[0].scenario.queue_size(1), units::QueueSize::Bytes(Bytes(1_012_500)), "unsplit, the leg is the whole path");
    }

    #[test]
    fn the_same_seed_draws_the_same_times() {
        let scenario = &ScenarioFile::parse(SATELLITE, "x").unwrap().variants(&[]).unwrap()[0].scenario;
        assert_eq!(scenario.flow_specs(7), scenario.flow_specs(7));
        assert_ne!(scenario.flow_specs(7), scenario.flow_specs(8));
        assert!(scenario.flow_specs(7).iter().all(|flow| flow.start <= Span(5_000_000_000)));
    }

    const RANDOM: &str = "name = \"x\"\nduration = \"60s\"\n[[link]]\nrate = \"10Mbit\"\ndelay = \"1ms\"\n\
        [[flow]]\ncount = 2000\nbytes = { law = \"lomax\", exponent = 3.5, mean = \"1MB\" }\nstart = { poisson = \"2s\" }\nfast_open = true\n\
        send_buffer = \"64kB\"\n\
        [[flow]]\noffers = { bytes = { law = \"exponential\", mean = \"5kB\" }, every = \"10ms\", on = \"1s\", off = { law = \"pareto\", exponent = 1.5, mean = \"2s\" } }\n\
        [[cross]]\nlink = 1\nrate = \"1Mbit\"\narrivals = \"poisson\"\non = { law = \"exponential\", mean = \"500ms\" }\noff = \"1s\"\n";

    fn only(text: &str) -> Scenario {
        ScenarioFile::parse(text, "x").unwrap().variants(&[]).unwrap().remove(0).scenario
    }

    #[test]
    fn what_is_printed_parses_back() {
        for text in [SATELLITE, RANDOM] {
            let scenario = only(text);
            let printed = toml::to_string(&scenario).unwrap();
            assert_eq!(only(&printed), scenario, "{printed}");
        }
    }

    #[test]
    fn a_poisson_stream_of_transfers_has_its_gaps_and_sizes() {
        let specs = only(RANDOM).flow_specs(3);
        let transfers = &specs[..2000];
        let last = transfers[1999].start.secs();
        // 2000 gaps of 2 s: ± 4 deviations.
        assert!((last / 4000.0 - 1.0).abs() < 4.0 / 2000f64.sqrt(), "{last}");
        assert!(transfers[0].start > Span::ZERO && transfers.is_sorted_by_key(|flow| flow.start));
        let mean = transfers.iter().map(|flow| flow.bytes.unwrap().0 as f64).sum::<f64>() / 2000.0;
        // The variance of Lomax-3.5 is 7/3.
        assert!((mean / 1e6 - 1.0).abs() < 4.0 * (7.0 / 3.0 / 2000.0f64).sqrt(), "{mean}");
        assert!(transfers.iter().all(|flow| flow.fast_open) && !specs[2000].fast_open);
        assert_eq!(specs, only(RANDOM).flow_specs(3));
        assert_ne!(specs, only(RANDOM).flow_specs(4));
    }

    #[test]
    fn a_law_for_one_thing_leaves_the_draws_of_others_as_they_were() {
        let text = SATELLITE.replace("bytes = \"5MB\"", "bytes = { law = \"exponential\", mean = \"5MB\" }");
        assert_ne!(text, SATELLITE);
        let times = |text: &str| only(text).flow_specs(7).iter().map(|flow| (flow.start, flow.access_delay)).collect::<Vec<_>>();
        assert_eq!(times(&text), times(SATELLITE));
    }

    #[test]
    fn a_change_need_not_work_in_cases_that_are_not_selected() {
        let text = format!(
            "{SATELLITE}\n[[case]]\nname = \"end to end\"\nset = {{ split = [] }}\n[[case]]\nname = \"split\"\nset = {{ \"split.1.buffer\" = \"2MB\" }}"
        );
        let file = ScenarioFile::parse(&text, "x").unwrap();
        let sets: [Assignment; 1] = ["split.1.buffer=1MB,3MB".parse().unwrap()];
        let select = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            file.select(&sets, &names).map(|variants| variants.into_iter().map(|variant| variant.case).collect::<Vec<_>>())
        };
        assert!(select(&[]).is_err() && select(&["end to end"]).is_err());
        assert_eq!(select(&["split"]).unwrap(), ["split, split.1.buffer=1MB", "split, split.1.buffer=3MB"]);
        assert_eq!(select(&["split, split.1.buffer=3MB"]).unwrap(), ["split, split.1.buffer=3MB"]);
        assert_eq!(select(&["split", "spl"]).unwrap(), [""; 0]);
        let exactly = |name: &str| {
            let mut count = 0;
            file.each_variant(Some(name), &sets, &mut |_| count += 1).map(|()| count)
        };
        assert_eq!((exactly("split").unwrap(), exactly("spl").unwrap()), (2, 0));
        assert!(exactly("end to end").is_err());
    }

    #[test]
    fn sets_sweep_and_cases_multiply() {
        let file = ScenarioFile::parse(SATELLITE, "x").unwrap();
        let sets = ["control.sender=reno,bbr".parse().unwrap(), "link.2.rate=5Mbit".parse().unwrap()];
        let variants = file.variants(&sets).unwrap();
        let names: Vec<_> = variants.iter().map(|variant| variant.case.as_str()).collect();
        assert_eq!(
            names,
            [
                "end to end, control.sender=reno",
                "end to end, control.sender=bbr",
                "cubic, control.sender=reno",
                "cubic, control.sender=bbr"
            ]
        );
        assert!(variants.iter().all(|variant| variant.scenario.links[1].rate == Rate(5_000_000)));
    }

    #[test]
    fn a_star_sets_a_key_of_every_table_of_a_list() {
        let file = ScenarioFile::parse(SATELLITE, "x").unwrap();
        let variants = file.variants(&["link.*.rate=5Mbit".parse().unwrap(), "split.*.buffer=2MB".parse().unwrap()]).unwrap();
        // The first case has no split.
        assert_eq!(variants.iter().map(|variant| variant.scenario.splits.len()).collect::<Vec<_>>(), [0, 1]);
        assert!(variants.iter().all(|variant| variant.scenario.links.iter().all(|link| link.rate == Rate(5_000_000))));
        assert_eq!(variants[1].scenario.splits[0].buffer, Buffer::Bytes(Bytes(2_000_000)));
        let wrong = file.variants(&["splits.*.buffer=2MB".parse().unwrap()]).unwrap_err().to_string();
        assert!(wrong.contains("there is no list splits here"), "{wrong}");
    }

    #[test]
    fn a_value_with_commas_is_one_value() {
        let assignment: Assignment = "flow.1.start={ uniform = [\"0s\", \"2s\"] },1s".parse().unwrap();
        assert_eq!(assignment.values().len(), 2);
        assert!("control.proxy".parse::<Assignment>().is_err());
        assert!("=3".parse::<Assignment>().is_err());
    }

    #[test]
    fn errors_point_at_line_and_key() {
        insta::assert_snapshot!(wrong(&SATELLITE.replace("10Mbit", "10Mbot")), @r#"
        wrong.toml:10: link[2].rate: "10Mbot" ends in the unknown unit "Mbot": a rate takes bit, kbit, Mbit or Gbit (a second), for example 10Mbit
          10 | rate  = "10Mbot"
        "#);
        insta::assert_snapshot!(wrong(&SATELLITE.replace("delay = \"400ms\"", "dealy = \"400ms\"")), @r#"
        wrong.toml:11: link[2].dealy: is not a key here: did you mean delay? The keys are rate, delay, queue, loss, bit_errors, outages, jitter, reordering, duplication, changes, steps, repeat, trace, demand, medium, reverse
          11 | dealy = "400ms"
        "#);
        insta::assert_snapshot!(wrong(&SATELLITE.replace("delay = \"400ms\"", "")), @"
        wrong.toml:9: link[2].delay: is missing
          9 | [[link]]
        ");
        insta::assert_snapshot!(wrong(&SATELLITE.replace("after  = 1", "after  = 2")), @"
        wrong.toml:16: split[1].after: is 2, but a proxy stands between two links: with 2 links it can be 1 only
          16 | after  = 2
        ");
        insta::assert_snapshot!(wrong(&SATELLITE.replace("per_packet = 0.01", "per_packet = 1.01")), @r#"
        wrong.toml:13: link[2].loss.per_packet: is 1.01, but a probability lies between 0 and 1
          13 | loss  = { per_packet = 1.01 }
        "#);
        insta::assert_snapshot!(wrong(&SATELLITE.replace("kind = \"droptail\"", "kind = \"red\"")), @r#"
        wrong.toml:12: link[2].queue.kind: cannot be "red": it can be droptail, ecn, codel, fq_codel, pie, dualpi2, xcp, vcp or mpcp
          12 | queue = { limit = "1BDP", kind = "red" }
        "#);
        insta::assert_snapshot!(wrong(&SATELLITE.replace("\"control.proxy\" = \"cubic\"", "\"split.3.buffer\" = \"1MB\"")), @r#"
        wrong.toml:43: case[2].set: in case "cubic", split.3.buffer: there is 1 of split: say which, as in split.1.…
          43 | set  = { "split.3.buffer" = "1MB" }
        "#);
        insta::assert_snapshot!(wrong(&RANDOM.replace("off = \"1s\"\n", "")), @r#"
        wrong.toml:18: cross[1].on: on and off go together: give both, or neither for a source that never pauses
          18 | on = { law = "exponential", mean = "500m…
        "#);
        insta::assert_snapshot!(wrong(&RANDOM.replace("exponent = 1.5", "exponent = 1")), @r#"
        wrong.toml:13: flow[2].offers.off: the exponent of pareto is 1, and must be above 1: the mean is infinite otherwise
          13 | …s", off = { law = "pareto", exponent = 1…
        "#);
        insta::assert_snapshot!(wrong(&RANDOM.replace("\"64kB\"", "\"64B\"")), @r#"
        wrong.toml:11: flow[1].send_buffer: is less than one packet: nothing could be sent
          11 | send_buffer = "64B"
        "#);
        insta::assert_snapshot!(wrong(&RANDOM.replace("poisson = \"2s\"", "poisson = \"0s\"")), @r#"
        wrong.toml:9: flow[1].start: the mean gap is 0: write "0s" for all at once
          9 | start = { poisson = "0s" }
        "#);
        insta::assert_snapshot!(wrong("name = \"x\"\nlink = 3 3"), @"
        wrong.toml:2: is not TOML: a number has no blank: write link = [3, 3]
          2 | link = 3 3
        ");
        insta::assert_snapshot!(wrong("name = \"x\""), @"wrong.toml: link: is missing: a scenario has at least one [[link]], or [[network]]s in parallel");
        let file = ScenarioFile::parse(SATELLITE, "x").unwrap();
        insta::assert_snapshot!(file.variants(&["link.2.rate=0bit".parse().unwrap()]).unwrap_err(),
            @r#"--set link.2.rate=0bit (case "end to end"): link[2].rate: is 0: nothing would ever cross this link"#);
        insta::assert_snapshot!(file.variants(&["split.1.buffer=1MB".parse().unwrap()]).unwrap_err(),
            @r#"--set split.1.buffer=1MB (case "end to end"): split.1.buffer: there is no split here"#);
    }
    #[test]
    fn too_many_variants_are_refused_before_they_are_made() {
        let file = ScenarioFile::parse(SATELLITE, "x").unwrap();
        let range = |key: &str| format!("{key}=1..10000:1").parse::<Assignment>().unwrap();
        let error = file.variants(&[range("seed"), range("flow.1.count")]).unwrap_err().to_string();
        let expected = "x: has 200000000 variants (cases: 2, values of --set: 10000 × 10000), but at most 100000 are played at once: ";
        assert!(error.starts_with(expected), "{error}");
        let all: Vec<Assignment> = (0..5).map(|_| range("seed")).collect();
        assert!(file.variants(&all).unwrap_err().to_string().contains(&format!("has {} variants", usize::MAX)));
        let error = file.each_variant(None, &all, &mut |_| panic!("a variant was made")).unwrap_err().to_string();
        assert!(error.contains("more combinations of values than can be counted"), "{error}");
        assert_eq!(file.select(&[range("seed")], &["cubic".into()]).unwrap().len(), 10_000, "of one case");
    }

    #[test]
    fn variants_that_fill_the_memory_are_refused() {
        let changes: String = (0..200).map(|ms| format!("{{ at = \"{ms}ms\", delay = \"1ms\" }}, ")).collect();
        let text =
            format!("name = \"x\"\nduration = \"60s\"\n[[flow]]\n[[link]]\nrate = \"9Mbit\"\ndelay = \"1ms\"\nchanges = [{changes}]\n");
        let file = ScenarioFile::parse(&text, "x").unwrap();
        let sets = ["seed=1..1000:1".parse().unwrap()];
        let error = file.variants_within(2 << 20, &sets, |_| true).unwrap_err().to_string();
        assert!(error.starts_with("x: has 1000 variants, the first ") && error.contains(" take 2 MiB of memory"), "{error}");
        assert_eq!(file.variants_within(2 << 20, &sets[..0], |_| true).unwrap().len(), 1);
    }
}
