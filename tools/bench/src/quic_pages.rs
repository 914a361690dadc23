//! Page loads of a browser over a satellite link: QUIC from end to end, TCP from end to end, and
//! TCP through the proxy after it has rejected QUIC.
//!
//! The browser is Chromium, the server Caddy, both as Debian has them, over the lab's links. The
//! proxy stands between the server's link and the satellite link, like that of an operator's
//! gateway, so that it sends what crosses the satellite. A first load is one of a new profile,
//! which does not know that the server speaks HTTP/3 (Alt-Svc). A later load has that profile, in a
//! new process.

use crate::{other_program, resume_file::ResumeFile};
use anyhow::{Context as _, Result, ensure};
use lab::{Host, NetworkOptions, OtherProxy, SeriesNetwork};
use measurements::{MeasurementRecord, SampleColumn, SampleTable};
use scenario::ScenarioFile;
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    fs, io,
    io::Write as _,
    net::IpAddr,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

/// From the server to the browser. The proxy's controller and buffers are in [`PROXY`].
const SCENARIO: &str = r#"
name = "pages"

[[link]]
rate  = "1Gbit"
delay = "1ms"

[[link]]
rate  = "50Mbit"
delay = "299ms"
queue = "1BDP"
loss  = { per_packet = 0.002 }

[[split]]
after = 1

[[flow]]
bytes = "1MB"
"#;
/// The proxy's configuration, before the keys of the leg over the satellite and the rule.
const PROXY: &str =
    "buffer = \"8MiB\"\n[[listen]]\ntransparent = \"0.0.0.0:5000\"\n[[leg]]\ninterface = \"link2\"\nsend_buffer = \"16MiB\"\n";
/// Name of the server for the browser.
const NAME: &str = "page.test";
/// How long a page may take.
const PATIENCE: Duration = Duration::from_secs(120);
/// How long a program may take to answer.
const START_PATIENCE: Duration = Duration::from_secs(20);

/// Measures page loads of Chromium from Caddy over a satellite link: QUIC, TCP, and TCP through the
/// proxy that rejects QUIC
#[derive(Debug, clap::Args)]
pub(crate) struct QuicPages {
    /// Rounds; each way is measured once in each
    #[arg(long, default_value_t = 5)]
    runs: u64,
    /// Objects of a page
    #[arg(long, default_value_t = 40)]
    objects: usize,
    /// Bytes of an object
    #[arg(long, default_value_t = 25_000)]
    bytes: usize,
    #[command(flatten)]
    resume: ResumeFile,
    /// The program under test
    #[arg(long, default_value = "tandem", value_name = "PROGRAM")]
    tandem: PathBuf,
    /// The browser
    #[arg(long, default_value = "chromium", value_name = "PROGRAM")]
    chromium: PathBuf,
    /// The server
    #[arg(long, default_value = "caddy", value_name = "PROGRAM")]
    caddy: PathBuf,
}

/// What carries the page.
#[derive(Debug)]
struct PageWay {
    name: &'static str,
    /// Keys of the leg over the satellite, and the rule; none: there is no proxy.
    proxy: Option<&'static str>,
    /// Whether the browser may use QUIC.
    browser_has_quic: bool,
}

/// In the order of their turns.
const WAYS: [PageWay; 5] = [
    PageWay { name: "QUIC end to end, no proxy", proxy: None, browser_has_quic: true },
    PageWay { name: "TCP end to end, no proxy", proxy: None, browser_has_quic: false },
    PageWay { name: "proxy with BBR, QUIC passes", proxy: Some("control = \"bbr\"\n"), browser_has_quic: true },
    PageWay {
        name: "proxy with BBR, QUIC rejected",
        proxy: Some("control = \"bbr\"\n[[rule]]\nquic = \"reject\"\n"),
        browser_has_quic: true,
    },
    PageWay {
        name: "proxy with share of a known capacity, QUIC rejected",
        proxy: Some("control = \"share\"\ncapacity = \"50Mbit\"\n[[rule]]\nquic = \"reject\"\n"),
        browser_has_quic: true,
    },
];
/// The columns: milliseconds until the page's load event, and objects that came by HTTP/3.
const LOADS: [(&str, &str); 2] = [("first load", "first load by HTTP/3"), ("later load", "later load by HTTP/3")];

/// What the page's script tells of a load.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct PageTiming {
    /// Milliseconds from navigation to the end of the load event.
    ms: f64,
    /// Objects by protocol: "h2", "h3".
    objects: BTreeMap<String, u64>,
}

/// A load, as a line of the file of loads.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct StoredLoad {
    round: u64,
    way: String,
    load: String,
    timing: PageTiming,
}

