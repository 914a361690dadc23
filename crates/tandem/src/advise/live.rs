//! `tandem advise --live`: advice on the paths of a running proxy's connections, from what the
//! proxy has measured of them.

use super::{
    apply,
    path_advice::{PathAdvice, Recommendation, SplitSettings, text},
    trials::Trials,
    usages,
    verify::verify,
};
use crate::{CommandError, flows::failed};
use ::advise::{AdviceVerdict, Candidate, UsageAdvice, WayAssessment};
use clap::Args;
use intercept::{LinkView, Routes};
use monitor::{ExperimentEvidence, MeasuredPath, PathGroup, PathObserver, limiter_name};
use proxy::{
    ExperimentRow, FlowView, Limiter,
    control::{ProxyStatus, Remote},
};
use scenario::ReceiveBuffers;
use std::{
    collections::HashMap,
    fmt::Write as _,
    net::IpAddr,
    thread,
    time::{Duration, Instant},
};
use units::{Bytes, Rate, Span};

/// Time from sample to sample.
const SAMPLE: Duration = Duration::from_secs(1);
/// The most paths that advice is given on: those that carry the most.
const PATHS: usize = 5;
/// A gain that is worth the drawbacks of a split.
const WORTH: f64 = 1.05;
/// The receivers' windows are a limit if they are it in this share of the samples.
const OFTEN: f64 = 0.1;
/// The part of a packet of 1500 bytes that is payload.
const PAYLOAD: f64 = 1448.0 / 1500.0;
/// Rate of a link that is not the limit, at least: bit/s.
const FAST: f64 = 100e6;

/// Options of advice on a running proxy.
#[derive(Debug, Args)]
pub(super) struct LiveFlags {
    /// Advise on the paths of the running proxy, from what it measures of its connections: one
    /// recommendation for each destination prefix, or interface, that carries much
    #[arg(long, conflicts_with_all = ["file", "links", "sets"])]
    pub(super) live: bool,
    /// With --live: write the advice into the configuration file of the proxy, keep the old file
    /// beside it, and reload
    #[arg(long, requires = "live")]
    apply: bool,
    /// With --apply: ask the proxy's experiment after this time, and put the old file back if split
    /// connections are slower than unsplit ones, or gain less than with the settings before
    #[arg(long, value_name = "TIME", requires = "apply")]
    verify: Option<Span>,
    /// With --live: how long the connections are watched
    #[arg(long = "for", value_name = "TIME", default_value = "10s", requires = "live")]
    time: Span,
    /// With --live: rate of the link that carries the data to its receivers, if the proxy does not
    /// know it as a capacity
    #[arg(long, value_name = "RATE", requires = "live")]
    rate: Option<Rate>,
    /// With --live: act on an experiment of few clients, as in a home: one of them could have
    /// decided it. Otherwise it takes 10 clients in 5 prefixes
    #[arg(long, requires = "live")]
    trust_clients: bool,
    /// With --live: what the connections of a path have in common
    #[arg(long, value_enum, default_value_t = GroupBy::Prefix, requires = "live")]
    by: GroupBy,
    /// With --live: name of the proxy, if several run
    #[arg(long, value_name = "NAME", default_value = "default", requires = "live")]
    name: String,
}

/// What the connections of a path have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum GroupBy {
    /// The destination prefix, /24 or /48
    Prefix,
    /// The interface through which the clients are reached
    Interface,
}

