//! Captures: what each host sent and received, as pcapng, written by a thread of its own so that disks delay no packet.

use crate::LabError;
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
    path::PathBuf,
    sync::mpsc,
    thread,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// Where packets are noted.
#[derive(Debug)]
pub(crate) struct Capture {
    notes: mpsc::Sender<Note>,
}

#[derive(Debug)]
struct Note {
    host: usize,
    link: usize,
    at: Time,
    bytes: Box<[u8]>,
}

/// The thread that writes; it ends when every [`Capture`] is gone.
#[derive(Debug)]
pub(crate) struct Writer {
    thread: thread::JoinHandle<Result<(), String>>,
    paths: Vec<PathBuf>,
}

impl Capture {
    /// Opens one file a host, in this order.
    pub(crate) fn open(paths: Vec<PathBuf>) -> Result<(Self, Writer), LabError> {
        let files: Result<Vec<_>, LabError> = paths
            .iter()
            .map(|path| {
                File::create(path).map(BufWriter::new).map_err(|why| LabError::Capture { path: path.clone(), why: why.to_string() })
            })
            .collect();
        let (files, (notes, inbox)) = (files?, mpsc::channel());
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let thread = thread::spawn(move || write(files, &inbox, since_1970));
        Ok((Capture { notes }, Writer { thread, paths }))
    }

    /// Notes a packet that `host` sent or received over `link` (both from 0).
    pub(crate) fn note(&self, host: usize, link: usize, at: Time, bytes: &[u8]) {
        let _ = self.notes.send(Note { host, link, at, bytes: bytes.into() });
    }
}

impl Writer {
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

/// Writes notes until no more come. Times count from `epoch`, when the lab's clock began.
fn write(files: Vec<BufWriter<File>>, inbox: &mpsc::Receiver<Note>, epoch: Duration) -> Result<(), String> {
    let text = |why: pcap_file::PcapError| why.to_string();
    let mut writers = Vec::new();
    for (host, file) in files.into_iter().enumerate() {
        let mut writer = PcapNgWriter::new(file).map_err(text)?;
        // A host has the link on its left and the one on its right; raw IP, times in nanoseconds.
        for link in [host.wrapping_sub(1), host] {
            let name = format!("link{}", link.wrapping_add(1));
            let options = vec![InterfaceDescriptionOption::IfName(Cow::Owned(name)), InterfaceDescriptionOption::IfTsResol(9)];
            writer.write_pcapng_block(InterfaceDescriptionBlock { linktype: DataLink::RAW, snaplen: 0, options }).map_err(text)?;
        }
        writers.push(writer);
    }
    while let Ok(note) = inbox.recv() {
        let Some(writer) = writers.get_mut(note.host) else { continue };
        let packet = EnhancedPacketBlock {
            interface_id: u32::from(note.link == note.host),
            timestamp: epoch + Duration::from_nanos(note.at.0),
            original_len: note.bytes.len() as u32,
            data: Cow::Owned(note.bytes.into_vec()),
            options: vec![],
        };
        writer.write_pcapng_block(packet).map_err(text)?;
    }
    for writer in writers {
        writer.into_inner().into_inner().map_err(|why| why.to_string())?;
    }
    Ok(())
}
