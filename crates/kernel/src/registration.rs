//! A controller's registration as a congestion control of the kernel: how it is found, shared, kept
//! and ended.
//!
//! From Linux 6.4 on it is a BPF link, which goes with its last descriptor or pin. Before, it is
//! the value of a map, which stays until it is deleted: the last process that has the map open
//! deletes it. A process that was killed leaves it behind (abandoned); the next one that needs the
//! controller replaces it.

use crate::{Error, Result, features::features, sys};
use libbpf_rs::{MapCore, MapMut};
use std::{
    fs, io,
    os::fd::{AsFd, OwnedFd},
    path::{Path, PathBuf},
};

/// A registration that is in the kernel, not held by this.
#[derive(Debug)]
pub(crate) enum Found {
    /// A BPF link.
    Link(OwnedFd),
    /// The value of a map, by the map's id.
    Map(u32, OwnedFd),
}

/// Keeps a controller registered for as long as this lives.
#[derive(Debug)]
pub(crate) enum Registration {
    /// A BPF link that this process made.
    Link(libbpf_rs::Link),
    /// A descriptor of another process's link.
    SharedLink(OwnedFd),
    /// The value of a map.
    Map(HeldMap),
}

/// A struct_ops map that holds a registration, and its pin path in the BPF file system.
#[derive(Debug)]
pub(crate) struct HeldMap {
    id: u32,
    descriptor: OwnedFd,
    pin: PathBuf,
}

impl Found {
    /// Finds the registration by the name of its struct_ops map.
    pub(crate) fn named(name: &str) -> io::Result<Option<Found>> {
        if let Some(link) = sys::struct_ops_link(name)? {
            return Ok(Some(Found::Link(link)));
        }
        for id in sys::maps(name).collect::<Vec<_>>() {
            let Some(map) = sys::map_by_id(id)? else { continue };
            // Asked after the map is open: from then on other processes count this one among its
            // holders.
            if sys::is_registered(&map)? {
                return Ok(Some(Found::Map(id, map)));
            }
        }
        Ok(None)
    }

    /// Whether no process holds it and no pin keeps it. This one has it open once.
    pub(crate) fn is_abandoned(&self, pin: &Path) -> bool {
        matches!(self, Found::Map(id, _) if !pin.exists() && holders(*id) <= 1)
    }

    /// Ends it, whoever holds it. A link can't be ended so: it goes with its holders.
    pub(crate) fn end(&self) -> io::Result<()> {
        match self {
            Found::Link(_) => Ok(()),
            Found::Map(_, map) => sys::unregister(map),
        }
    }

    /// Holds it, too.
    pub(crate) fn hold(self, pin: &Path) -> Registration {
        match self {
            Found::Link(link) => Registration::SharedLink(link),
            Found::Map(id, descriptor) => Registration::Map(HeldMap { id, descriptor, pin: pin.into() }),
        }
    }
}

impl Registration {
    /// Registers what a map holds. `pin` is where it would be kept.
    pub(crate) fn register(map: &mut MapMut<'_>, pin: &Path, attempt: &str) -> Result<Registration> {
        let link = map.attach_struct_ops().map_err(Error::kernel(attempt))?;
        if features()?.links {
            return Ok(Registration::Link(link));
        }
        let id = map.info().map_err(Error::kernel(attempt))?.info.id;
        let descriptor = map.as_fd().try_clone_to_owned().map_err(Error::system(attempt))?;
        let held = HeldMap { id, descriptor, pin: pin.into() };
        // Dropped as it is, it would end the registration that others may use by then.
        let mut link = link;
        link.disconnect();
        Ok(Registration::Map(held))
    }

    /// Keeps it in the BPF file system.
    pub(crate) fn pin(&mut self, path: &Path) -> io::Result<()> {
        match self {
            Registration::Link(link) => link.pin(path).map_err(io::Error::other),
            Registration::SharedLink(link) => sys::pin(link, path),
            Registration::Map(map) => sys::pin(&map.descriptor, path),
        }
    }
}

impl Drop for HeldMap {
    fn drop(&mut self) {
        if !self.pin.exists()
            && holders(self.id) <= 1
            && let Err(why) = sys::unregister(&self.descriptor)
        {
            tracing::debug!("cannot take a controller out of the kernel: {why}");
        }
    }
}

/// How many descriptors of a map all processes have open, as far as this one may look.
fn holders(id: u32) -> usize {
    let wanted = format!("map_id:\t{id}");
    // Not `self` and `thread-self`, which would count this one twice.
    let is_process = |entry: &fs::DirEntry| entry.file_name().as_encoded_bytes().iter().all(u8::is_ascii_digit);
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten().filter(is_process);
    let descriptors = processes.filter_map(|process| fs::read_dir(process.path().join("fdinfo")).ok()).flatten().flatten();
    let is_of_map = |text: &String| text.lines().any(|line| line == wanted);
    descriptors.filter_map(|descriptor| fs::read_to_string(descriptor.path()).ok()).filter(is_of_map).count()
}
