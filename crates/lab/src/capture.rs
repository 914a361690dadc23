//! Captures of what each host sent and received, in pcapng format. A separate thread writes the
//! files, so that slow disks do not delay packets.

use crate::{LabError, host::Host};
use link::Time;
use pcap_file::{
    DataLink,
    pcapng::{
        PcapNgWriter,
        blocks::{
            enhanced_packet::EnhancedPacketBlock,
            interface_description::{InterfaceDescriptionBlock, InterfaceDescriptionOption},
        },
    },
};
use std::{
    borrow::Cow,
    fs::File,
    io::BufWriter,
    path::{Path, PathBuf},
    sync::mpsc,
    thread,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// Records packets: passes copies of them to the writing thread.
#[derive(Debug)]
pub(crate) struct Capture {
    sender: mpsc::Sender<RecordedPacket>,
}

#[derive(Debug)]
struct RecordedPacket {
    host: usize,
    link: usize,
    at: Time,
    bytes: Box<[u8]>,
}

/// The writing thread, which ends when every [`Capture`] has been dropped.
#[derive(Debug)]
pub(crate) struct CaptureWriter {
    thread: thread::JoinHandle<Result<(), String>>,
    paths: Vec<PathBuf>,
}

impl Capture {
    /// Captures the packets of `hosts` into files named `<prefix><host>.pcapng`; without a prefix,
    /// nothing is captured.
    pub(crate) fn of_hosts(prefix: Option<&Path>, hosts: &[Host]) -> Result<(Option<Self>, Option<CaptureWriter>), LabError> {
        let Some(prefix) = prefix else { return Ok((None, None)) };
        let path = |host: &Host| PathBuf::from(format!("{}{}.pcapng", prefix.display(), host.name()));
        let (capture, writer) = Capture::open(hosts.iter().map(path).collect())?;
        Ok((Some(capture), Some(writer)))
    }

    /// Creates one file for each host, in the order of their indices, and starts the thread.
    fn open(paths: Vec<PathBuf>) -> Result<(Self, CaptureWriter), LabError> {
        let files: Result<Vec<_>, LabError> = paths
            .iter()
            .map(|path| {
                File::create(path).map(BufWriter::new).map_err(|why| LabError::Capture { path: path.clone(), why: why.to_string() })
            })
            .collect();
        let (files, (sender, inbox)) = (files?, mpsc::channel());
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let thread = thread::spawn(move || write(files, &inbox, since_1970));
        Ok((Capture { sender }, CaptureWriter { thread, paths }))
    }

    /// Records a packet that `host` sent or received over `link` (indices from 0).
    pub(crate) fn record(&self, host: usize, link: usize, at: Time, bytes: &[u8]) {
        let _ = self.sender.send(RecordedPacket { host, link, at, bytes: bytes.into() });
    }
}

impl CaptureWriter {
    /// Waits for the last packet to be written.
    pub(crate) fn finish(self) -> Result<(), LabError> {
        let why = match self.thread.join() {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(why)) => why,
            Err(_) => "the writing thread panicked".into(),
        };
        Err(LabError::Capture { path: self.paths.first().cloned().unwrap_or_default(), why })
    }
}

/// Writes packets until every [`Capture`] has been dropped. `epoch` is the zero of their times,
/// since 1970.
fn write(files: Vec<BufWriter<File>>, inbox: &mpsc::Receiver<RecordedPacket>, epoch: Duration) -> Result<(), String> {
    let text = |why: pcap_file::PcapError| why.to_string();
    let mut writers = Vec::new();
    for (host, file) in files.into_iter().enumerate() {
        let mut writer = PcapNgWriter::new(file).map_err(text)?;
        // Each host has two interfaces: the link on the sender's side and the one on the
        // receiver's. Packets are raw IP, times are in nanoseconds.
        for link in [host.wrapping_sub(1), host] {
            let name = format!("link{}", link.wrapping_add(1));
            let options = vec![InterfaceDescriptionOption::IfName(Cow::Owned(name)), InterfaceDescriptionOption::IfTsResol(9)];
            writer.write_pcapng_block(InterfaceDescriptionBlock { linktype: DataLink::RAW, snaplen: 0, options }).map_err(text)?;
        }
        writers.push(writer);
    }
    while let Ok(captured) = inbox.recv() {
        let Some(writer) = writers.get_mut(captured.host) else { continue };
        let packet = EnhancedPacketBlock {
            interface_id: u32::from(captured.link == captured.host),
            timestamp: epoch + Duration::from_nanos(captured.at.0),
            original_len: captured.bytes.len() as u32,
            data: Cow::Owned(captured.bytes.into_vec()),
            options: vec![],
        };
        writer.write_pcapng_block(packet).map_err(text)?;
    }
    for writer in writers {
        writer.into_inner().into_inner().map_err(|why| why.to_string())?;
    }
    Ok(())
}
