//! Builds a user's own congestion controller: compiles its header by clang for the simulator and
//! for the kernel, tries it, has the kernel's verifier check it, and writes its file.
//!
//! The form of such a header is in `docs/how-to/own-controller.md`. How a built controller is found
//! and run is in crate `control`, how it is loaded in crate `kernel`.
//!
//! ```no_run
//! let built = controller_build::build("my.h".as_ref(), "controllers".as_ref())?;
//! let my = control::Controller::named(built.file.to_str().unwrap()).unwrap();
//! # Ok::<(), controller_build::BuildError>(())
//! ```

mod compile;
mod description;
mod sources;
mod trial;

use control::{Artefact, Controller, Manifest, OwnError};
pub use sources::write_headers;
use std::{
    fs::{self, Permissions},
    io::{self, Write as _},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};
pub use trial::RandomConnection;

/// A controller that was built.
#[derive(Debug)]
pub struct Built {
    /// Its file.
    pub file: PathBuf,
    /// Its description.
    pub manifest: Manifest,
    /// What clang warned of; empty: nothing.
    pub warnings: String,
    /// Why the kernel's verifier has not checked it; `None`: it has, and accepts it.
    pub unverified: Option<kernel::Error>,
}

/// Why a controller was not built.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// The header cannot be read.
    #[error("cannot read the header {}: {error}", file.display())]
    Unreadable {
        /// The header.
        file: PathBuf,
        /// The error.
        error: io::Error,
    },
    /// The header's name is not NAME.h, or cannot be the name of a controller.
    #[error("cannot build a controller from {}: it {why}; the file NAME.h defines the controller NAME", file.display())]
    Name {
        /// The header.
        file: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// There is no clang.
    #[error(
        "cannot run {clang}, which compiles controllers: {error}; install it (apt install clang, dnf install clang), or set CLANG to its path"
    )]
    NoClang {
        /// The program that was tried.
        clang: String,
        /// The error.
        error: io::Error,
    },
    /// The header has errors.
    #[error("cannot compile {}: clang reports\n{messages}", file.display())]
    Compile {
        /// The header.
        file: PathBuf,
        /// What clang printed.
        messages: String,
    },
    /// The header has what cannot be run.
    #[error("cannot use {}: the controller {why}", file.display())]
    Header {
        /// The header.
        file: PathBuf,
        /// What is wrong, and the cure.
        why: String,
    },
    /// The controller failed when it was tried.
    #[error("cannot use {}: {why}", file.display())]
    Trial {
        /// The header.
        file: PathBuf,
        /// What happened, after which event.
        why: String,
    },
    /// The kernel's verifier refuses it.
    #[error("cannot use {}: {why}", file.display())]
    Refused {
        /// The header.
        file: PathBuf,
        /// The verifier's reason.
        why: Box<kernel::Error>,
    },
    /// The controller's file, or a temporary one, cannot be written.
    #[error("cannot write {}: {error}", path.display())]
    Unwritable {
        /// The file.
        path: PathBuf,
        /// The error.
        error: io::Error,
    },
    /// The file that was written cannot be used.
    #[error(transparent)]
    Own(#[from] OwnError),
}

/// A controller that was compiled and tried, and that the kernel has not checked.
#[derive(Debug)]
pub struct Draft {
    /// The controller, which neither its name nor a path finds.
    pub controller: Controller,
    /// What its file will have.
    pub artefact: Artefact,
    /// What clang warned of; empty: nothing.
    pub warnings: String,
}

/// Builds the controller of `header`, a file `NAME.h`, and writes it to `NAME.ctl` in `directory`,
/// which is created if it does not exist. An earlier build is replaced only by one that works.
///
/// # Errors
/// When the header or its name is invalid, clang is missing, the controller fails when it is tried,
/// the verifier of this kernel refuses it, or the file cannot be written.
pub fn build(header: &Path, directory: &Path) -> Result<Built, BuildError> {
    let Draft { controller, artefact, warnings } = draft(header)?;
    let unverified = verify(header, controller)?;
    let file = directory.join(&artefact.manifest.name).with_extension(control::ARTEFACT_ENDING);
    write(directory, &file, &artefact.to_bytes()).map_err(|(path, error)| BuildError::Unwritable { path, error })?;
    Ok(Built { file, manifest: artefact.manifest, warnings, unverified })
}