impl QuicPages {
    pub(crate) fn measure(&self, record: &mut MeasurementRecord) -> Result<()> {
        record.rounds = self.runs;
        for (program, argument) in [(&self.chromium, "--version"), (&self.caddy, "version")] {
            let version = other_program::version(&testbed::resolve_program(program), &[argument])?;
            record.notes.push(format!("{}: {version}.", program.file_name().unwrap_or_default().display()));
        }
        record.notes.push(format!("{} objects of {} bytes.", self.objects, self.bytes));
        let mut loads: Vec<StoredLoad> = self.resume.runs()?;
        for round in 1..=self.runs {
            for way in &WAYS {
                if loads.iter().any(|load| load.round == round && load.way == way.name) {
                    continue;
                }
                let timings = self.play(way, round).with_context(|| format!("{}, round {round}", way.name))?;
                let played = LOADS.iter().zip(timings).map(|((load, _), timing)| {
                    eprintln!("{}, {load}, round {round}: {timing:?}", way.name);
                    StoredLoad { round, way: way.name.into(), load: (*load).into(), timing }
                });
                let played: Vec<StoredLoad> = played.collect();
                self.resume.append(&played)?;
                loads.extend(played);
            }
        }
        record.tables.push(table(&loads));
        Ok(())
    }

    /// Loads the page twice over a network of its own.
    fn play(&self, way: &PageWay, round: u64) -> Result<[PageTiming; 2]> {
        let directory = tempfile::tempdir()?;
        let variants = ScenarioFile::parse(SCENARIO, "pages")?.select(&[], &[])?;
        let scenario = variants.into_iter().next().context("the scenario has a case")?.scenario;
        let (program, configuration) = (testbed::resolve_program(&self.tandem), directory.path().join("proxy.toml"));
        let keys = way.proxy;
        let other = OtherProxy::new(move |host| {
            let mut command = host.command(if keys.is_some() { program.to_str().unwrap_or("tandem") } else { "sleep" });
            match keys {
                Some(keys) => {
                    fs::write(&configuration, format!("{PROXY}{keys}"))?;
                    command.args(["proxy", "-c"]).arg(&configuration);
                }
                None => drop(command.arg("infinity")),
            }
            let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
            let program = Program(child);
            if keys.is_some() {
                wait_until("the proxy is up", || port_listens(host, 5000)).map_err(io::Error::other)?;
            }
            Ok(Box::new(program) as _)
        });
        let options = NetworkOptions { other_proxy: Some(other), ..NetworkOptions::default() };
        let network = SeriesNetwork::build(&scenario, round, &options, |_, _| {})?;
        let server = PageServer::start(self, network.sender(), directory.path())?;
        let browser = PageBrowser {
            program: testbed::resolve_program(&self.chromium),
            host: network.receiver(),
            server: network.sender_addresses()[0],
            key_hash: &server.key_hash,
            profile: directory.path().join("profile"),
            has_quic: way.browser_has_quic,
        };
        Ok([browser.load()?, browser.load()?])
    }
}

/// The table of all loads.
fn table(loads: &[StoredLoad]) -> SampleTable {
    let columns = LOADS.iter().flat_map(|(load, h3)| [SampleColumn::new(load, "ms", 0), SampleColumn::new(h3, "objects", 0)]);
    let mut table = SampleTable::new("loads", "", columns.collect());
    for way in &WAYS {
        let row = table.row(way.name);
        for (load, h3) in LOADS {
            for one in loads.iter().filter(|one| one.way == way.name && one.load == load) {
                let index = one.round as usize - 1;
                row.add(load, index, one.timing.ms);
                row.add(h3, index, one.timing.objects.get("h3").copied().unwrap_or(0) as f64);
            }
        }
    }
    table
}

/// A program that is killed when this is dropped.
struct Program(Child);

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Caddy with the page.
struct PageServer {
    _program: Program,
    /// The hash of its certificate's key, by which the browser accepts it.
    key_hash: String,
}

