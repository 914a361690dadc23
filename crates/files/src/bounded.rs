//! Reads of regular files, up to a size.

use std::{
    ffi::OsStr,
    fs::{self, File, FileType, OpenOptions},
    io::{self, ErrorKind, Read},
    os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _},
    path::Path,
};

/// A source of bytes that fails if it has more than a limit, instead of ending early.
#[derive(Debug)]
pub struct Bounded<R> {
    source: R,
    limit: u64,
    left: u64,
}

impl<R: Read> Bounded<R> {
    /// The first `limit` bytes of `source`. Reading on is an error.
    pub fn new(source: R, limit: u64) -> Self {
        Bounded { source, limit, left: limit }
    }

    /// The source itself.
    pub fn source(&self) -> &R {
        &self.source
    }
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.left > 0 {
            let most = buffer.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
            let count = self.source.read(&mut buffer[..most])?;
            self.left -= count as u64;
            return Ok(count);
        }
        if buffer.is_empty() || self.source.read(&mut [0])? == 0 { Ok(0) } else { Err(too_large(self.limit)) }
    }
}

fn too_large(limit: u64) -> io::Error {
    let size = match limit {
        mib if mib >= 1 << 20 => format!("{} MiB", mib >> 20),
        kib if kib >= 1 << 10 => format!("{} KiB", kib >> 10),
        bytes => format!("{bytes} bytes"),
    };
    io::Error::new(ErrorKind::FileTooLarge, format!("it has more than {size}, the limit for such a file: name another one"))
}

/// Opens a regular file, or a symbolic link to one. Reading more than `limit` bytes of it fails.
/// Never waits: opening a FIFO would wait for its writer, and opening a device may have effects.
/// Pipes that the process was started with are read too (`/dev/stdin`, `<(…)` of a shell): reading
/// these waits for their writer.
///
/// # Errors
/// The file cannot be opened, is not a regular file, or has more than `limit` bytes.
pub fn open(path: &Path, limit: u64) -> io::Result<Bounded<File>> {
    let found = fs::metadata(path)?.file_type();
    if found.is_fifo() && is_own_descriptor(path) {
        return Ok(Bounded::new(File::open(path)?, limit));
    }
    check_type(found)?;
    // Another file may have this name by now.
    let flags = (rustix::fs::OFlags::NONBLOCK | rustix::fs::OFlags::NOCTTY).bits() as i32;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    let metadata = file.metadata()?;
    check_type(metadata.file_type())?;
    if metadata.len() > limit {
        return Err(too_large(limit));
    }
    Ok(Bounded::new(file, limit))
}

/// The bytes of a regular file of at most `limit` bytes.
///
/// # Errors
/// As [`open`], or the file cannot be read.
pub fn read(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open(path, limit)?.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The text of a regular file of at most `limit` bytes.
///
/// # Errors
/// As [`read`], or the file is not UTF-8.
pub fn read_text(path: &Path, limit: u64) -> io::Result<String> {
    let mut text = String::new();
    open(path, limit)?.read_to_string(&mut text)?;
    Ok(text)
}

/// Whether a path names a descriptor of this process.
fn is_own_descriptor(path: &Path) -> bool {
    let is_number = |text: &OsStr| text.to_str().is_some_and(|text| text.parse::<u32>().is_ok());
    let is_of_process = |parent: &Path| parent == Path::new("/dev/fd") || parent == Path::new("/proc/self/fd");
    path == Path::new("/dev/stdin") || (path.parent().is_some_and(is_of_process) && path.file_name().is_some_and(is_number))
}

fn check_type(found: FileType) -> io::Result<()> {
    let what = match found {
        found if found.is_file() => return Ok(()),
        found if found.is_dir() => return Err(ErrorKind::IsADirectory.into()),
        found if found.is_fifo() => "a pipe",
        found if found.is_socket() => "a socket",
        _ => "a device",
    };
    Err(io::Error::new(
        ErrorKind::InvalidInput,
        format!("it is not a regular file, but {what}: copy its contents into a file, and name that"),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    #[test]
    fn a_file_of_up_to_the_limit_is_read() {
        let directory = tempfile::tempdir().unwrap();
        let (file, link) = (directory.path().join("file"), directory.path().join("link"));
        fs::write(&file, "12345678").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        assert_eq!(read_text(&file, 8).unwrap(), "12345678");
        assert_eq!(read(&link, 9).unwrap(), b"12345678");
        let error = read(&file, 7).unwrap_err();
        assert!(error.to_string().starts_with("it has more than 7 bytes"), "{error}");
        // Its metadata says that it is empty.
        assert!(read(Path::new("/proc/self/maps"), 1 << 20).unwrap().len() > 100);
        let error = read(Path::new("/proc/self/maps"), 100).unwrap_err();
        assert!(error.to_string().starts_with("it has more than 100 bytes"), "{error}");
    }

    #[test]
    fn other_kinds_of_files_are_refused_at_once() {
        let directory = tempfile::tempdir().unwrap();
        let (fifo, socket) = (directory.path().join("fifo"), directory.path().join("socket"));
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR, 0).unwrap();
        let _listener = UnixListener::bind(&socket).unwrap();
        for (path, what) in [(Path::new("/dev/zero"), "a device"), (&fifo, "a pipe"), (&socket, "a socket")] {
            let error = read(path, 1 << 20).unwrap_err().to_string();
            assert!(error.starts_with(&format!("it is not a regular file, but {what}: ")), "{error}");
        }
        assert_eq!(read(directory.path(), 1).unwrap_err().kind(), ErrorKind::IsADirectory);
        assert_eq!(read(&directory.path().join("none"), 1).unwrap_err().kind(), ErrorKind::NotFound);
    }

    #[test]
    fn a_source_without_end_fails_at_the_limit() {
        let mut bytes = Vec::new();
        let error = Bounded::new(io::repeat(0), 4096).read_to_end(&mut bytes).unwrap_err();
        assert_eq!((bytes.len(), error.kind()), (4096, ErrorKind::FileTooLarge));
        let mut bytes = Vec::new();
        Bounded::new(&b"1234"[..], 4).read_to_end(&mut bytes).unwrap();
        assert_eq!(bytes, b"1234");
    }
}
