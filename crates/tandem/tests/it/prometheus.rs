//! Metrics with a real Prometheus: every panel of the dashboard has data after a scrape, the alert
//! rules load and pass their tests, exemplars lead to flow records.

use crate::common::{
    Daemon, PATIENCE, TANDEM,
    routed::{Routed, SERVER, echo, end_of},
    skip, wait_for_listener, wait_until,
};
use serde_json::Value;
use std::{
    collections::BTreeSet,
    fs,
    io::{self, Read, Write},
    net::Shutdown,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Command,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

/// Ports of the server: echo, one that only reads, a closed one, and echo through the bond.
const ECHO: u16 = 80;
const SINK: u16 = 81;
const CLOSED: u16 = 82;
const BONDED: u16 = 8000;
const METRICS: &str = "127.0.0.1:9155";
const PROMETHEUS: &str = "127.0.0.1:9090";

fn packaged(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging").join(name).canonicalize().unwrap()
}

/// The panels of the dashboard that have queries: title and queries.
fn panels() -> Vec<(String, Vec<String>)> {
    let text = fs::read_to_string(packaged("grafana/tandem.json")).unwrap();
    let dashboard: Value = serde_json::from_str(&text).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let ids: BTreeSet<u64> = panels.iter().map(|panel| panel["id"].as_u64().unwrap()).collect();
    assert_eq!(ids.len(), panels.len(), "panels have different ids");
    let shown = panels.iter().filter(|panel| panel["type"] != "row");
    let queries = |panel: &Value| {
        let targets = panel["targets"].as_array().unwrap();
        assert!(!targets.is_empty(), "{panel}");
        targets.iter().map(|target| target["expr"].as_str().unwrap().to_owned()).collect()
    };
    shown.map(|panel| (panel["title"].as_str().unwrap().to_owned(), queries(panel))).collect()
}

/// A query of the dashboard as Grafana sends it with all proxies and profiles chosen.
fn filled_in(query: &str) -> String {
    let query = query.replace("$__rate_interval", "20s").replace("$instance", ".*").replace("$profile", ".*");
    assert!(!query.contains('$'), "{query}");
    query
}

fn promtool(arguments: &[&str]) {
    let output = Command::new("promtool").args(arguments).output().unwrap();
    let said = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    assert!(output.status.success(), "promtool {arguments:?}: {said}");
}

#[test]
fn alert_rules_pass_their_tests() {
    let test = "alert_rules_pass_their_tests";
    if skip(test, &["promtool"]) {
        return;
    }
    let (rules, tests) = (packaged("prometheus/tandem.rules.yml"), packaged("prometheus/tandem.rules.test.yml"));
    promtool(&["check", "rules", rules.to_str().unwrap()]);
    promtool(&["test", "rules", tests.to_str().unwrap()]);
    // Each alert fires in one of them.
    let (rules, tests) = (fs::read_to_string(rules).unwrap(), fs::read_to_string(tests).unwrap());
    let alerts: Vec<&str> = rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
    assert!(alerts.len() > 10, "{alerts:?}");
    for alert in alerts {
        assert!(tests.contains(&format!("alertname: {alert}\n        exp_alerts:\n          - ")), "{alert} fires in no test");
    }
}

/// A request to Prometheus on a router; returns `data` of the answer.
fn ask(routed: &Routed, path: &str, parameters: &[String]) -> Result<Value, String> {
    let mut command = routed.router.command("curl");
    command.args(["-s", "--get", "--max-time", "20", &format!("http://{PROMETHEUS}/api/v1/{path}")]);
    for parameter in parameters {
        command.args(["--data-urlencode", parameter]);
    }
    let output = command.output().unwrap();
    let answer: Value = serde_json::from_slice(&output.stdout).map_err(|error| format!("{path}: {error}"))?;
    if answer["status"] == "success" { Ok(answer["data"].clone()) } else { Err(format!("{path} {parameters:?}: {answer}")) }
}

/// Whether a query has a result with a finite value.
fn is_filled(routed: &Routed, query: &str) -> bool {
    let data = ask(routed, "query", &[format!("query={query}")]).unwrap_or_else(|error| panic!("{error}"));
    let values = data["result"].as_array().unwrap().iter();
    values.filter_map(|sample| sample["value"][1].as_str()?.parse::<f64>().ok()).any(f64::is_finite)
}

/// The page that Prometheus scrapes.
fn page(routed: &Routed) -> String {
    let output = routed.router.command("curl").args(["-s", &format!("http://{METRICS}/metrics")]).output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

/// Starts the far end of a bond on the server, and the proxy on the router: with the bond, a link
/// with its capacity in a file, an experiment, and flow records.
fn start_proxies(routed: &Routed) -> [Daemon; 2] {
    let key = routed.path("bond.key");
    fs::write(&key, "0123456789abcdef0123456789abcdef").unwrap();
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
    fs::write(routed.path("modem"), "50Mbit").unwrap();
    let at = |name: &str| format!("{:?}", routed.path(name).display().to_string());
    let mut serve = routed.server.command(TANDEM);
    serve.args(["bond", "serve", "--listen", "[::]:7000", "--allow", "10.99.2.0/24", "--key"]).arg(&key);
    let serve = Daemon::logging(&mut serve, &routed.path("serve.log"));
    wait_for_listener(&routed.server, 7000);
    let text = format!(
        "metrics = \"{METRICS}\"\nmemory = \"2GiB\"\nexperiment = \"1 in 4\"\n\
         [bond]\nkey_file = {}\n[[bond.network]]\nname = \"terrestrial\"\ninterface = \"far\"\nto = \"{}:7000\"\n\
         [[leg]]\nname = \"sat\"\ninterface = \"far\"\ncontrol = \"share\"\ncapacity = {{ file = {} }}\n\
         [[rule]]\nports = [\"{ECHO}-{CLOSED}\"]\naction = \"split\"\n\
         [flow_records]\nfile = {}\n",
        at("bond.key"),
        SERVER[0],
        at("modem"),
        at("flows"),
    );
    [serve, routed.configured(&text)]
}

/// Starts Prometheus on the router. It scrapes the proxy and loads the rules.
fn start_prometheus(routed: &Routed) -> Daemon {
    let config = format!(
        "global: {{ scrape_interval: 500ms, scrape_timeout: 500ms, evaluation_interval: 500ms }}\n\
         rule_files: [{:?}]\n\
         scrape_configs:\n- job_name: tandem\n  static_configs: [{{ targets: [\"{METRICS}\"] }}]\n",
        packaged("prometheus/tandem.rules.yml").display().to_string()
    );
    let path = routed.path("prometheus.yml");
    fs::write(&path, config).unwrap();
    let mut command = routed.router.command("prometheus");
    command
        .arg(format!("--config.file={}", path.display()))
        .arg(format!("--storage.tsdb.path={}", routed.path("tsdb").display()))
        .arg(format!("--web.listen-address={PROMETHEUS}"))
        .arg("--enable-feature=exemplar-storage");
    let daemon = Daemon::logging(&mut command, &routed.path("prometheus.log"));
    wait_until("Prometheus answers", || ask(routed, "query", &["query=1".into()]).is_ok());
    daemon
}

/// Sends some data to a port of the server and reads what comes back.
fn exchange(routed: &Routed, port: u16, count: usize) -> io::Result<usize> {
    let mut stream = routed.connect(SERVER[0], port)?;
    let mut writer = stream.try_clone()?;
    let sent = vec![7; count];
    let writing = thread::spawn(move || writer.write_all(&sent).and_then(|()| writer.shutdown(Shutdown::Write)));
    let read = stream.read_to_end(&mut Vec::new());
    writing.join().unwrap()?;
    read
}

/// Flows of each kind, again and again until `done`: short and long ones, refused ones, those of the
/// bond.
fn traffic(routed: &Routed, done: &AtomicBool) {
    thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Relaxed) {
                // Samples are of flows that are older than a second.
                let Ok(mut stream) = routed.connect(SERVER[0], SINK) else { continue };
                let begun = Instant::now();
                while begun.elapsed() < Duration::from_millis(2500) && stream.write_all(&[1; 50_000]).is_ok() {
                    thread::sleep(Duration::from_millis(20));
                }
            }
        });
        while !done.load(Relaxed) {
            let _ = exchange(routed, ECHO, 2000);
            let _ = exchange(routed, ECHO, 60_000);
            let _ = exchange(routed, BONDED, 30_000);
            let _ = routed.connect(SERVER[0], CLOSED).map(|mut stream| end_of(&mut stream));
            thread::sleep(Duration::from_millis(20));
        }
    });
}

