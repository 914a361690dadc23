//! Replaces a configuration file as a whole, without following a link that another user may have
//! planted.

use crate::trust::Distrust;
use std::{
    ffi::OsString,
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Read, Write as _},
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, fchown},
    path::{Path, PathBuf},
};
use tempfile::NamedTempFile;

/// The cure if a directory or file belongs neither to root nor to the user of this process.
const OWNER_CURE: &str = "run this as that user, or give it to root";

/// The next text of a file, in a new file beside it, which nobody but this user can read before it
/// has the other's place. Dropping it removes it.
#[derive(Debug)]
pub struct Draft {
    /// The file to replace, without symbolic links if it is there.
    file: PathBuf,
    draft: NamedTempFile,
    replaces: bool,
}

impl Draft {
    /// Writes `text` beside `file`, with the owner and the mode of the file if it is there, and
    /// else with mode 644. The file's directory is made if it is missing.
    ///
    /// # Errors
    /// It cannot be written, or another user can change the file or a directory above it. That user
    /// could decide what is written where, and what the file says in the end.
    pub fn beside(file: &Path, text: &str) -> io::Result<Self> {
        let there = match file.canonicalize() {
            Ok(file) => Some(file),
            // A link that leads nowhere is replaced itself. One that only looks so leads to a pipe
            // or a deleted file, such as /dev/stdout.
            Err(why) if why.kind() == io::ErrorKind::NotFound && file.metadata().is_ok() => {
                return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file: name one"));
            }
            Err(why) if why.kind() == io::ErrorKind::NotFound => None,
            Err(why) => return Err(why),
        };
        let (file, model) = match there {
            Some(file) => {
                let opened = crate::open(&file, u64::MAX)?;
                refuse(Distrust::of(&file, opened.source())?)?;
                let model = opened.source().metadata()?;
                (file, Some(model))
            }
            None => (in_real_directory(file)?, None),
        };
        let directory = file.parent().unwrap_or(Path::new("/"));
        let mut prefix = OsString::from(".");
        prefix.push(file.file_name().unwrap_or_default());
        prefix.push(".");
        // Only for its owner from the start: the file may have secrets.
        let mut draft = tempfile::Builder::new().prefix(&prefix).suffix(".new").tempfile_in(directory)?;
        draft.write_all(text.as_bytes())?;
        match &model {
            Some(model) => {
                fchown(draft.as_file(), Some(model.uid()), Some(model.gid()))?;
                draft.as_file().set_permissions(model.permissions())?;
            }
            None => draft.as_file().set_permissions(fs::Permissions::from_mode(0o644))?,
        }
        draft.as_file().sync_all()?;
        Ok(Draft { file, draft, replaces: model.is_some() })
    }

    /// The path of the draft, which is in the same directory as the file.
    pub fn path(&self) -> &Path {
        self.draft.path()
    }

    /// Puts the draft into the place of the file. A copy of the old file stays beside it, under
    /// the first name of `FILE.KEPT`, `FILE.KEPT2`, … that is free. Returns the path of the copy.
    ///
    /// # Errors
    /// The file was not changed.
    pub fn put(self, kept: &str) -> io::Result<Option<PathBuf>> {
        let copy = if self.replaces { Some(copy_beside(&self.file, kept)?) } else { None };
        match self.draft.persist(&self.file) {
            Ok(_) => Ok(copy),
            Err(error) => {
                let _ = copy.map(fs::remove_file);
                Err(error.error)
            }
        }
    }
}

fn refuse(distrust: Option<Distrust>) -> io::Result<()> {
    distrust.map_or(Ok(()), |distrust| Err(io::Error::new(io::ErrorKind::PermissionDenied, distrust.with_cure(OWNER_CURE))))
}

/// The path of a new file, below a directory without symbolic links, which is made if it is
/// missing.
fn in_real_directory(file: &Path) -> io::Result<PathBuf> {
    let name = file.file_name().ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "it is no name of a file"))?;
    let directory = file.parent().filter(|directory| !directory.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // What is there must be trusted before anything is made in it.
    let there =
        directory.ancestors().find_map(|above| if above.as_os_str().is_empty() { Path::new(".") } else { above }.canonicalize().ok());
    refuse(Distrust::of_directory(there.as_deref().unwrap_or(Path::new("/")))?)?;
    DirBuilder::new().recursive(true).mode(0o755).create(directory)?;
    let directory = directory.canonicalize()?;
    refuse(Distrust::of_directory(&directory)?)?;
    Ok(directory.join(name))
}

