//! Verdicts on packet traces.

use crate::{errors::value_error, interruptible::interruptible};
use detect::{CaptureFile, FindingOptions, TraceConditions, TraceError};
use pyo3::prelude::*;
use std::{
    path::PathBuf,
    sync::{Arc, atomic::AtomicBool},
};

/// The findings about each connection as JSON, as `tandem detect trace --json` prints them.
#[pyfunction]
#[pyo3(signature = (*, sender, receivers, synchronised_s, ack_delay_s, series))]
pub(crate) fn trace(
    py: Python<'_>,
    sender: Option<PathBuf>,
    receivers: Vec<PathBuf>,
    synchronised_s: Option<f64>,
    ack_delay_s: Option<f64>,
    series: bool,
) -> PyResult<String> {
    let known = TraceConditions { synchronised_s, ack_delay_s };
    let findings = || -> Result<_, TraceError> {
        let sender = sender.as_deref().map(CaptureFile::read).transpose()?;
        let receivers = receivers.iter().map(|path| CaptureFile::read(path)).collect::<Result<Vec<_>, _>>()?;
        Ok(detect::findings(sender.as_ref(), &receivers, &FindingOptions { known, series }))
    };
    let findings = interruptible(py, &Arc::new(AtomicBool::new(false)), findings)?.map_err(value_error)?;
    serde_json::to_string(&findings).map_err(value_error)
}
