//! `tandem proxy`: splits the connections that come to this machine.

use crate::Failure;
use clap::Args;
use proxy::{Config, ConfigError, LegProfile, Listen, StartError};
use scenario::{Buffer, Bytes, Span};
use signal_hook::{
    consts::{SIGINT, SIGTERM},
    iterator::Signals,
};
use std::{
    str::FromStr,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    thread,
    time::Duration,
};

/// Splits the connections that come to this machine, until SIGTERM or Ctrl-C; then it takes no new ones and waits for those
/// there are. A second one resets these.
#[derive(Debug, Args)]
pub(crate) struct Proxy {
    #[arg(
        long,
        value_name = "WAY",
        required = true,
        help = "Where connections come in: transparent=[::]:5000 or forward=HERE:PORT=THERE:PORT"
    )]
    listen: Vec<Listen>,
    /// Profile of the accepted leg: control=cubic,send_buffer=1MiB
    #[arg(long, value_name = "KEY=VALUE,…", default_value = "")]
    near: Profile,
    /// Profile of the dialled leg
    #[arg(long, value_name = "KEY=VALUE,…", default_value = "")]
    far: Profile,
    /// What is held in each direction of a connection at most: a size, or "unlimited"
    #[arg(long, value_name = "B", default_value = "1MiB", value_parser = buffer)]
    buffer: Buffer,
    /// Worker threads
    #[arg(long, value_name = "N", default_value_t = 1)]
    threads: usize,
    /// How long a far end may take to answer
    #[arg(long, value_name = "TIME", default_value = "30s")]
    connect_timeout: Span,
    /// Installs no rules: the operator's own firewall brings the traffic
    #[arg(long)]
    no_rules: bool,
    /// Prints the rules and ends
    #[arg(long)]
    dry_run: bool,
}

/// A leg profile as written on the command line.
#[derive(Debug, Clone)]
struct Profile(LegProfile);

impl FromStr for Profile {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut profile = LegProfile::default();
        for part in text.split(',').filter(|part| !part.trim().is_empty()) {
            match part.split_once('=').map(|(key, value)| (key.trim(), value.trim())) {
                Some(("control", name)) => profile.control = Some(name.into()),
                Some(("send_buffer", size)) => profile.send_buffer = Some(size.parse::<Bytes>().map_err(|error| error.to_string())?),
                _ => return Err(format!("{part:?} is no part of a leg's profile: it can have control=NAME and send_buffer=SIZE")),
            }
        }
        Ok(Profile(profile))
    }
}

fn buffer(text: &str) -> Result<Buffer, String> {
    match text.parse() {
        Ok(Buffer::Auto) => Err("\"auto\" needs a scenario: give a size, or \"unlimited\"".into()),
        Ok(buffer) => Ok(buffer),
        Err(error) => Err(error.to_string()),
    }
}

impl Proxy {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let config = Config {
            listen: self.listen,
            near: self.near.0,
            far: self.far.0,
            buffer: match self.buffer {
                Buffer::Bytes(bytes) => Some(bytes),
                Buffer::Unlimited | Buffer::Auto => None,
            },
            threads: self.threads,
            connect_timeout: self.connect_timeout.duration(),
            install_rules: !self.no_rules,
            ..Config::default()
        };
        config.check().map_err(usage)?;
        if self.dry_run {
            match config.rules() {
                Some(rules) => print!("{rules}"),
                None => println!("no rules"),
            }
            return Ok(());
        }
        let mut signals = Signals::new([SIGINT, SIGTERM]).map_err(|why| Failure::Failed(format!("cannot listen for signals: {why}")))?;
        static ENDED: AtomicU64 = AtomicU64::new(0);
        let mut proxy = proxy::Proxy::start(config, |_| {
            ENDED.fetch_add(1, Relaxed);
        })
        .map_err(|error| match error {
            StartError::Config(error) => usage(error),
            other => Failure::Failed(other.to_string()),
        })?;
        tracing::info!("splitting connections");
        signals.forever().next();
        tracing::info!(
            flows = proxy.flows().len(),
            "no new connections from now on; waiting for these to end (a second signal resets them)"
        );
        proxy.begin_drain();
        while !proxy.is_idle() && signals.pending().next().is_none() {
            thread::sleep(Duration::from_millis(20));
        }
        // Resets what is left and takes the rules away.
        drop(proxy);
        tracing::info!(ended = ENDED.load(Relaxed), "done");
        Ok(())
    }
}

/// What can't work anywhere is wrong usage; what this machine lacks is a failure.
fn usage(error: ConfigError) -> Failure {
    Failure::Usage(error.to_string())
}
