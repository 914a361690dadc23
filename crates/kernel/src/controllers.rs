//! Loads controllers as congestion controls of the kernel, lists and unloads them.

use crate::{
    Error, Result,
    features::features,
    registration::{Found, Registration},
    shared_maps, sys,
};
use control::Controller;
use libbpf_rs::{MapCore, MapMut, Object, ObjectBuilder, OpenObject};
use rustix::{
    io::Errno,
    net::{AddressFamily, SocketType},
};
use std::{
    fs, io,
    os::fd::AsFd as _,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

/// Keeps a controller loaded in the kernel until it is dropped, or longer if it is
/// [pinned](LoadedController::pin).
#[derive(Debug)]
pub struct LoadedController {
    controller: Controller,
    registration: Registration,
}

/// A controller that is loaded in the kernel.
#[derive(Debug, Clone)]
pub struct ControllerStatus {
    /// The controller.
    pub controller: Controller,
    /// Whether it is pinned: it outlives its users (`tandem control load`).
    pub pinned: bool,
    /// Values of its tunables, in the order of [`Controller::tunables`].
    pub tunables: Vec<u32>,
}

/// How long to retry while another process registers or releases the same controller.
const RETRY_FOR: Duration = Duration::from_secs(30);
/// Directory of pinned registrations.
const PIN_DIRECTORY: &str = "/sys/fs/bpf/tandem";

/// The Tandem controller, or own one, that a name stands for: `td_NAME` always, the path of a file
/// always, a bare name if the kernel has no congestion control of that name. `None`: the kernel has
/// one of that name, or neither has.
pub fn resolve(name: &str) -> Option<Controller> {
    let is_kernels = !name.starts_with("td_") && !name.contains('/') && has_congestion_control(name);
    if is_kernels { None } else { Controller::named(name) }
}

/// Whether this kernel has a congestion control of this name. Setting it on a socket loads its
/// module, if there is one and this process may load modules.
pub fn has_congestion_control(name: &str) -> bool {
    let tried = || {
        let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None)?;
        rustix::net::sockopt::set_tcp_congestion(socket, name)
    };
    // EPERM: it exists, but this process may not use it.
    matches!(tried(), Ok(()) | Err(Errno::PERM))
}

/// Loads a controller into the kernel, or becomes a holder of it if it is loaded already.
/// `tunables` are values by name; the others keep their defaults.
///
/// # Errors
/// When the controller or a tunable does not exist, when it is loaded with other tunables, when the
/// kernel lacks BTF or struct_ops, or refuses the program, or when this process lacks the
/// privilege.
pub fn load(name: &str, tunables: &[(String, u32)]) -> Result<LoadedController> {
    let controller = named(name)?;
    let values = controller.tuned(tunables)?.values().to_vec();
    let _lock = shared_maps::lock();
    if !features()?.struct_ops {
        return Err(Error::NoStructOps);
    }
    let begun = Instant::now();
    loop {
        if let Some(found) = registered(controller)? {
            if found.is_abandoned(&pin_of(controller)) {
                found
                    .end()
                    .map_err(Error::system(format!("replace td_{}, which a killed process left in the kernel", controller.name())))?;
                continue;
            }
            if controller.needs_capacity() {
                shared_maps::check_layout()?;
            }
            check_build(controller)?;
            let current = current_tunables(controller);
            if !tunables.is_empty() && current.as_ref().is_some_and(|current| *current != values) {
                return Err(Error::OtherTunables(controller.name().into()));
            }
            if is_other_version(controller)
                && let Err(why) = replace(controller, &found, &current.unwrap_or(values.clone()))
            {
                let name = controller.name();
                tracing::warn!("td_{name} is loaded by another version of Tandem, and new connections use that: {why}");
            }
            return Ok(LoadedController { controller, registration: found.hold(&pin_of(controller)) });
        }
        match register(controller, &values) {
            Ok(registration) => return Ok(LoadedController { controller, registration }),
            // Another process has just registered it, or is releasing it.
            Err(Error::Kernel { error, .. }) if error.kind() == libbpf_rs::ErrorKind::AlreadyExists && begun.elapsed() < RETRY_FOR => {
                thread::sleep(Duration::from_millis(5));
            }
            Err(error) => return Err(error),
        }
    }
}

