//! Runtime directories: the sockets by which running proxies are found. Only one user can write to
//! each directory.
//!
//! - `/run/tandem` belongs to root. It contains `root`, for proxies that root runs, and directories
//!   that a service manager creates for services with users of their own (`RuntimeDirectory=` in a
//!   unit: `/run/tandem/service`).
//! - `$XDG_RUNTIME_DIR/tandem` (by default `/run/user/UID/tandem`) is for the proxies of other
//!   users.
//!
//! A socket has the name `NAMESPACE.NAME`. It contains the number of the network namespace, because
//! a proxy belongs to a network namespace and these directories do not. Beside each socket is a
//! file that its process locks: the lock distinguishes a running proxy from one that was killed.

use crate::peer::Peer;
use rustix::{
    fs::{FileType, FlockOperation, Mode, OFlags, fchmod, flock, fstat},
    process::{Uid, geteuid},
};
use socket2::{Domain, SockAddr, Socket, Type};
use std::{
    env,
    fs::{self, DirBuilder, File, OpenOptions, Permissions},
    io::{self, ErrorKind},
    os::{
        fd::{AsRawFd as _, OwnedFd},
        unix::{
            fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _},
            net::{UnixListener, UnixStream},
        },
    },
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

/// How long a connect may wait while the backlog of a proxy is full.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a process may hold a lock without listening: while it starts, or removes the files of a
/// killed proxy.
const LOCK_TIMEOUT: Duration = Duration::from_secs(1);
/// The suffix of lock files.
const LOCK: &str = ".lock";

/// Why a name could not be claimed.
#[derive(Debug)]
pub enum ClaimError {
    /// A running proxy has the name.
    Taken,
    /// There is no directory for the socket, and none can be created: its path, and the system's
    /// reason.
    NoDirectory(PathBuf, io::Error),
    /// Another operation of the system failed.
    System(io::Error),
}

/// Why no proxy was found.
#[derive(Debug)]
pub enum FindError {
    /// No proxy of this name is running.
    Absent,
    /// A proxy may be running, but this user may not connect to its socket.
    Denied,
    /// The socket is in the directory of one user, but a process of another user listens on it: the
    /// path, and that user.
    Impostor(PathBuf, Uid),
    /// A process listens on the socket, but the system does not say which user it runs as: the
    /// path, and the system's reason.
    Unknown(PathBuf, io::Error),
}

/// Which users may connect to a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// The owner and root.
    Owner,
    /// All users. They can only find out whether the proxy is running.
    Everyone,
}

/// A listening socket with a claimed name. Dropping it removes the name, unless another process has
/// it by then ([`leave`](Self::leave)).
#[derive(Debug)]
pub struct ClaimedSocket {
    /// The socket.
    pub listener: UnixListener,
    socket: PathBuf,
    lock_path: PathBuf,
    /// Whether the name belongs to another process, to which this one gave its descriptors.
    left: AtomicBool,
    /// Dropped last, which releases the lock, unless another process has a copy of it.
    lock: File,
}

impl ClaimedSocket {
    /// The path of the socket, and copies of the descriptors of socket and lock. Another process
    /// makes the claim of them again with [`from_parts`](Self::from_parts).
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn parts(&self) -> io::Result<(PathBuf, [OwnedFd; 2])> {
        Ok((self.socket.clone(), [self.listener.try_clone()?.into(), self.lock.try_clone()?.into()]))
    }

    /// The claim of another process, to which it belongs until [`keep`](Self::keep): the other
    /// process must [`leave`](Self::leave) it by then.
    pub fn from_parts(socket: PathBuf, [listener, lock]: [OwnedFd; 2]) -> Self {
        let lock_path = with_lock(&socket);
        ClaimedSocket { listener: listener.into(), socket, lock_path, left: AtomicBool::new(true), lock: lock.into() }
    }

    /// Makes the name belong to this process.
    pub fn keep(&self) {
        self.left.store(false, Relaxed);
    }

