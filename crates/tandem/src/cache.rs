//! `tandem cache`: the store-and-forward proxy.

use crate::{
    CommandError,
    check::{self, CheckScope},
    end_guard,
    manager::tell_manager,
    signals::ServiceEvents,
};
use cache::{
    Cache, Config, ConfigError, Listen, RawMode, StartError, Stats, WorkerProgram, metrics, picture_worker, shrink::ShrinkOptions,
};
use clap::Args;
use intercept::{ForwardPolicy, LegProfile, Ports};
use proxy::END_TIMEOUT;
use sd_notify::NotifyState;
use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};
use units::{Bytes, Span};

/// Interval at which the firewall rules and signals are checked.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// The same while the cache drains.
const DRAIN_INTERVAL: Duration = Duration::from_millis(20);

/// Run the store-and-forward proxy (HTTP cache, compression, image transcoding)
///
/// Answers clear-text HTTP from its cache, compressed and with smaller images, and forwards other
/// connections message by message. TLS passes unchanged. On SIGTERM or Ctrl-C it accepts no new
/// connections and waits for the existing ones to end; a second signal resets them. At exit it
/// prints statistics.
#[derive(Debug, Args)]
pub(crate) struct CacheCommand {
    #[arg(
        long,
        value_name = "LISTENER",
        required = true,
        help = "A listener: transparent=[::]:5000 for routed connections, forward=ADDRESS:PORT=ADDRESS:PORT to one server, or \
                http=ADDRESS:PORT as an explicit HTTP proxy (with ,allow=PREFIX and ,deny=PREFIX for destinations, ,users=FILE for \
                authentication)"
    )]
    listen: Vec<Listen>,
    /// Server ports that a transparent listener intercepts: 80, or 8000-8999
    #[arg(long, value_name = "PORTS", value_delimiter = ',', default_value = "80")]
    ports: Vec<Ports>,
    /// Profile of the accepted (near) leg, as KEY=VALUE,…: control=cubic,keepalive=10min
    #[arg(long, value_name = "PROFILE", default_value = "")]
    near: LegProfile,
    /// Profile of the dialled (far) leg
    #[arg(long, value_name = "PROFILE", default_value = "")]
    far: LegProfile,
    /// Maximum memory for messages: three quarters for stored messages, one quarter for requests in
    /// progress
    #[arg(long, value_name = "SIZE", default_value = "64MiB")]
    memory: Bytes,
    /// Maximum share of the memory for requests in progress per client address, in percent; 100 if
    /// all clients share one address
    #[arg(long, value_name = "PERCENT", default_value_t = 25, value_parser = clap::value_parser!(u8).range(1..=100))]
    client_share: u8,
    /// Maximum disk space for stored messages, in unlinked files in $TMPDIR
    #[arg(long, value_name = "SIZE", default_value = "1GiB")]
    disk: Bytes,
    /// Maximum size of a stored message, or of a stored direction of a connection; larger ones are
    /// streamed
    #[arg(long, value_name = "SIZE", default_value = "256MiB")]
    largest: Bytes,
    /// Do not keep responses for later requests
    #[arg(long)]
    no_keep: bool,
    /// Forward an HTTP message only once it is complete. By default responses are forwarded while
    /// they are received at full speed
    #[arg(long)]
    hold: bool,
    /// Do not compress bodies
    #[arg(long)]
    no_compress: bool,
    /// Quality of transcoded JPEG and PNG images, 1 to 100
    #[arg(long, value_name = "QUALITY", default_value_t = 25, value_parser = clap::value_parser!(u8).range(1..=100), conflicts_with = "no_shrink")]
    pictures: u8,
    /// Do not transcode images
    #[arg(long)]
    no_shrink: bool,
    /// Maximum pixels of an image that is transcoded; larger images pass unchanged
    #[arg(long, value_name = "N", default_value_t = 24_000_000)]
    most_pixels: u64,
    /// Time limit for transcoding an image; an image that takes longer passes unchanged
    #[arg(long, value_name = "TIME", default_value = "30s")]
    picture_timeout: Span,
    /// Forward the stored data of a connection that is not HTTP after a pause of this length;
    /// "never": only after its sender has finished
    #[arg(long, value_name = "TIME", default_value = "500ms", value_parser = lull, conflicts_with = "stream")]
    lull: RawMode,
    /// Relay connections that are not HTTP without storing them
    #[arg(long)]
    stream: bool,
    /// Time limit for connecting to a server, and for a request that waits for memory
    #[arg(long, value_name = "TIME", default_value = "30s")]
    connect_timeout: Span,
    /// Time limit for a peer whose turn it is to send, or to read
    #[arg(long, value_name = "TIME", default_value = "60s")]
    patience: Span,
    /// Maximum concurrent connections; more pass unsplit (transparent listeners) or wait (others)
    #[arg(long, value_name = "N", default_value_t = 4096)]
    max_connections: usize,
    /// Worker threads
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: u16,
    /// Serve Prometheus metrics at http://ADDRESS:PORT/metrics
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = intercept::parse_address)]
    metrics: Option<SocketAddr>,
    /// Name of this host under which metrics are served, besides its addresses and host name
    #[arg(long = "host-name", value_name = "NAME", value_parser = web_server::parse_host_name)]
    host_names: Vec<String>,
    /// Install no firewall rules: the operator's own rules redirect the traffic
    #[arg(long)]
    no_rules: bool,
    /// Policy for the forward chains of other programs: heed (intercept only what they accept; the
    /// first connection of a client to a server port passes unsplit) or ignore
    #[arg(long, value_name = "POLICY", default_value_t)]
    forward_policy: ForwardPolicy,
    /// Print the firewall rules and exit
    #[arg(long)]
    dry_run: bool,
    /// Check whether this host meets the requirements of a start, and exit; "--check=config" checks
    /// the options alone
    #[arg(long, value_name = "HOW", num_args = 0..=1, require_equals = true, default_missing_value = "all")]
    check: Option<CheckScope>,
    /// Print the statistics at exit as JSON
    #[arg(long)]
    json: bool,
}

