//! The settings, and how the proxy's host comes to run one.

use super::links::{ENDS, LongLink, lab, scenario};
use anyhow::Result;
use lab::{Host, OtherProxy};
use outcome::Engine as _;
use rustix::process::{Pid, Signal, kill_process};
use std::{
    collections::BTreeMap,
    fs, io,
    path::Path,
    process::{Child, Command, Stdio},
    sync::{Mutex, PoisonError, mpsc},
    thread,
    time::{Duration, Instant},
};

/// How long a proxy may take to start, and to end.
const PATIENCE: Duration = Duration::from_secs(20);

/// What the proxy host runs.
#[derive(Debug)]
pub(super) enum Deployment {
    /// It forwards packets.
    NoProxy,
    /// What `tandem setup` writes for the link.
    Setup,
    /// The configuration that `tandem advise` prints for the two links.
    Advice,
    /// What `tandem advise --live --apply` has made of the file of [`Deployment::Setup`].
    LiveAdvice,
    /// This file; `{rate}` stands for the link's nominal rate.
    File(&'static str),
}

macro_rules! file {
    ($buffer:literal, $leg:literal) => {
        Deployment::File(concat!(
            "buffer = \"",
            $buffer,
            "\"\n[[listen]]\ntransparent = \"[::]:5000\"\n[[leg]]\ninterface = \"link2\"\n",
            $leg
        ))
    };
}

/// The traffic that `tandem advise --live` measures: all kinds of transfers, partly at the same
/// time, for ten minutes.
const MIXED_USE: &str = "\
duration = \"10min\"
[[flow]]
opens = \"receiver\"
bytes = \"100kB\"
count = 100
start = { every = \"6s\" }
[[flow]]
opens = \"receiver\"
bytes = \"1MB\"
count = 30
start = { every = \"20s\" }
[[flow]]
opens = \"receiver\"
bytes = \"5MB\"
count = 10
start = { every = \"60s\" }
[[flow]]
opens = \"receiver\"
bytes = \"20MB\"
count = 5
start = { every = \"2min\" }
[[flow]]
direction = \"reverse\"
bytes = \"20MB\"
count = 4
start = { every = \"150s\" }
[[page]]
loads = 100
think = \"10s\"
connections = 6
request = \"500B\"
service = \"10ms\"
[[page.object]]
name = \"html\"
size = \"60kB\"
[[page.object]]
size = \"33kB\"
count = 59
needs = [\"html\"]
";
/// When the advice is asked for, and how long it watches: it has ended before the use does.
const ADVISED_AFTER: Duration = Duration::from_secs(8 * 60);
const WATCHED: &str = "1min";

/// The first four settings.
pub(super) const NO_PROXY: &str = "no proxy";
pub(super) const SETUP: &str = "setup";
pub(super) const ADVICE: &str = "advise";
pub(super) const LIVE: &str = "advise --live";

/// In the order of their turns. What stands behind `setup` is what a search may choose from.
pub(super) const SETTINGS: [(&str, Deployment); 9] = [
    (NO_PROXY, Deployment::NoProxy),
    (SETUP, Deployment::Setup),
    (ADVICE, Deployment::Advice),
    (LIVE, Deployment::LiveAdvice),
    ("share, told, B auto", file!("auto", "control = \"share\"\ncapacity = \"{rate}\"\nshape = false\n")),
    ("share, auto, B auto", file!("auto", "control = \"share\"\ncapacity = \"auto\"\n")),
    ("share, auto, B 4 MiB", file!("4MiB", "control = \"share\"\ncapacity = \"auto\"\n")),
    ("bbr, B auto", file!("auto", "control = \"bbr\"\n")),
    ("cubic, B auto", file!("auto", "control = \"cubic\"\n")),
];

/// Starts what a setting has on the proxy host. `live` is the file of [`Deployment::LiveAdvice`].
pub(super) fn start(
    (deployment, live): (&Deployment, Option<&str>),
    link: &LongLink,
    program: &Path,
    file: &Path,
    host: &Host,
) -> io::Result<lab::RunningProgram> {
    let program = program.to_string_lossy();
    match deployment {
        Deployment::NoProxy => return Ok(Box::new(())),
        Deployment::Setup => {
            let mut command = host.command(&program);
            command.args([
                "setup",
                "--force",
                "--long-link",
                "link2",
                "--rate",
                link.answer,
                "--side",
                "behind",
                "--nat",
                "none",
                "--clients",
                "all",
            ]);
            let made = command.args(["--metrics", "none", "-o"]).arg(file).stdin(Stdio::null()).output()?;
            if !made.status.success() {
                let said = format!("{}{}", String::from_utf8_lossy(&made.stdout), String::from_utf8_lossy(&made.stderr));
                return Err(io::Error::other(format!("tandem setup failed: {said}")));
            }
        }
        Deployment::Advice => match advised(link, &program, host)? {
            Some(config) => fs::write(file, config)?,
            None => return Ok(Box::new(())),
        },
        Deployment::LiveAdvice => fs::write(file, live.unwrap_or_default())?,
        Deployment::File(text) => fs::write(file, text.replace("{rate}", link.rate))?,
    }
    let mut command = host.command(&program);
    command.args(["proxy", "-c"]).arg(file).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut running = RunningProxy(command.spawn()?);
    let begun = Instant::now();
    let listens = || host.command("ss").args(["-Hltn", "sport = :5000"]).output().is_ok_and(|listed| !listed.stdout.is_empty());
    while !listens() {
        if let Some(status) = running.0.try_wait()? {
            return Err(io::Error::other(format!("the proxy ended at once ({status}): {}", file.display())));
        }
        if begun.elapsed() > PATIENCE {
            return Err(io::Error::other("the proxy does not listen"));
        }
        thread::sleep(Duration::from_millis(20));
    }
    Ok(Box::new(running))
}

/// The configuration that `tandem advise` prints; none: it advises no proxy.
fn advised(link: &LongLink, program: &str, host: &Host) -> io::Result<Option<String>> {
    static KNOWN: Mutex<BTreeMap<&str, Option<String>>> = Mutex::new(BTreeMap::new());
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(config) = known.get(link.name) {
        return Ok(config.clone());
    }
    let mut command = host.command(program);
    command.args(["advise", "--json"]).args(link.described.iter().flat_map(|link| ["--link", link]));
    let output = command.stdin(Stdio::null()).output()?;
    let said = || format!("tandem advise failed: {}", String::from_utf8_lossy(&output.stderr));
    if !output.status.success() {
        return Err(io::Error::other(said()));
    }
    let advice: serde_json::Value = serde_json::from_slice(&output.stdout).map_err(|_| io::Error::other(said()))?;
    let config = advice["config"].as_str().map(|config| config.replace("eth1", "link2"));
    known.insert(link.name, config.clone());
    Ok(config)
}

/// The configuration that `tandem advise --live --apply` makes of the file of `tandem setup`, after
/// mixed use of the link by Debian's clients.
pub(super) fn advised_live(link: &'static LongLink, program: &Path) -> Result<String> {
    let directory = tempfile::tempdir()?;
    let file = directory.path().join("proxy.toml");
    let scenario = scenario(link, &ENDS[0], MIXED_USE)?;
    let (of_proxy, program) = (file.clone(), program.to_owned());
    let other = OtherProxy::new(move |host| {
        let proxy = start((&Deployment::Setup, None), link, &program, &of_proxy, host)?;
        let mut command = host.command(&program.to_string_lossy());
        command.args(["advise", "--live", "--by", "interface", "--for", WATCHED, "--apply"]).stdin(Stdio::null());
        Ok(Box::new((LateCommand::start(ADVISED_AFTER, command, link.name), proxy)))
    });
    lab(&ENDS[0], other).run(&scenario, 1, &())?;
    Ok(fs::read_to_string(file)?)
}

/// A command that runs after some time, unless this is dropped before.
#[derive(Debug)]
struct LateCommand(Option<(mpsc::Sender<()>, thread::JoinHandle<()>)>);

impl LateCommand {
    fn start(after: Duration, mut command: Command, title: &'static str) -> Self {
        let (is_dropped, dropped) = mpsc::channel();
        let run = move || {
            if dropped.recv_timeout(after) == Err(mpsc::RecvTimeoutError::Timeout) {
                match command.output() {
                    Ok(output) => {
                        let (said, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
                        eprintln!("{title}, advice on the running proxy ({}):\n{said}{errors}", output.status);
                    }
                    Err(why) => eprintln!("{title}: cannot ask for advice: {why}"),
                }
            }
        };
        LateCommand(Some((is_dropped, thread::spawn(run))))
    }
}

impl Drop for LateCommand {
    fn drop(&mut self) {
        if let Some((is_dropped, running)) = self.0.take() {
            drop(is_dropped);
            let _ = running.join();
        }
    }
}

/// A proxy that ends when this is dropped, and removes its controllers.
#[derive(Debug)]
struct RunningProxy(Child);

impl Drop for RunningProxy {
    fn drop(&mut self) {
        let _ = kill_process(Pid::from_child(&self.0), Signal::TERM);
        let begun = Instant::now();
        while matches!(self.0.try_wait(), Ok(None)) {
            if begun.elapsed() > PATIENCE {
                let _ = self.0.kill();
            }
            thread::sleep(Duration::from_millis(20));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::monday::links::LINKS;

    #[test]
    fn mixed_use_is_a_scenario_of_every_link() {
        for link in &LINKS {
            let scenario = scenario(link, &ENDS[0], MIXED_USE).unwrap_or_else(|why| panic!("{}: {why:#}", link.name));
            assert_eq!(scenario.duration, Some("10min".parse().unwrap()));
            assert!(ADVISED_AFTER + WATCHED.parse::<units::Span>().unwrap().duration() < Duration::from_secs(600));
        }
    }

    #[test]
    fn every_file_is_valid() {
        for (name, deployment) in &SETTINGS {
            if let Deployment::File(text) = deployment {
                let text = text.replace("{rate}", "50Mbit");
                assert!(proxy::Service::parse(&text, name).is_ok(), "{name}: {text}");
            }
        }
    }
}
