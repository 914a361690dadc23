//! TLS over a connection of a bond. Certificates are not verified: both ends have authenticated
//! each other by their key before TLS begins. Each then sends a tag over the channel binding (RFC
//! 9266), which excludes a man in the middle.

use intercept::sys;
use rustix::{
    fd::AsFd as _,
    io::Errno,
    net::{RecvFlags, SendAncillaryBuffer, SendFlags, recv, sendmsg},
};
use rustls::{
    ClientConfig, ClientConnection, Connection, DigitallySignedStruct, ServerConfig, ServerConnection, SignatureScheme,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    crypto::{CryptoProvider, ring, verify_tls13_signature},
    pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName, UnixTime},
    version::TLS13,
};
use socket2::Socket;
use std::{
    cell::Cell,
    io::{self, IoSlice, IoSliceMut, Read as _, Write as _},
    mem,
    sync::Arc,
};
use units::Span;

/// The most encrypted bytes that wait unsent in the library.
const MOST_PENDING: usize = 64 * 1024;
/// The most plain text in one record, bytes (RFC 8446 §5.1).
pub(crate) const MOST_IN_RECORD: u64 = 16 * 1024;
/// The socket wakes the event loop for less than a whole record if this much of it is missing or
/// less, bytes: about two segments.
const LEAST_AWAITED: usize = 3000;
/// Time of a path that a piece may last: the receiving end wakes once for it, not for each record
/// of it. Longer pieces would have the data of the other paths wait longer.
pub(crate) const BATCH: Span = Span(20_000_000);
/// Length of a record's header, bytes.
const HEADER: usize = 5;
/// What a record has besides its header and its plain text: the type of its content and the tag of
/// the AEAD (RFC 8446 §5.2), bytes.
const SEAL: usize = 17;

/// TLS configuration of one end.
#[derive(Debug, Clone)]
pub(crate) struct Encryption {
    dials: Arc<ClientConfig>,
    accepts: Arc<ServerConfig>,
}

impl Encryption {
    /// Makes a self-signed certificate, which the peer does not verify.
    ///
    /// # Errors
    /// When the certificate cannot be made, or TLS cannot be set up.
    pub(crate) fn new() -> Result<Self, String> {
        let failed = |what: &str, why: &dyn std::fmt::Display| format!("cannot {what} for the bond's TLS: {why}");
        let provider = Arc::new(ring::default_provider());
        let made = rcgen::generate_simple_self_signed(["bond".to_owned()]).map_err(|why| failed("make a certificate", &why))?;
        let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der()).into();
        let accepts = ServerConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[&TLS13])
            .and_then(|config| config.with_no_client_auth().with_single_cert(vec![made.cert.der().clone()], key))
            .map_err(|why| failed("use a certificate", &why))?;
        let dials = ClientConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[&TLS13])
            .map_err(|why| failed("configure a client", &why))?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(AnyCertificate(provider)))
            .with_no_client_auth();
        Ok(Encryption { dials: Arc::new(dials), accepts: Arc::new(accepts) })
    }

    /// Starts TLS over an authenticated connection.
    pub(crate) fn over(&self, socket: Socket, dialled: bool) -> Result<Tls, Errno> {
        let name = || ServerName::try_from("bond").map_err(|_| Errno::INVAL);
        let tls = if dialled {
            ClientConnection::new(self.dials.clone(), name()?).map(Connection::from)
        } else {
            ServerConnection::new(self.accepts.clone()).map(Connection::from)
        };
        let mut tls = tls.map_err(|_| Errno::NOMEM)?;
        tls.set_buffer_limit(Some(MOST_PENDING));
        Ok(Tls { socket, tls, pending: 0, record: RecordProgress::default(), inbox: Inbox::default(), expected: 0, lowat: 1 })
    }
}

/// A TLS channel.
#[derive(Debug)]
pub(crate) struct Tls {
    socket: Socket,
    tls: Connection,
    /// Bytes of plain text that were taken by the last send and may be unsent; 0 once all are sent.
    pending: usize,
    /// The record that is being received.
    record: RecordProgress,
    inbox: Inbox,
    /// Bytes of plain text that certainly follow what was received: the rest of a piece.
    expected: usize,
    /// SO_RCVLOWAT of the socket, bytes.
    lowat: usize,
}

/// How much of a record has been received.
#[derive(Debug, Default)]
struct RecordProgress {
    header: [u8; HEADER],
    header_received: usize,
    /// Length of its content, once its header is complete, and how much of that is missing, bytes.
    content: usize,
    missing: usize,
}

