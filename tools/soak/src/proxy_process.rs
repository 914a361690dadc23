//! The proxy as a process.

use crate::monitor::ProxySample;
use anyhow::{Context as _, Result, ensure};
use std::{
    path::Path,
    process::{Child, Stdio},
    thread,
    time::{Duration, Instant},
};
use testbed::ThreeHosts;

/// The proxy; killed when dropped.
pub(crate) struct ProxyProcess(pub(crate) Child);

impl ProxyProcess {
    pub(crate) fn start(network: &ThreeHosts, tandem: &Path, configuration: &Path) -> Result<Self> {
        let child = network
            .middle
            .command(&tandem.to_string_lossy())
            .args(["proxy", "-c"])
            .arg(configuration)
            .env_remove("TANDEM_LOG")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot run {}", tandem.display()))?;
        Ok(ProxyProcess(child))
    }

    /// Stops the proxy by SIGTERM. Without flows it must end at once.
    pub(crate) fn stop(&mut self) -> Result<()> {
        rustix::process::kill_process(rustix::process::Pid::from_child(&self.0), rustix::process::Signal::TERM)?;
        let begun = Instant::now();
        loop {
            if let Some(status) = self.0.try_wait()? {
                ensure!(status.success(), "the proxy ended with {status}");
                return Ok(());
            }
            ensure!(begun.elapsed() < Duration::from_secs(20), "the proxy does not stop");
            thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for ProxyProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Waits until the proxy answers; returns its state before the first connection.
pub(crate) fn await_start(network: &ThreeHosts, process: u32) -> Result<ProxySample> {
    let begun = Instant::now();
    loop {
        match ProxySample::take(network, process) {
            Ok(sample) => return Ok(sample),
            Err(error) if begun.elapsed() > Duration::from_secs(20) => return Err(error.context("the proxy does not start")),
            Err(_) => thread::sleep(Duration::from_millis(50)),
        }
    }
}