/// Has the kernel's verifier check a controller: with its defaults, and with each of its tunables
/// at either end of its range, because the verifier knows their values and skips what they exclude.
///
/// # Errors
/// As [`load`]. The message of a refusal names the tunable, if it is not the default.
pub fn verify(controller: Controller) -> Result<()> {
    let _lock = shared_maps::lock();
    if !features()?.struct_ops {
        return Err(Error::NoStructOps);
    }
    let name = section(controller);
    let before = sys::maps(&name).count();
    let verified = load_all(controller);
    // The kernel frees the maps a moment later. Until then they look like those of a build that is
    // loaded (`check_build`).
    let begun = Instant::now();
    while sys::maps(&name).count() > before && begun.elapsed() < RELEASE {
        thread::sleep(Duration::from_millis(2));
    }
    verified
}

/// Loads a controller with its defaults, and with each tunable at either end of its range.
fn load_all(controller: Controller) -> Result<()> {
    load_object(controller, controller.untuned().values(), &format!("load td_{} into this kernel", controller.name()))?;
    for tunable in controller.tunables() {
        for value in [*tunable.range.start(), *tunable.range.end()].into_iter().filter(|value| *value != tunable.default) {
            let tuned = controller.tuned(&[(tunable.name, value)])?;
            let attempt = format!("load td_{} with {} = {value} into this kernel", controller.name(), tunable.name);
            load_object(controller, tuned.values(), &attempt)?;
        }
    }
    Ok(())
}

/// The longest time for which the kernel is expected to keep the maps of an object that was closed.
const RELEASE: Duration = Duration::from_secs(2);

fn load_object(controller: Controller, values: &[u32], attempt: &str) -> Result<Object> {
    shared_maps::load(attempt, || {
        let mut open = open(controller)?;
        set_tunables(&mut open, values);
        Ok(open)
    })
}

fn register(controller: Controller, values: &[u32]) -> Result<Registration> {
    let attempt = format!("load td_{} into this kernel", controller.name());
    let mut object = load_object(controller, values, &attempt)?;
    Registration::register(&mut struct_ops(&mut object), &pin_of(controller), &attempt)
}

impl LoadedController {
    /// The controller.
    pub fn controller(&self) -> Controller {
        self.controller
    }

    /// Pins the controller, so that it stays loaded after this process ends. It can be
    /// [unloaded](unload).
    ///
    /// # Errors
    /// When the BPF file system cannot be mounted or written.
    pub fn pin(&mut self) -> Result<()> {
        let path = pin_of(self.controller);
        let failed = |error| Error::Pin { attempt: format!("pin td_{}", self.controller.name()), path: path.clone(), error };
        if path.exists() {
            return Ok(());
        }
        sys::mount_bpf().map_err(failed)?;
        fs::create_dir_all(PIN_DIRECTORY).map_err(failed)?;
        self.registration.pin(&path).map_err(failed)
    }
}

/// Unloads a pinned controller. Connections that use it keep it until they end.
///
/// # Errors
/// When no such controller exists or is loaded, when a process holds it, or the pin cannot be
/// removed.
pub fn unload(name: &str) -> Result<()> {
    let controller = match named(name) {
        Ok(controller) => controller,
        // The file of an own controller may be gone, or replaced by one of another version.
        Err(error) => return unpin_lost(name).unwrap_or(Err(error)),
    };
    let path = pin_of(controller);
    if path.exists() {
        return unpin(controller.name(), &path, registered(controller)?);
    }
    Err(match registered(controller)? {
        Some(_) => Error::HeldElsewhere(controller.name().into()),
        None => Error::NotLoaded(controller.name().into()),
    })
}

/// Unloads a pinned own controller by its name, if its file cannot be read. `None`: there is no
/// such pin.
fn unpin_lost(name: &str) -> Option<Result<()>> {
    let name = control::short_name(name);
    control::check_name(name).ok()?;
    let path = Path::new(PIN_DIRECTORY).join(format!("td_{name}"));
    let found = || Found::named(&format!("td_ops_{}", own_key(name))).map_err(Error::system("look for congestion controls in this kernel"));
    path.exists().then(|| unpin(name, &path, found()?))
}