    /// Leaves the name to the other process that has the claim.
    pub fn leave(&self) {
        self.left.store(true, Relaxed);
    }
}

impl Drop for ClaimedSocket {
    fn drop(&mut self) {
        if *self.left.get_mut() {
            return;
        }
        for path in [&self.socket, &self.lock_path] {
            let _ = fs::remove_file(path);
        }
    }
}

/// A directory of sockets.
#[derive(Debug, Clone, PartialEq, Eq)]
struct RuntimeDir {
    path: PathBuf,
    /// The only user that can write to it, besides root.
    owner: Uid,
    /// Whether it is the private directory of a service, to which root has made a link. Since
    /// systemd 257 such a directory is mounted with mapped users, so that it has another owner
    /// outside of the service. Only root can go there.
    is_private: bool,
}

impl RuntimeDir {
    /// Whether the socket in this directory may belong to a proxy of this user. A proxy of root has
    /// its socket in a directory of root. If root answers in another user's directory, that user
    /// has put a link to the socket of another program there.
    fn has_proxy_of(&self, user: Uid) -> bool {
        user == self.owner || self.is_private && !user.is_root()
    }
}

/// The directories in which this process finds sockets and creates its own.
#[derive(Debug)]
pub struct RuntimeDirs {
    /// Directories for this user's sockets. The first that can be created is used.
    own: Vec<PathBuf>,
    /// The system-wide directory, `/run/tandem`.
    system: PathBuf,
    /// The network namespace of the calling thread.
    namespace: u64,
}

impl RuntimeDirs {
    /// The directories of this process, for the network namespace of the calling thread.
    ///
    /// # Errors
    /// `/proc` is not mounted.
    pub fn of_thread() -> io::Result<Self> {
        // The thread's: the threads of a process may be in several network namespaces.
        let namespace = fs::metadata("/proc/thread-self/ns/net")?.ino();
        let run = ["/run", "/var/run"].map(Path::new).into_iter().find(|path| path.is_dir()).unwrap_or(Path::new("/run"));
        let system = run.join("tandem");
        let mut own = Vec::new();
        // The service manager may have created a directory for this service.
        let given = env::var_os("RUNTIME_DIRECTORY").unwrap_or_default();
        own.extend(env::split_paths(&given).find(|path| path.parent() == Some(&system)));
        if geteuid().is_root() {
            own.push(system.join("root"));
        }
        let of_user = env::var_os("XDG_RUNTIME_DIR").map_or_else(|| run.join("user").join(geteuid().as_raw().to_string()), PathBuf::from);
        own.push(of_user.join("tandem"));
        Ok(RuntimeDirs { own, system, namespace })
    }

    /// Listens under this name until the result is dropped.
    ///
    /// # Errors
    /// Another running proxy has the name, or the socket cannot be created.
    pub fn claim(&self, name: &str, access: Access) -> Result<ClaimedSocket, ClaimError> {
        let own = self.make_own()?;
        let socket = own.join(self.file_name(name));
        // Proxies of other users, as far as this user can reach them.
        if self.directories().iter().any(|dir| dir.path != own && is_listening(&dir.path.join(self.file_name(name)))) {
            return Err(ClaimError::Taken);
        }
        let lock_path = with_lock(&socket);
        let lock = lock(&lock_path, &socket)?;
        sweep(&own);
        // This process has the lock, so that no other one listens on the socket.
        let _ = fs::remove_file(&socket);
        let listener = UnixListener::bind(&socket).map_err(ClaimError::System)?;
        let claim = ClaimedSocket { listener, socket, lock_path, left: AtomicBool::new(false), lock };
        let mode = if access == Access::Everyone { 0o666 } else { 0o600 };
        fs::set_permissions(&claim.socket, Permissions::from_mode(mode)).map_err(ClaimError::System)?;
        Ok(claim)
    }

