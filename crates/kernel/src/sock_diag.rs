//! Finds the connections that use a controller, by sock_diag in every network namespace that a
//! process of this machine is in or has a descriptor of.

use netlink_packet_core::{NLM_F_DUMP, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload};
use netlink_packet_sock_diag::{
    SockDiagMessage,
    constants::{AF_INET, AF_INET6, IPPROTO_TCP},
    inet::{ExtensionFlags, InetRequest, SocketId, StateFlags, nlas::Nla},
};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_SOCK_DIAG};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::{
    collections::{BTreeMap, HashMap},
    fs::{self, File},
    io,
    os::fd::AsFd,
    path::PathBuf,
    thread,
};

/// A process with connections that use a controller.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ControllerUser {
    /// Its id and name; `None` for connections that no process has open any more.
    pub process: Option<(u32, String)>,
    /// Number of connections.
    pub connections: usize,
}

/// What /proc shows: a path to every network namespace, and the owner of each socket.
#[derive(Default)]
struct ProcSnapshot {
    /// A path to each namespace, by its name in /proc (`net:[INODE]`).
    namespaces: BTreeMap<String, PathBuf>,
    /// Process id by socket inode.
    owners: HashMap<u32, u32>,
}

/// Processes with connections that use the congestion control `name`, most connections first.
/// Connections that this process may not see are left out.
pub fn controller_users(name: &str) -> Vec<ControllerUser> {
    let snapshot = ProcSnapshot::take();
    let mut counts: BTreeMap<Option<u32>, usize> = BTreeMap::new();
    for namespace in snapshot.namespaces.values() {
        // setns changes the thread for good, so it is a thread of its own.
        let sockets = thread::scope(|scope| scope.spawn(|| sockets_of(namespace, name)).join());
        for inode in sockets.ok().and_then(Result::ok).unwrap_or_default() {
            *counts.entry(snapshot.owners.get(&inode).copied()).or_default() += 1;
        }
    }
    let named = |pid: u32| (pid, fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default().trim_end().to_owned());
    let mut users: Vec<ControllerUser> =
        counts.into_iter().map(|(pid, connections)| ControllerUser { process: pid.map(named), connections }).collect();
    users.sort_by_key(|user| std::cmp::Reverse(user.connections));
    users
}

impl ProcSnapshot {
    fn take() -> ProcSnapshot {
        let mut snapshot = ProcSnapshot::default();
        for process in fs::read_dir("/proc").into_iter().flatten().flatten() {
            let Some(pid) = process.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
            // A thread may have its own descriptors and namespace.
            for thread in fs::read_dir(process.path().join("task")).into_iter().flatten().flatten() {
                snapshot.note(thread.path().join("ns/net"), pid);
                for file in fs::read_dir(thread.path().join("fd")).into_iter().flatten().flatten() {
                    snapshot.note(file.path(), pid);
                }
            }
        }
        snapshot
    }

    fn note(&mut self, path: PathBuf, pid: u32) {
        let Ok(target) = fs::read_link(&path) else { return };
        let Some(target) = target.to_str() else { return };
        if target.starts_with("net:[") {
            self.namespaces.entry(target.to_owned()).or_insert(path);
        } else if let Some(inode) = target.strip_prefix("socket:[").and_then(|rest| rest.strip_suffix(']')) {
            self.owners.extend(inode.parse().ok().map(|inode: u32| (inode, pid)));
        }
    }
}

/// Inodes of the connections in a namespace that use a controller.
fn sockets_of(namespace: &PathBuf, name: &str) -> io::Result<Vec<u32>> {
    move_into_link_name_space(File::open(namespace)?.as_fd(), Some(LinkNameSpaceType::Network))?;
    let mut found = Vec::new();
    for (family, id) in [(AF_INET, SocketId::new_v4()), (AF_INET6, SocketId::new_v6())] {
        let request =
            InetRequest { family, protocol: IPPROTO_TCP, extensions: ExtensionFlags::CONG, states: StateFlags::all(), socket_id: id };
        dump(request, name, &mut found)?;
    }
    Ok(found)
}

fn dump(request: InetRequest, name: &str, inodes: &mut Vec<u32>) -> io::Result<()> {
    let mut socket = Socket::new(NETLINK_SOCK_DIAG)?;
    socket.bind_auto()?;
    socket.connect(&SocketAddr::new(0, 0))?;
    let mut message = NetlinkMessage::new(NetlinkHeader::default(), NetlinkPayload::from(SockDiagMessage::InetRequest(request)));
    message.header.flags = NLM_F_REQUEST | NLM_F_DUMP;
    message.finalize();
    let mut bytes = vec![0; message.buffer_len()];
    message.serialize(&mut bytes);
    socket.send(&bytes, 0)?;
    loop {
        let (datagram, _) = socket.recv_from_full()?;
        if read_inodes(&datagram, name, inodes)? {
            return Ok(());
        }
    }
}

/// Appends the inodes of connections that use the congestion control `name`, from one datagram of a
/// dump. Returns true if the dump ends with it.
///
/// # Errors
/// When the datagram is malformed, or reports an error.
#[doc(hidden)]
pub fn read_inodes(mut datagram: &[u8], name: &str, inodes: &mut Vec<u32>) -> io::Result<bool> {
    while !datagram.is_empty() {
        let message = NetlinkMessage::<SockDiagMessage>::deserialize(datagram).map_err(io::Error::other)?;
        // Messages begin at multiples of four.
        let length = (message.header.length as usize).next_multiple_of(4).min(datagram.len());
        match message.payload {
            NetlinkPayload::InnerMessage(SockDiagMessage::InetResponse(response)) => {
                let uses_it = response.nlas.iter().any(|nla| matches!(nla, Nla::Congestion(control) if control == name));
                inodes.extend(uses_it.then_some(response.header.inode));
            }
            NetlinkPayload::InnerMessage(_) => {}
            NetlinkPayload::Error(error) if error.code.is_some() => return Err(error.to_io()),
            _ => return Ok(true),
        }
        datagram = &datagram[length..];
    }
    Ok(false)
}
