//! The thread that starts picture workers and reaps them.
//!
//! A worker gets a signal when the thread that started it ends, so that none outlives the cache.
//! The threads of the runtime come and go; this one lives as long as the pool.

use crate::shrink::Wish;
use std::{
    ffi::OsString,
    io,
    os::{fd::OwnedFd, unix::net::UnixStream},
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    thread,
    time::Duration,
};
use tokio::sync::oneshot;

/// How often workers that are about to end are looked at.
const REAP: Duration = Duration::from_millis(20);

/// The program that picture workers run. It must call [`crate::picture_worker::run`] with the three
/// numbers that are appended to its arguments: quality, most pixels, seconds of processor time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerProgram {
    /// Path of the program.
    pub program: PathBuf,
    /// Its arguments, but for the last three.
    pub arguments: Vec<OsString>,
}

impl Default for WorkerProgram {
    /// This very program, be it replaced by another version meanwhile, with the argument
    /// `picture-worker`.
    fn default() -> Self {
        WorkerProgram { program: "/proc/self/exe".into(), arguments: vec!["picture-worker".into()] }
    }
}

/// A worker's process, and the cache's end of its socket.
pub(crate) type Started = (Child, UnixStream);

enum Order {
    Start(oneshot::Sender<io::Result<Started>>),
    End(Child),
}

/// The way to the thread, which ends with the last of its users.
#[derive(Debug, Clone)]
pub(crate) struct Starter(Sender<Order>);

impl Starter {
    pub(crate) fn new(program: WorkerProgram, wish: Wish, cpu_seconds: u64) -> Self {
        let (orders, received) = channel();
        let numbers = [u64::from(wish.quality), wish.most_pixels, cpu_seconds];
        let started = thread::Builder::new().name("tandem-workers".into()).spawn(move || serve(&received, &program, numbers));
        if let Err(why) = started {
            tracing::error!("cannot start the thread that starts picture workers, so that pictures pass unchanged: {why}");
        }
        Starter(orders)
    }

    /// Starts a process.
    pub(crate) async fn start(&self) -> io::Result<Started> {
        let gone = || io::Error::other("the thread that starts them has ended");
        let (answer, answered) = oneshot::channel();
        self.0.send(Order::Start(answer)).map_err(|_| gone())?;
        answered.await.map_err(|_| gone())?
    }

    /// Kills a process and reaps it.
    pub(crate) fn end(&self, child: Child) {
        // When the thread has ended, so has the process.
        let _ = self.0.send(Order::End(child));
    }
}

fn serve(orders: &Receiver<Order>, program: &WorkerProgram, numbers: [u64; 3]) {
    let mut ending: Vec<Child> = Vec::new();
    loop {
        let order = if ending.is_empty() { orders.recv().map_err(RecvTimeoutError::from) } else { orders.recv_timeout(REAP) };
        match order {
            Ok(Order::Start(answer)) => {
                if let Err(Ok((child, _))) = answer.send(start(program, numbers)) {
                    // Who asked for it does not wait any longer.
                    end(child, &mut ending);
                }
            }
            Ok(Order::End(child)) => end(child, &mut ending),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
        }
        ending.retain_mut(|child| matches!(child.try_wait(), Ok(None)));
    }
    // They have been killed.
    for mut child in ending {
        let _ = child.wait();
    }
}

fn end(mut child: Child, ending: &mut Vec<Child>) {
    match child.kill() {
        Ok(()) => ending.push(child),
        // It ends all the same, once it finds its socket closed.
        Err(why) => tracing::debug!("cannot kill picture worker {}: {why}", child.id()),
    }
}

/// Starts a process in an empty directory that is removed at once, with nothing of this one's
/// environment and only a socket besides /dev/null.
fn start(program: &WorkerProgram, numbers: [u64; 3]) -> io::Result<Started> {
    let nowhere = tempfile::tempdir()?;
    let (ours, theirs) = UnixStream::pair()?;
    ours.set_nonblocking(true)?;
    let child = Command::new(&program.program)
        .args(&program.arguments)
        .args(numbers.map(|number| number.to_string()))
        .env_clear()
        .current_dir(&nowhere)
        .stdin(OwnedFd::from(theirs))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|why| io::Error::new(why.kind(), format!("{}: {why}", program.program.display())))?;
    Ok((child, ours))
}