    /// Connects to the proxy of this name, and checks that it runs as the directory's owner.
    ///
    /// # Errors
    /// No proxy was found, with the reason.
    pub fn connect(&self, name: &str) -> Result<UnixStream, FindError> {
        let mut error = FindError::Absent;
        for dir in self.directories() {
            let path = dir.path.join(self.file_name(name));
            match connect(&path) {
                Ok(stream) => match Peer::of(&stream) {
                    Ok(peer) if dir.has_proxy_of(peer.user) => return Ok(stream),
                    Ok(peer) => error = FindError::Impostor(path, peer.user),
                    Err(why) => error = FindError::Unknown(path, why),
                },
                Err(why) if why.kind() == ErrorKind::PermissionDenied => error = FindError::Denied,
                Err(_) => {}
            }
        }
        Err(error)
    }

    /// The path of a file that outlives its process, such as a saved value of a setting.
    ///
    /// # Errors
    /// There is no directory for it, and none can be created.
    pub fn saved_value_path(&self, name: &str) -> io::Result<PathBuf> {
        match self.make_own() {
            Ok(own) => Ok(own.join(self.file_name(name))),
            Err(ClaimError::NoDirectory(_, why) | ClaimError::System(why)) => Err(why),
            Err(ClaimError::Taken) => Err(ErrorKind::AlreadyExists.into()),
        }
    }

    fn file_name(&self, name: &str) -> String {
        format!("{}.{name}", self.namespace)
    }

    /// The directory for this user's sockets, created if it is missing.
    fn make_own(&self) -> Result<PathBuf, ClaimError> {
        let mut failed = None;
        for path in &self.own {
            let made = (|| {
                if path.parent() == Some(&self.system) {
                    make_directory(&self.system, 0o755)?;
                    owner_of(&self.system)?;
                }
                // Other users may access sockets by name, to find out whether a proxy is running,
                // but cannot list the directory.
                make_directory(path, 0o711)?;
                match owner_of(path)? {
                    owner if owner == geteuid() => Ok(()),
                    owner => Err(io::Error::other(format!("it belongs to user {}", owner.as_raw()))),
                }
            })();
            match made {
                Ok(()) => return Ok(path.clone()),
                Err(why) => failed = failed.or(Some((path.clone(), why))),
            }
        }
        let (path, why) = failed.unwrap_or_else(|| (self.system.clone(), ErrorKind::NotFound.into()));
        Err(ClaimError::NoDirectory(path, why))
    }

    /// All directories in which sockets are looked for, this user's own first.
    fn directories(&self) -> Vec<RuntimeDir> {
        let dir = |path: PathBuf| {
            let owner = owner_of(&path).ok()?;
            Some(RuntimeDir { owner, is_private: path.is_symlink(), path })
        };
        let is_own = |path: &&PathBuf| owner_of(path).is_ok_and(|owner| owner == geteuid());
        let mut dirs: Vec<RuntimeDir> = self.own.iter().filter(is_own).filter_map(|path| dir(path.clone())).collect();
        // Root creates the directories below the system-wide one, and decides their owners.
        if owner_of(&self.system).is_ok_and(|owner| owner.is_root() || owner == geteuid())
            && let Ok(entries) = fs::read_dir(&self.system)
        {
            let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
            paths.sort();
            let others = paths.into_iter().filter(|path| !self.own.contains(path)).filter_map(dir);
            dirs.extend(others.collect::<Vec<_>>());
        }
        dirs
    }
}