impl RecordProgress {
    /// Takes bytes as they arrive.
    fn advance(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            if self.missing == 0 {
                let count = (HEADER - self.header_received).min(bytes.len());
                self.header[self.header_received..self.header_received + count].copy_from_slice(&bytes[..count]);
                self.header_received += count;
                bytes = &bytes[count..];
                if self.header_received == HEADER {
                    self.content = usize::from(u16::from_be_bytes([self.header[3], self.header[4]]));
                    self.missing = self.content;
                    self.header_received = 0;
                }
            } else {
                let count = self.missing.min(bytes.len());
                self.missing -= count;
                bytes = &bytes[count..];
            }
        }
    }

    /// How many bytes have to arrive before there is anything to do, if so many bytes of plain text
    /// are `expected`; 1: not known. Never more than what follows.
    fn awaited(&self, expected: usize) -> usize {
        let in_present = if self.missing > 0 { self.content.saturating_sub(SEAL) } else { 0 };
        let beyond = expected.saturating_sub(in_present);
        let records = beyond.div_ceil(MOST_IN_RECORD as usize);
        let follows = self.missing + beyond + records * (HEADER + SEAL);
        let awaited = follows.saturating_sub(self.header_received);
        if awaited > LEAST_AWAITED { awaited } else { 1 }
    }
}

/// What one read of the socket has brought. The library itself reads in parts of 4 KiB, and each
/// read has the kernel consider an acknowledgement.
#[derive(Debug, Default)]
struct Inbox {
    bytes: Vec<u8>,
    /// The part of `bytes` that the library has not taken yet.
    begin: usize,
    end: usize,
}

impl Inbox {
    /// The most bytes of a read: a piece of several records.
    const LEN: usize = 64 * 1024;

    fn is_empty(&self) -> bool {
        self.begin == self.end
    }

    /// Reads from the socket; returns how many bytes.
    fn fill(&mut self, socket: &Socket) -> Result<&[u8], Errno> {
        self.bytes = SPARE.take();
        self.bytes.resize(Self::LEN, 0);
        let received = recv(socket.as_fd(), &mut self.bytes, RecvFlags::DONTWAIT);
        (self.begin, self.end) = (0, received.map_or(0, |(_, count)| count));
        if self.is_empty() {
            self.give_back();
        }
        received?;
        Ok(&self.bytes[..self.end])
    }

    fn give_back(&mut self) {
        SPARE.set(mem::take(&mut self.bytes));
    }
}

impl io::Read for Inbox {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let count = (&self.bytes[self.begin..self.end]).read(bytes)?;
        self.begin += count;
        if self.is_empty() {
            self.give_back();
        }
        Ok(count)
    }
}

thread_local! {
    /// The memory of an empty [`Inbox`], for the next one.
    static SPARE: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// Adapts the socket to the traits of the library.
struct Wire<'a>(&'a Socket);