#[test]
fn every_panel_of_the_dashboard_is_filled_by_a_scrape() {
    let test = "every_panel_of_the_dashboard_is_filled_by_a_scrape";
    if skip(test, &["nft", "ip", "tc", "ss", "curl", "prometheus"]) {
        return;
    }
    if let Err(why) = kernel::load("reno", &[]) {
        return testing::skipped(test, &why);
    }
    let routed = Routed::new();
    echo(&routed.server, ECHO);
    echo(&routed.server, BONDED);
    let sink = routed.listen(SINK);
    thread::spawn(move || {
        for stream in sink.incoming().flatten() {
            thread::spawn(move || io::copy(&mut &stream, &mut io::sink()));
        }
    });
    let [_serve, mut proxy] = start_proxies(&routed);
    let _prometheus = start_prometheus(&routed);
    let done = AtomicBool::new(false);
    let panels = panels();
    assert!(panels.len() > 30, "{}", panels.len());
    thread::scope(|scope| {
        scope.spawn(|| traffic(&routed, &done));
        // Also when an assertion fails: the scope waits for the traffic to end.
        let _end = Finally(|| done.store(true, Relaxed));
        let all = panels.iter().flat_map(|(title, queries)| queries.iter().map(move |query| (title, filled_in(query))));
        let (mut empty, begun) = (all.collect::<Vec<_>>(), Instant::now());
        while !empty.is_empty() {
            assert!(begun.elapsed() < PATIENCE, "panels without data: {empty:#?}\n{}", page(&routed));
            empty.retain(|(_, query)| !is_filled(&routed, query));
            thread::sleep(Duration::from_millis(100));
        }
        let healthy = |rules: &Value| rules.as_array().is_some_and(|rules| rules.iter().all(|rule| rule["health"] == "ok"));
        wait_until("all rules have been evaluated", || ask(&routed, "rules", &[]).is_ok_and(|data| healthy(&data["groups"][0]["rules"])));
    });
    check_page(&page(&routed));
    let flow = exemplar(&routed);
    proxy.signal("TERM");
    assert!(proxy.0.wait().unwrap().success());
    check_records(&routed, &flow);
}

