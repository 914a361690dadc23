//! How fast the detector analyses a large trace, beside tshark's table of conversations on the same
//! file, in turn and on one processor.

use crate::{
    other_program,
    sys::{self, ChildUsage},
};
use anyhow::{Context as _, Result, ensure};
use measurements::{MeasurementRecord, SampleColumn, SampleTable};
use std::{
    fs,
    io::{BufWriter, Write as _},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Instant,
};
use testbed::SplitMix64;

/// Measures how fast `tandem detect trace` analyses a large trace of many connections, beside
/// tshark
#[derive(Debug, clap::Args)]
pub(crate) struct LargeTrace {
    /// Rounds; each program is measured once in each
    #[arg(long, default_value_t = 5)]
    runs: usize,
    /// Size of the trace in bytes
    #[arg(long, default_value_t = 1_000_000_000)]
    bytes: u64,
    /// Connections in the trace
    #[arg(long, default_value_t = 4000)]
    connections: u32,
    /// The tandem program
    #[arg(long, default_value = "tandem")]
    tandem: PathBuf,
    /// Directory for the trace, which is removed afterwards
    #[arg(long, default_value_os_t = std::env::temp_dir())]
    directory: PathBuf,
}

/// Payload of a full segment with timestamps, bytes.
const SEGMENT: usize = 1448;
const ACK: u8 = 0x10;
const SYN: u8 = 0x02;

impl LargeTrace {
    pub(crate) fn measure(&self, record: &mut MeasurementRecord) -> Result<()> {
        ensure!(self.connections > 0 && self.runs > 0, "--connections and --runs must be more than 0");
        let directory = tempfile::tempdir_in(&self.directory).with_context(|| format!("cannot write in {}", self.directory.display()))?;
        let path = directory.path().join("large.pcap");
        self.make(&path).with_context(|| format!("cannot make {}", path.display()))?;
        let size = fs::metadata(&path)?.len();
        let file = path.to_string_lossy().into_owned();
        // A single trace leaves the detector undecided (exit code 3). With the same trace as both
        // ends it reports an end-to-end connection.
        let mut programs: Vec<(&str, &Path, Vec<&str>, i32)> = vec![
            ("tandem detect trace, one end", &self.tandem, vec!["detect", "trace", "--json", "--sender", &file], 3),
            ("tandem detect trace, both ends", &self.tandem, vec!["detect", "trace", "--json", "--sender", &file, "--receiver", &file], 0),
        ];
        let tshark = Path::new("tshark");
        match other_program::version(tshark, &["--version"]) {
            Ok(version) => {
                record.notes.push(version);
                programs.push(("tshark, -q -z conv,tcp", tshark, vec!["-q", "-z", "conv,tcp", "-r", &file], 0));
            }
            Err(why) => record.notes.push(format!("tshark is left out: {why:#}.")),
        }
        const COLUMNS: [(&str, &str, usize); 3] = [("time", "s", 1), ("processor time", "s", 1), ("peak memory", "MB", 0)];
        record.rounds = self.runs as u64;
        record.notes.push(format!("The trace has {:.2} GB and {} connections.", size as f64 / 1e9, self.connections));
        let columns = COLUMNS.map(|(head, unit, digits)| SampleColumn::new(head, unit, digits));
        record.tables = vec![SampleTable::new("speed", "", columns.to_vec())];
        for round in 0..self.runs {
            for (name, program, arguments, status) in &programs {
                let (wall, took) = time(program, arguments)?;
                ensure!(took.status == Some(*status), "{name} ended with {:?}", took.status);
                let figures = [wall, took.cpu_s, took.most_memory as f64 / 1e6];
                eprintln!("round {}, {name}: {wall:.2} s, of the processor {:.2} s, {:.0} MB", round + 1, figures[1], figures[2]);
                let row = record.tables[0].row(name);
                COLUMNS.iter().zip(figures).for_each(|((head, ..), figure)| row.add(head, round, figure));
            }
        }
        Ok(())
    }

