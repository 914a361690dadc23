//! Files that a scenario names.

use crate::{model::Scenario, trace::DeliveryTrace};
use std::{
    collections::BTreeMap,
    fmt,
    io::{self, BufRead},
    sync::{Arc, Mutex, PoisonError},
};
use toml_file::Fault;

/// Opens a file by the name that a scenario gives it.
pub type OpenFile = dyn Fn(&str) -> io::Result<Box<dyn BufRead>> + Send + Sync;

/// The files that a scenario names. Each is read once, for all of the scenario's cases.
#[derive(Clone)]
pub(crate) struct AttachedFiles {
    open: Arc<OpenFile>,
    traces: Arc<Mutex<BTreeMap<String, Arc<DeliveryTrace>>>>,
}

impl AttachedFiles {
    pub(crate) fn new(open: Arc<OpenFile>) -> Self {
        AttachedFiles { open, traces: Arc::default() }
    }

    /// Reads the files that `scenario` names. A link with a trace gets the mean rate of the direction
    /// of the data.
    pub(crate) fn attach_to(&self, scenario: &mut Scenario) -> Result<(), Fault> {
        for (index, link) in scenario.links.iter_mut().enumerate() {
            let Some(trace) = &mut link.trace else { continue };
            for (file, key) in [(&mut trace.down, "down"), (&mut trace.up, "up")] {
                let contents = self.trace(&file.name).map_err(|why| Fault::new(format!("link[{index}].trace.{key}"), why))?;
                file.set(contents);
            }
            if link.rate.0 > 0 {
                let both = "stands beside trace, which determines the rate: leave one of them out";
                return Err(Fault::new(format!("link[{index}].rate"), both.to_owned()));
            }
            link.rate = trace.down.trace().mean_rate();
        }
        Ok(())
    }

    fn trace(&self, name: &str) -> Result<Arc<DeliveryTrace>, String> {
        let mut traces = self.traces.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(trace) = traces.get(name) {
            return Ok(trace.clone());
        }
        let input = (self.open)(name).map_err(|error| format!("cannot open {name:?}: {error}"))?;
        let trace = Arc::new(DeliveryTrace::read(input).map_err(|error| format!("{name}: {error}"))?);
        traces.insert(name.to_owned(), trace.clone());
        Ok(trace)
    }
}

impl fmt::Debug for AttachedFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("AttachedFiles").field(&self.traces).finish()
    }
}
