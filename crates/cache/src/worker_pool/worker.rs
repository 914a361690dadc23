//! One picture worker, seen from the cache.

use super::{
    Made,
    starter::{Started, Starter},
};
use crate::{
    picture_protocol::{Header, Hello, Reply, Request},
    shrink::Kind,
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

/// A process that has nothing to do. Dropping it kills it.
#[derive(Debug)]
pub(crate) struct Worker {
    socket: UnixStream,
    process: Process,
    /// How long it has had pictures in all.
    pub(crate) busy: Duration,
}

/// Kills and reaps the process when it is dropped.
#[derive(Debug)]
struct Process {
    child: Option<Child>,
    starter: Starter,
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Some(child) = self.child.take() {
            self.starter.end(child);
        }
    }
}

impl Worker {
    /// Starts one and waits until it is ready.
    pub(crate) async fn start(starter: &Starter) -> io::Result<(Self, Hello)> {
        let (child, socket): Started = starter.start().await?;
        let process = Process { child: Some(child), starter: starter.clone() };
        let mut worker = Worker { socket: UnixStream::from_std(socket)?, process, busy: Duration::ZERO };
        let header = match worker.header().await {
            Err(why) if why.kind() == io::ErrorKind::UnexpectedEof => return Err(worker.ended("before it was ready")),
            other => other?,
        };
        let hello = Hello::decode(header).ok_or_else(|| io::Error::other("its first words make no sense"))?;
        Ok((worker, hello))
    }

    /// Whether it waits for a picture: it has said nothing more, nor ended.
    pub(crate) fn is_ready(&self) -> bool {
        recv(&self.socket, &mut [0; 1][..], RecvFlags::DONTWAIT | RecvFlags::PEEK).is_err_and(|why| why == Errno::AGAIN)
    }

    /// Has a picture made smaller. After an error, or when the future has been dropped, the worker
    /// is of no use any more.
    pub(crate) async fn transcode(&mut self, picture: &[u8], from: Kind, to: Kind) -> io::Result<Made> {
        match self.exchange(picture, from, to).await {
            Err(why) if matches!(why.kind(), io::ErrorKind::UnexpectedEof | io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset) => {
                Err(self.ended("in the middle of it"))
            }
            other => other,
        }
    }

    async fn exchange(&mut self, picture: &[u8], from: Kind, to: Kind) -> io::Result<Made> {
        let request = Request { from, to, length: picture.len() };
        self.socket.write_all(&request.encode()).await?;
        self.socket.write_all(picture).await?;
        let nonsense = || io::Error::other("its answer makes no sense");
        match Reply::decode(self.header().await?, picture.len()).ok_or_else(nonsense)? {
            Reply::Smaller(length) => {
                let small = self.receive(length).await?;
                if to.begins(&small) { Ok(Ok(small)) } else { Err(nonsense()) }
            }
            Reply::Unchanged(length) => {
                let why = self.receive(length).await?;
                // It is logged: what a picture may have put there must not steer a terminal.
                Ok(Err(String::from_utf8_lossy(&why).chars().filter(|letter| !letter.is_control()).collect()))
            }
        }
    }

    async fn header(&mut self) -> io::Result<Header> {
        let mut header = Header::default();
        self.socket.read_exact(&mut header).await?;
        Ok(header)
    }

    async fn receive(&mut self, length: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; length];
        self.socket.read_exact(&mut bytes).await?;
        Ok(bytes)
    }

    /// How it ended, where that is known already.
    fn ended(&mut self, when: &str) -> io::Error {
        let status = self.process.child.as_mut().and_then(|child| child.try_wait().ok().flatten());
        io::Error::other(match status {
            Some(status) => format!("it ended {when} ({status})"),
            None => format!("it ended {when}"),
        })
    }
}