/// Gives advice on the paths of the running proxy, and applies it if that is asked for.
pub(super) fn run(flags: &LiveFlags, trials: &Trials) -> Result<(), CommandError> {
    let remote = Remote::named(&flags.name);
    let status = remote.status().map_err(failed)?;
    // Before anything is measured: a proxy that runs from flags cannot follow.
    let configuration = if flags.apply { Some(apply::configuration(&status)?) } else { None };
    if flags.verify.is_some() && remote.experiment().map_err(failed)?.is_none() {
        let why = "cannot verify advice (--verify): the proxy runs no experiment; add experiment = \"1 in 50\" to its configuration";
        return Err(CommandError::Failed(format!("{why}, and reload it")));
    }
    let paths = observe(&remote, flags.time.duration(), flags.by)?;
    let experiment = remote.experiment().map_err(failed)?.map(|view| view.rows).unwrap_or_default();
    let mut all = Vec::new();
    for path in paths.into_iter().take(PATHS) {
        all.push(advise((flags, trials), path, &status, &experiment)?);
    }
    if trials.json {
        outln!("{}", serde_json::to_string(&all).unwrap_or_default());
    } else {
        out!("{}", text(&all, flags.time.duration()));
    }
    let Some(configuration) = configuration else { return Ok(()) };
    if all.iter().all(|advice| advice.config.is_none()) {
        if all.iter().any(|advice| matches!(advice.recommendation, Recommendation::Keep(_))) {
            outln!("{} has these settings already: nothing was changed.", configuration.display());
            return Ok(());
        }
        return Err(CommandError::CannotTell("there is no advice to apply".into()));
    }
    let applied = apply::apply(&remote, &configuration, &all)?;
    flags.verify.map_or(Ok(()), |time| verify(&remote, applied, &all, (time, flags.trust_clients)))
}

/// Samples the proxy's flows for this time.
fn observe(remote: &Remote, time: Duration, by: GroupBy) -> Result<Vec<MeasuredPath>, CommandError> {
    let (mut observer, begun) = (PathObserver::default(), Instant::now());
    let mut group = groups(by)?;
    loop {
        observer.take(&remote.flows().map_err(failed)?, &mut group, Instant::now());
        if begun.elapsed() >= time {
            return Ok(observer.paths());
        }
        thread::sleep(SAMPLE.min(time.saturating_sub(begun.elapsed())));
    }
}

fn routes() -> Result<Routes, CommandError> {
    Routes::open().map_err(|error| CommandError::Failed(format!("cannot ask the kernel for routes: {error}")))
}

/// Says to which group a flow belongs, if to any.
type GroupOf = Box<dyn FnMut(&FlowView) -> Option<PathGroup>>;

/// The group of each flow.
fn groups(by: GroupBy) -> Result<GroupOf, CommandError> {
    if by == GroupBy::Prefix {
        return Ok(Box::new(|flow| Some(PathGroup::prefix(flow))));
    }
    let routes = routes()?;
    let mut known: HashMap<IpAddr, Option<String>> = HashMap::new();
    Ok(Box::new(move |flow| {
        let client = flow.client.ip().to_canonical();
        known.entry(client).or_insert_with(|| routes.interface_to(client)).clone().map(PathGroup::Interface)
    }))
}

fn advise(
    (flags, trials): (&LiveFlags, &Trials),
    path: MeasuredPath,
    status: &ProxyStatus,
    experiment: &[ExperimentRow],
) -> Result<PathAdvice, CommandError> {
    let measured =
        experiment.iter().find(|row| row.size.is_none() && row.prefix.as_deref().is_some_and(|prefix| is_of(&path.group, prefix))).cloned();
    let evidence = ExperimentEvidence::of(measured.as_ref(), flags.trust_clients);
    let (recommendation, why) = recommend((flags.rate, trials), &path, status, &evidence)?;
    let mut advice = PathAdvice { path, recommendation, why, experiment: measured, config: None };
    advice.config = advice.lines();
    Ok(advice)
}

/// Whether a row of the experiment is about this group: its rows are of prefixes.
fn is_of(group: &PathGroup, prefix: &str) -> bool {
    matches!(group, PathGroup::Prefix(net) if net.to_string() == prefix)
}

