//! `tandem cache`: the store-and-forward proxy.

use crate::{
    Failure,
    check::{self, Check},
    service::tell_manager,
};
use cache::{Cache as Running, Config, ConfigError, Listen, Raw, StartError, Stats, WorkerProgram, metrics, picture_worker, shrink::Wish};
use clap::Args;
use intercept::{ForwardPolicy, LegProfile, Ports};
use sd_notify::NotifyState;
use signal_hook::{
    consts::{SIGINT, SIGTERM},
    iterator::Signals,
};
use std::{net::SocketAddr, sync::Arc, thread, time::Duration};
use units::{Bytes, Span};

/// How often the firewall's rules and signals are looked at.
const CHECK: Duration = Duration::from_millis(100);

/// Receives all, then forwards: web pages from what it keeps, compressed, with smaller pictures; other connections when their sender pauses
/// or has finished. TLS passes as it is.
///
/// Until SIGTERM or Ctrl-C; then it takes no new connections and waits for those there are. A second one resets these. What it has done it
/// says at its end.
#[derive(Debug, Args)]
pub(crate) struct Cache {
    #[arg(
        long,
        value_name = "WAY",
        required = true,
        help = "Where connections come in: transparent=[::]:5000, forward=HERE:PORT=THERE:PORT or, for clients that know of a proxy, \
                http=HERE:PORT (that with ,allow=PREFIX and ,deny=PREFIX: where clients may go; ,users=FILE: who may use it)"
    )]
    listen: Vec<Listen>,
    /// Ports of servers whose connections a transparent listener takes: 80, or 8000-8999
    #[arg(long, value_name = "PORTS", value_delimiter = ',', default_value = "80")]
    ports: Vec<Ports>,
    /// Profile of the accepted leg, as KEY=VALUE,…: control=cubic,keepalive=10min
    #[arg(long, value_name = "PROFILE", default_value = "")]
    near: LegProfile,
    /// Profile of the dialled leg
    #[arg(long, value_name = "PROFILE", default_value = "")]
    far: LegProfile,
    /// What is held in memory at most: three quarters of it are for messages that are stored, one
    /// is for requests in progress
    #[arg(long, value_name = "SIZE", default_value = "64MiB")]
    memory: Bytes,
    /// The share of the memory for requests in progress that one client address may have, in
    /// percent: 100 where all clients come from one address
    #[arg(long, value_name = "PERCENT", default_value_t = 25, value_parser = clap::value_parser!(u8).range(1..=100))]
    client_share: u8,
    /// What is held on disk at most, in files without a name in $TMPDIR
    #[arg(long, value_name = "SIZE", default_value = "1GiB")]
    disk: Bytes,
    /// What is held of one message, or one direction of a connection, at most: more goes on as it comes
    #[arg(long, value_name = "SIZE", default_value = "256MiB")]
    largest: Bytes,
    /// Keeps no answers for those who ask later
    #[arg(long)]
    no_keep: bool,
    /// Forwards messages of HTTP only when they are whole; else answers are received as fast as they come, and sent on meanwhile
    #[arg(long)]
    hold: bool,
    /// Compresses nothing
    #[arg(long)]
    no_compress: bool,
    /// The quality of the pictures that JPEG and PNG ones are made into, 1 to 100
    #[arg(long, value_name = "QUALITY", default_value_t = 25, value_parser = clap::value_parser!(u8).range(1..=100), conflicts_with = "no_shrink")]
    pictures: u8,
    /// Leaves pictures as they are
    #[arg(long)]
    no_shrink: bool,
    /// Pictures with more pixels stay as they are
    #[arg(long, value_name = "N", default_value_t = 24_000_000)]
    most_pixels: u64,
    /// How long a picture may take to be made smaller; one that takes longer passes unchanged
    #[arg(long, value_name = "TIME", default_value = "30s")]
    picture_timeout: Span,
    /// How long the sender of a connection that is not HTTP says nothing when what it has said goes on; "never": only when it has finished
    #[arg(long, value_name = "TIME", default_value = "500ms", value_parser = lull, conflicts_with = "stream")]
    lull: Raw,
    /// Connections that are not HTTP go on as they come
    #[arg(long)]
    stream: bool,
    /// How long a server may take to be reached, and a request may wait for room before that
    #[arg(long, value_name = "TIME", default_value = "30s")]
    connect_timeout: Span,
    /// How long an end that owes something may say nothing
    #[arg(long, value_name = "TIME", default_value = "60s")]
    patience: Span,
    /// Connections at once; more pass unsplit, or wait
    #[arg(long, value_name = "N", default_value_t = 4096)]
    max_connections: usize,
    /// Worker threads
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: u16,
    /// Serves metrics for Prometheus at http://ADDRESS:PORT/metrics
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = intercept::parse_address)]
    metrics: Option<SocketAddr>,
    /// Installs no rules: the operator's own firewall brings the traffic
    #[arg(long)]
    no_rules: bool,
    /// What the forward chains of other programs decide: heed (take only what they let pass; the
    /// first connection of a client to a port of a server passes as it is) or ignore
    #[arg(long, value_name = "POLICY", default_value_t)]
    forward_policy: ForwardPolicy,
    /// Prints the rules and ends
    #[arg(long)]
    dry_run: bool,
    /// Tries what a start would need, says what cannot work, and ends; "--check=config" looks at the
    /// configuration alone
    #[arg(long, value_name = "HOW", num_args = 0..=1, require_equals = true, default_missing_value = "all")]
    check: Option<Check>,
    /// Says at the end as JSON what has been done
    #[arg(long)]
    json: bool,
}

