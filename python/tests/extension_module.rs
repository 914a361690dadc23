//! The extension module loads in the Python of this machine. Its behaviour is tested in Python:
//! `scripts/python`.

use std::{env, fs, process::Command};

#[test]
fn the_module_loads() {
    let version = "import sys; sys.exit(sys.version_info < (3, 10))";
    if !Command::new("python3").args(["-c", version]).status().is_ok_and(|status| status.success()) {
        return testing::skipped("the_module_loads", &"no python3 from 3.10 on here");
    }
    // Cargo has built it beside this program.
    let library = env::current_exe().unwrap().with_file_name("lib_tandem.so");
    let directory = tempfile::tempdir().unwrap();
    fs::copy(&library, directory.path().join("_tandem.abi3.so")).unwrap_or_else(|why| panic!("{}: {why}", library.display()));
    let done =
        Command::new("python3").env("PYTHONPATH", directory.path()).args(["-c", "import _tandem; print(_tandem.__version__)"]).output();
    let done = done.unwrap();
    let (out, errors) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert_eq!((out.trim(), errors.as_ref()), (env!("CARGO_PKG_VERSION"), ""));
}
