//! `tandem control build` and `headers`: a user's own controllers.

use crate::CommandError;
use clap::Args;
use controller_build::{BuildError, Built};
use serde::Serialize;
use std::path::{Path, PathBuf};

/// Compile an own controller from its C header, for the kernel and the simulator
///
/// NAME.h becomes NAME.ctl, which lab, simulator and proxy use by the name NAME. Such a header is
/// described in docs/how-to/own-controller.md. Needs clang.
#[derive(Debug, Args)]
pub(super) struct BuildCommand {
    /// The header: my.h
    #[arg(value_name = "FILE.h")]
    header: PathBuf,
    /// Directory of the result [default: /var/lib/tandem/controllers for root, otherwise
    /// ~/.local/share/tandem/controllers]. A controller elsewhere is used by its path: ./my.ctl
    #[arg(long, value_name = "DIR")]
    to: Option<PathBuf>,
}

/// Write the headers that an own controller can include, for an editor
#[derive(Debug, Args)]
pub(super) struct HeadersCommand {
    /// Directory, which is created
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

/// A controller that was built, as JSON.
#[derive(Debug, Serialize)]
struct BuiltRow<'a> {
    name: &'a str,
    file: &'a Path,
    interface: &'a str,
    verified: bool,
    /// Why the verifier has not checked it.
    unverified_because: Option<String>,
    warnings: &'a str,
}

impl BuildCommand {
    pub(super) fn run(self, as_json: bool) -> Result<(), CommandError> {
        let own = control::own_directory();
        let no_home = || CommandError::Usage("there is no home directory to put the controller into: name one with --to DIR".into());
        let directory = self.to.clone().or_else(|| own.clone()).ok_or_else(no_home)?;
        let built = controller_build::build(&self.header, &directory).map_err(failed)?;
        if as_json {
            let row = BuiltRow {
                name: &built.manifest.name,
                file: &built.file,
                interface: &built.manifest.interface,
                verified: built.unverified.is_none(),
                unverified_because: built.unverified.as_ref().map(ToString::to_string),
                warnings: &built.warnings,
            };
            outln!("{}", serde_json::to_string(&row).unwrap_or_default());
        } else {
            print(&built, own.as_deref() == Some(directory.as_path()));
        }
        Ok(())
    }
}

/// `by_name`: whether the controller is found by its name.
fn print(built: &Built, by_name: bool) {
    let name = &built.manifest.name;
    if !built.warnings.is_empty() {
        outln!("{}", built.warnings);
    }
    outln!("built {}", built.file.display());
    match &built.unverified {
        None => outln!("  the verifier of this kernel accepts it"),
        Some(why) => outln!("  not checked by the kernel's verifier: {why}"),
    }
    let file = built.file.display();
    let text = if built.file.is_absolute() || file.to_string().starts_with('.') { file.to_string() } else { format!("./{file}") };
    let named = if by_name { name.clone() } else { text };
    outln!("  in scenarios and profiles of the proxy: control = \"{named}\"");
    outln!("  in the kernel for any program: tandem control load {named}, then td_{name}");
    if by_name && !rustix::process::geteuid().is_root() {
        outln!("  root looks in {} only: for the lab and the proxy as root, build it as root too", control::SYSTEM_DIRECTORY);
    }
}

/// An invalid header is an invalid file; other errors are failures.
fn failed(error: BuildError) -> CommandError {
    match error {
        BuildError::Unreadable { .. }
        | BuildError::Name { .. }
        | BuildError::Compile { .. }
        | BuildError::Header { .. }
        | BuildError::Trial { .. }
        | BuildError::Refused { .. } => CommandError::Usage(error.to_string()),
        other => CommandError::Failed(other.to_string()),
    }
}

impl HeadersCommand {
    pub(super) fn run(&self) -> Result<(), CommandError> {
        let directory = self.directory.display();
        let cannot = |error| CommandError::Failed(format!("cannot write headers to {directory}: {error}"));
        let written = controller_build::write_headers(&self.directory).map_err(cannot)?;
        outln!("wrote {} headers to {directory}: {}", written.len(), written.join(", "));
        Ok(())
    }
}
