//! nftables rules of a host.

use anyhow::{Context as _, Result, ensure};
use lab::Host;
use std::{io::Write as _, process::Stdio};

/// Loads rules, written as for `nft -f`, on a host.
///
/// # Errors
///
/// If `nft` cannot be run or refuses the rules.
pub fn load_rules(host: &Host, rules: &str) -> Result<()> {
    let mut command = host.command("nft");
    command.args(["-f", "-"]).stdin(Stdio::piped());
    let mut child = command.spawn().context("cannot run nft; install it (Debian package nftables)")?;
    child.stdin.take().context("nft has no standard input")?.write_all(rules.as_bytes())?;
    let status = child.wait()?;
    ensure!(status.success(), "nft refused rules for host {:?} ({status}); it printed why above", host.name());
    Ok(())
}
