//! Runs clang.

use crate::{BuildError, description, sources};
use control::Manifest;
use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

/// What clang has made of a header.
pub(crate) struct Compiled {
    /// The description without name and layout.
    pub(crate) manifest: Manifest,
    pub(crate) simulated: Vec<u8>,
    pub(crate) object: Vec<u8>,
    pub(crate) build: String,
    pub(crate) warnings: String,
}

/// Compiles the header of the controller `name` for the simulator and for the kernel.
pub(crate) fn compile(header: &Path, name: &str) -> Result<Compiled, BuildError> {
    let scratch = tempfile::tempdir().map_err(|error| BuildError::Unwritable { path: env::temp_dir(), error })?;
    let clang = Clang { header, name, sources: scratch.path().to_path_buf() };
    clang.prepare()?;
    let (simulated, warnings) = clang.run("own_simulated.c", &[])?;
    let described = description::read(&simulated).map_err(|why| {
        let why = why.replace("NAME", name);
        BuildError::Header { file: header.into(), why }
    })?;
    let keys = [
        "-DTD_OWN".to_owned(),
        format!("-DTD_OPS_KEY={}", kernel::own_key(name)),
        format!("-DTD_VALUES_KEY={}", described.build),
        format!("-DTD_LAYOUT={}", kernel::LAYOUT),
    ];
    // Its warnings are the same.
    let (object, _) = clang.run("controller.bpf.c", &keys)?;
    Ok(Compiled { manifest: described.manifest, simulated: described.program, object, build: described.build, warnings })
}

struct Clang<'a> {
    header: &'a Path,
    name: &'a str,
    /// Directory of all sources.
    sources: PathBuf,
}

impl Clang<'_> {
    fn prepare(&self) -> Result<(), BuildError> {
        let unwritable = |error| BuildError::Unwritable { path: self.sources.clone(), error };
        sources::write_all(&self.sources).map_err(unwritable)?;
        fs::write(self.checks(), sources::checks_of(self.name)).map_err(unwritable)
    }

    fn checks(&self) -> PathBuf {
        self.sources.join("own_checks.h")
    }

    /// Compiles one of the sources after the header. Returns the object, and what clang warned of.
    fn run(&self, source: &str, defines: &[String]) -> Result<(Vec<u8>, String), BuildError> {
        let clang = env::var("CLANG").unwrap_or_else(|_| "clang".into());
        let object = self.sources.join(source).with_extension("o");
        let mut command = Command::new(&clang);
        command.args(["-target", "bpfel", "-mcpu=v3", "-O2", "-g", "-Wall", "-Wextra", "-Wno-unused-parameter"]);
        // What would be wrong at run time. A static function need not be used.
        command.args(["-Werror=implicit-function-declaration", "-Werror=int-conversion", "-Werror=incompatible-pointer-types"]);
        command.args(["-Wno-unused-function", "-fno-color-diagnostics", "-nostdinc"]);
        // A null pointer that is used must fail when the controller is tried, not be assumed away.
        command.arg("-fno-delete-null-pointer-checks");
        command.args(defines).arg(format!("-DTD_NAME={}", self.name)).arg(format!("-D__TARGET_ARCH_{}", architecture()));
        command.arg("-I").arg(&self.sources);
        // The interface comes first, so that a copy of it beside the header has no effect.
        for included in [self.sources.join("intf.h"), self.header.to_path_buf(), self.checks()] {
            command.arg("-include").arg(included);
        }
        let failed = |messages: String| BuildError::Compile { file: self.header.into(), messages };
        let done = command.arg("-c").arg(self.sources.join(source)).arg("-o").arg(&object).output();
        let done = done.map_err(|error| BuildError::NoClang { clang, error })?;
        let messages = String::from_utf8_lossy(&done.stderr).trim_end().to_owned();
        if !done.status.success() {
            return Err(failed(if messages.is_empty() { done.status.to_string() } else { messages }));
        }
        let bytes = fs::read(&object).map_err(|error| BuildError::Unreadable { file: object, error })?;
        Ok((bytes, messages))
    }
}

/// The name of this machine's architecture in libbpf's headers.
fn architecture() -> &'static str {
    match env::consts::ARCH {
        "x86_64" => "x86",
        "aarch64" => "arm64",
        other => other,
    }
}
