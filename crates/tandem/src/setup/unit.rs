//! The service's unit: the privileges that a capacity needs, and how the proxy is started.

use crate::CommandError;
use files::Draft;
use std::{fs, path::Path, process::Command};

/// The configuration of the service.
const SERVICE_FILE: &str = "/etc/tandem/proxy.toml";
/// Where the service's unit is installed.
const UNIT_DIRECTORIES: [&str; 3] = ["/usr/lib/systemd/system", "/lib/systemd/system", "/etc/systemd/system"];
/// The privileges that the service needs for a leg with a capacity.
const CAPACITY: &str = include_str!("../../../../packaging/capacity.conf");
const DROP_IN: &str = "/etc/systemd/system/tandem.service.d/capacity.conf";

/// Whether systemd starts the proxy with this file.
fn is_of_service(path: &Path) -> bool {
    let has_unit = UNIT_DIRECTORIES.iter().any(|directory| Path::new(directory).join("tandem.service").exists());
    has_unit && Path::new("/run/systemd/system").exists() && path == Path::new(SERVICE_FILE)
}

/// Gives the service the privileges that a capacity needs, if it uses this file and does not have
/// them yet.
///
/// # Errors
/// The file of the unit cannot be written, or systemd does not read it.
pub(super) fn allow_capacity(path: &Path) -> Result<(), CommandError> {
    let drop_in = Path::new(DROP_IN);
    if !is_of_service(path) || drop_in.exists() {
        return Ok(());
    }
    let failed = |why: String| CommandError::Failed(format!("cannot give the service the privileges that a capacity needs: {why}"));
    let directory = drop_in.parent().expect("the path has a directory");
    fs::create_dir_all(directory).map_err(|why| failed(format!("{}: {why}", directory.display())))?;
    let draft = Draft::beside(drop_in, CAPACITY).map_err(|why| failed(format!("{DROP_IN}: {why}")))?;
    draft.put("old").map_err(|why| failed(format!("{DROP_IN}: {why}")))?;
    let reloaded =
        Command::new("systemctl").arg("daemon-reload").output().map_err(|why| failed(format!("systemctl daemon-reload: {why}")))?;
    if !reloaded.status.success() {
        let said = String::from_utf8_lossy(&reloaded.stderr);
        return Err(failed(format!("systemctl daemon-reload: {}", said.trim())));
    }
    outln!("wrote {DROP_IN}: CAP_SYS_ADMIN for the service, to measure the long link");
    Ok(())
}

/// How the proxy is started with this file.
pub(super) fn next_command(path: &Path) -> String {
    if is_of_service(path) {
        "systemctl enable --now tandem (or, if it runs: systemctl restart tandem)".into()
    } else {
        format!("tandem proxy -c {}", path.display())
    }
}
