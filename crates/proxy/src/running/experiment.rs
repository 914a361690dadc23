//! The experiment of a running proxy, and what it tells of its configuration file.

use super::Proxy;
use crate::{
    config::ProxyConfig,
    error::ChangeError,
    experiment::{ExperimentView, Results, RunningExperiment},
    gate::GateCommand,
};
use intercept::OpenError;
use std::{
    path::PathBuf,
    sync::{MutexGuard, PoisonError},
};

impl Proxy {
    /// Notes the configuration file that the program reads again for a reload.
    pub fn set_config_file(&self, file: PathBuf) {
        *self.config_file.lock().unwrap_or_else(PoisonError::into_inner) = Some(file);
    }

    /// The configuration file; none: the program reads none.
    pub fn config_file(&self) -> Option<PathBuf> {
        self.config_file.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Starts the experiment of the configuration, if there is one, from these results on.
    pub(super) fn measure(&self, results: Results) -> Result<(), OpenError> {
        let config = self.config();
        let share = config.experiment.filter(|_| self.gate.is_some());
        let experiment =
            share.map(|share| RunningExperiment::start(share, config.compared_settings(), results, self.relayed.clone())).transpose();
        *self.experiment() = experiment.map_err(OpenError::system("start the thread that measures connections"))?;
        Ok(())
    }

    pub(super) fn experiment(&self) -> MutexGuard<'_, Option<RunningExperiment>> {
        self.experiment.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the experiment has shown so far; none: no experiment is configured.
    pub fn experiment_view(&self) -> Option<ExperimentView> {
        self.experiment().as_ref().map(RunningExperiment::view)
    }

    /// Follows a new configuration. What was measured with other settings is forgotten.
    pub(super) fn change_experiment(&self, before: &ProxyConfig, now: &ProxyConfig) -> Result<(), ChangeError> {
        let Some(answer) = self.ask_gate(|reply| GateCommand::Experiment(now.experiment, reply)) else { return Ok(()) };
        let has_changed = answer??;
        let settings = now.compared_settings();
        let is_other = has_changed || before.compared_settings() != settings;
        let mut running = self.experiment();
        match (now.experiment, &*running) {
            (None, _) => *running = None,
            (Some(share), Some(experiment)) if is_other => experiment.reset(share, settings),
            (Some(_), Some(_)) => {}
            (Some(share), None) => {
                let started = RunningExperiment::start(share, settings, Results::default(), self.relayed.clone());
                *running = Some(started.map_err(ChangeError::Thread)?);
            }
        }
        Ok(())
    }
}
