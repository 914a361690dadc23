//! Another program that splits connections, in place of Tandem's proxy.

use crate::{LabError, host::Host};
use std::{any::Any, fmt, io, sync::Arc};

/// Keeps a program running until it is dropped.
pub type RunningProgram = Box<dyn Any + Send + Sync>;

type StartProgram = dyn Fn(&Host) -> io::Result<RunningProgram> + Send + Sync;

/// Starts another proxy program on a host: its firewall rules, its routes, and the program.
///
/// The program must split every connection that crosses the host, whichever end opens it. It must
/// be ready when the function returns, and end when the returned value is dropped.
#[derive(Clone)]
pub struct OtherProxy(Arc<StartProgram>);

impl OtherProxy {
    /// A program that `start` starts.
    pub fn new(start: impl Fn(&Host) -> io::Result<RunningProgram> + Send + Sync + 'static) -> Self {
        OtherProxy(Arc::new(start))
    }

    pub(crate) fn start(&self, host: &Host) -> Result<RunningProgram, LabError> {
        (self.0)(host).map_err(|why| LabError::System { what: "start the other proxy program", why })
    }
}

impl fmt::Debug for OtherProxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OtherProxy")
    }
}