/// Removes a pin, and ends the registration if nothing else holds it.
fn unpin(name: &str, path: &Path, found: Option<Found>) -> Result<()> {
    fs::remove_file(path).map_err(|error| Error::Pin { attempt: format!("unpin td_{name}"), path: path.into(), error })?;
    if let Some(found) = found.filter(|found| found.is_abandoned(path)) {
        found.end().map_err(Error::system(format!("unload td_{name} from this kernel")))?;
    }
    // Fails while other controllers are pinned.
    let _ = fs::remove_dir(PIN_DIRECTORY);
    Ok(())
}

/// The controllers that are loaded.
///
/// # Errors
/// When the kernel cannot be asked, for want of privilege, say.
pub fn list() -> Result<Vec<ControllerStatus>> {
    let mut all = Vec::new();
    for controller in Controller::available() {
        if registered(controller)?.is_some() {
            let tunables = current_tunables(controller).unwrap_or_else(|| controller.tunables().map(|tunable| tunable.default).collect());
            all.push(ControllerStatus { controller, pinned: pin_of(controller).exists(), tunables });
        }
    }
    Ok(all)
}

fn named(name: &str) -> Result<Controller> {
    let known = || Controller::available_names().join(", ");
    Controller::find(name)?.ok_or_else(|| Error::Unknown { name: name.into(), known: known() })
}

fn pin_of(controller: Controller) -> PathBuf {
    Path::new(PIN_DIRECTORY).join(format!("td_{}", controller.name()))
}

macro_rules! objects {
    ($($name:literal),*) => {
        /// The BPF object of a controller of Tandem.
        fn native_object(name: &str) -> &'static [u8] {
            match name {
                $($name => include_bytes!(concat!(env!("OUT_DIR"), "/", $name, ".bpf.o")),)*
                _ => unreachable!("every controller is built"),
            }
        }
    };
}
objects!("reno", "cubic", "vegas", "hybla", "westwood", "dctcp", "bbr", "bbr3", "xcp", "xcp_known", "mpcp", "share");

/// Layout of the records that programs in the kernel share: a hash of the files that define it.
pub const LAYOUT: &str = env!("TD_LAYOUT");

/// Hash of the sources of Tandem's controllers, which follows the tunables in their section.
const BUILD: u32 = match u32::from_str_radix(env!("TD_BUILD"), 10) {
    Ok(build) => build,
    Err(_) => panic!("build.rs writes a number"),
};

/// The BPF object of a controller.
fn object(controller: Controller) -> Result<&'static [u8]> {
    let Some(own) = controller.own() else { return Ok(native_object(controller.name())) };
    if own.manifest().layout != LAYOUT {
        return Err(Error::OtherLayout { name: controller.name().into(), file: own.file().into() });
    }
    Ok(own.trusted_object()?)
}

pub(crate) fn open(controller: Controller) -> Result<OpenObject> {
    sys::redirect_libbpf_log();
    let features = features()?;
    let attempt = format!("open the BPF object of {}", controller.name());
    let object = object(controller)?;
    let mut builder = ObjectBuilder::default();
    let mut open = builder
        .name(format!("td_{}", controller.name()))
        .and_then(|builder| builder.open_memory(object))
        .map_err(Error::kernel(&attempt))?;
    for mut map in open.maps_mut() {
        if map.map_type() == libbpf_rs::MapType::StructOps && !features.links {
            map.set_map_flags(0).map_err(Error::kernel(&attempt))?;
        }
        let is_arguments = map.name() == ARGUMENTS;
        if let Some(bytes) = map.initial_value_mut().filter(|_| is_arguments) {
            bytes[..4].copy_from_slice(&features.cong_control_arguments.to_ne_bytes());
        }
    }
    Ok(open)
}

/// Section with the number of arguments of `cong_control`.
const ARGUMENTS: &str = ".rodata.arguments";

/// Section with the tunables of a controller. The kernel truncates the map's name to 15 bytes.
fn section(controller: Controller) -> String {
    format!(".rodata.{}", controller.own().map_or(controller.name(), |own| own.manifest().build.as_str()))
}

/// What the kernel's name of an own controller's struct_ops map ends in: a hash of its name, since
/// the kernel truncates names. Builds of the same name have the same.
pub fn own_key(name: &str) -> String {
    let hash = name.bytes().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    format!("{hash:08x}")
}