/// Creates a directory with this mode, regardless of the umask. It may exist already.
fn make_directory(path: &Path, mode: u32) -> io::Result<()> {
    match DirBuilder::new().mode(mode).create(path) {
        Ok(()) => {
            // Not a link that has taken its place.
            let made = rustix::fs::open(path, OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
            Ok(fchmod(&made, Mode::from_raw_mode(mode))?)
        }
        Err(why) if why.kind() == ErrorKind::AlreadyExists => Ok(()),
        Err(why) => Err(why),
    }
}

/// The owner of a directory. An error if other users can write to it. It may be a symbolic link of
/// root's: systemd makes one, to `/run/private`, where it keeps the directory of a service over a
/// restart (`DynamicUser=` with `RuntimeDirectoryPreserve=`).
fn owner_of(path: &Path) -> io::Result<Uid> {
    let mut found = fs::symlink_metadata(path)?;
    if found.is_symlink() && found.uid() == Uid::ROOT.as_raw() {
        found = fs::metadata(path)?;
    }
    if !found.is_dir() {
        return Err(ErrorKind::NotADirectory.into());
    }
    if found.mode() & 0o022 != 0 {
        return Err(io::Error::other("users other than its owner can write to it"));
    }
    Ok(Uid::from_raw(found.uid()))
}

/// Connects to the socket at `path` itself. A symbolic link there, which the directory's user may
/// have made, would lead to a socket of another program.
fn connect(path: &Path) -> io::Result<UnixStream> {
    let found = rustix::fs::open(path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    if FileType::from_raw_mode(fstat(&found)?.st_mode) != FileType::Socket {
        return Err(io::Error::new(ErrorKind::InvalidInput, "it is not a socket"));
    }
    let path = format!("/proc/self/fd/{}", found.as_raw_fd());
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    // The write timeout also limits how long a connect waits while the backlog is full.
    socket.set_write_timeout(Some(CONNECT_TIMEOUT))?;
    socket.connect(&SockAddr::unix(path)?)?;
    Ok(socket.into())
}

/// Whether a process listens on this socket.
fn is_listening(path: &Path) -> bool {
    match connect(path) {
        Ok(_) => true,
        // The backlog is full.
        Err(why) => why.kind() == ErrorKind::WouldBlock,
    }
}

fn with_lock(socket: &Path) -> PathBuf {
    let mut path = socket.as_os_str().to_owned();
    path.push(LOCK);
    path.into()
}

/// Takes the lock beside this socket. The kernel releases it when the process ends, in whatever
/// way.
fn lock(path: &Path, socket: &Path) -> Result<File, ClaimError> {
    let begun = Instant::now();
    loop {
        match open_locked(path, FlockOperation::NonBlockingLockExclusive).map_err(ClaimError::System)? {
            Some(file) => return Ok(file),
            None if is_listening(socket) || begun.elapsed() > LOCK_TIMEOUT => return Err(ClaimError::Taken),
            None => thread::sleep(Duration::from_millis(10)),
        }
    }
}

/// Opens a file, which is created if it is missing, and locks it. `None` if another process has the
/// lock, or has removed the file meanwhile.
///
/// # Errors
/// The file cannot be opened or locked.
pub fn open_locked(path: &Path, how: FlockOperation) -> io::Result<Option<File>> {
    let no_link = rustix::fs::OFlags::NOFOLLOW.bits() as i32;
    let file = OpenOptions::new().create(true).truncate(false).read(true).write(true).mode(0o600).custom_flags(no_link).open(path)?;
    match flock(&file, how) {
        Err(rustix::io::Errno::WOULDBLOCK) => return Ok(None),
        locked => locked?,
    }
    // The process that had the lock may have removed the file before this one locked it.
    let (locked, named) = (file.metadata()?, fs::symlink_metadata(path));
    Ok(named.is_ok_and(|named| (named.dev(), named.ino()) == (locked.dev(), locked.ino())).then_some(file))
}

/// Removes the files of killed proxies in this directory.
fn sweep(directory: &Path) {
    let Ok(entries) = fs::read_dir(directory) else { return };
    for path in entries.flatten().map(|entry| entry.path()) {
        let Some(socket) = path.to_str().and_then(|path| path.strip_suffix(LOCK)) else { continue };
        if let Ok(Some(_lock)) = open_locked(&path, FlockOperation::NonBlockingLockExclusive) {
            let _ = fs::remove_file(socket);
            let _ = fs::remove_file(&path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dirs_in(directory: &Path) -> RuntimeDirs {
        fs::set_permissions(directory, Permissions::from_mode(0o755)).unwrap();
        RuntimeDirs { own: vec![directory.join("own")], system: directory.into(), namespace: 7 }
    }

    fn names(directory: &Path) -> Vec<String> {
        let mut names: Vec<String> =
            fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_name_has_one_claim_at_a_time_and_leaves_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let dirs = dirs_in(directory.path());
        let own = directory.path().join("own");
        assert!(matches!(dirs.connect("a"), Err(FindError::Absent)));
        let first = dirs.claim("a", Access::Owner).unwrap();
        assert_eq!(fs::metadata(&own).unwrap().mode() & 0o7777, 0o711);
        assert_eq!(fs::metadata(own.join("7.a")).unwrap().mode() & 0o7777, 0o600);
        assert!(matches!(dirs.claim("a", Access::Owner), Err(ClaimError::Taken)));
        dirs.connect("a").unwrap();
        let second = dirs.claim("b", Access::Everyone).unwrap();
        drop(first);
        assert_eq!(names(&own), ["7.b", "7.b.lock"]);
        drop(second);
        assert_eq!(names(&own), [""; 0]);
        // Another network namespace has names of its own.
        let elsewhere = RuntimeDirs { namespace: 8, own: dirs.own.clone(), system: dirs.system.clone() };
        let _here = dirs.claim("a", Access::Owner).unwrap();
        assert!(matches!(elsewhere.connect("a"), Err(FindError::Absent)));
        elsewhere.claim("a", Access::Owner).unwrap();
    }

    #[test]
    fn a_claim_passes_to_another_holder() {
        let directory = tempfile::tempdir().unwrap();
        let dirs = dirs_in(directory.path());
        let first = dirs.claim("a", Access::Owner).unwrap();
        let (socket, descriptors) = first.parts().unwrap();
        let second = ClaimedSocket::from_parts(socket, descriptors);
        drop(second);
        assert!(matches!(dirs.claim("a", Access::Owner), Err(ClaimError::Taken)), "a copy that is not kept removes nothing");
        let (socket, descriptors) = first.parts().unwrap();
        let second = ClaimedSocket::from_parts(socket, descriptors);
        second.keep();
        first.leave();
        drop(first);
        // The lock lasts as long as a copy of its descriptor.
        assert!(matches!(dirs.claim("a", Access::Owner), Err(ClaimError::Taken)));
        let _client = dirs.connect("a").unwrap();
        second.listener.accept().unwrap();
        drop(second);
        assert_eq!(names(&directory.path().join("own")), [""; 0]);
    }

    #[test]
    fn files_of_a_killed_proxy_are_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let dirs = dirs_in(directory.path());
        let own = directory.path().join("own");
        // The kernel releases the lock of a process that is killed, and leaves the files.
        for name in ["a", "b"] {
            let claim = dirs.claim(name, Access::Owner).unwrap();
            let ClaimedSocket { listener, lock, .. } = &claim;
            flock(lock, FlockOperation::Unlock).unwrap();
            rustix::net::shutdown(listener, rustix::net::Shutdown::Both).unwrap();
            std::mem::forget(claim);
        }
        fs::write(own.join("other"), "").unwrap();
        assert!(matches!(dirs.connect("a"), Err(FindError::Absent)));
        let next = dirs.claim("a", Access::Owner).unwrap();
        assert_eq!(names(&own), ["7.a", "7.a.lock", "other"]);
        dirs.connect("a").unwrap();
        drop(next);
    }

    #[test]
    fn only_directories_of_one_user_are_trusted() {
        let directory = tempfile::tempdir().unwrap();
        let dirs = dirs_in(directory.path());
        let claim = dirs.claim("a", Access::Owner).unwrap();
        dirs.connect("a").unwrap();
        let own = directory.path().join("own");
        fs::set_permissions(&own, Permissions::from_mode(0o777)).unwrap();
        assert!(matches!(dirs.connect("a"), Err(FindError::Absent)));
        assert!(matches!(dirs.claim("b", Access::Owner), Err(ClaimError::NoDirectory(..))));
        drop(claim);
        fs::remove_dir(&own).unwrap();
        std::os::unix::fs::symlink("/tmp", &own).unwrap();
        assert!(matches!(dirs.claim("b", Access::Owner), Err(ClaimError::NoDirectory(..))));
        // As systemd does; a link of another user is not trusted.
        let private = directory.path().join("private");
        DirBuilder::new().mode(0o700).create(&private).unwrap();
        fs::remove_file(&own).unwrap();
        std::os::unix::fs::symlink(&private, &own).unwrap();
        assert_eq!(dirs.claim("b", Access::Owner).is_ok(), geteuid().is_root());
        std::os::unix::fs::lchown(&own, Some(4711), None).ok();
        assert!(matches!(dirs.claim("b", Access::Owner), Err(ClaimError::NoDirectory(..))));
    }

    #[test]
    fn a_socket_of_another_user_is_not_used() {
        if !geteuid().is_root() {
            return testing::skipped("a_socket_of_another_user_is_not_used", &"only root can run as another user");
        }
        let directory = tempfile::tempdir().unwrap();
        let dirs = dirs_in(directory.path());
        let service = directory.path().join("service");
        fs::create_dir(&service).unwrap();
        let as_user = |user: u32, work: &(dyn Fn() + Sync)| {
            thread::scope(|scope| {
                scope.spawn(|| {
                    // Only for this thread, which ends with the work.
                    rustix::thread::set_thread_uid(Uid::from_raw(user)).unwrap();
                    work();
                });
            });
        };
        let give = |user: u32| std::os::unix::fs::chown(&service, Some(user), None).unwrap();
        let of_service = RuntimeDirs { own: vec![service.clone()], system: dirs.system.clone(), namespace: 7 };
        // Another user had the directory before.
        give(65533);
        as_user(65533, &|| std::mem::forget(UnixListener::bind(service.join("7.b")).unwrap()));
        // Root finds a service in the directory that was made for its user …
        give(65534);
        as_user(65534, &|| std::mem::forget(of_service.claim("a", Access::Owner).unwrap()));
        dirs.connect("a").unwrap();
        assert!(matches!(dirs.claim("a", Access::Owner), Err(ClaimError::Taken)));
        // … and uses no socket of another user there.
        assert!(matches!(dirs.connect("b"), Err(FindError::Impostor(_, user)) if user.as_raw() == 65533));
        // … nor one of root that a link or a hard link of the directory's user leads to.
        let _of_root = UnixListener::bind(directory.path().join("docker.sock")).unwrap();
        std::os::unix::fs::symlink(directory.path().join("docker.sock"), service.join("7.link")).unwrap();
        assert!(matches!(dirs.connect("link"), Err(FindError::Absent)));
        fs::hard_link(directory.path().join("docker.sock"), service.join("7.hard")).unwrap();
        assert!(matches!(dirs.connect("hard"), Err(FindError::Impostor(_, user)) if user.is_root()));
        // A user that may not connect gets an error that says so.
        let _own = dirs.claim("c", Access::Owner).unwrap();
        as_user(65534, &|| assert!(matches!(of_service.connect("c"), Err(FindError::Denied))));
        // Where root has made a link, the directory may have any owner.
        let private = directory.path().join("private");
        fs::rename(&service, &private).unwrap();
        std::os::unix::fs::symlink(&private, &service).unwrap();
        dirs.connect("b").unwrap();
        assert!(matches!(dirs.connect("hard"), Err(FindError::Impostor(_, user)) if user.is_root()));
    }
}
