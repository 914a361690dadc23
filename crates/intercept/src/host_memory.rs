//! The memory that TCP takes on this host, and the limits that it has: the kernel's own, and those
//! of the process's control group (cgroup v2).

use std::{
    fs, io,
    path::{Path, PathBuf},
};

/// Memory that TCP takes on this host, bytes, in all its network namespaces, as the kernel accounts
/// it. None if it cannot be read.
pub fn tcp_memory() -> Option<u64> {
    used_by_tcp(&fs::read_to_string("/proc/net/sockstat").ok()?).map(|pages| pages * page_size())
}

/// The memory above which the kernel saves memory of all TCP connections, bytes: the second value
/// of `net.ipv4.tcp_mem`. A network namespace of a container does not show it: then it is what the
/// kernel chooses for a host of this size. None if neither can be read.
pub fn tcp_pressure() -> Option<u64> {
    let set = fs::read_to_string("/proc/sys/net/ipv4/tcp_mem").ok();
    let pages = set.and_then(|text| text.split_whitespace().nth(1)?.parse::<u64>().ok());
    pages.map(|pages| pages * page_size()).or_else(|| default_pressure(&fs::read_to_string("/proc/meminfo").ok()?))
}

/// The limit of a control group, and what counts against it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupMemory {
    /// `memory.max`, or `memory.high` if that is less, bytes.
    pub limit: u64,
    /// Bytes in use, without cached files, which the kernel can give up.
    pub used: u64,
}

impl GroupMemory {
    /// Of the control group of this process, or of that one above it which has the least room.
    /// None: it has no limit.
    pub fn of_process() -> Option<Self> {
        let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
        let path = groups.lines().find_map(|line| line.strip_prefix("0::"))?;
        // With cgroup v1 beside it, v2 is mounted one level deeper.
        let root =
            ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"].map(Path::new).into_iter().find(|root| root.join("cgroup.procs").exists())?;
        Self::in_hierarchy(root, path)
    }

    /// Of the group at `path` below `root`.
    fn in_hierarchy(root: &Path, path: &str) -> Option<Self> {
        let group: PathBuf = root.join(path.trim_start_matches('/'));
        let groups = group.ancestors().take_while(|group| group.starts_with(root));
        groups.filter_map(|group| Self::of(group).ok().flatten()).min_by_key(|memory| memory.limit.saturating_sub(memory.used))
    }

    fn of(group: &Path) -> io::Result<Option<Self>> {
        let number = |name: &str| fs::read_to_string(group.join(name)).map(|text| text.trim().parse::<u64>().ok());
        // The root has neither file.
        let limits = [number("memory.max"), number("memory.high")];
        let Some(limit) = limits.into_iter().flatten().flatten().min() else { return Ok(None) };
        let used = number("memory.current")?.unwrap_or(0);
        let files = cached_files(&fs::read_to_string(group.join("memory.stat"))?);
        Ok(Some(GroupMemory { limit, used: used.saturating_sub(files) }))
    }
}

/// The pages that TCP uses, from `/proc/net/sockstat`.
fn used_by_tcp(text: &str) -> Option<u64> {
    let words: Vec<&str> = text.lines().find(|line| line.starts_with("TCP:"))?.split_whitespace().collect();
    let at = words.iter().position(|word| *word == "mem")?;
    words.get(at + 1)?.parse().ok()
}

/// A little less than a sixteenth of the memory: the kernel's default (`tcp_init_mem`) is a
/// sixteenth of what is free when it starts.
fn default_pressure(meminfo: &str) -> Option<u64> {
    let total = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kilobytes: u64 = total.split_whitespace().next()?.parse().ok()?;
    Some(kilobytes * 1024 / 17)
}

/// Bytes of files in the page cache, from `memory.stat`.
fn cached_files(stat: &str) -> u64 {
    let field = |name: &str| stat.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse::<u64>().ok());
    ["inactive_file", "active_file"].into_iter().filter_map(field).sum()
}

fn page_size() -> u64 {
    rustix::param::page_size() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_files_are_read() {
        let sockstat = "sockets: used 25\nTCP: inuse 5 orphan 0 tw 1 alloc 5 mem 17\nUDP: inuse 0 mem 3\n";
        assert_eq!(used_by_tcp(sockstat), Some(17));
        assert_eq!(used_by_tcp("TCP: inuse 5"), None);
        assert_eq!(default_pressure("MemTotal:        1048576 kB\nMemFree: 1 kB\n"), Some((1 << 30) / 17));
        assert_eq!(cached_files("anon 5\ninactive_file 7\nactive_file 8\nactive_files 100\n"), 15);
        assert!(tcp_memory().is_some() && tcp_pressure().is_some_and(|bytes| bytes > 1 << 20));
    }

    #[test]
    fn the_group_with_the_least_room_counts() {
        let root = std::env::temp_dir().join(format!("tandem-cgroup-{}", std::process::id()));
        let inner = root.join("outer/inner");
        fs::create_dir_all(&inner).unwrap();
        let write = |group: &Path, max: &str, high: &str, current: &str, stat: &str| {
            for (name, text) in [("memory.max", max), ("memory.high", high), ("memory.current", current), ("memory.stat", stat)] {
                fs::write(group.join(name), format!("{text}\n")).unwrap();
            }
        };
        write(&inner, "max", "max", "50", "inactive_file 1");
        write(&root.join("outer"), "1000", "900", "500", "inactive_file 30\nactive_file 20\nsock 7");
        assert_eq!(GroupMemory::in_hierarchy(&root, "/outer/inner"), Some(GroupMemory { limit: 900, used: 450 }));
        write(&inner, "100", "max", "50", "inactive_file 1");
        assert_eq!(GroupMemory::in_hierarchy(&root, "/outer/inner"), Some(GroupMemory { limit: 100, used: 49 }));
        assert_eq!(GroupMemory::in_hierarchy(&root, "/"), None);
        fs::remove_dir_all(root).unwrap();
    }
}
