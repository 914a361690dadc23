//! The registration of a controller with the kernel's TCP: how it is found, shared, pinned and
//! ended.
//!
//! From Linux 6.4 on a registration is a BPF link, and ends with its last descriptor or pin. On
//! older kernels it is the value of a struct_ops map, and lasts until that is deleted. The last
//! process that has the map open deletes it. A killed process leaves it behind (*abandoned*); the
//! next process that needs the controller replaces it.

use crate::{Error, Result, features::features, sys};
use libbpf_rs::{MapCore, MapMut};
use std::{
    fs, io,
    os::fd::{AsFd, OwnedFd},
    path::{Path, PathBuf},
};

/// A registration found in the kernel, which this process does not hold.
#[derive(Debug)]
pub(crate) enum Found {
    /// A BPF link.
    Link(OwnedFd),
    /// The value of a struct_ops map: the map's id and a descriptor.
    Map(u32, OwnedFd),
}

/// Keeps a controller registered until it is dropped.
#[derive(Debug)]
pub(crate) enum Registration {
    /// A BPF link that this process created.
    Link(libbpf_rs::Link),
    /// A descriptor of another process's link.
    SharedLink(OwnedFd),
    /// The value of a struct_ops map.
    Map(HeldMap),
}

/// A struct_ops map whose value is a registration, and its pin path in the BPF file system.
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
            // Checked after the map is open: from then on other processes see this holder.
            if sys::is_registered(&map)? {
                return Ok(Some(Found::Map(id, map)));
            }
        }
        Ok(None)
    }

    /// Whether no other process holds it, and it is not pinned. This process has it open once.
    pub(crate) fn is_abandoned(&self, pin: &Path) -> bool {
        matches!(self, Found::Map(id, _) if !pin.exists() && holders(*id) <= 1)
    }

    /// Ends it, even if other processes hold it. A link cannot be ended this way: it lasts as long
    /// as its holders.
    pub(crate) fn end(&self) -> io::Result<()> {
        match self {
            Found::Link(_) => Ok(()),
            Found::Map(_, map) => sys::unregister(map),
        }
    }

    /// Becomes a holder of it.
    pub(crate) fn hold(self, pin: &Path) -> Registration {
        match self {
            Found::Link(link) => Registration::SharedLink(link),
            Found::Map(id, descriptor) => Registration::Map(HeldMap { id, descriptor, pin: pin.into() }),
        }
    }
}

impl Registration {
    /// Registers the controller in a struct_ops map. `pin` is the path where it may be pinned
    /// later.
    pub(crate) fn register(map: &mut MapMut<'_>, pin: &Path, attempt: &str) -> Result<Registration> {
        let link = map.attach_struct_ops().map_err(Error::kernel(attempt))?;
        if features()?.links {
            return Ok(Registration::Link(link));
        }
        let id = map.info().map_err(Error::kernel(attempt))?.info.id;
        let descriptor = map.as_fd().try_clone_to_owned().map_err(Error::system(attempt))?;
        let held = HeldMap { id, descriptor, pin: pin.into() };
        // Dropping the attached link would end the registration, which others may use by then.
        let mut link = link;
        link.disconnect();
        Ok(Registration::Map(held))
    }

    /// Pins it in the BPF file system: it then outlives this process.
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
            tracing::debug!("cannot unregister a controller: {why}");
        }
    }
}

/// Number of open descriptors of a map in all processes that this one may inspect.
fn holders(id: u32) -> usize {
    let wanted = format!("map_id:\t{id}");
    // Skips `self` and `thread-self`, which would count this process twice.
    let is_process = |entry: &fs::DirEntry| entry.file_name().as_encoded_bytes().iter().all(u8::is_ascii_digit);
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten().filter(is_process);
    let descriptors = processes.filter_map(|process| fs::read_dir(process.path().join("fdinfo")).ok()).flatten().flatten();
    let is_of_map = |text: &String| text.lines().any(|line| line == wanted);
    descriptors.filter_map(|descriptor| fs::read_to_string(descriptor.path()).ok()).filter(is_of_map).count()
}
