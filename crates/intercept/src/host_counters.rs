//! Counters that the kernel keeps for a network namespace, not for single sockets.

use serde::{Deserialize, Serialize};
use std::{fs, io};

const NETSTAT: &str = "/proc/thread-self/net/netstat";

/// How often receive buffers had no room for data that their windows had admitted (TcpExt of
/// `/proc/net/netstat`): of all sockets in the network namespace, since it was created.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReceiveCounters {
    /// Times that a buffer had no room even after its packets had been merged (`RcvPruned`).
    pub pruned: u64,
    /// In-order packets that were dropped (`TCPRcvQDrop`). Always 0 before Linux 4.20.
    pub dropped: u64,
    /// Packets that were merged with others to save memory (`TCPRcvCollapsed`).
    pub collapsed: u64,
}

impl ReceiveCounters {
    /// Reads the counters of the calling thread's network namespace.
    ///
    /// # Errors
    /// `/proc` is not mounted.
    pub fn read() -> io::Result<Self> {
        fs::read_to_string(NETSTAT).map(|text| Self::parse(&text))
    }

    fn parse(text: &str) -> Self {
        let count = |name| tcp_count(text, name).unwrap_or(0);
        ReceiveCounters { pruned: count("RcvPruned"), dropped: count("TCPRcvQDrop"), collapsed: count("TCPRcvCollapsed") }
    }
}

/// Zero windows of TCP (TcpExt of `/proc/net/netstat`): of all sockets in the network namespace,
/// since it was created.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ZeroWindows {
    /// Times that a socket of this host announced a window of zero (`TCPToZeroWindowAdv`).
    pub announced: u64,
    /// Times that a socket of this host opened its window again (`TCPFromZeroWindowAdv`).
    pub reopened: u64,
    /// Probes sent to peers whose window was zero (`TCPWinProbe`).
    pub probes: u64,
}

impl ZeroWindows {
    /// Reads the counters of the calling thread's network namespace.
    ///
    /// # Errors
    /// `/proc` is not mounted.
    pub fn read() -> io::Result<Self> {
        let text = fs::read_to_string(NETSTAT)?;
        let count = |name| tcp_count(&text, name).unwrap_or(0);
        Ok(ZeroWindows { announced: count("TCPToZeroWindowAdv"), reopened: count("TCPFromZeroWindowAdv"), probes: count("TCPWinProbe") })
    }
}

/// A counter of TcpExt in the calling thread's network namespace, by its name in
/// `/proc/net/netstat`; `None` if this kernel has none of that name.
///
/// # Errors
/// `/proc` is not mounted.
pub fn tcp_counter(name: &str) -> io::Result<Option<u64>> {
    fs::read_to_string(NETSTAT).map(|text| tcp_count(&text, name))
}

/// A counter of TcpExt. The file has pairs of lines: names, then numbers.
fn tcp_count(text: &str, name: &str) -> Option<u64> {
    let lines: Vec<&str> = text.lines().collect();
    let pair = lines.chunks_exact(2).find(|pair| pair[0].starts_with("TcpExt:"))?;
    let mut columns = pair[0].split_whitespace().zip(pair[1].split_whitespace());
    columns.find(|(column, _)| *column == name)?.1.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_found_by_their_names() {
        let text = "TcpExt: SyncookiesSent RcvPruned TCPRcvCollapsed TCPRcvQDrop\nTcpExt: 1 2 3 4\nIpExt: RcvPruned\nIpExt: 9\n";
        assert_eq!(ReceiveCounters::parse(text), ReceiveCounters { pruned: 2, dropped: 4, collapsed: 3 });
        assert_eq!(ReceiveCounters::parse("TcpExt: RcvPruned\n"), ReceiveCounters::default());
    }
}
