//! Settings of the network stack (sysctl) that a proxy changes while it runs, and puts back.
//!
//! A setting belongs to the network namespace, and several proxies there may want the same value. Each
//! of them holds a shared lock on a file in the directory of its sockets, which has the value from
//! before. A proxy that ends and can lock the file exclusively is the last, and puts that value back.
//! When a proxy is killed the file stays, and tells the next one what to put back.

use crate::runtime_dir::{Places, open_locked};
use rustix::fs::{FlockOperation, flock};
use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read as _, Seek as _, Write as _},
    path::PathBuf,
};

/// A setting, and the value that the proxy needs.
#[derive(Debug, Clone, Copy)]
pub struct KernelSetting {
    /// As sysctl(8) has it.
    pub name: &'static str,
    /// What it is set to.
    pub value: &'static str,
}

/// Has a sender try smaller segments after several retransmissions (RFC 4821).
const MTU_PROBING: KernelSetting = KernelSetting { name: "net.ipv4.tcp_mtu_probing", value: "1" };

/// Lets legs get through where a router drops large packets and does not say so: without it they stand
/// still until they time out.
pub fn probe_mtu() -> Option<Changed> {
    let KernelSetting { name, value } = MTU_PROBING;
    // 2 is for probing from the start.
    if MTU_PROBING.read().is_ok_and(|current| current == "2") {
        return None;
    }
    MTU_PROBING.change().unwrap_or_else(|why| {
        tracing::info!("cannot set {name}={value}: {why}; legs stand still where a router drops large packets and does not say so: set it");
        None
    })
}

/// The setting has the proxy's value. Dropping puts the value from before back, unless another proxy
/// needs it still.
#[derive(Debug)]
pub struct Changed {
    setting: KernelSetting,
    /// Of the network namespace it was changed in, whichever thread drops this.
    kernel: File,
    before: String,
    note: Option<Note>,
}

/// The file that has the value from before, locked.
#[derive(Debug)]
struct Note {
    file: File,
    path: PathBuf,
}

impl KernelSetting {
    /// Changes it; none where it has the value already and no other proxy has given it that.
    ///
    /// # Errors
    /// When it cannot be read or written.
    pub fn change(self) -> io::Result<Option<Changed>> {
        let mut kernel = OpenOptions::new().read(true).write(true).open(self.path())?;
        let current = self.read()?;
        // Without a directory for notes only a clean end puts the value back.
        let note = self.note().inspect_err(|why| tracing::debug!("cannot note the value of {}: {why}", self.name)).ok();
        let noted = note.as_ref().and_then(Note::read).filter(|_| current == self.value);
        let Some(before) = noted.or((current != self.value).then_some(current)) else {
            note.inspect(Note::remove);
            return Ok(None);
        };
        if let Err(why) = note.as_ref().map_or(Ok(()), |note| note.write(&before)).and_then(|()| kernel.write_all(self.value.as_bytes())) {
            note.inspect(Note::remove);
            return Err(why);
        }
        Ok(Some(Changed { setting: self, kernel, before, note }))
    }

    /// Puts the value back that a proxy which was killed has left changed.
    pub fn recover(self) {
        let path = Places::of_thread().and_then(|places| places.note(self.name));
        if path.is_ok_and(|path| path.exists()) {
            // Dropped at once: if no living proxy needs the value, it is put back.
            let _ = self.change();
        }
    }

    fn path(self) -> PathBuf {
        PathBuf::from("/proc/sys").join(self.name.replace('.', "/"))
    }

    fn read(self) -> io::Result<String> {
        Ok(fs::read_to_string(self.path())?.trim().to_string())
    }

    fn note(self) -> io::Result<Note> {
        let path = Places::of_thread()?.note(self.name)?;
        loop {
            if let Some(file) = open_locked(&path, FlockOperation::LockShared)? {
                return Ok(Note { file, path });
            }
        }
    }
}

impl Note {
    fn read(&self) -> Option<String> {
        let mut text = String::new();
        let mut file = &self.file;
        file.rewind().ok()?;
        file.read_to_string(&mut text).ok()?;
        (!text.is_empty()).then_some(text)
    }

    /// All that write it write the same.
    fn write(&self, value: &str) -> io::Result<()> {
        let mut file = &self.file;
        file.set_len(0)?;
        file.rewind()?;
        file.write_all(value.as_bytes())
    }

    /// Whether nobody else has it locked; then nobody else gets it until it is closed.
    fn is_last(&self) -> bool {
        flock(&self.file, FlockOperation::NonBlockingLockExclusive).is_ok()
    }

    fn remove(&self) {
        if self.is_last() {
            let _ = fs::remove_file(&self.path);
        }
    }
}

impl Drop for Changed {
    fn drop(&mut self) {
        if self.note.as_ref().is_some_and(|note| !note.is_last()) {
            return;
        }
        if let Err(why) = self.kernel.rewind().and_then(|()| self.kernel.write_all(self.before.as_bytes())) {
            tracing::warn!("cannot put {} back to {}: {why}; set it by sysctl -w", self.setting.name, self.before);
        }
        self.note.as_ref().inspect(|note| note.remove());
    }
}
