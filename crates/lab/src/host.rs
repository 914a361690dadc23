//! A host: a network namespace of its own, without a link to the machine's network.
//!
//! A [`Host`] holds a descriptor of its namespace. The kernel removes the namespace, its devices
//! and its rules when the last descriptor is closed, so also when this process is killed. A
//! published host has a name that `ip netns exec` knows; a killed process leaves that name behind,
//! and [`clear_stale`] removes it at the next start.

use crate::{LabError, sys};
use rustix::{
    fd::{AsFd, OwnedFd},
    fs::{Mode, OFlags},
    mount::{MountFlags, UnmountFlags},
    thread::{LinkNameSpaceType, move_into_link_name_space},
};
use std::{
    fs,
    io::{self, Write as _},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
};

/// Directory in which `ip netns` looks up names.
const NAMES: &str = "/run/netns";
/// Prefix of published names; the number of the process that published them follows.
const PREFIX: &str = "tandem-";

/// Whether the kernel has IPv6; without it, hosts have IPv4 addresses only.
pub(crate) fn has_ipv6() -> bool {
    Path::new("/proc/sys/net/ipv6").exists()
}

/// A host of the lab.
#[derive(Debug)]
pub struct Host {
    name: String,
    namespace: OwnedFd,
    published: Option<PathBuf>,
}

impl Host {
    /// Makes a host with a loopback interface, which is up, and no other.
    ///
    /// # Errors
    /// If the namespace cannot be made, which takes root.
    pub fn new(name: &str) -> Result<Self, LabError> {
        let made = thread::spawn(|| -> io::Result<OwnedFd> {
            sys::unshare_network()?;
            sys::loopback_up()?;
            Ok(rustix::fs::open("/proc/thread-self/ns/net", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?)
        });
        let namespace = made.join().map_err(|_| LabError::Panicked)?.map_err(|why| LabError::Namespace { host: name.into(), why })?;
        Ok(Host { name: name.into(), namespace, published: None })
    }

    /// The host's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Runs `work` on a thread inside the host, and waits for it.
    ///
    /// # Errors
    /// If the thread cannot enter the namespace, or panics.
    pub fn enter<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, LabError> {
        thread::scope(|scope| {
            let inside = scope.spawn(|| {
                self.enter_namespace()?;
                Ok(work())
            });
            inside.join().map_err(|_| LabError::Panicked)?
        })
    }

    /// Starts a thread inside the host.
    ///
    /// # Errors
    /// If the thread cannot be started or cannot enter the namespace.
    pub fn spawn<T: Send + 'static>(
        &self,
        name: &str,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<thread::JoinHandle<T>, LabError> {
        let builder = thread::Builder::new().name(name.into());
        self.enter(|| builder.spawn(work))?.map_err(|why| LabError::Namespace { host: self.name.clone(), why })
    }

    fn enter_namespace(&self) -> Result<(), LabError> {
        move_into_link_name_space(self.namespace.as_fd(), Some(LinkNameSpaceType::Network))
            .map_err(|errno| LabError::Namespace { host: self.name.clone(), why: errno.into() })
    }

    /// A command that runs inside the host when it is spawned.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        sys::enter_before_exec(&mut command, self.namespace.as_fd());
        command
    }

    /// Joins this host and `other` by a pair of veth devices, both called `name`, without delay or
    /// loss. `addresses` (with prefix lengths) are this host's, `other_addresses` the other's.
    ///
    /// # Errors
    /// If `ip` cannot be run or refuses.
    pub fn join(&self, addresses: &[&str], other: &Host, other_addresses: &[&str], name: &str) -> Result<(), LabError> {
        let up = |addresses: &[&str]| {
            let mut lines: Vec<String> = addresses.iter().map(|address| format!("addr add {address} dev {name} nodad")).collect();
            lines.push(format!("link set {name} up"));
            lines
        };
        self.ip(&[format!("link add {name} type veth peer name {name} netns {}", other.path().display())])?;
        self.ip(&up(addresses))?;
        other.ip(&up(other_addresses))
    }

