//! Settings of the network stack (sysctl) that a proxy changes while it runs, and puts back.
//!
//! A setting belongs to the network namespace, and several proxies there may want the same value. Each
//! of them holds a shared lock on a file in the directory of its sockets, which has the value from
//! before. A proxy that ends and can lock the file exclusively is the last, and puts that value back.
//! When a proxy is killed the file stays, and tells the next one what to put back.

use crate::runtime_dir::{RuntimeDirs, open_locked};
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
pub fn probe_mtu() -> Option<ChangedSetting> {
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
pub struct ChangedSetting {
    setting: KernelSetting,
    /// Of the network namespace it was changed in, whichever thread drops this.
    kernel: File,
    before: String,
    saved: Option<SavedValue>,
}

/// The file that has the value from before, locked.
#[derive(Debug)]
struct SavedValue {
    file: File,
    path: PathBuf,
}

impl KernelSetting {
    /// Changes it; none where it has the value already and no other proxy has given it that.
    ///
    /// # Errors
    /// When it cannot be read or written.
    pub fn change(self) -> io::Result<Option<ChangedSetting>> {
        let mut kernel = OpenOptions::new().read(true).write(true).open(self.path())?;
        let current = self.read()?;
        // Without a directory for notes only a clean end puts the value back.
        let saved = self.saved().inspect_err(|why| tracing::debug!("cannot save the value of {}: {why}", self.name)).ok();
        let saved_before = saved.as_ref().and_then(SavedValue::read).filter(|_| current == self.value);
        let Some(before) = saved_before.or((current != self.value).then_some(current)) else {
            saved.inspect(SavedValue::remove);
            return Ok(None);
        };
        if let Err(why) = saved.as_ref().map_or(Ok(()), |saved| saved.write(&before)).and_then(|()| kernel.write_all(self.value.as_bytes()))
        {
            saved.inspect(SavedValue::remove);
            return Err(why);
        }
        Ok(Some(ChangedSetting { setting: self, kernel, before, saved }))
    }

    /// Puts the value back that a proxy which was killed has left changed.
    pub fn recover(self) {
        let path = RuntimeDirs::of_thread().and_then(|dirs| dirs.saved_value_path(self.name));
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

    fn saved(self) -> io::Result<SavedValue> {
        let path = RuntimeDirs::of_thread()?.saved_value_path(self.name)?;
        loop {
            if let Some(file) = open_locked(&path, FlockOperation::LockShared)? {
                return Ok(SavedValue { file, path });
            }
        }
    }
}

impl SavedValue {
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

impl Drop for ChangedSetting {
    fn drop(&mut self) {
        if self.saved.as_ref().is_some_and(|saved| !saved.is_last()) {
            return;
        }
        if let Err(why) = self.kernel.rewind().and_then(|()| self.kernel.write_all(self.before.as_bytes())) {
            tracing::warn!("cannot put {} back to {}: {why}; set it by sysctl -w", self.setting.name, self.before);
        }
        self.saved.as_ref().inspect(|saved| saved.remove());
    }
}
