//! Who uses a controller: connections in all network namespaces that a process of this machine is in or holds.

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

/// A process with connections under a controller.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct User {
    /// Its id and name; none for connections that no process has open any longer.
    pub process: Option<(u32, String)>,
    /// How many connections.
    pub connections: usize,
}

/// What /proc tells: a way into every network namespace, and whose sockets are whose.
#[derive(Default)]
struct Machine {
    namespaces: BTreeMap<String, PathBuf>,
    owners: HashMap<u32, u32>,
}

/// Those who use the kernel's congestion control of this name, most connections first. What this process may not see is left out.
pub fn users(name: &str) -> Vec<User> {
    let machine = Machine::look();
    let mut counts: BTreeMap<Option<u32>, usize> = BTreeMap::new();
    for namespace in machine.namespaces.values() {
        // A thread of its own, which the namespace ends with.
        let sockets = thread::scope(|scope| scope.spawn(|| sockets_of(namespace, name)).join());
        for inode in sockets.ok().and_then(Result::ok).unwrap_or_default() {
            *counts.entry(machine.owners.get(&inode).copied()).or_default() += 1;
        }
    }
    let named = |pid: u32| (pid, fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default().trim_end().to_owned());
    let mut users: Vec<User> = counts.into_iter().map(|(pid, connections)| User { process: pid.map(named), connections }).collect();
    users.sort_by_key(|user| std::cmp::Reverse(user.connections));
    users
}

impl Machine {
    fn look() -> Machine {
        let mut machine = Machine::default();
        for process in fs::read_dir("/proc").into_iter().flatten().flatten() {
            let Some(pid) = process.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
            // A thread may have descriptors, and a namespace, of its own.
            for thread in fs::read_dir(process.path().join("task")).into_iter().flatten().flatten() {
                machine.note(thread.path().join("ns/net"), pid);
                for file in fs::read_dir(thread.path().join("fd")).into_iter().flatten().flatten() {
                    machine.note(file.path(), pid);
                }
            }
        }
        machine
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

/// The inodes of a namespace's connections under a controller.
fn sockets_of(namespace: &PathBuf, name: &str) -> io::Result<Vec<u32>> {
    move_into_link_name_space(File::open(namespace)?.as_fd(), Some(LinkNameSpaceType::Network))?;
    let mut found = Vec::new();
    for (family, id) in [(AF_INET, SocketId::new_v4()), (AF_INET6, SocketId::new_v6())] {
        let question =
            InetRequest { family, protocol: IPPROTO_TCP, extensions: ExtensionFlags::CONG, states: StateFlags::all(), socket_id: id };
        ask(question, name, &mut found)?;
    }
    Ok(found)
}

fn ask(question: InetRequest, name: &str, inodes: &mut Vec<u32>) -> io::Result<()> {
    let mut socket = Socket::new(NETLINK_SOCK_DIAG)?;
    socket.bind_auto()?;
    socket.connect(&SocketAddr::new(0, 0))?;
    let mut message = NetlinkMessage::new(NetlinkHeader::default(), NetlinkPayload::from(SockDiagMessage::InetRequest(question)));
    message.header.flags = NLM_F_REQUEST | NLM_F_DUMP;
    message.finalize();
    let mut bytes = vec![0; message.buffer_len()];
    message.serialize(&mut bytes);
    socket.send(&bytes, 0)?;
    loop {
        let (answers, _) = socket.recv_from_full()?;
        if read_inodes(&answers, name, inodes)? {
            return Ok(());
        }
    }
}

/// Reads the inodes of connections under a controller that one of several answers tells; true when
/// that was the last.
#[doc(hidden)]
pub fn read_inodes(mut answer: &[u8], name: &str, inodes: &mut Vec<u32>) -> io::Result<bool> {
    while !answer.is_empty() {
        let message = NetlinkMessage::<SockDiagMessage>::deserialize(answer).map_err(io::Error::other)?;
        // Messages begin at multiples of four.
        let length = (message.header.length as usize).next_multiple_of(4).min(answer.len());
        match message.payload {
            NetlinkPayload::InnerMessage(SockDiagMessage::InetResponse(told)) => {
                let is_under = told.nlas.iter().any(|nla| matches!(nla, Nla::Congestion(control) if control == name));
                inodes.extend(is_under.then_some(told.header.inode));
            }
            NetlinkPayload::InnerMessage(_) => {}
            NetlinkPayload::Error(error) if error.code.is_some() => return Err(error.to_io()),
            _ => return Ok(true),
        }
        answer = &answer[length..];
    }
    Ok(false)
}
