//! TLS over a connection of a bond. Certificates are not verified: both ends have authenticated
//! each other by their key before TLS begins. Each then sends a tag over the channel binding (RFC
//! 9266), which excludes a man in the middle.

use rustix::{
    fd::AsFd as _,
    io::Errno,
    net::{RecvFlags, SendFlags, recv, send},
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
    io::{self, IoSlice, IoSliceMut, Read as _, Write as _},
    sync::Arc,
};

/// The most encrypted bytes that wait unsent in the library.
const MOST_PENDING: usize = 64 * 1024;

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
        Ok(Tls { socket, tls, pending: 0 })
    }
}

/// A TLS channel.
#[derive(Debug)]
pub(crate) struct Tls {
    socket: Socket,
    tls: Connection,
    /// Bytes of plain text that were taken by the last send and may be unsent; 0 once all are sent.
    pending: usize,
}

/// Adapts the socket to the traits of the library.
struct Wire<'a>(&'a Socket);

impl io::Read for Wire<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        Ok(recv(self.0.as_fd(), bytes, RecvFlags::DONTWAIT)?.1)
    }
}

impl io::Write for Wire<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(send(self.0.as_fd(), bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)?)
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
        let taken = self.tls.writer().write_vectored(parts).map_err(|why| errno(&why))?;
        self.pending = taken;
        match self.flush() {
            Ok(()) | Err(Errno::AGAIN) if taken > 0 => Ok(taken),
            Ok(()) => Err(Errno::AGAIN),
            Err(why) => Err(why),
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
            match self.tls.read_tls(&mut Wire(&self.socket)) {
                Ok(0) => return Ok(0),
                Ok(_) => {}
                Err(why) if why.kind() == io::ErrorKind::Interrupted => continue,
                Err(why) => return Err(errno(&why)),
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
