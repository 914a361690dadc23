//! The sources that the build of a controller needs, which are part of this program.

use include_dir::{Dir, include_dir};
use std::{fs, io, path::Path};

/// The controllers' headers, the programs around them in the kernel, and libbpf's headers.
static SOURCES: Dir<'_> = include_dir!("$OUT_DIR/sources");

/// Headers that are for this build only.
const INTERNAL: [&str; 2] = ["own_checks.h", "controllers.h"];

/// Writes all sources to a directory.
pub(crate) fn write_all(directory: &Path) -> io::Result<()> {
    SOURCES.extract(directory)
}

/// The checks of what a header defines, for the controller `name`.
pub(crate) fn checks_of(name: &str) -> String {
    text("own_checks.h").replace("NAME", name)
}

fn text(name: &str) -> &'static str {
    SOURCES.get_file(name).and_then(|file| file.contents_utf8()).expect("the build script has collected it")
}

/// Writes the headers that a controller can include to a directory, which is created: the interface
/// (`intf.h`), and the controllers of Tandem, which have functions to include.
///
/// # Errors
/// When the directory cannot be written.
pub fn write_headers(directory: &Path) -> io::Result<Vec<String>> {
    fs::create_dir_all(directory)?;
    let mut written = Vec::new();
    for file in SOURCES.files() {
        let name = file.path().to_str().unwrap_or_default();
        // The headers of the kernel's hooks need what only the build defines.
        let is_of_controllers = name.ends_with(".h") && !INTERNAL.contains(&name) && !KERNEL.contains(&name);
        if is_of_controllers {
            fs::write(directory.join(name), file.contents())?;
            written.push(name.to_owned());
        }
    }
    written.sort();
    Ok(written)
}

/// Headers of the kernel's hooks.
const KERNEL: [&str; 6] = ["cong_avoid.h", "cong_control.h", "cong_control_call.h", "link_records.h", "rate_control.h", "tcp.h"];

#[cfg(test)]
mod tests {
    #[test]
    fn the_headers_are_those_of_controllers() {
        let directory = tempfile::tempdir().unwrap();
        let written = super::write_headers(&directory.path().join("headers")).unwrap();
        assert!(written.contains(&"intf.h".to_owned()) && written.contains(&"reno.h".to_owned()), "{written:?}");
        for name in &written {
            let text = std::fs::read_to_string(directory.path().join("headers").join(name)).unwrap();
            let included = text.lines().filter_map(|line| line.strip_prefix("#include \"")?.strip_suffix('"'));
            included.for_each(|other| assert!(written.iter().any(|name| name == other), "{name} includes {other}"));
        }
    }
}
