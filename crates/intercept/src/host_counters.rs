//! What the kernel counts for all sockets of a network namespace, and for none in particular.

use serde::{Deserialize, Serialize};
use std::{fs, io};

/// How often receive buffers had no room for what their windows had admitted (TcpExt of
/// `/proc/net/netstat`), since the namespace exists, whoever's sockets they were.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReceiveCounters {
    /// Times that a buffer had no room even when its packets had been merged (`RcvPruned`).
    pub pruned: u64,
    /// Packets in order that were dropped (`TCPRcvQDrop`); none is counted before Linux 4.20.
    pub dropped: u64,
    /// Packets that were merged with others to save room (`TCPRcvCollapsed`).
    pub collapsed: u64,
}

impl ReceiveCounters {
    /// Those of the calling thread's network namespace.
    ///
    /// # Errors
    /// If `/proc` is not mounted.
    pub fn read() -> io::Result<Self> {
        fs::read_to_string("/proc/thread-self/net/netstat").map(|text| Self::parse(&text))
    }

    /// Lines come in pairs, names above numbers.
    fn parse(text: &str) -> Self {
        let lines: Vec<&str> = text.lines().collect();
        let value = |name: &str| {
            let pair = lines.chunks_exact(2).find(|pair| pair[0].starts_with("TcpExt:"))?;
            let mut columns = pair[0].split_whitespace().zip(pair[1].split_whitespace());
            columns.find(|(column, _)| *column == name)?.1.parse().ok()
        };
        let count = |name| value(name).unwrap_or(0);
        ReceiveCounters { pruned: count("RcvPruned"), dropped: count("TCPRcvQDrop"), collapsed: count("TCPRcvCollapsed") }
    }
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