/// Run the process that transcodes images for `tandem cache`, without any privilege
#[derive(Debug, Args)]
pub(crate) struct PictureWorkerCommand {
    /// Quality of transcoded images, 1 to 100
    quality: u8,
    /// Maximum pixels of an image that is transcoded
    most_pixels: u64,
    /// CPU time limit of the process, seconds
    cpu_seconds: u64,
}

impl PictureWorkerCommand {
    pub(crate) fn run(self) -> Result<(), CommandError> {
        let options = ShrinkOptions { quality: self.quality, most_pixels: self.most_pixels };
        picture_worker::run(options, self.cpu_seconds).map_err(|why| CommandError::Failed(why.to_string()))
    }
}

fn lull(text: &str) -> Result<RawMode, String> {
    match text {
        "never" => Ok(RawMode::StoreAndForward(None)),
        text => text.parse::<Span>().map(|lull| RawMode::StoreAndForward(Some(lull.duration()))).map_err(|error| error.to_string()),
    }
}

impl CacheCommand {
    pub(crate) fn run(self) -> Result<(), CommandError> {
        let mut config = self.config();
        config.read_users().map_err(|error| CommandError::Usage(error.to_string()))?;
        config.check().map_err(usage)?;
        if let Some(how) = self.check {
            return check::run(how, || cache::try_start(&config, self.metrics));
        }
        if self.dry_run {
            match config.interception().rules() {
                Some(rules) => out!("{rules}"),
                None => outln!("no rules"),
            }
            return Ok(());
        }
        let events = ServiceEvents::start(false)?;
        let cache = Arc::new(Cache::start(config).map_err(start_failure)?);
        let metrics = self
            .metrics
            .map(|at| metrics::serve(&cache, at, &self.host_names).map_err(|error| CommandError::Failed(error.to_string())))
            .transpose()?;
        self.warn();
        tracing::info!("storing and forwarding");
        tell_manager(&[NotifyState::Ready]);
        let check = || cache.check_rules().map_err(|lost| CommandError::Failed(lost.to_string()));
        while !events.ends_within(CHECK_INTERVAL) {
            check()?;
        }
        tracing::info!("no new connections are accepted; waiting for the existing ones to end (a second signal resets them)");
        tell_manager(&[NotifyState::Stopping]);
        cache.begin_drain();
        while !cache.is_idle() && !events.ends_within(DRAIN_INTERVAL) {
            check()?;
        }
        end_guard::start(Instant::now() + END_TIMEOUT);
        self.print(&cache.stats())?;
        drop(metrics);
        // Resets the remaining connections and removes the firewall rules.
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
            raw: if self.stream { RawMode::Stream } else { self.lull },
            connect_timeout: self.connect_timeout.duration(),
            patience: self.patience.duration(),
            max_connections: self.max_connections,
            threads: usize::from(self.threads),
            install_rules: !self.no_rules,
            forward_policy: self.forward_policy,
        }
    }

    /// Warns of settings that work but are probably unintended.
    fn warn(&self) {
        let files = std::env::temp_dir();
        if let Ok(room) = rustix::fs::statvfs(&files)
            && room.f_bavail.saturating_mul(room.f_frsize) < self.disk.0
        {
            let left = Bytes(room.f_bavail.saturating_mul(room.f_frsize));
            let at = files.display();
            tracing::warn!(
                "{at} has {left} free, less than --disk {}: set TMPDIR to a directory with more space, or lower --disk",
                self.disk
            );
        }
        self.config().open_listeners().iter().for_each(|(at, why, cure)| tracing::warn!("listener at {at}: {why}; {cure}"));
    }

    fn print(&self, stats: &Stats) -> Result<(), CommandError> {
        if self.json {
            let text = serde_json::to_string(stats).map_err(|error| CommandError::Failed(error.to_string()))?;
            outln!("{text}");
            return Ok(());
        }
        let Stats { requests, hits, revalidated, stale, misses, passed, refused, .. } = stats;
        outln!(
            "{requests} requests: {hits} hits, {revalidated} revalidated, {stale} stale, {misses} misses, {passed} passed, {refused} refused"
        );
        outln!("{} from servers, {} to clients", Bytes(stats.origin_bytes), Bytes(stats.client_bytes));
        outln!(
            "{} saved by transcoding {} images, {} by compression",
            Bytes(stats.picture_bytes_saved),
            stats.pictures,
            Bytes(stats.compressed_bytes_saved)
        );
        outln!(
            "{} connections; {} were relayed as raw bytes and carried {}",
            stats.connections,
            stats.raw_connections,
            Bytes(stats.raw_bytes)
        );
        Ok(())
    }
}

fn start_failure(error: StartError) -> CommandError {
    match error {
        StartError::Config(error) => CommandError::Usage(error.to_string()),
        other => CommandError::Failed(other.to_string()),
    }
}

fn usage(error: ConfigError) -> CommandError {
    CommandError::Usage(error.to_string())
}
