//! The cache's side of one picture worker.

use super::starter::{StartedWorker, Starter};
use crate::{
    picture_protocol::{FrameHeader, TranscodeReply, TranscodeRequest, WorkerHello},
    shrink::PictureFormat,
};
use rustix::{
    io::Errno,
    net::{RecvFlags, recv},
};
use std::{io, process::Child, time::Duration};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::UnixStream,
};

/// What a worker returns: a smaller picture, or the reason why the picture passes unchanged.
pub(crate) type Transcoded = Result<Vec<u8>, String>;

/// A worker process. Dropping it kills the process.
#[derive(Debug)]
pub(crate) struct PictureWorker {
    socket: UnixStream,
    process: WorkerProcess,
    /// How long it has been busy in total.
    pub(crate) busy: Duration,
}

/// Kills and reaps the process when it is dropped.
#[derive(Debug)]
struct WorkerProcess {
    child: Option<Child>,
    starter: Starter,
}

impl Drop for WorkerProcess {
    fn drop(&mut self) {
        if let Some(child) = self.child.take() {
            self.starter.kill(child);
        }
    }
}

impl PictureWorker {
    /// Starts a worker and waits until it is ready.
    ///
    /// # Errors
    /// When the process cannot be started, ends early, or does not begin with a hello.
    pub(crate) async fn start(starter: &Starter) -> io::Result<(Self, WorkerHello)> {
        let StartedWorker { child, socket } = starter.start().await?;
        let process = WorkerProcess { child: Some(child), starter: starter.clone() };
        let mut worker = PictureWorker { socket: UnixStream::from_std(socket)?, process, busy: Duration::ZERO };
        let header = match worker.receive_header().await {
            Err(why) if why.kind() == io::ErrorKind::UnexpectedEof => return Err(worker.ended("before it was ready")),
            other => other?,
        };
        let hello = WorkerHello::decode(header).ok_or_else(|| io::Error::other("its hello is invalid"))?;
        Ok((worker, hello))
    }

    /// Whether it waits for a picture: its socket is open, with nothing to read.
    pub(crate) fn is_ready(&self) -> bool {
        recv(&self.socket, &mut [0; 1][..], RecvFlags::DONTWAIT | RecvFlags::PEEK).is_err_and(|why| why == Errno::AGAIN)
    }

    /// Has a picture transcoded. After an error, or when the future has been dropped, the worker
    /// must not be used again.
    ///
    /// # Errors
    /// When the worker ends or violates the protocol.
    pub(crate) async fn transcode(&mut self, picture: &[u8], from: PictureFormat, to: PictureFormat) -> io::Result<Transcoded> {
        match self.exchange(picture, from, to).await {
            Err(why) if matches!(why.kind(), io::ErrorKind::UnexpectedEof | io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset) => {
                Err(self.ended("before it had replied"))
            }
            other => other,
        }
    }

    async fn exchange(&mut self, picture: &[u8], from: PictureFormat, to: PictureFormat) -> io::Result<Transcoded> {
        let request = TranscodeRequest { from, to, length: picture.len() };
        self.socket.write_all(&request.encode()).await?;
        self.socket.write_all(picture).await?;
        let invalid = || io::Error::other("its reply is invalid");
        match TranscodeReply::decode(self.receive_header().await?, picture.len()).ok_or_else(invalid)? {
            TranscodeReply::Smaller(length) => {
                let small = self.receive(length).await?;
                if to.has_signature(&small) { Ok(Ok(small)) } else { Err(invalid()) }
            }
            TranscodeReply::Unchanged(length) => {
                let why = self.receive(length).await?;
                // The reason is logged: a picture must not be able to send control sequences to a
                // terminal.
                Ok(Err(String::from_utf8_lossy(&why).chars().filter(|letter| !letter.is_control()).collect()))
            }
        }
    }

    async fn receive_header(&mut self) -> io::Result<FrameHeader> {
        let mut header = FrameHeader::default();
        self.socket.read_exact(&mut header).await?;
        Ok(header)
    }

    async fn receive(&mut self, length: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; length];
        self.socket.read_exact(&mut bytes).await?;
        Ok(bytes)
    }

    /// An error that says when the process ended, and with which status if that is known already.
    fn ended(&mut self, when: &str) -> io::Error {
        let status = self.process.child.as_mut().and_then(|child| child.try_wait().ok().flatten());
        io::Error::other(match status {
            Some(status) => format!("it ended {when} ({status})"),
            None => format!("it ended {when}"),
        })
    }
}
