//! The bottleneck link. For controllers that probe for capacity, the middle host limits the rate
//! with a queue that overflows. For controllers that know the capacity, the sender's interface is
//! shaped and the monitor watches it, as the proxy does.

use anyhow::{Context as _, Result, ensure};
use kernel::{LinkId, Monitor, MonitorSettings, WatchMode};
use lab::Host;
use std::{net::UdpSocket, process::Stdio, time::Duration};
use testbed::ThreeHosts;

/// A rate limit, until dropped.
pub(super) struct RateLimit<'a> {
    host: &'a Host,
    device: &'static str,
    _monitor: Option<Monitor>,
}

/// Queue of the middle host: the RTT of flows that fill it.
const QUEUE: Duration = Duration::from_millis(20);
/// The queue of the proxy's shaper holds half a second.
const SHAPER_QUEUE: Duration = Duration::from_millis(500);
/// Ethernet header of a packet, bytes.
const ETHERNET: u32 = 14;

impl<'a> RateLimit<'a> {
    /// Limits the rate at the middle host.
    pub(super) fn at_middle(network: &'a ThreeHosts, bytes_per_s: u64) -> Result<Self> {
        RateLimit::shape(&network.middle, "far", bytes_per_s, QUEUE)
    }

    /// Limits the rate at the sender, and gives the monitor a record of its capacity.
    pub(super) fn at_sender(network: &'a ThreeHosts, bytes_per_s: u64) -> Result<Self> {
        let device = "near";
        let mut rate_limit = RateLimit::shape(&network.client, device, bytes_per_s, SHAPER_QUEUE)?;
        let link = network.client.enter(|| -> Result<LinkId> {
            let socket = UdpSocket::bind("127.0.0.1:0")?;
            Ok(LinkId::here(rustix::net::netdevice::name_to_index(&socket, device)?)?)
        })??;
        let mut monitor = Monitor::new()?;
        monitor.watch(link, MonitorSettings { capacity: Some(bytes_per_s), overhead: ETHERNET, watch: WatchMode::Qdisc })?;
        rate_limit._monitor = Some(monitor);
        Ok(rate_limit)
    }

    fn shape(host: &'a Host, device: &'static str, bytes_per_s: u64, queue: Duration) -> Result<Self> {
        let rate_limit = RateLimit { host, device, _monitor: None };
        // A burst of one millisecond, like that of the proxy's shaper.
        let (rate, burst, limit) = (bytes_per_s * 8, bytes_per_s / 1000, (bytes_per_s as f64 * queue.as_secs_f64()) as u64);
        rate_limit.tc(&format!("qdisc replace dev {device} root handle 1: htb default 1"))?;
        rate_limit.tc(&format!(
            "class replace dev {device} parent 1: classid 1:1 htb rate {rate}bit burst {burst} cburst {burst} quantum 60000"
        ))?;
        rate_limit.tc(&format!("qdisc replace dev {device} parent 1:1 handle 2: bfifo limit {limit}"))?;
        Ok(rate_limit)
    }

    fn tc(&self, line: &str) -> Result<()> {
        let output = self.host.command("tc").args(line.split_whitespace()).stdin(Stdio::null()).output();
        let output = output.context("cannot run tc; install it (Debian package iproute2)")?;
        ensure!(output.status.success(), "`tc {line}`: {}", String::from_utf8_lossy(&output.stderr).trim());
        Ok(())
    }
}

impl Drop for RateLimit<'_> {
    fn drop(&mut self) {
        let _ = self.tc(&format!("qdisc del dev {} root", self.device));
    }
}
