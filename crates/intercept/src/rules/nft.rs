//! Runs `nft`.

use super::RulesError;
use std::{
    io::{self, Write as _},
    process::{Command, Stdio},
};

/// The cure for an error message of nft.
pub(super) fn cure(said: &str) -> &'static str {
    if said.contains("not permitted") || said.contains("you must be root") {
        "run as root, or with CAP_NET_ADMIN"
    } else if said.contains("No such file") || said.contains("not supported") {
        "the kernel lacks a part of nftables (CONFIG_NFT_TPROXY, CONFIG_NFT_SOCKET, CONFIG_NFT_FIB_INET; with an experiment also \
         CONFIG_NFT_HASH, CONFIG_NFT_LOG, CONFIG_NETFILTER_NETLINK_LOG); see `tandem doctor`"
    } else {
        "see `tandem doctor`"
    }
}

/// Runs nft. Returns whether it succeeded, and its output or the first line of its error message.
///
/// # Errors
/// nft cannot be run.
pub(super) fn run(arguments: &[&str]) -> Result<(bool, String), RulesError> {
    run_with(arguments, "")
}

/// Like [`run`], with `input` on its standard input.
///
/// # Errors
/// nft cannot be run.
pub(super) fn run_with(arguments: &[&str], input: &str) -> Result<(bool, String), RulesError> {
    let (read, mut write) = io::pipe().map_err(RulesError::RunNft)?;
    let mut command = Command::new("nft");
    let child = command.args(arguments).stdin(read).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().map_err(RulesError::RunNft)?;
    // `command` holds the read end of the pipe. Once it is dropped, a write to an nft that has
    // exited fails instead of blocking.
    drop(command);
    // An nft that does not read all of its input reports why in its error message.
    let _ = write.write_all(input.as_bytes());
    drop(write);
    let output = child.wait_with_output().map_err(RulesError::RunNft)?;
    let mut said = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        said = String::from_utf8_lossy(&output.stderr).lines().next().unwrap_or("it gave no reason").to_string();
    }
    Ok((output.status.success(), said))
}