impl PageServer {
    fn start(of: &QuicPages, host: &Host, directory: &Path) -> Result<Self> {
        let site = directory.join("site");
        fs::create_dir(&site)?;
        let mut page = "<!doctype html><title>page</title><body>".to_owned();
        for object in 0..of.objects {
            // Not compressible, and no picture: its end counts, not what it shows.
            let mut file = fs::File::create(site.join(format!("{object}.bin")))?;
            let bytes: Vec<u8> = (0..of.bytes).map(|at| ((at * 2_654_435_761 + object) >> 13) as u8).collect();
            file.write_all(&bytes)?;
            page += &format!("<img src=\"/{object}.bin\">");
        }
        page += "<script>addEventListener('load',()=>{const objects={};\
                 for(const one of performance.getEntriesByType('resource'))\
                 objects[one.nextHopProtocol]=(objects[one.nextHopProtocol]||0)+1;\
                 document.title='load '+JSON.stringify({ms:performance.now(),objects})})</script>";
        fs::write(site.join("index.html"), page)?;
        let path = |name: &str| directory.join(name).display().to_string();
        let script = format!(
            "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout {0} -out {1} -days 30 -subj /CN={NAME} \
             -addext subjectAltName=DNS:{NAME} 2>/dev/null && openssl x509 -in {1} -pubkey -noout | openssl pkey -pubin -outform der | \
             openssl dgst -sha256 -binary | base64",
            path("key.pem"),
            path("cert.pem")
        );
        let made = Command::new("sh").args(["-c", &script]).output().context("cannot run openssl")?;
        let key_hash = String::from_utf8(made.stdout)?.trim().to_owned();
        ensure!(made.status.success() && !key_hash.is_empty(), "openssl made no certificate");
        let configuration = format!(
            "{{\n\tadmin off\n\tauto_https off\n}}\nhttps://{NAME} {{\n\ttls {} {}\n\troot * {}\n\theader Cache-Control no-store\n\tfile_server\n}}\n",
            path("cert.pem"),
            path("key.pem"),
            site.display()
        );
        fs::write(directory.join("Caddyfile"), configuration)?;
        let mut command = host.command(&testbed::resolve_program(&of.caddy).to_string_lossy());
        command.args(["run", "--adapter", "caddyfile", "--config", &path("Caddyfile")]).env("HOME", directory);
        let program =
            Program(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().context("cannot run caddy")?);
        wait_until("caddy listens", || port_listens(host, 443)).map_err(anyhow::Error::msg)?;
        Ok(PageServer { _program: program, key_hash })
    }
}

/// Chromium on a host.
struct PageBrowser<'a> {
    program: PathBuf,
    host: &'a Host,
    server: IpAddr,
    key_hash: &'a str,
    profile: PathBuf,
    has_quic: bool,
}

impl PageBrowser<'_> {
    /// Loads the page in a process of its own.
    fn load(&self) -> Result<PageTiming> {
        let mut command = self.host.command("timeout");
        command.arg(PATIENCE.as_secs().to_string()).arg(&self.program);
        command.args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]);
        command.args(["--disable-background-networking", "--disable-component-update"]);
        command.arg(format!("--user-data-dir={}", self.profile.display()));
        command.arg(format!("--host-resolver-rules=MAP {NAME} {}", self.server));
        command.arg(format!("--ignore-certificate-errors-spki-list={}", self.key_hash));
        // Over QUIC the browser accepts only public authorities, except for the names of these
        // origins. At this port there is nothing.
        command.arg(format!("--origin-to-force-quic-on={NAME}:444"));
        if !self.has_quic {
            command.arg("--disable-quic");
        }
        let output =
            command.args(["--dump-dom", &format!("https://{NAME}/")]).stdin(Stdio::null()).output().context("cannot run chromium")?;
        timing(&String::from_utf8_lossy(&output.stdout))
    }
}

/// What the script wrote into the title of a page.
fn timing(page: &str) -> Result<PageTiming> {
    let title = page.split_once("<title>load ").and_then(|(_, rest)| rest.split_once("</title>"));
    let (text, _) = title.context("the page was not loaded in time")?;
    serde_json::from_str(text).with_context(|| format!("the page's script wrote {text:?}"))
}

fn port_listens(host: &Host, port: u16) -> bool {
    let listed = host.command("ss").args(["-Hltn", &format!("sport = :{port}")]).output();
    listed.is_ok_and(|listed| !listed.stdout.is_empty())
}

fn wait_until(what: &str, mut condition: impl FnMut() -> bool) -> Result<(), String> {
    let begun = Instant::now();
    while !condition() {
        if begun.elapsed() > START_PATIENCE {
            return Err(format!("timed out waiting until {what}"));
        }
        thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_title_has_the_timing() {
        let page = "<html><head><title>load {\"ms\":1778.1,\"objects\":{\"h2\":11,\"h3\":29}}</title></head></html>";
        let timing = timing(page).unwrap();
        assert_eq!((timing.ms, timing.objects["h3"]), (1778.1, 29));
        assert!(super::timing("<title>page</title>").is_err());
    }

    #[test]
    fn loads_become_the_table() {
        let timing = PageTiming { ms: 1000.0, objects: [("h3".into(), 7)].into() };
        let load = |way: &PageWay, load: &str| StoredLoad { round: 1, way: way.name.into(), load: load.into(), timing: timing.clone() };
        let loads: Vec<StoredLoad> = WAYS.iter().flat_map(|way| LOADS.map(|(name, _)| load(way, name))).collect();
        let text = table(&loads).markdown();
        assert!(text.contains("| QUIC end to end, no proxy | 1000 | 7 | 1000 | 7 |"), "{text}");
    }

    #[test]
    fn the_scenario_is_valid() {
        let variants = ScenarioFile::parse(SCENARIO, "pages").unwrap().select(&[], &[]).unwrap();
        assert_eq!((variants.len(), variants[0].scenario.links.len()), (1, 2));
    }
}