/// Copies a file, with its owner and mode, to a new file with a free name beside it.
fn copy_beside(file: &Path, kept: &str) -> io::Result<PathBuf> {
    let mut old = File::open(file)?;
    let model = old.metadata()?;
    let mut number = 1;
    let (path, mut copy) = loop {
        let mut path = file.as_os_str().to_owned();
        path.push(if number == 1 { format!(".{kept}") } else { format!(".{kept}{number}") });
        let path = PathBuf::from(path);
        match OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path) {
            Ok(copy) => break (path, copy),
            // A symbolic link counts, wherever it leads.
            Err(why) if why.kind() == io::ErrorKind::AlreadyExists => number += 1,
            Err(why) => return Err(why),
        }
    };
    let copied = (|| {
        io::copy(&mut Read::by_ref(&mut old), &mut copy)?;
        fchown(&copy, Some(model.uid()), Some(model.gid()))?;
        copy.set_permissions(model.permissions())
    })();
    copied.inspect_err(|_| drop(fs::remove_file(&path)))?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn names(directory: &Path) -> Vec<String> {
        let mut names: Vec<String> =
            fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_file_is_replaced_and_the_old_one_kept() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("sub/proxy.toml");
        assert_eq!(Draft::beside(&file, "one").unwrap().put("old").unwrap(), None);
        assert_eq!(fs::metadata(&file).unwrap().mode() & 0o7777, 0o644);
        fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
        drop(Draft::beside(&file, "dropped").unwrap());
        for (text, kept) in [("two", "old"), ("three", "old2")] {
            let draft = Draft::beside(&file, text).unwrap();
            assert_eq!(fs::metadata(draft.path()).unwrap().mode() & 0o7777, 0o640);
            let copy = draft.put("old").unwrap().unwrap();
            assert!(copy.to_str().unwrap().ends_with(&format!("/sub/proxy.toml.{kept}")), "{copy:?}");
            assert_eq!(fs::metadata(&copy).unwrap().mode() & 0o7777, 0o640);
        }
        let read = |name: &str| fs::read_to_string(file.with_file_name(name)).unwrap();
        assert_eq!([read("proxy.toml"), read("proxy.toml.old"), read("proxy.toml.old2")], ["three", "one", "two"]);
        assert_eq!(names(file.parent().unwrap()), ["proxy.toml", "proxy.toml.old", "proxy.toml.old2"]);
    }

    #[test]
    fn planted_links_are_not_followed() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        fs::write(at("victim"), "precious").unwrap();
        fs::write(at("proxy.toml"), "one").unwrap();
        for name in ["proxy.toml.new", "proxy.toml.old"] {
            symlink(at("victim"), at(name)).unwrap();
        }
        symlink(at("made by nobody"), at("proxy.toml.old2")).unwrap();
        let copy = Draft::beside(&at("proxy.toml"), "two").unwrap().put("old").unwrap().unwrap();
        assert_eq!(copy, at("proxy.toml.old3").canonicalize().unwrap());
        assert_eq!(fs::read_to_string(at("victim")).unwrap(), "precious");
        assert!(!at("made by nobody").exists());
        // A link that leads nowhere is replaced; one that leads to a file stays.
        symlink(at("nowhere"), at("dangling")).unwrap();
        Draft::beside(&at("dangling"), "three").unwrap().put("old").unwrap();
        assert!(!at("nowhere").exists() && !at("dangling").is_symlink());
        symlink(at("proxy.toml"), at("link")).unwrap();
        Draft::beside(&at("link"), "four").unwrap().put("bak").unwrap();
        assert!(at("link").is_symlink());
        assert_eq!(fs::read_to_string(at("proxy.toml")).unwrap(), "four");
    }

    #[test]
    fn a_directory_of_others_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let inner = directory.path().join("inner");
        fs::create_dir(&inner).unwrap();
        fs::set_permissions(&inner, fs::Permissions::from_mode(0o777)).unwrap();
        for file in [inner.join("proxy.toml"), inner.join("new/proxy.toml")] {
            let error = Draft::beside(&file, "text").unwrap_err().to_string();
            assert!(error.starts_with("other users may write to") && error.contains("(mode 777): chmod go-w"), "{error}");
        }
        assert_eq!(names(&inner), [""; 0]);
        // Only root can give a directory away.
        fs::set_permissions(&inner, fs::Permissions::from_mode(0o755)).unwrap();
        if std::os::unix::fs::chown(&inner, Some(12345), None).is_ok() {
            let error = Draft::beside(&inner.join("proxy.toml"), "text").unwrap_err().to_string();
            assert!(error.contains("belongs to user 12345, which can change it: run this as that user"), "{error}");
        }
    }
}
