//! Controllers as congestion controls of the kernel.

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

/// A controller in the kernel, for as long as this lives.
#[derive(Debug)]
pub struct Held {
    controller: Controller,
    registration: Registration,
}

/// What is known of a controller in the kernel.
#[derive(Debug, Clone)]
pub struct Loaded {
    /// Which one.
    pub controller: Controller,
    /// Whether it outlives those who use it (`tandem control load`).
    pub pinned: bool,
    /// Its tunables, in the order of [`Controller::tunables`].
    pub tunables: Vec<u32>,
}

/// How long a registration by somebody else may be neither there nor gone.
const PATIENCE: Duration = Duration::from_secs(5);
/// Where the registrations are kept that outlive their loader.
const DIRECTORY: &str = "/sys/fs/bpf/tandem";

/// The controller of Tandem's that a name means: where the kernel has none of its own of that name, or by `td_` and its name in any case.
pub fn meant(name: &str) -> Option<Controller> {
    let the_kernels = !name.starts_with("td_") && has(name);
    if the_kernels { None } else { Controller::named(name) }
}

/// Whether this kernel has a congestion control of that name. A socket tries it, which loads the module where it is one and this process
/// may have modules loaded.
pub fn has(name: &str) -> bool {
    let tried = || {
        let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None)?;
        rustix::net::sockopt::set_tcp_congestion(socket, name)
    };
    // A controller that only others may use is there all the same.
    matches!(tried(), Ok(()) | Err(Errno::PERM))
}

/// Puts a controller into the kernel, or takes hold of it where it is there already. `tunables` are those that differ from their
/// defaults, by name.
pub fn load(name: &str, tunables: &[(String, u32)]) -> Result<Held> {
    let controller = named(name)?;
    let values = tuned(controller, tunables)?;
    let _alone = shared_maps::alone();
    if !features()?.struct_ops {
        return Err(Error::NoStructOps);
    }
    let begun = Instant::now();
    loop {
        if let Some(found) = registered(controller)? {
            if found.is_abandoned(&pin_of(controller)) {
                found.end().map_err(Error::system(format!("replace td_{}, which a killed program left behind", controller.name())))?;
                continue;
            }
            if controller.whole() {
                shared_maps::only_ours()?;
            }
            let now = now_tuned(controller);
            if !tunables.is_empty() && now.is_some_and(|now| now != values) {
                return Err(Error::Tuned(controller.name().into()));
            }
            return Ok(Held { controller, registration: found.hold(&pin_of(controller)) });
        }
        match register(controller, &values) {
            Ok(registration) => return Ok(Held { controller, registration }),
            // Another process has just done the same, or one that had it has just let go.
            Err(Error::Kernel { error, .. }) if error.kind() == libbpf_rs::ErrorKind::AlreadyExists && begun.elapsed() < PATIENCE => {
                thread::sleep(Duration::from_millis(5));
            }
            Err(error) => return Err(error),
        }
    }
}

fn register(controller: Controller, values: &[u32]) -> Result<Registration> {
    let attempt = format!("put td_{} into this kernel", controller.name());
    let mut object = shared_maps::load(&attempt, || {
        let mut open = open(controller)?;
        set_tunables(&mut open, values);
        Ok(open)
    })?;
    let ops = object.maps_mut().find(|map| map.map_type() == libbpf_rs::MapType::StructOps);
    Registration::register(&mut ops.expect("every controller has one"), &pin_of(controller), &attempt)
}

impl Held {
    /// Which one it is.
    pub fn controller(&self) -> Controller {
        self.controller
    }

    /// Keeps it in the kernel when this process is gone.
    pub fn pin(&mut self) -> Result<()> {
        let path = pin_of(self.controller);
        let failed = |error| Error::Pin { what: format!("td_{}", self.controller.name()), path: path.clone(), error };
        if path.exists() {
            return Ok(());
        }
        sys::mount_bpf().map_err(failed)?;
        fs::create_dir_all(DIRECTORY).map_err(failed)?;
        self.registration.pin(&path).map_err(failed)
    }
}

/// Takes a pinned controller out of the kernel. Connections that use it keep it until they end; new ones can't have it.
pub fn unload(name: &str) -> Result<()> {
    let controller = named(name)?;
    let path = pin_of(controller);
    if path.exists() {
        let found = registered(controller)?;
        fs::remove_file(&path).map_err(|error| Error::Pin { what: format!("no td_{}", controller.name()), path: path.clone(), error })?;
        if let Some(found) = found.filter(|found| found.is_abandoned(&path)) {
            found.end().map_err(Error::system(format!("take td_{} out of this kernel", controller.name())))?;
        }
        // Goes with the last file; while there are others it stays.
        let _ = fs::remove_dir(DIRECTORY);
        return Ok(());
    }
    Err(match registered(controller)? {
        Some(_) => Error::HeldElsewhere(controller.name().into()),
        None => Error::NotLoaded(controller.name().into()),
    })
}

