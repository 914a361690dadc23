//! Settings of the network stack (sysctl) that a proxy changes while it runs, and restores.
//!
//! A setting belongs to the network namespace, and several proxies there may need the same value.
//! Each of them holds a shared lock on a file in its runtime directory that contains the original
//! value. A proxy that ends and can lock the file exclusively is the last one, and restores that
//! value. If a proxy is killed, the file stays, and the next proxy restores the value.

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
    /// The name, as in sysctl(8).
    pub name: &'static str,
    /// The value that it is set to.
    pub value: &'static str,
}

/// Makes senders try smaller segments after several retransmissions (RFC 4821).
const MTU_PROBING: KernelSetting = KernelSetting { name: "net.ipv4.tcp_mtu_probing", value: "1" };

/// Enables MTU probing, so that legs work where a router drops large packets without an ICMP error.
/// Without it they stall until they time out. `None` if it was enabled already or cannot be: that
/// is logged.
pub fn probe_mtu() -> Option<ChangedSetting> {
    let KernelSetting { name, value } = MTU_PROBING;
    // 2: probes from the start of a connection.
    if MTU_PROBING.read().is_ok_and(|current| current == "2") {
        return None;
    }
    MTU_PROBING.change().unwrap_or_else(|why| {
        tracing::info!(
            "cannot set {name}={value}: {why}; legs stall where a router drops large packets without an ICMP error: set it yourself"
        );
        None
    })
}

/// A setting that has the proxy's value. Dropping it restores the original value, unless another
/// proxy still needs the changed one.
#[derive(Debug)]
pub struct ChangedSetting {
    setting: KernelSetting,
    /// The file below /proc/sys of the network namespace in which it was changed. The thread that
    /// drops this may be in another one.
    kernel: File,
    original: String,
    saved: Option<SavedValue>,
}

/// The locked file that contains the original value.
#[derive(Debug)]
struct SavedValue {
    file: File,
    path: PathBuf,
}

impl KernelSetting {
    /// Changes the setting. `None` if it has the value already and no other proxy has set it.
    ///
    /// # Errors
    /// The setting cannot be read or written.
    pub fn change(self) -> io::Result<Option<ChangedSetting>> {
        let mut kernel = OpenOptions::new().read(true).write(true).open(self.path())?;
        let current = self.read()?;
        // Without a runtime directory the value is restored only if the proxy is not killed.
        let saved = self.saved().inspect_err(|why| tracing::debug!("cannot save the value of {}: {why}", self.name)).ok();
        let set_by_proxy = saved.as_ref().and_then(SavedValue::read).filter(|_| current == self.value);
        let Some(original) = set_by_proxy.or((current != self.value).then_some(current)) else {
            saved.inspect(SavedValue::remove);
            return Ok(None);
        };
        if let Err(why) =
            saved.as_ref().map_or(Ok(()), |saved| saved.write(&original)).and_then(|()| kernel.write_all(self.value.as_bytes()))
        {
            saved.inspect(SavedValue::remove);
            return Err(why);
        }
        Ok(Some(ChangedSetting { setting: self, kernel, original, saved }))
    }

    /// Restores the value if a killed proxy has left it changed.
    pub fn recover(self) {
        let path = RuntimeDirs::of_thread().and_then(|dirs| dirs.saved_value_path(self.name));
        if path.is_ok_and(|path| path.exists()) {
            // Dropped at once, which restores the value unless a running proxy needs it.
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

    /// Every proxy that writes the file writes the same value.
    fn write(&self, value: &str) -> io::Result<()> {
        let mut file = &self.file;
        file.set_len(0)?;
        file.rewind()?;
        file.write_all(value.as_bytes())
    }

    /// Whether no other process has it locked. If so, none can lock it until it is closed.
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
        if let Err(why) = self.kernel.rewind().and_then(|()| self.kernel.write_all(self.original.as_bytes())) {
            tracing::warn!("cannot restore {}={}: {why}; set it with sysctl -w", self.setting.name, self.original);
        }
        self.saved.as_ref().inspect(|saved| saved.remove());
    }
}