/// The process in which `tandem cache` has pictures decoded, without any privilege
#[derive(Debug, Args)]
pub(crate) struct PictureWorker {
    /// The quality of what is made, 1 to 100
    quality: u8,
    /// Pictures with more pixels stay as they are
    most_pixels: u64,
    /// Processor time that the process may use, seconds
    cpu_seconds: u64,
}

impl PictureWorker {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let wish = Wish { quality: self.quality, most_pixels: self.most_pixels };
        picture_worker::run(wish, self.cpu_seconds).map_err(|why| Failure::Failed(why.to_string()))
    }
}

fn lull(text: &str) -> Result<Raw, String> {
    match text {
        "never" => Ok(Raw::Store(None)),
        text => text.parse::<Span>().map(|lull| Raw::Store(Some(lull.duration()))).map_err(|error| error.to_string()),
    }
}

impl Cache {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let mut config = self.config();
        config.read_users().map_err(|error| Failure::Usage(error.to_string()))?;
        config.check().map_err(usage)?;
        if let Some(how) = self.check {
            return check::run(how, || cache::try_start(&config, self.metrics), "this can work here");
        }
        if self.dry_run {
            match config.interception().rules() {
                Some(rules) => out!("{rules}"),
                None => outln!("no rules"),
            }
            return Ok(());
        }
        let mut signals = Signals::new([SIGINT, SIGTERM]).map_err(|why| Failure::Failed(format!("cannot listen for signals: {why}")))?;
        let cache = Arc::new(Running::start(config).map_err(start_failure)?);
        let metrics = self.metrics.map(|at| metrics::serve(&cache, at).map_err(|error| Failure::Failed(error.to_string()))).transpose()?;
        self.warn();
        tracing::info!("storing and forwarding");
        tell_manager(&[NotifyState::Ready]);
        let check = || cache.check_rules().map_err(|lost| Failure::Failed(lost.to_string()));
        while signals.pending().next().is_none() {
            check()?;
            thread::sleep(CHECK);
        }
        tracing::info!("no new connections from now on; waiting for these to end (a second signal resets them)");
        tell_manager(&[NotifyState::Stopping]);
        cache.begin_drain();
        while !cache.is_idle() && signals.pending().next().is_none() {
            check()?;
            thread::sleep(Duration::from_millis(20));
        }
        self.print(&cache.stats())?;
        drop(metrics);
        // Resets what is left and takes the rules away.
        drop(cache);
        Ok(())
    }

    fn config(&self) -> Config {
        Config {
            listen: self.listen.clone(),
            ports: self.ports.clone(),
            near: self.near.clone(),
            far: self.far.clone(),
            memory: self.memory,
            client_share: self.client_share,
            disk: self.disk,
            largest: self.largest,
            keep: !self.no_keep,
            hold: self.hold,
            compress: !self.no_compress,
            pictures: (!self.no_shrink).then_some(self.pictures),
            most_pixels: self.most_pixels,
            picture_timeout: self.picture_timeout.duration(),
            picture_worker: WorkerProgram::default(),
            raw: if self.stream { Raw::Stream } else { self.lull },
            connect_timeout: self.connect_timeout.duration(),
            patience: self.patience.duration(),
            max_connections: self.max_connections,
            threads: usize::from(self.threads),
            install_rules: !self.no_rules,
            forward_policy: self.forward_policy,
        }
    }

    /// Says what works but is likely not meant.
    fn warn(&self) {
        let files = std::env::temp_dir();
        if let Ok(room) = rustix::fs::statvfs(&files)
            && room.f_bavail.saturating_mul(room.f_frsize) < self.disk.0
        {
            let left = Bytes(room.f_bavail.saturating_mul(room.f_frsize));
            let at = files.display();
            tracing::warn!("{at} has room for {left}, less than --disk {}: let TMPDIR name another directory, or give less", self.disk);
        }
        self.config().open_listeners().iter().for_each(|(at, why, cure)| tracing::warn!("listener at {at}: {why}; {cure}"));
    }

    fn print(&self, stats: &Stats) -> Result<(), Failure> {
        if self.json {
            let text = serde_json::to_string(stats).map_err(|error| Failure::Failed(error.to_string()))?;
            outln!("{text}");
            return Ok(());
        }
        let Stats { requests, hits, revalidated, stale, misses, passed, refused, .. } = stats;
        outln!(
            "{requests} requests: {hits} hits, {revalidated} revalidated, {stale} stale, {misses} misses, {passed} passed, {refused} refused"
        );
        outln!("{} from origins, {} to clients", Bytes(stats.origin_bytes), Bytes(stats.client_bytes));
        outln!(
            "{} saved by {} smaller pictures, {} by compression",
            Bytes(stats.picture_bytes_saved),
            stats.pictures,
            Bytes(stats.compressed_bytes_saved)
        );
        outln!("{} connections, {} of them not HTTP, which carried {}", stats.connections, stats.raw_connections, Bytes(stats.raw_bytes));
        Ok(())
    }
}

fn start_failure(error: StartError) -> Failure {
    match error {
        StartError::Config(error) => Failure::Usage(error.to_string()),
        other => Failure::Failed(other.to_string()),
    }
}

fn usage(error: ConfigError) -> Failure {
    Failure::Usage(error.to_string())
}