impl io::Write for Wire<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, records: &[IoSlice<'_>]) -> io::Result<usize> {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        Ok(sendmsg(self.0.as_fd(), records, &mut SendAncillaryBuffer::default(), flags)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The error as a system error. Errors of TLS itself become [`Errno::PROTO`].
fn errno(why: &io::Error) -> Errno {
    Errno::from_io_error(why).unwrap_or(if why.kind() == io::ErrorKind::WouldBlock { Errno::AGAIN } else { Errno::PROTO })
}

impl Tls {
    pub(crate) fn socket(&self) -> &Socket {
        &self.socket
    }

    pub(crate) fn pending(&self) -> usize {
        self.pending
    }

    /// The channel binding, which only the two ends know; none: the handshake is not complete.
    pub(crate) fn binding(&self) -> Option<[u8; 32]> {
        if self.tls.is_handshaking() {
            return None;
        }
        // RFC 9266 §2.
        self.tls.export_keying_material([0; 32], b"EXPORTER-Channel-Binding", Some(&[])).ok()
    }

    pub(crate) fn flush(&mut self) -> Result<(), Errno> {
        while self.tls.wants_write() {
            match self.tls.write_tls(&mut Wire(&self.socket)) {
                Ok(_) => {}
                Err(why) if why.kind() == io::ErrorKind::Interrupted => {}
                Err(why) => return Err(errno(&why)),
            }
        }
        self.pending = 0;
        Ok(())
    }

    pub(crate) fn send(&mut self, parts: &[IoSlice<'_>]) -> Result<usize, Errno> {
        self.flush()?;
        let taken = self.encrypt(parts).map_err(|why| errno(&why))?;
        self.pending = taken;
        match self.flush() {
            Ok(()) | Err(Errno::AGAIN) if taken > 0 => Ok(taken),
            Ok(()) => Err(Errno::AGAIN),
            Err(why) => Err(why),
        }
    }

    /// Encrypts `parts`, of which the first is the header of a frame. Returns how many bytes were
    /// taken.
    fn encrypt(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        let [header, payload @ ..] = parts else { return Ok(0) };
        let total: usize = parts.iter().map(|part| part.len()).sum();
        if payload.is_empty() || total as u64 <= MOST_IN_RECORD {
            return self.tls.writer().write_vectored(parts);
        }
        // The header has a record of its own: with its first bytes the other end knows how many
        // follow, and waits for all of them at once.
        let taken = self.tls.writer().write(header)?;
        if taken < header.len() {
            return Ok(taken);
        }
        Ok(taken + self.tls.writer().write_vectored(payload)?)
    }

    /// Notes that so many bytes of plain text certainly follow what was received.
    pub(crate) fn expect(&mut self, bytes: u64) {
        self.expected = usize::try_from(bytes).unwrap_or(0);
    }

    /// Has the socket wake the event loop when all that is expected has arrived, or the rest of the
    /// present record: its first part cannot be decrypted before. The end of the connection wakes
    /// it at any time, and so does a receive queue that has no more room.
    fn await_record(&mut self) {
        let awaited = self.record.awaited(self.expected);
        if awaited != self.lowat && sys::set_receive_lowat(&self.socket, awaited).is_ok() {
            self.lowat = awaited;
        }
    }

    pub(crate) fn receive(&mut self, parts: &mut [IoSliceMut<'_>]) -> Result<usize, Errno> {
        loop {
            match self.tls.reader().read_vectored(parts) {
                Ok(count) => return Ok(count),
                Err(why) if why.kind() == io::ErrorKind::WouldBlock => {}
                // The peer closed the connection without a TLS close_notify.
                Err(why) if why.kind() == io::ErrorKind::UnexpectedEof => return Ok(0),
                Err(why) => return Err(errno(&why)),
            }
            if self.inbox.is_empty() {
                match self.inbox.fill(&self.socket) {
                    Ok([]) => return Ok(0),
                    Ok(bytes) => self.record.advance(bytes),
                    Err(Errno::INTR) => continue,
                    Err(why) => {
                        if why == Errno::AGAIN {
                            self.await_record();
                        }
                        return Err(why);
                    }
                }
            }
            if self.tls.read_tls(&mut self.inbox).map_err(|why| errno(&why))? == 0 {
                return Err(Errno::PROTO);
            }
            let progress = self.tls.process_new_packets().map_err(|_| Errno::PROTO);
            // Send an alert, or the next messages of the handshake.
            match self.flush() {
                Ok(()) | Err(Errno::AGAIN) => {}
                Err(why) => return Err(why),
            }
            progress?;
        }
    }
}

/// Accepts any certificate, but verifies the signature: the peer has the certificate's key.
#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(rustls::Error::General("only TLS 1.3 is spoken here".into()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_record_is_awaited_whole() {
        let record = |len: u16| [&[23, 3, 3][..], &len.to_be_bytes(), &vec![7; len.into()]].concat();
        let stream = [record(40), record(16_401), record(3000), record(16_401)].concat();
        let ends = [45, 45 + 16_406, 45 + 16_406 + 3005, stream.len()];
        for part in [1, 3, 1448, 5000] {
            let (mut progress, mut at) = (RecordProgress::default(), 0);
            for bytes in stream.chunks(part) {
                progress.advance(bytes);
                at += bytes.len();
                // Never beyond the end of a record: nothing may follow it.
                let missing = ends.iter().find(|end| **end >= at).unwrap() - at;
                let awaited = progress.awaited(0);
                assert!(awaited == 1 || awaited == missing, "{awaited} of {missing} at {at}");
            }
        }
        let mut progress = RecordProgress::default();
        let mut await_after = |bytes: &[u8]| {
            progress.advance(bytes);
            progress.awaited(0)
        };
        // Its header, its content but for little, a short record.
        assert_eq!((await_after(&stream[..45 + 4]), await_after(&stream[45 + 4..45 + 5])), (1, 16_401));
        assert_eq!((await_after(&stream[50..50 + 13_000]), await_after(&stream[50 + 13_000..50 + 14_000])), (3401, 1));
        assert_eq!(await_after(&stream[14_050..16_451 + 10]), 1);
    }

    #[test]
    fn the_records_of_a_piece_are_awaited_together() {
        let record = |text: usize| [&[23, 3, 3][..], &((text + SEAL) as u16).to_be_bytes(), &vec![7; text + SEAL]].concat();
        // The header of a piece, its payload in three records, and what follows.
        let texts = [13, 16_384, 16_384, 5000, 40];
        let stream: Vec<u8> = texts.iter().flat_map(|text| record(*text)).collect();
        let ends: Vec<usize> =
            texts.iter().scan(0, |at, text| Some(std::mem::replace(at, *at + text + SEAL + HEADER) + text + SEAL + HEADER)).collect();
        for part in [1, 7, 1448, 5000, 20_000] {
            let (mut progress, mut at) = (RecordProgress::default(), 0);
            for bytes in stream.chunks(part) {
                progress.advance(bytes);
                at += bytes.len();
                // What has been decrypted of the piece.
                let read: usize = texts[1..4].iter().zip(&ends[1..4]).filter(|(_, end)| **end <= at).map(|(text, _)| text).sum();
                let is_within = (ends[0]..ends[3]).contains(&at);
                let awaited = progress.awaited(if is_within { 37_768 - read } else { 0 });
                if is_within {
                    // Never beyond the end of the piece: nothing may follow it.
                    let missing = ends[3] - at;
                    assert_eq!(awaited, if missing > LEAST_AWAITED { missing } else { 1 }, "at {at} in parts of {part}");
                }
            }
        }
    }
}