/// Compiles the controller of `header`, and tries it on random events.
///
/// # Errors
/// As [`build`], but for the verifier and the file.
pub fn draft(header: &Path) -> Result<Draft, BuildError> {
    let name = name_of(header)?;
    if let Err(error) = fs::metadata(header) {
        return Err(BuildError::Unreadable { file: header.into(), error });
    }
    let compiled = compile::compile(header, name)?;
    let in_header = |why: String| BuildError::Header { file: header.into(), why };
    let manifest = Manifest { name: name.into(), layout: kernel::LAYOUT.into(), build: compiled.build, ..compiled.manifest };
    manifest.check().map_err(in_header)?;
    let artefact = Artefact { manifest, simulated: compiled.simulated, object: compiled.object };
    let controller = Controller::for_trial(artefact.clone(), header).map_err(|error| match error {
        OwnError::Damaged { why, .. } => in_header(why),
        other => other.into(),
    })?;
    trial::run(controller).map_err(|why| BuildError::Trial { file: header.into(), why })?;
    Ok(Draft { controller, artefact, warnings: compiled.warnings })
}

/// The name of the controller in a header.
fn name_of(header: &Path) -> Result<&str, BuildError> {
    let wrong = |why: String| BuildError::Name { file: header.into(), why };
    if header.extension().is_none_or(|ending| ending != "h") {
        return Err(wrong("is no file NAME.h".into()));
    }
    let name = header.file_stem().and_then(|name| name.to_str()).ok_or_else(|| wrong("has no name in UTF-8".into()))?;
    control::check_name(name).map_err(wrong)?;
    if Controller::all().any(|controller| controller.name() == name) {
        return Err(wrong("has the name of a controller of Tandem".into()));
    }
    if LINUX_CONTROLLERS.contains(&name) || kernel::has_congestion_control(name) {
        return Err(wrong("has the name of a controller of Linux, which is taken instead of it".into()));
    }
    Ok(name)
}

/// Controllers of Linux that Tandem does not bring: a kernel may have them or not.
const LINUX_CONTROLLERS: [&str; 11] = ["bic", "cdg", "highspeed", "htcp", "illinois", "lp", "nv", "prague", "scalable", "veno", "yeah"];

/// Has this kernel's verifier check a controller. Returns why it could not be asked, if so.
fn verify(header: &Path, controller: Controller) -> Result<Option<kernel::Error>, BuildError> {
    match kernel::verify(controller) {
        Ok(()) => Ok(None),
        Err(why @ kernel::Error::Kernel { refusal: Some(_), .. }) => Err(BuildError::Refused { file: header.into(), why: why.into() }),
        Err(why) => Ok(Some(why)),
    }
}

/// Writes a file that all may read, at once.
fn write(directory: &Path, file: &Path, bytes: &[u8]) -> Result<(), (PathBuf, io::Error)> {
    let in_directory = |error| (directory.to_path_buf(), error);
    if !directory.is_dir() {
        fs::create_dir_all(directory).map_err(in_directory)?;
        // The services of Tandem run as other users, and read it.
        fs::set_permissions(directory, Permissions::from_mode(0o755)).map_err(in_directory)?;
    }
    let mut draft = tempfile::NamedTempFile::new_in(directory).map_err(in_directory)?;
    let written = draft.write_all(bytes).and_then(|()| draft.as_file().set_permissions(Permissions::from_mode(0o644)));
    written.map_err(|error| (file.to_path_buf(), error))?;
    draft.persist(file).map(drop).map_err(|error| (file.to_path_buf(), error.error))
}