fn recommend(
    (rate, trials): (Option<Rate>, &Trials),
    path: &MeasuredPath,
    status: &ProxyStatus,
    experiment: &ExperimentEvidence,
) -> Result<(Recommendation, Vec<String>), CommandError> {
    let none = |why: String, sentences: Vec<String>| Ok((Recommendation::None { why }, sentences));
    let (shown, mut why) = (experiment.gain, experiment.sentences.clone());
    if shown.is_some_and(|gain| gain.high < 1.0) {
        return Ok((Recommendation::Bypass, why));
    }
    if let Some(little) = path.too_little() {
        return none(little, why);
    }
    let (limiter, share) = path.limits.first().copied().unwrap_or((Limiter::Sender, 0.0));
    let own_leg = if path.is_download() { Limiter::NearLeg } else { Limiter::FarLeg };
    let link = SendingLink::of(path, status);
    let is_told = rate.is_some() || link.configured().is_some();
    let known = rate.or_else(|| link.rate());
    let is_own_limit = limiter == own_leg || limiter == Limiter::Receiver;
    let Some(rate) = known.or_else(|| (!is_own_limit).then(|| Rate::rounded((path.peak_bps * 4.0).max(FAST)))) else {
        let peak = Rate::rounded(path.peak_bps);
        return none(
            format!(
                "the {} leg is the limit, and the rate of its link is not known: at most {peak} were seen; say it (--rate, or capacity of a \
                 [[leg]])",
                if path.is_download() { "near" } else { "far" }
            ),
            why,
        );
    };
    why.push(format!("In {:.0} % of the samples the {} was the limit.", share * 100.0, limiter_name(limiter)));
    let receivers = receivers(path);
    // A capacity that was not given must not become a setting.
    let advice = match usages::advise(&links_text(path, rate, limiter), receivers, (&[], is_told), trials) {
        Ok(advice) => advice,
        Err(CommandError::CannotTell(error)) => return none(error, why),
        Err(error) => return Err(error),
    };
    why.push(expected(&advice, receivers));
    let is_shown = shown.is_some_and(|gain| gain.low > WORTH);
    match advice.verdict {
        AdviceVerdict::Split => {}
        _ if is_shown => {}
        AdviceVerdict::DoesNotPay if shown.is_none() => return Ok((Recommendation::Bypass, why)),
        AdviceVerdict::DoesNotPay => return none("the simulated split does not pay, and the experiment does not say so".into(), why),
        AdviceVerdict::CannotTell => return none("the simulated gain may be chance".into(), why),
    }
    let settings = settings(path, &advice.split.way, &link);
    Ok((if link.has(&settings, &path.control) { Recommendation::Keep(settings) } else { Recommendation::Split(settings) }, why))
}

/// The link of the leg that sends the data.
struct SendingLink<'a> {
    interface: Option<String>,
    /// Its state, if it has a capacity.
    view: Option<&'a LinkView>,
}

impl<'a> SendingLink<'a> {
    fn of(path: &MeasuredPath, status: &'a ProxyStatus) -> Self {
        let [client, server] = path.ends;
        let peer = if path.is_download() { client } else { server };
        let interface = Routes::open().ok().and_then(|routes| routes.interface_to(peer));
        let view = status.links.iter().find(|view| Some(&view.link) == interface.as_ref());
        SendingLink { interface, view }
    }

    /// The rate that it has now, as far as it is known.
    fn rate(&self) -> Option<Rate> {
        self.view.filter(|view| view.capacity_bps > 0).map(|view| Rate(view.capacity_bps))
    }

    /// The configured capacity, if there is one and the link has it. An estimate must not become a
    /// setting.
    fn configured(&self) -> Option<Rate> {
        self.view.filter(|view| !view.estimated && view.configured_bps.is_none()).and_then(|_| self.rate())
    }

    /// Whether the path has these settings already, with this controller.
    fn has(&self, settings: &SplitSettings, control: &str) -> bool {
        let is_same = control == settings.control || kernel::resolve(control).is_some_and(|ours| ours.name() == settings.control);
        is_same && (settings.capacity.is_none() || self.view.is_some())
    }
}

/// The settings of the best way. A link has one capacity: if it has one in the file, it is that.
fn settings(path: &MeasuredPath, way: &Candidate, link: &SendingLink<'_>) -> SplitSettings {
    let capacity = way.capacity.map(|capacity| match link.view {
        None => capacity.to_string(),
        Some(view) if view.estimated => "auto".into(),
        Some(view) => Rate(view.configured_bps.unwrap_or(view.capacity_bps)).to_string(),
    });
    SplitSettings {
        leg: if path.is_download() { "near" } else { "far" },
        control: way.control.clone(),
        link: link.interface.clone().filter(|_| capacity.is_some()),
        shape: link.view.filter(|view| capacity.is_some() && !view.estimated).map(|view| view.shaped),
        capacity,
    }
}

