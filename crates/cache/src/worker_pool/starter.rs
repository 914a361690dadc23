//! The thread that starts picture workers and reaps them.
//!
//! A worker is killed when the thread that started it ends (`PR_SET_PDEATHSIG`), so that none
//! outlives the cache. Threads of the runtime end at any time; this one lives as long as the pool.

use crate::shrink::ShrinkOptions;
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

/// How often killed workers are checked for their end.
const REAP_INTERVAL: Duration = Duration::from_millis(20);

/// The program of the picture workers. It must call [`crate::picture_worker::run`] with the three
/// numbers that are appended to its arguments: quality (1 to 100), pixels at most, processor time
/// (seconds).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerProgram {
    /// Path of the program.
    pub program: PathBuf,
    /// Its arguments, without the three numbers.
    pub arguments: Vec<OsString>,
}

impl Default for WorkerProgram {
    /// The running program, even if its file has been replaced meanwhile, with the argument
    /// `picture-worker`.
    fn default() -> Self {
        WorkerProgram { program: "/proc/self/exe".into(), arguments: vec!["picture-worker".into()] }
    }
}

/// A started worker.
pub(crate) struct StartedWorker {
    pub(crate) child: Child,
    /// The cache's end of its socket.
    pub(crate) socket: UnixStream,
}

enum StarterCommand {
    Start(oneshot::Sender<io::Result<StartedWorker>>),
    Kill(Child),
}

/// A handle to the thread. The thread ends with the last handle.
#[derive(Debug, Clone)]
pub(crate) struct Starter(Sender<StarterCommand>);

impl Starter {
    /// Starts the thread. Workers get these options and may use `cpu_seconds` of processor time.
    pub(crate) fn new(program: WorkerProgram, options: ShrinkOptions, cpu_seconds: u64) -> Self {
        let (commands, received) = channel();
        let numbers = [u64::from(options.quality), options.most_pixels, cpu_seconds];
        let started = thread::Builder::new().name("tandem-workers".into()).spawn(move || serve(&received, &program, numbers));
        if let Err(why) = started {
            tracing::error!("cannot start the thread that starts picture workers, so that all pictures pass unchanged: {why}");
        }
        Starter(commands)
    }

    /// Starts a worker process.
    ///
    /// # Errors
    /// When the process cannot be started, or the thread has ended.
    pub(crate) async fn start(&self) -> io::Result<StartedWorker> {
        let gone = || io::Error::other("the thread that starts picture workers has ended");
        let (reply, replied) = oneshot::channel();
        self.0.send(StarterCommand::Start(reply)).map_err(|_| gone())?;
        replied.await.map_err(|_| gone())?
    }

    /// Kills a process and reaps it.
    pub(crate) fn kill(&self, child: Child) {
        // If the thread has ended, the kernel has killed the process.
        let _ = self.0.send(StarterCommand::Kill(child));
    }
}

/// The thread: executes commands until all handles are gone, then reaps what is left.
fn serve(commands: &Receiver<StarterCommand>, program: &WorkerProgram, numbers: [u64; 3]) {
    let mut killed: Vec<Child> = Vec::new();
    loop {
        let command =
            if killed.is_empty() { commands.recv().map_err(RecvTimeoutError::from) } else { commands.recv_timeout(REAP_INTERVAL) };
        match command {
            Ok(StarterCommand::Start(reply)) => {
                if let Err(Ok(StartedWorker { child, .. })) = reply.send(start(program, numbers)) {
                    // The requester has given up.
                    kill(child, &mut killed);
                }
            }
            Ok(StarterCommand::Kill(child)) => kill(child, &mut killed),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
        }
        killed.retain_mut(|child| matches!(child.try_wait(), Ok(None)));
    }
    for mut child in killed {
        let _ = child.wait();
    }
}

fn kill(mut child: Child, killed: &mut Vec<Child>) {
    match child.kill() {
        Ok(()) => killed.push(child),
        // It ends by itself once it finds its socket closed.
        Err(why) => tracing::debug!("cannot kill picture worker {}: {why}", child.id()),
    }
}

/// Starts a process in an empty directory that is removed at once, without environment variables,
/// with a socket as standard input and otherwise only /dev/null.
fn start(program: &WorkerProgram, numbers: [u64; 3]) -> io::Result<StartedWorker> {
    let empty_directory = tempfile::tempdir()?;
    let (socket, worker_socket) = UnixStream::pair()?;
    socket.set_nonblocking(true)?;
    let child = Command::new(&program.program)
        .args(&program.arguments)
        .args(numbers.map(|number| number.to_string()))
        .env_clear()
        .current_dir(&empty_directory)
        .stdin(OwnedFd::from(worker_socket))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|why| io::Error::new(why.kind(), format!("{}: {why}", program.program.display())))?;
    Ok(StartedWorker { child, socket })
}
