//! The maps that the controllers and the monitor share. The first program creates them; later ones
//! find them in the kernel by name.

use crate::{Error, Result, sys};
use libbpf_rs::{MapCore, MapFlags, MapHandle, Object, OpenObject};
use std::{
    os::fd::{AsFd, AsRawFd},
    sync::{Mutex, MutexGuard, OnceLock, PoisonError},
};

/// The link records. The hash of their layout is part of the name.
pub(crate) const RECORDS: &str = concat!("td_rec_", env!("TD_LAYOUT"));
/// Which interface has which record.
pub(crate) const CLAIMS: &str = concat!("td_clm_", env!("TD_LAYOUT"));
/// Weights of sockets under `share`.
const WEIGHTS: &str = "td_weights";
const SHARED: [&str; 3] = [RECORDS, CLAIMS, WEIGHTS];

/// Fails if programs with another record layout are loaded: their controllers would not see our
/// link records.
pub(crate) fn check_layout() -> Result<()> {
    if sys::map_names().any(|name| name.starts_with("td_rec_") && name != RECORDS) { Err(Error::OtherVersion) } else { Ok(()) }
}

/// Serializes the loading of programs in this process: two at once would each create the shared
/// maps.
pub(crate) fn lock() -> MutexGuard<'static, ()> {
    static LOADING: Mutex<()> = Mutex::new(());
    LOADING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Sets the weight of a socket under the controller `share`: its rate is in proportion to it. It
/// takes effect when the socket is given that controller, which must be loaded already.
///
/// # Errors
/// When `share` is not loaded, or the kernel refuses.
pub fn set_weight(socket: impl AsFd, weight: u16) -> Result<()> {
    // The open descriptor keeps the map: a controller that is loaded again uses the same one.
    static MAP: OnceLock<MapHandle> = OnceLock::new();
    let map = match MAP.get() {
        Some(map) => map,
        None => {
            let found = sys::oldest_map(WEIGHTS).ok_or_else(|| Error::NotLoaded("share".into()))?;
            MAP.get_or_init(|| found)
        }
    };
    let (key, value) = (socket.as_fd().as_raw_fd().to_ne_bytes(), u32::from(weight).to_ne_bytes());
    map.update(&key, &value, MapFlags::ANY).map_err(Error::kernel("set the weight of a connection"))
}

/// Opens an object and loads it with the shared maps that exist. If another process has created
/// them at the same time, the older ones win, and the object is loaded again.
pub(crate) fn load(attempt: &str, open: impl Fn() -> Result<OpenObject>) -> Result<Object> {
    loop {
        let mut open = open()?;
        // Controllers that know no link work beside those of another version.
        if open.maps().any(|map| map.name() == RECORDS) {
            check_layout()?;
        }
        for mut map in open.maps_mut() {
            let name = map.name().to_string_lossy().into_owned();
            if SHARED.contains(&name.as_str())
                && let Some(existing) = sys::oldest_map(&name)
            {
                map.reuse_fd(existing.as_fd()).map_err(Error::kernel(format!("share the map {name} with other programs")))?;
            }
        }
        let object = open.load().map_err(Error::load(attempt))?;
        let ours = |name: &str| object.maps().find(|map| map.name() == name).and_then(|map| map.info().ok()).map(|map| map.info.id);
        let oldest = |name: &str| sys::oldest_map(name).and_then(|map| map.info().ok()).map(|map| map.info.id);
        if SHARED.iter().all(|name| ours(name).is_none() || ours(name) == oldest(name)) {
            return Ok(object);
        }
    }
}
