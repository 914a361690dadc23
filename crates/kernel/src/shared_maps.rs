//! The maps that controllers and monitor share: whoever is first makes them, the others find them in the kernel.

use crate::{Error, Result, sys};
use libbpf_rs::{MapCore, MapFlags, MapHandle, Object, OpenObject};
use std::{
    os::fd::{AsFd, AsRawFd},
    sync::{Mutex, MutexGuard, OnceLock, PoisonError},
};

/// The links' records, and where they are. Their layout is in the name.
pub(crate) const RECORDS: &str = concat!("td_rec_", env!("TD_LAYOUT"));
pub(crate) const PLACES: &str = concat!("td_plc_", env!("TD_LAYOUT"));
/// The sockets' weights under `share`.
const WEIGHTS: &str = "td_weights";
const SHARED: [&str; 3] = [RECORDS, PLACES, WEIGHTS];

/// Fails where programs are in the kernel whose records have another layout: controllers of theirs would not see links of ours.
pub(crate) fn only_ours() -> Result<()> {
    if sys::map_names().any(|name| name.starts_with("td_rec_") && name != RECORDS) { Err(Error::OtherVersion) } else { Ok(()) }
}

/// One at a time of this process loads what shares the maps: two at once would each make their own.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    static LOADING: Mutex<()> = Mutex::new(());
    LOADING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Gives a socket a weight among the flows of `share`, 1 to 65535: what it gets is in proportion. It counts from when the socket takes that
/// controller, which must be in the kernel already.
pub fn weigh(socket: impl AsFd, weight: u16) -> Result<()> {
    // Who has it keeps it: whatever loads the controller again uses this one.
    static MAP: OnceLock<MapHandle> = OnceLock::new();
    let map = match MAP.get() {
        Some(map) => map,
        None => {
            let found = sys::oldest_map(WEIGHTS).ok_or_else(|| Error::NotLoaded("share".into()))?;
            MAP.get_or_init(|| found)
        }
    };
    let (key, value) = (socket.as_fd().as_raw_fd().to_ne_bytes(), u32::from(weight).to_ne_bytes());
    map.update(&key, &value, MapFlags::ANY).map_err(Error::kernel("give a connection a weight"))
}

/// Opens an object and loads it with the maps that are in the kernel already. Should another process have made its own at the same time,
/// the older ones count, and it is done again.
pub(crate) fn load(attempt: &str, open: impl Fn() -> Result<OpenObject>) -> Result<Object> {
    loop {
        only_ours()?;
        let mut open = open()?;
        for mut map in open.maps_mut() {
            let name = map.name().to_string_lossy().into_owned();
            if SHARED.contains(&name.as_str())
                && let Some(there) = sys::oldest_map(&name)
            {
                map.reuse_fd(there.as_fd()).map_err(Error::kernel(format!("share the map {name} with other programs")))?;
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