/// The receivers' buffers. If their windows are a limit, they are as large as they were seen to be;
/// else they have at least the usual ones.
fn receivers(path: &MeasuredPath) -> ReceiveBuffers {
    let ReceiveBuffers { first, most } = ReceiveBuffers::DEBIAN;
    let seen = Bytes((f64::from(path.sending().window_bytes) / ReceiveBuffers::PAYLOAD_SHARE) as u64);
    let are_limits = path.limits.iter().any(|(limiter, share)| *limiter == Limiter::Receiver && *share >= OFTEN);
    ReceiveBuffers { first, most: seen.max(if are_limits { first } else { most }) }
}

/// What a split is expected to gain.
fn expected(advice: &UsageAdvice, receivers: ReceiveBuffers) -> String {
    let WayAssessment { way, gain, half_width, results } = &advice.split;
    let extreme = |least: bool| {
        let found = results.iter().min_by(|a, b| if least { a.gain.total_cmp(&b.gain) } else { b.gain.total_cmp(&a.gain) });
        found.map_or(String::new(), |result| format!("{} {:.2}", result.name, result.gain))
    };
    format!(
        "Simulated over the measured path, with receive buffers of up to {}, the best split ({}) is {gain:.2} ± {half_width:.2} times as fast \
         as none in the mean of all that users do: from {} to {}.",
        receivers.most,
        way.control,
        extreme(true),
        extreme(false)
    )
}

/// The measured path as links of a scenario: the leg that receives, then the one that sends the
/// data.
fn links_text(path: &MeasuredPath, rate: Rate, limiter: Limiter) -> String {
    let (receiving, sending) = if path.is_download() { (&path.far, &path.near) } else { (&path.near, &path.far) };
    let other_leg = if path.is_download() { Limiter::FarLeg } else { Limiter::NearLeg };
    let others = if limiter == other_leg { path.peak_bps / PAYLOAD } else { (rate.0 as f64 * 4.0).max(FAST) };
    let link = |rate: f64, rtt_s: f64, loss: f64| {
        let mut text =
            format!("[[link]]\nrate = \"{}kbit\"\ndelay = \"{}us\"\n", (rate / 1e3).max(1.0).round(), (rtt_s / 2.0 * 1e6).round());
        if loss > 0.0 {
            let _ = writeln!(text, "loss = {{ per_packet = {loss:.6}, reverse = {{ per_packet = {loss:.6} }} }}");
        }
        text
    };
    link(others, receiving.rtt_s, 0.0) + &link(rate.0 as f64, sending.rtt_s, sending.loss.unwrap_or(0.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use scenario::ScenarioFile;

    #[test]
    fn a_measured_path_becomes_a_scenario() {
        let mut path = super::super::path_advice::example("192.0.2.0/24", Recommendation::Bypass).path;
        let scenario = |path: &MeasuredPath| {
            let links = links_text(path, Rate(20_000_000), path.limits[0].0);
            let text = format!("name = \"path\"\n{links}[[flow]]\nbytes = \"1MB\"\n");
            ScenarioFile::parse(&text, "test").unwrap().variants(&[]).unwrap().remove(0).scenario
        };
        let download = scenario(&path);
        assert_eq!((download.links[0].rate, download.links[1].rate), (Rate(100_000_000), Rate(20_000_000)));
        assert_eq!((download.links[0].delay, download.links[1].delay), ("10ms".parse().unwrap(), "300ms".parse().unwrap()));
        assert!(download.links[1].loss.forward.is_some() && download.links[0].loss.forward.is_none());
        // Uploads go the other way over the same proxy.
        (path.down_bytes, path.up_bytes) = (1000, 7_000_000);
        path.far.loss = Some(0.01);
        let upload = scenario(&path);
        assert_eq!((upload.links[0].delay, upload.links[1].delay), ("300ms".parse().unwrap(), "10ms".parse().unwrap()));
    }

    #[test]
    fn receivers_have_the_buffers_that_were_seen_if_they_are_a_limit() {
        let mut path = super::super::path_advice::example("192.0.2.0/24", Recommendation::Bypass).path;
        assert_eq!(receivers(&path), ReceiveBuffers::DEBIAN);
        path.limits.push((Limiter::Receiver, 0.2));
        assert_eq!(receivers(&path).most, Bytes((f64::from(3 << 20) / 0.63) as u64));
        path.near.window_bytes = 16 << 20;
        assert!(receivers(&path).most > Bytes(16 << 20));
    }
}