/// Calls a function when it is dropped.
struct Finally<F: Fn()>(F);

impl<F: Fn()> Drop for Finally<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// The metrics that alert rules refer to are on the page, and no address is.
fn check_page(page: &str) {
    let rules = fs::read_to_string(packaged("prometheus/tandem.rules.yml")).unwrap();
    let words = rules.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').filter(|word| word.starts_with("tandem_"));
    for metric in words.collect::<BTreeSet<_>>() {
        assert!(page.lines().any(|line| line.starts_with(metric)), "{metric} is not on the page:\n{page}");
    }
    assert!(!page.contains("10.99."), "{page}");
    for wanted in [
        "tandem_connect_failures_total{leg=\"far\",profile=\"sat\",kind=\"refused\"} ",
        "tandem_flow_duration_seconds_count{leg=\"far\",profile=\"bond\",size=\"<100kB\"} ",
        // The file's 50 Mbit/s, or what was measured when these did not hold: the link is a veth.
        "tandem_link_capacity_bytes_per_second{link=\"far\"} ",
        "tandem_bond_network_up{network=\"terrestrial\"} 1",
    ] {
        assert!(page.lines().any(|line| line.starts_with(wanted)), "{wanted} is not on the page:\n{page}");
    }
}

/// The flow of an exemplar that Prometheus has stored.
fn exemplar(routed: &Routed) -> String {
    let parameters = ["query=tandem_handshake_seconds_bucket", "start=2000-01-01T00:00:00Z", "end=2100-01-01T00:00:00Z"].map(String::from);
    let data = ask(routed, "query_exemplars", &parameters).unwrap();
    let series = data.as_array().unwrap();
    let exemplars = series.iter().flat_map(|series| series["exemplars"].as_array().unwrap());
    let flows: Vec<&str> = exemplars.filter_map(|exemplar| exemplar["labels"]["flow"].as_str()).collect();
    assert!(!flows.is_empty(), "{data}");
    flows[0].to_owned()
}

/// Each flow has a record, that of the exemplar too, which is also in the log.
fn check_records(routed: &Routed, flow: &str) {
    let text = fs::read_to_string(routed.path("flows")).unwrap();
    let records: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let found = records.iter().find(|record| record["flow"] == flow).unwrap_or_else(|| panic!("{flow} is not in:\n{text}"));
    assert!(["near", "far"].iter().any(|leg| found[leg]["handshake_s"].as_f64().is_some_and(|time| time > 0.0)), "{found}");
    let log = routed.log();
    assert!(log.contains(&format!("id={flow}")), "{flow}");
    assert_eq!(log.lines().filter(|line| line.contains(" flow client=")).count(), records.len(), "the log and the records agree");
    let sampled = |record: &&Value| record["up"]["bytes"].as_u64() > Some(1_000_000) && record["up"]["most_held_bytes"].is_u64();
    assert!(records.iter().any(|record| sampled(&record)), "a long flow was sampled:\n{text}");
    assert!(records.iter().any(|record| record["ending"] == "far_not_reached" && record["far"]["profile"] == "sat"), "{text}");
    assert!(
        records.iter().any(|record| record["bond"]["paths"][0]["network"] == "terrestrial" && record["far"]["profile"] == "bond"),
        "{text}"
    );
}