/// The controllers that are in the kernel.
pub fn list() -> Result<Vec<Loaded>> {
    let mut all = Vec::new();
    for controller in Controller::all() {
        if registered(controller)?.is_some() {
            let tunables = now_tuned(controller).unwrap_or_else(|| controller.tunables().map(|tunable| tunable.default).collect());
            all.push(Loaded { controller, pinned: pin_of(controller).exists(), tunables });
        }
    }
    Ok(all)
}

fn named(name: &str) -> Result<Controller> {
    let known = || Controller::all().map(Controller::name).collect::<Vec<_>>().join(", ");
    Controller::named(name).ok_or_else(|| Error::Unknown { name: name.into(), known: known() })
}

fn pin_of(controller: Controller) -> PathBuf {
    Path::new(DIRECTORY).join(format!("td_{}", controller.name()))
}

/// All values, in order.
fn tuned(controller: Controller, tunables: &[(String, u32)]) -> Result<Vec<u32>> {
    let mut values: Vec<u32> = controller.tunables().map(|tunable| tunable.default).collect();
    for (name, value) in tunables {
        let at = controller.tunables().position(|tunable| tunable.name == name).ok_or_else(|| Error::Tunable {
            controller: controller.name().into(),
            name: name.clone(),
            known: controller.tunables().map(|tunable| tunable.name).collect::<Vec<_>>().join(", "),
        })?;
        values[at] = *value;
    }
    Ok(values)
}

macro_rules! objects {
    ($($name:literal),*) => {
        /// What the build made of a controller.
        fn object(name: &str) -> &'static [u8] {
            match name {
                $($name => include_bytes!(concat!(env!("OUT_DIR"), "/", $name, ".bpf.o")),)*
                _ => unreachable!("every controller is built"),
            }
        }
    };
}
objects!("reno", "cubic", "vegas", "hybla", "westwood", "dctcp", "xcp", "xcp_known", "mpcp", "share");

pub(crate) fn open(controller: Controller) -> Result<OpenObject> {
    sys::quiet();
    let features = features()?;
    let attempt = format!("read the program of {}", controller.name());
    let mut builder = ObjectBuilder::default();
    let mut open = builder
        .name(format!("td_{}", controller.name()))
        .and_then(|builder| builder.open_memory(object(controller.name())))
        .map_err(Error::kernel(&attempt))?;
    for mut map in open.maps_mut() {
        if map.map_type() == libbpf_rs::MapType::StructOps && !features.links {
            map.set_map_flags(0).map_err(Error::kernel(&attempt))?;
        }
        let is_it = map.name() == ARGUMENTS;
        if let Some(bytes) = map.initial_value_mut().filter(|_| is_it) {
            bytes[..4].copy_from_slice(&features.cong_control_arguments.to_ne_bytes());
        }
    }
    Ok(open)
}

/// The section that says how many arguments cong_control has.
const ARGUMENTS: &str = ".rodata.arguments";

/// The section of an object that has the tunables; the kernel knows the map by the first 15 letters.
fn section(controller: Controller) -> String {
    format!(".rodata.{}", controller.name())
}

pub(crate) fn set_tunables(open: &mut OpenObject, values: &[u32]) {
    for mut map in open.maps_mut() {
        let tunables = map.name() != ARGUMENTS && map.name().to_string_lossy().starts_with(".rodata.");
        if let Some(bytes) = map.initial_value_mut().filter(|_| tunables) {
            for (bytes, value) in bytes.chunks_exact_mut(4).zip(values) {
                bytes.copy_from_slice(&value.to_ne_bytes());
            }
        }
    }
}

/// The tunables of the one that is in the kernel.
fn now_tuned(controller: Controller) -> Option<Vec<u32>> {
    let map = sys::newest_map(&section(controller))?;
    let bytes = map.lookup(&0u32.to_ne_bytes(), libbpf_rs::MapFlags::ANY).ok()??;
    let values = bytes.chunks_exact(4).map(|bytes| u32::from_ne_bytes(bytes.try_into().expect("four bytes")));
    Some(values.take(controller.tunables().count()).collect())
}

/// The registration of a controller, if it has one.
fn registered(controller: Controller) -> Result<Option<Found>> {
    Found::named(&format!("td_ops_{}", controller.name())).map_err(Error::system("look for congestion controls in this kernel"))
}
