//! Own controllers: built from a user's header by `tandem control build`, found by name in a
//! directory or by the path of their file, and interpreted.

use crate::{
    Controller, Event, FlowState, LinkRecord, Tunable,
    artefact::{ARTEFACT_ENDING, Artefact, ArtefactFault, MOST_BYTES, Manifest, check_name, name_of},
    ffi::Frame,
    interpreter::Program,
    own_error::OwnError,
};
use files::Distrust;
use std::{
    env, fs,
    io::{self, Read as _},
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

/// Directory of the controllers for all users, and the only one in which root looks.
pub const SYSTEM_DIRECTORY: &str = "/var/lib/tandem/controllers";

/// An own controller: its description, its programs, and whether its file may be trusted.
pub struct OwnController {
    manifest: Manifest,
    tunables: Vec<Tunable>,
    program: Program,
    object: Vec<u8>,
    file: PathBuf,
    distrust: Option<String>,
}

/// The controllers that this process has read. They stay for as long as it runs, so that a
/// controller is the same for all users of its name even if its file is replaced.
static READ: Mutex<Vec<&'static OwnController>> = Mutex::new(Vec::new());

impl OwnController {
    /// Its description.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Its BPF object for the kernel.
    ///
    /// # Errors
    /// When another user than root and that of this process may change its file: what the kernel
    /// runs must not come from others.
    pub fn trusted_object(&self) -> Result<&[u8], OwnError> {
        match &self.distrust {
            None => Ok(&self.object),
            Some(why) => Err(OwnError::Distrusted { file: self.file.clone(), why: why.clone() }),
        }
    }

    /// Its file.
    pub fn file(&self) -> &Path {
        &self.file
    }

    pub(crate) fn tunables(&self) -> &[Tunable] {
        &self.tunables
    }

    /// Passes an event to its program, which writes its decisions to `flow`, its state to `words`
    /// and its part to `link`.
    pub(crate) fn step(
        &self,
        flow: &mut FlowState,
        words: &mut [u64],
        link: Option<&mut LinkRecord>,
        event: &Event,
        tunables: &[u32],
    ) -> Result<(), OwnError> {
        let mut frame = Frame::new(flow, words, link.as_deref(), event, tunables);
        self.program.run(frame.bytes()).map_err(|fault| OwnError::Failed { file: self.file.clone(), why: fault.to_string() })?;
        frame.copy_back(flow, words, link);
        Ok(())
    }

    /// The controller in these bytes of a file.
    fn of(bytes: &[u8], file: &Path, distrust: Option<String>) -> Result<OwnController, OwnError> {
        let name = name_of(file).unwrap_or_default();
        let artefact = Artefact::read(bytes, name).map_err(|fault| match fault {
            ArtefactFault::OtherInterface(_) => OwnError::OtherVersion { file: file.into(), name: name.into(), why: fault.to_string() },
            ArtefactFault::Damaged(why) => OwnError::Damaged { file: file.into(), why },
        })?;
        OwnController::new(artefact, file, distrust)
    }

    fn new(artefact: Artefact, file: &Path, distrust: Option<String>) -> Result<OwnController, OwnError> {
        let program = Program::new(&artefact.simulated).map_err(|fault| OwnError::Damaged { file: file.into(), why: fault.to_string() })?;
        let leak = |text: &str| -> &'static str { Box::leak(text.to_owned().into_boxed_str()) };
        let tunables = artefact.manifest.tunables.iter().map(|tunable| Tunable {
            name: leak(&tunable.name),
            default: tunable.default,
            range: tunable.lowest..=tunable.highest,
            text: leak(&tunable.text),
        });
        Ok(OwnController {
            tunables: tunables.collect(),
            program,
            object: artefact.object,
            file: file.into(),
            distrust,
            manifest: artefact.manifest,
        })
    }
}

/// The controller of this name. `None`: there is no file of its name.
pub(crate) fn by_name(name: &str) -> Result<Option<&'static OwnController>, OwnError> {
    if check_name(name).is_err() {
        return Ok(None);
    }
    let mut read = READ.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(found) = read.iter().copied().find(|own| own.manifest.name == name) {
        return Ok(Some(found));
    }
    for directory in directories() {
        let file = directory.join(name).with_extension(ARTEFACT_ENDING);
        if let Some(found) = take(&mut read, &file)? {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

/// The controller of an artefact that has just been made, of `file`. It is not found by its name.
pub(crate) fn for_trial(artefact: Artefact, file: &Path) -> Result<&'static OwnController, OwnError> {
    Ok(Box::leak(Box::new(OwnController::new(artefact, file, None)?)))
}

/// The controller in this file.
pub(crate) fn by_path(file: &Path) -> Result<&'static OwnController, OwnError> {
    let mut read = READ.lock().unwrap_or_else(PoisonError::into_inner);
    take(&mut read, file)?.ok_or_else(|| OwnError::Unreadable { file: file.into(), why: "there is no such file".into() })
}

/// The controllers that can be used by name, in the order of their names, and those that this
/// process has read by path; and why others cannot be used.
pub(crate) fn survey() -> (Vec<&'static OwnController>, Vec<OwnError>) {
    let names = directories().into_iter().filter_map(|directory| fs::read_dir(directory).ok()).flatten().flatten();
    let mut names: Vec<String> = names.filter_map(|entry| name_of(&entry.path()).map(str::to_owned)).collect();
    names.extend(READ.lock().unwrap_or_else(PoisonError::into_inner).iter().map(|own| own.manifest.name.clone()));
    names.sort();
    names.dedup();
    let (mut found, mut refused) = (Vec::new(), Vec::new());
    for name in &names {
        match by_name(name) {
            Ok(own) => found.extend(own),
            Err(why) => refused.push(why),
        }
    }
    (found, refused)
}

/// The directories in which controllers are looked for by name.
fn directories() -> Vec<PathBuf> {
    let mut all = Vec::new();
    if !rustix::process::geteuid().is_root() {
        all.extend(home_directory());
    }
    all.push(SYSTEM_DIRECTORY.into());
    all
}

/// The directory of this user's own controllers: [`SYSTEM_DIRECTORY`] for root. `None`: the user
/// has no home directory.
pub fn own_directory() -> Option<PathBuf> {
    if rustix::process::geteuid().is_root() { Some(SYSTEM_DIRECTORY.into()) } else { home_directory() }
}

fn home_directory() -> Option<PathBuf> {
    let absolute = |name: &str| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let data = absolute("XDG_DATA_HOME").or_else(|| absolute("HOME").map(|home| home.join(".local/share")));
    data.map(|data| data.join("tandem/controllers"))
}

/// The cure if a file belongs neither to root nor to the user of this process.
const OWNER_CURE: &str = "build it as the user who loads it (as root: sudo tandem control build NAME.h)";

/// The controller in this file, which is read if it has not been read yet. `None`: there is no such
/// file.
fn take(read: &mut Vec<&'static OwnController>, file: &Path) -> Result<Option<&'static OwnController>, OwnError> {
    let unreadable = |error: io::Error| OwnError::Unreadable { file: file.into(), why: error.to_string() };
    // Symbolic links are resolved first: a user with write access to any part of the path decides
    // what is read.
    let path = match file.canonicalize() {
        Ok(path) => path,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(unreadable(error)),
    };
    if let Some(found) = read.iter().copied().find(|own| own.file == path) {
        return Ok(Some(found));
    }
    let mut opened = files::open(&path, MOST_BYTES).map_err(unreadable)?;
    let distrust = Distrust::of(&path, opened.source()).map_err(unreadable)?.map(|distrust| distrust.with_cure(OWNER_CURE));
    let mut bytes = Vec::new();
    opened.read_to_end(&mut bytes).map_err(unreadable)?;
    let own = OwnController::of(&bytes, &path, distrust)?;
    if Controller::native(&own.manifest.name).is_some() {
        let why = format!("Tandem has a controller {:?} itself: give it another name", own.manifest.name);
        return Err(OwnError::Damaged { file: path, why });
    }
    if let Some(other) = read.iter().find(|other| other.manifest.name == own.manifest.name) {
        return Err(OwnError::TwoOfOneName { file: path, other: other.file.clone() });
    }
    let own: &'static OwnController = Box::leak(Box::new(own));
    read.push(own);
    Ok(Some(own))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{EventKind, artefact::tests::idle};

    #[test]
    fn a_controller_is_found_by_its_path_and_then_by_its_name() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("idle_1.ctl");
        let name = file.to_str().unwrap();
        assert!(Controller::find(name).unwrap_err().to_string().contains("there is no such file"));
        fs::write(&file, idle("idle_1").to_bytes()).unwrap();
        let controller = Controller::find(name).unwrap().unwrap();
        assert_eq!((controller.name(), controller.description()), ("idle_1", "does nothing"));
        assert_eq!(Controller::named("td_idle_1"), Some(controller));
        assert!(Controller::available().contains(&controller));
        let tuned = controller.tuned(&[("gain", 3)]).unwrap();
        let mut flow = FlowState { cwnd: 10, ..FlowState::default() };
        let mut state = tuned.begin(&mut flow, None, 0);
        state.step(&mut flow, None, &Event { kind: EventKind::Ack, ..Event::default() });
        assert_eq!(flow.cwnd, 10);
        assert!(controller.tuned(&[("gain", 4)]).unwrap_err().to_string().contains("its tunables are gain (1 to 3, default 2)"));

        let other = directory.path().join("other");
        fs::create_dir(&other).unwrap();
        let other = other.join("idle_1.ctl");
        fs::write(&other, idle("idle_1").to_bytes()).unwrap();
        assert!(matches!(by_path(&other).err(), Some(OwnError::TwoOfOneName { .. })));
    }

    #[test]
    fn a_refused_file_says_why_and_what_to_do() {
        let directory = tempfile::tempdir().unwrap();
        let refused = |name: &str, artefact: Artefact| {
            let file = directory.path().join(name);
            fs::write(&file, artefact.to_bytes()).unwrap();
            let path = file.to_str().unwrap();
            assert_eq!(Controller::named(path), None);
            Controller::find(path).unwrap_err().to_string()
        };
        let mut old = idle("old");
        old.manifest.interface = "0".into();
        assert!(refused("old.ctl", old).ends_with("build it again: tandem control build old.h"));
        assert!(refused("reno.ctl", idle("reno")).contains("Tandem has a controller \"reno\" itself"));
        let mut calls = idle("calls");
        calls.simulated = vec![0x85, 0, 0, 0, 1, 0, 0, 0];
        assert!(refused("calls.ctl", calls).contains("calls a function"));
    }

    #[test]
    fn a_program_that_fails_is_an_error_or_a_panic_but_changes_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("faulty.ctl");
        let mut faulty = idle("faulty");
        // r0 = *(u64 *)(r2 + 0): register 2 is a null pointer.
        faulty.simulated = vec![0x79, 0x20, 0, 0, 0, 0, 0, 0, 0x95, 0, 0, 0, 0, 0, 0, 0];
        fs::write(&file, faulty.to_bytes()).unwrap();
        let controller = Controller::find(file.to_str().unwrap()).unwrap().unwrap();
        let error = controller.untuned().try_begin(&mut FlowState::default(), None, 0).unwrap_err();
        assert!(error.to_string().contains("null pointer"), "{error}");
    }
}