    /// Runs `ip` commands (without the word `ip`) inside the host, as one batch.
    ///
    /// # Errors
    /// If `ip` cannot be run or refuses one of the commands.
    pub fn ip(&self, lines: &[String]) -> Result<(), LabError> {
        let failed = |why: String| LabError::Configure { host: self.name.clone(), why };
        let mut child = self
            .command("ip")
            .args(["-batch", "-"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|why| failed(format!("cannot run ip: {why}; install it (Debian package iproute2)")))?;
        if let Some(mut pipe) = child.stdin.take() {
            pipe.write_all((lines.join("\n") + "\n").as_bytes()).map_err(|why| failed(why.to_string()))?;
        }
        let output = child.wait_with_output().map_err(|why| failed(why.to_string()))?;
        let said = String::from_utf8_lossy(&output.stderr).trim().to_string();
        match output.status.success() {
            true => Ok(()),
            // BusyBox prints its whole help, which says nothing about the cause.
            false if said.starts_with("BusyBox") => {
                Err(failed("this system's `ip` is BusyBox's, which lacks these commands: install iproute2 (OpenWrt: ip-full)".into()))
            }
            false => Err(failed(said)),
        }
    }

    /// Sets network settings of the host, which are paths below /proc/sys/net. Settings of IPv6 are
    /// skipped if the kernel has no IPv6.
    ///
    /// # Errors
    /// If a setting does not exist or cannot be written.
    pub fn sysctl(&self, settings: &[(&str, String)]) -> Result<(), LabError> {
        self.enter(|| {
            for (key, value) in settings.iter().filter(|(key, _)| has_ipv6() || !key.starts_with("ipv6/")) {
                let path = Path::new("/proc/sys/net").join(key);
                fs::write(&path, value).map_err(|why| LabError::Configure {
                    host: self.name.clone(),
                    why: format!("cannot set {} to {value}: {why}", path.display()),
                })?;
            }
            Ok(())
        })?
    }

    /// A path of the host's namespace, valid while the host lives.
    pub fn path(&self) -> PathBuf {
        format!("/proc/{}/fd/{}", std::process::id(), rustix::fd::AsRawFd::as_raw_fd(&self.namespace)).into()
    }

    /// The name for `ip netns exec`, if the host is published.
    pub fn published_name(&self) -> Option<&str> {
        self.published.as_ref()?.file_name()?.to_str()
    }

    /// Gives the host a name for `ip netns exec`.
    ///
    /// # Errors
    /// If the namespace cannot be mounted at /run/netns.
    pub fn publish(&mut self) -> Result<(), LabError> {
        let name = format!("{PREFIX}{}-{}", std::process::id(), self.name);
        let path = Path::new(NAMES).join(&name);
        let failed = |why: io::Error| LabError::Namespace { host: name.clone(), why };
        fs::create_dir_all(NAMES).map_err(failed)?;
        fs::write(&path, "").map_err(failed)?;
        rustix::mount::mount(self.path(), &path, c"none", MountFlags::BIND, None).map_err(|errno| {
            let _ = fs::remove_file(&path);
            failed(errno.into())
        })?;
        self.published = Some(path);
        Ok(())
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if let Some(path) = &self.published {
            remove_name(path);
        }
    }
}

/// Removes a published name.
fn remove_name(path: &Path) {
    let _ = rustix::mount::unmount(path, UnmountFlags::DETACH);
    let _ = fs::remove_file(path);
}

/// Removes published names whose process no longer exists, and returns them.
pub fn clear_stale() -> Vec<String> {
    let Ok(entries) = fs::read_dir(NAMES) else { return Vec::new() };
    let stale = |name: &str| {
        let pid = name.strip_prefix(PREFIX)?.split('-').next()?.parse().ok()?;
        (!sys::process_exists(pid)).then_some(())
    };
    entries
        .flatten()
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            stale(&name)?;
            remove_name(&entry.path());
            Some(name)
        })
        .collect()
}
