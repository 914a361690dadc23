//! Write access to files: programs for the kernel come only from files that no other user can
//! change.

use std::{
    fs::{File, Metadata},
    io,
    os::unix::fs::MetadataExt as _,
    path::Path,
};

const WRITABLE_BY_OTHERS: u32 = 0o022;
/// In such a directory, users cannot replace the files of others.
const STICKY: u32 = 0o1000;

/// Why the file at this path, which is without symbolic links, must not be trusted; `None` if it
/// may be: it and every directory above it belong to root or to the user of this process, and no
/// other user may write to them.
pub(crate) fn why_not(path: &Path, opened: &File) -> io::Result<Option<String>> {
    let user = rustix::process::geteuid().as_raw();
    if let Some(why) = why_not_this(path, &opened.metadata()?, user) {
        return Ok(Some(why));
    }
    for directory in path.ancestors().skip(1) {
        if let Some(why) = why_not_this(directory, &directory.metadata()?, user) {
            return Ok(Some(why));
        }
    }
    Ok(None)
}

fn why_not_this(path: &Path, metadata: &Metadata, user: u32) -> Option<String> {
    let (owner, mode) = (metadata.uid(), metadata.mode() & 0o7777);
    let path = path.display();
    if owner != 0 && owner != user {
        return Some(format!(
            "{path} belongs to user {owner}, who may change it: build it as the user who loads it (as root: sudo tandem control build NAME.h)"
        ));
    }
    let is_shared = metadata.is_dir() && mode & STICKY != 0;
    if mode & WRITABLE_BY_OTHERS != 0 && !is_shared {
        return Some(format!("other users may write to {path} (mode {mode:03o}): chmod go-w {path}"));
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, os::unix::fs::PermissionsExt as _};

    #[test]
    fn a_file_that_others_may_change_is_not_trusted() {
        let directory = tempfile::tempdir().unwrap();
        let inner = directory.path().canonicalize().unwrap().join("inner");
        fs::create_dir(&inner).unwrap();
        let file = inner.join("my.ctl");
        fs::write(&file, "").unwrap();
        let set = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        let why = || why_not(&file, &File::open(&file).unwrap()).unwrap();
        set(&inner, 0o755);
        set(&file, 0o644);
        assert_eq!(why(), None, "in a directory with the sticky bit");
        set(&file, 0o664);
        assert!(why().unwrap().ends_with(&format!("(mode 664): chmod go-w {}", file.display())), "{:?}", why());
        set(&file, 0o644);
        set(&inner, 0o757);
        assert!(why().unwrap().contains(&format!("write to {} (mode 757)", inner.display())), "{:?}", why());
        set(&inner, 0o755);
        // Only root can give a file away.
        if std::os::unix::fs::chown(&file, Some(12345), None).is_ok() {
            assert!(why().unwrap().contains("belongs to user 12345"), "{:?}", why());
        }
    }
}
