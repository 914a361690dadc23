//! The process at the other end of a Unix socket, as the kernel names it.
//!
//! Its user decides what it may do. Its process ID is known only if this process can see it: a
//! process in another PID namespace, as of another container or of the host around this one, has
//! ID 0 here.

use crate::sys;
use rustix::{
    fd::{AsFd, OwnedFd},
    io::Errno,
    process::{Pid, PidfdFlags, Uid, pidfd_open},
};
use std::{fmt, io};

/// The process at the other end of a Unix socket, when it connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer {
    /// Its user. A user that this user namespace does not map appears as user 65534.
    pub user: Uid,
    /// Its process ID; none: it is in a PID namespace that this process cannot see.
    pub pid: Option<Pid>,
}

impl Peer {
    /// The peer of a connected socket.
    ///
    /// # Errors
    /// The descriptor is no Unix socket.
    pub fn of(socket: impl AsFd) -> io::Result<Self> {
        let credentials = sys::peer_credentials(socket)?;
        Ok(Peer { user: Uid::from_raw(credentials.uid), pid: Pid::from_raw(credentials.pid) })
    }

    /// A descriptor of the peer's process, by which it can be signalled. It stands for this process
    /// alone where the kernel hands it out with the socket (Linux 6.5); before, for the process
    /// that has the ID now.
    ///
    /// # Errors
    /// The process has ended, or is in a PID namespace that this process cannot see.
    pub fn process(socket: impl AsFd) -> io::Result<OwnedFd> {
        let Some(pid) = Peer::of(&socket)?.pid else {
            return Err(io::Error::other("it is in a PID namespace that this process cannot see"));
        };
        match sys::peer_pidfd(&socket) {
            Err(why) if why.raw_os_error() == Some(Errno::NOPROTOOPT.raw_os_error()) => Ok(pidfd_open(pid, PidfdFlags::empty())?),
            outcome => outcome,
        }
    }
}

/// For messages: `user 1000, process 4711`.
impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "user {}, ", self.user.as_raw())?;
        match self.pid {
            Some(pid) => write!(f, "process {}", pid.as_raw_nonzero()),
            None => f.write_str("in another PID namespace"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::{Signal, geteuid, getpid, pidfd_send_signal, test_kill_process};
    use std::{
        os::unix::net::{UnixListener, UnixStream},
        process::{Command, Stdio},
    };

    #[test]
    fn a_peer_has_its_user_and_process() {
        let (near, _far) = UnixStream::pair().unwrap();
        let peer = Peer::of(&near).unwrap();
        assert_eq!(peer, Peer { user: geteuid(), pid: Some(getpid()) });
        assert_eq!(peer.to_string(), format!("user {}, process {}", geteuid().as_raw(), getpid().as_raw_nonzero()));
        assert!(Peer::process(&near).is_ok());
        assert!(Peer::of(std::fs::File::open("/dev/null").unwrap()).is_err());
    }

    #[test]
    fn a_process_is_signalled_by_its_socket() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        let script = format!("import socket,time\ns=socket.socket(socket.AF_UNIX)\ns.connect({path:?})\ntime.sleep(600)");
        let Ok(mut child) = Command::new("python3").args(["-c", &script]).stderr(Stdio::null()).spawn() else {
            return testing::skipped("a_process_is_signalled_by_its_socket", &"there is no python3");
        };
        let (socket, _) = listener.accept().unwrap();
        let peer = Peer::of(&socket).unwrap();
        assert_eq!(peer.pid.map(|pid| pid.as_raw_nonzero().get() as u32), Some(child.id()));
        assert!(test_kill_process(peer.pid.unwrap()).is_ok());
        pidfd_send_signal(Peer::process(&socket).unwrap(), Signal::KILL).unwrap();
        assert!(!child.wait().unwrap().success());
    }
}
