//! The shaper of an interface, by `tc`.

use super::EgressError;
use crate::{leg, routes::Device};
use kernel::WatchMode;
use std::{
    io,
    process::{Command, Stdio},
};
use units::Rate;

/// The handle of the shaper. The priority of the proxy's packets selects its class 1.
const HANDLE: u32 = leg::SHAPED >> 16;

/// Converts a rate of IP to bytes/s on the wire, for full-sized packets.
pub(super) fn wire_rate(rate: Rate, device: &Device) -> u64 {
    let wire = u128::from(rate.bits_per_s()) * u128::from(device.mtu + device.overhead) / u128::from(device.mtu.max(1)) / 8;
    u64::try_from(wire).unwrap_or(u64::MAX)
}

/// Shapes the proxy's packets on an interface to `wire` bytes/s, unless the operator has configured
/// a queueing discipline there.
pub(super) fn shape_to(device: &Device, wire: u64) -> Result<WatchMode, EgressError> {
    let link = device.name.as_str();
    let handle = format!("{HANDLE:x}:");
    let root = tc(link, &["qdisc", "show", "dev", link, "root"])?;
    let mut words = root.split_whitespace().skip(1);
    let (kind, there) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    // Handle 0: marks the kernel's default. No handle means noqueue.
    if there == handle {
        tracing::debug!("{link}: takes over the existing shaper");
    } else if there == "0:" || there.is_empty() {
        tc(link, &["qdisc", "replace", "dev", link, "root", "handle", &handle, "htb", "default", "0"])?;
    } else {
        tracing::info!("{link} has a queueing discipline already ({kind}), which stays: the proxy does not shape its packets there");
        return Ok(WatchMode::Virtual);
    }
    let (class, rate) = (format!("{handle}1"), format!("{}bit", wire * 8));
    // At least two full packets, but not much more: a burst would fill the queue of the next hop.
    let burst = (wire / 1000).max(u64::from(device.mtu) * 2).to_string();
    let arguments = ["class", "replace", "dev", link, "parent", &handle, "classid", &class, "htb", "rate", &rate, "burst", &burst];
    tc(link, &[&arguments[..], &["cburst", &burst]].concat())?;
    // TCP bounds the queue itself: it lets at most two packets of a flow, or those of a
    // millisecond, into the queues of its own host (TCP small queues). A drop here would only cause
    // a retransmission. So the limit has room for a thousand flows that start together.
    let (queue, limit) = (format!("{:x}:", HANDLE + 1), (wire / 2).max(4 << 20).to_string());
    tc(link, &["qdisc", "replace", "dev", link, "parent", &class, "handle", &queue, "bfifo", "limit", &limit])?;
    Ok(WatchMode::Qdisc)
}

/// Removes the shaper, which may be that of a killed proxy.
pub(super) fn unshape(device: &Device) -> WatchMode {
    let link = device.name.as_str();
    let root = tc(link, &["qdisc", "show", "dev", link, "root"]).unwrap_or_default();
    if root.split_whitespace().nth(2) == Some(&format!("{HANDLE:x}:")) {
        let _ = tc(link, &["qdisc", "del", "dev", link, "root"]);
    }
    WatchMode::Virtual
}

pub(super) fn tc(link: &str, arguments: &[&str]) -> Result<String, EgressError> {
    let failed = |why: String| EgressError::Shape { link: link.to_owned(), arguments: arguments.join(" "), why };
    let output = Command::new("tc").args(arguments).stdin(Stdio::null()).output().map_err(|why| {
        let cure = if why.kind() == io::ErrorKind::NotFound { "; install it (Debian package iproute2)" } else { "" };
        failed(format!("{why}{cure}"))
    })?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(failed(String::from_utf8_lossy(&output.stderr).lines().next().unwrap_or("it gave no reason").to_owned()))
}
