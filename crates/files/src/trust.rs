//! Write access to files: what root loads or writes is only in files that no other user can change.

use std::{
    fs::{self, File, Metadata},
    io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

const WRITABLE_BY_OTHERS: u32 = 0o022;
const WRITABLE_BY_ALL: u32 = 0o002;
/// In such a directory, users cannot replace the files of others.
const STICKY: u32 = 0o1000;

/// Why a file must not be trusted: another user can change it, or a directory above it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Distrust {
    /// The file or directory that the user can change.
    path: PathBuf,
    kind: DistrustKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DistrustKind {
    /// It belongs to this user.
    Owner(u32),
    /// Its mode lets others write.
    Mode(u32),
}

impl Distrust {
    /// Why the open file at this path, which is without symbolic links, must not be trusted. `None`
    /// if it may be: it and every directory above it belong to root or to the user of this process,
    /// and no other user may write to them.
    ///
    /// # Errors
    /// Owner and mode cannot be read.
    pub fn of(path: &Path, opened: &File) -> io::Result<Option<Self>> {
        let user = rustix::process::geteuid().as_raw();
        match (Distrust::of_this(path, &opened.metadata()?, user), path.parent()) {
            (None, Some(directory)) => Distrust::of_directory(directory),
            (found, _) => Ok(found),
        }
    }

    /// Why a directory must not be trusted, whose path is without symbolic links. `None` if it may
    /// be: it and every directory above it belong to root or to the user of this process, and no
    /// other user may write to them.
    ///
    /// # Errors
    /// Owner and mode cannot be read.
    pub fn of_directory(path: &Path) -> io::Result<Option<Self>> {
        let user = rustix::process::geteuid().as_raw();
        for directory in path.ancestors() {
            if let found @ Some(_) = Distrust::of_this(directory, &directory.metadata()?, user) {
                return Ok(found);
            }
        }
        Ok(None)
    }

    fn of_this(path: &Path, metadata: &Metadata, user: u32) -> Option<Self> {
        let (owner, mode) = (metadata.uid(), metadata.mode() & 0o7777);
        let is_shared = metadata.is_dir() && mode & STICKY != 0;
        // A group of its own is what most distributions give each user.
        let own_group = user != 0 && metadata.gid() == rustix::process::getegid().as_raw();
        let writable = if own_group { WRITABLE_BY_ALL } else { WRITABLE_BY_OTHERS };
        let kind = if owner != 0 && owner != user {
            DistrustKind::Owner(owner)
        } else if mode & writable != 0 && !is_shared {
            DistrustKind::Mode(mode)
        } else {
            return None;
        };
        Some(Distrust { path: path.into(), kind })
    }

    /// The reason with its cure. `owner_cure`: what to do about a file of another user.
    pub fn with_cure(&self, owner_cure: &str) -> String {
        let path = self.path.display();
        match self.kind {
            DistrustKind::Owner(owner) => format!("{path} belongs to user {owner}, which can change it: {owner_cure}"),
            DistrustKind::Mode(mode) => format!("other users may write to {path} (mode {mode:03o}): chmod go-w {path}"),
        }
    }
}

/// Whether a symbolic link is at `path` that neither root nor the user of this process has made: it
/// decides which file the path names.
pub fn is_foreign_link(path: &Path) -> bool {
    let user = rustix::process::geteuid().as_raw();
    fs::symlink_metadata(path).is_ok_and(|found| found.is_symlink() && ![0, user].contains(&found.uid()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt as _, lchown, symlink};

    #[test]
    fn a_file_that_others_may_change_is_not_trusted() {
        let directory = tempfile::tempdir().unwrap();
        let inner = directory.path().canonicalize().unwrap().join("inner");
        fs::create_dir(&inner).unwrap();
        let file = inner.join("my.ctl");
        fs::write(&file, "").unwrap();
        let set = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        let why = || Distrust::of(&file, &File::open(&file).unwrap()).unwrap().map(|distrust| distrust.with_cure("build it"));
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
            assert!(why().unwrap().contains("belongs to user 12345, which can change it: build it"), "{:?}", why());
        }
    }
    #[test]
    fn a_link_of_another_user_is_foreign() {
        let directory = tempfile::tempdir().unwrap();
        let link = directory.path().join("link");
        symlink("/etc/passwd", &link).unwrap();
        assert!(!is_foreign_link(&link) && !is_foreign_link(directory.path()) && !is_foreign_link(&directory.path().join("none")));
        if lchown(&link, Some(12345), None).is_ok() {
            assert!(is_foreign_link(&link));
        }
    }
}