/// Whether another version of Tandem has loaded a controller that is Tandem's.
fn is_other_version(controller: Controller) -> bool {
    let build = || {
        let map = sys::newest_map(&section(controller))?;
        let bytes = map.lookup(&0u32.to_ne_bytes(), libbpf_rs::MapFlags::ANY).ok()??;
        let build = bytes.chunks_exact(4).nth(controller.tunables().count())?;
        Some(u32::from_ne_bytes(build.try_into().expect("four bytes")))
    };
    controller.own().is_none() && build() != Some(BUILD)
}

/// Has new connections use this build of a controller that is registered already; those that are
/// open keep theirs. Linux can do so from 6.4 on.
fn replace(controller: Controller, found: &Found, values: &[u32]) -> Result<()> {
    let attempt = format!("replace td_{} in this kernel", controller.name());
    let Found::Link(link) = found else {
        let why = io::Error::new(io::ErrorKind::Unsupported, "this takes Linux 6.4; stop all programs that use it, and start them again");
        return Err(Error::system(attempt)(why));
    };
    let mut object = load_object(controller, values, &attempt)?;
    let mut ops = struct_ops(&mut object);
    // It fails, since the name is taken, but has prepared the map.
    drop(ops.attach_struct_ops());
    sys::update_link(link, ops.as_fd()).map_err(Error::system(attempt))
}

/// The struct_ops map of a controller's object.
fn struct_ops(object: &mut Object) -> MapMut<'_> {
    object.maps_mut().find(|map| map.map_type() == libbpf_rs::MapType::StructOps).expect("every controller has a struct_ops map")
}

/// Fails if another build of an own controller is registered under its name.
fn check_build(controller: Controller) -> Result<()> {
    let is_other = controller.own().is_some() && sys::newest_map(&section(controller)).is_none();
    if is_other { Err(Error::OtherBuild(controller.name().into())) } else { Ok(()) }
}

pub(crate) fn set_tunables(open: &mut OpenObject, values: &[u32]) {
    for mut map in open.maps_mut() {
        let has_tunables = map.name() != ARGUMENTS && map.name().to_string_lossy().starts_with(".rodata.");
        if let Some(bytes) = map.initial_value_mut().filter(|_| has_tunables) {
            for (bytes, value) in bytes.chunks_exact_mut(4).zip(values) {
                bytes.copy_from_slice(&value.to_ne_bytes());
            }
        }
    }
}

/// Tunables of the controller that is loaded.
fn current_tunables(controller: Controller) -> Option<Vec<u32>> {
    let map = sys::newest_map(&section(controller))?;
    let bytes = map.lookup(&0u32.to_ne_bytes(), libbpf_rs::MapFlags::ANY).ok()??;
    let values = bytes.chunks_exact(4).map(|bytes| u32::from_ne_bytes(bytes.try_into().expect("four bytes")));
    Some(values.take(controller.tunables().count()).collect())
}

/// The registration of a controller, if it is loaded.
fn registered(controller: Controller) -> Result<Option<Found>> {
    let name = controller.own().map_or_else(|| controller.name().to_owned(), |own| own_key(&own.manifest().name));
    Found::named(&format!("td_ops_{name}")).map_err(Error::system("look for congestion controls in this kernel"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The struct_ops map that new connections use.
    fn registered_map(name: &str) -> u32 {
        let link = registered(named(name).unwrap()).unwrap();
        assert!(matches!(link, Some(Found::Link(_))));
        let maps: Vec<u32> = sys::maps(&format!("td_ops_{name}")).collect();
        sys::linked(&maps).unwrap().1
    }

    #[test]
    fn another_version_is_replaced_for_new_connections() {
        if !sys::may_load() || !features().is_ok_and(|features| features.links) {
            return testing::skipped("another_version_is_replaced_for_new_connections", &"this process or kernel cannot replace one");
        }
        let loaded = load("hybla", &[]).unwrap();
        assert!(!is_other_version(loaded.controller()), "it is of this version");
        let before = registered_map("hybla");
        let found = registered(loaded.controller()).unwrap().unwrap();
        replace(loaded.controller(), &found, loaded.controller().untuned().values()).unwrap();
        assert_ne!(registered_map("hybla"), before);
        drop((loaded, found));
        let begun = Instant::now();
        while registered(named("hybla").unwrap()).unwrap().is_some() && begun.elapsed() < RELEASE {
            thread::sleep(Duration::from_millis(5));
        }
        assert!(registered(named("hybla").unwrap()).unwrap().is_none(), "it ends with its holders");
    }
}