    /// Writes a trace of many simultaneous downloads, captured at their server: Ethernet, IPv4,
    /// timestamps, random payload.
    fn make(&self, path: &Path) -> Result<()> {
        let mut file = BufWriter::with_capacity(1 << 20, fs::File::create(path)?);
        for word in [0xa1b2_3c4d_u32, 0x0004_0002, 0, 0, 65535, 1] {
            file.write_all(&word.to_le_bytes())?;
        }
        let (mut random, mut written, mut at) = (SplitMix64::new(7), 24u64, 1_700_000_000_000_000_000u64);
        let mut flows: Vec<TracedDownload> = (0..self.connections).map(|number| TracedDownload::new(number, &mut random)).collect();
        let mut payload = vec![0; SEGMENT];
        for flow in &flows {
            for (from_server, flags) in [(false, SYN), (true, SYN | ACK), (false, ACK)] {
                at += 2_000;
                written += flow.write(&mut file, at, from_server, flags, &[])?;
            }
        }
        flows.iter_mut().for_each(TracedDownload::begin);
        while written < self.bytes {
            for flow in &mut flows {
                for _ in 0..2 {
                    at += 5_000;
                    payload.chunks_exact_mut(8).for_each(|chunk| chunk.copy_from_slice(&random.next_u64().to_le_bytes()));
                    written += flow.write(&mut file, at, true, ACK, &payload)?;
                    flow.next[1] = flow.next[1].wrapping_add(SEGMENT as u32);
                }
                written += flow.write(&mut file, at + 1_000, false, ACK, &[])?;
            }
        }
        file.flush()?;
        Ok(())
    }
}

/// A download.
struct TracedDownload {
    client: [u8; 4],
    port: u16,
    /// Next sequence numbers of client and server.
    next: [u32; 2],
}

impl TracedDownload {
    fn new(number: u32, random: &mut SplitMix64) -> Self {
        let [_, a, b, c] = (number / 50_000 + 1).to_be_bytes();
        TracedDownload {
            client: [10, a, b, c],
            port: (number % 50_000) as u16 + 10_000,
            next: [random.next_u64() as u32, random.next_u64() as u32],
        }
    }

    /// Counts the SYNs after the handshake.
    fn begin(&mut self) {
        self.next = self.next.map(|next| next.wrapping_add(1));
    }

    /// Writes a packet. Returns the length of its record in the file, bytes.
    fn write(&self, file: &mut impl std::io::Write, at: u64, from_server: bool, flags: u8, payload: &[u8]) -> Result<u64> {
        const SERVER: ([u8; 4], u16) = ([192, 0, 2, 1], 443);
        let (source, target) = if from_server { (SERVER, (self.client, self.port)) } else { ((self.client, self.port), SERVER) };
        let side = usize::from(from_server);
        let syn = flags & SYN != 0;
        let options: &[u8] = if syn { &[2, 4, 5, 180, 1, 3, 3, 7] } else { &[] };
        let ticks = (at / 1_000_000) as u32;
        let stamps = [&[1, 1, 8, 10][..], &ticks.to_be_bytes(), &ticks.wrapping_sub(40).to_be_bytes()].concat();
        let total = 40 + options.len() + stamps.len() + payload.len();
        let mut packet = Vec::with_capacity(54 + 20);
        packet.extend([2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0, 0x45, 0]);
        packet.extend((total as u16).to_be_bytes());
        packet.extend(((at >> 12) as u16).to_be_bytes());
        packet.extend([0x40, 0, 64, 6, 0, 0]);
        packet.extend([source.0, target.0].concat());
        packet.extend([source.1.to_be_bytes(), target.1.to_be_bytes()].concat());
        packet.extend(self.next[side].to_be_bytes());
        // A SYN-ACK acknowledges the SYN.
        let acked = self.next[1 - side].wrapping_add(u32::from(syn));
        packet.extend(if flags & ACK == 0 { 0 } else { acked }.to_be_bytes());
        packet.extend([((20 + options.len() + stamps.len()) as u8 / 4) << 4, flags, 1, 0xf6, 0, 0, 0, 0]);
        packet.extend(options);
        packet.extend(stamps);
        let length = (packet.len() + payload.len()) as u32;
        for word in [(at / 1_000_000_000) as u32, (at % 1_000_000_000) as u32, length, length] {
            file.write_all(&word.to_le_bytes())?;
        }
        file.write_all(&packet)?;
        file.write_all(payload)?;
        Ok(16 + u64::from(length))
    }
}

/// Runs a program on one processor. Returns its wall time in seconds, and its resource usage.
fn time(program: &Path, arguments: &[&str]) -> Result<(f64, ChildUsage)> {
    let begun = Instant::now();
    let child = Command::new("taskset")
        .args(["-c", "0"])
        .arg(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .context("cannot run taskset (Debian package util-linux)")?;
    let took = sys::wait(&child)?;
    Ok((begun.elapsed().as_secs_f64(), took))
}
