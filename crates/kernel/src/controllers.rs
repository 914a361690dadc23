//! Loads controllers as congestion controls of the kernel, lists and unloads them.

use crate::{
    Error, Result,
    features::features,
    registration::{Found, Registration},
    shared_maps, sys,
};
use control::Controller;
use libbpf_rs::{MapCore, ObjectBuilder, OpenObject};
use rustix::{
    io::Errno,
    net::{AddressFamily, SocketType},
};
use std::{
    fs,
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
const RETRY_FOR: Duration = Duration::from_secs(5);
/// Directory of pinned registrations.
const PIN_DIRECTORY: &str = "/sys/fs/bpf/tandem";

/// The Tandem controller that a name stands for: `td_NAME` always, a bare name if the kernel has no
/// congestion control of that name. `None`: the kernel has one of that name, or neither has.
pub fn resolve(name: &str) -> Option<Controller> {
    let is_kernels = !name.starts_with("td_") && has_congestion_control(name);
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
            let current = current_tunables(controller);
            if !tunables.is_empty() && current.is_some_and(|current| current != values) {
                return Err(Error::OtherTunables(controller.name().into()));
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

fn register(controller: Controller, values: &[u32]) -> Result<Registration> {
    let attempt = format!("load td_{} into this kernel", controller.name());
    let mut object = shared_maps::load(&attempt, || {
        let mut open = open(controller)?;
        set_tunables(&mut open, values);
        Ok(open)
    })?;
    let ops = object.maps_mut().find(|map| map.map_type() == libbpf_rs::MapType::StructOps);
    Registration::register(&mut ops.expect("every controller has a struct_ops map"), &pin_of(controller), &attempt)
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
    let controller = named(name)?;
    let path = pin_of(controller);
    if path.exists() {
        let found = registered(controller)?;
        fs::remove_file(&path).map_err(|error| Error::Pin {
            attempt: format!("unpin td_{}", controller.name()),
            path: path.clone(),
            error,
        })?;
        if let Some(found) = found.filter(|found| found.is_abandoned(&path)) {
            found.end().map_err(Error::system(format!("unload td_{} from this kernel", controller.name())))?;
        }
        // Fails while other controllers are pinned.
        let _ = fs::remove_dir(PIN_DIRECTORY);
        return Ok(());
    }
    Err(match registered(controller)? {
        Some(_) => Error::HeldElsewhere(controller.name().into()),
        None => Error::NotLoaded(controller.name().into()),
    })
}

/// The controllers that are loaded.
///
/// # Errors
/// When the kernel cannot be asked, for want of privilege, say.
pub fn list() -> Result<Vec<ControllerStatus>> {
    let mut all = Vec::new();
    for controller in Controller::all() {
        if registered(controller)?.is_some() {
            let tunables = current_tunables(controller).unwrap_or_else(|| controller.tunables().map(|tunable| tunable.default).collect());
            all.push(ControllerStatus { controller, pinned: pin_of(controller).exists(), tunables });
        }
    }
    Ok(all)
}

fn named(name: &str) -> Result<Controller> {
    let known = || Controller::all().map(Controller::name).collect::<Vec<_>>().join(", ");
    Controller::named(name).ok_or_else(|| Error::Unknown { name: name.into(), known: known() })
}

fn pin_of(controller: Controller) -> PathBuf {
    Path::new(PIN_DIRECTORY).join(format!("td_{}", controller.name()))
}

macro_rules! objects {
    ($($name:literal),*) => {
        /// The BPF object of a controller.
        fn object(name: &str) -> &'static [u8] {
            match name {
                $($name => include_bytes!(concat!(env!("OUT_DIR"), "/", $name, ".bpf.o")),)*
                _ => unreachable!("every controller is built"),
            }
        }
    };
}
objects!("reno", "cubic", "vegas", "hybla", "westwood", "dctcp", "bbr", "bbr3", "xcp", "xcp_known", "mpcp", "share");

pub(crate) fn open(controller: Controller) -> Result<OpenObject> {
    sys::redirect_libbpf_log();
    let features = features()?;
    let attempt = format!("open the BPF object of {}", controller.name());
    let mut builder = ObjectBuilder::default();
    let mut open = builder
        .name(format!("td_{}", controller.name()))
        .and_then(|builder| builder.open_memory(object(controller.name())))
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
    format!(".rodata.{}", controller.name())
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
    Found::named(&format!("td_ops_{}", controller.name())).map_err(Error::system("look for congestion controls in this kernel"))
}
