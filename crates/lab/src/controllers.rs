//! Tandem's controllers of a scenario's legs, in the kernel with the scenario's tunables.

use kernel::{Controller, LoadedController};
use outcome::EngineError;
use scenario::{ControllerSetting, Scenario, WebClient, WebTable};

/// Keeps the controllers of all legs loaded. The proxies find them loaded and use them as they are.
pub(crate) struct LegControllers {
    /// The sender's controller by the name that the kernel knows.
    pub sender: String,
    /// The same for each group of flows.
    pub groups: Vec<String>,
    /// The same for each group of TCP cross traffic.
    pub cross_groups: Vec<String>,
    /// The same for both ends of each page, and then of each exchange.
    pub web: Vec<String>,
    _loaded: Vec<LoadedController>,
}

impl LegControllers {
    /// Loads Tandem's controllers among those of the legs with all tunables of the scenario, so
    /// that a controller that another program has loaded with other tunables is an error.
    pub(crate) fn load(scenario: &Scenario) -> Result<Self, EngineError> {
        let (settings, groups, cross) = (scenario.leg_settings(), scenario.sender_settings(), scenario.cross_sender_settings());
        let web: Vec<ControllerSetting> = scenario.web_settings().into_iter().map(|(_, setting)| setting).collect();
        let load = |setting: &ControllerSetting| {
            let ours = kernel::resolve(&setting.name)?;
            Some(load(ours, setting))
        };
        let loaded: Vec<LoadedController> =
            settings.iter().chain(&groups).chain(&cross).chain(&web).filter_map(load).collect::<Result<_, _>>()?;
        Ok(LegControllers {
            sender: in_kernel(&settings[0].name),
            groups: groups.iter().map(|group| in_kernel(&group.name)).collect(),
            web: web.iter().map(|table| in_kernel(&table.name)).collect(),
            cross_groups: cross.iter().map(|group| in_kernel(&group.name)).collect(),
            _loaded: loaded,
        })
    }
}

impl LegControllers {
    /// The controller of both ends of a client in a scenario with this number of pages.
    pub(crate) fn of_web_client(&self, client: &WebClient, pages: usize) -> String {
        let table = match client.table() {
            WebTable::Page(page) => page,
            WebTable::Exchange(exchange) => pages + exchange,
        };
        self.web[table].clone()
    }
}

/// The name by which the kernel knows a controller.
fn in_kernel(name: &str) -> String {
    kernel::resolve(name).map_or_else(|| name.to_owned(), |ours| format!("td_{}", ours.name()))
}

fn load(ours: Controller, setting: &ControllerSetting) -> Result<LoadedController, EngineError> {
    let failed = |error: String| EngineError::Failed(error);
    let tuned = ours.tuned(&setting.pairs()).map_err(|error| failed(error.to_string()))?;
    let all: Vec<(String, u32)> = ours.tunables().map(|tunable| tunable.name.to_owned()).zip(tuned.values().iter().copied()).collect();
    kernel::load(ours.name(), &all).map_err(|error| failed(error.to_string()))
}

/// Refuses tunables that this kernel cannot give to the controllers: those of its own ones, and two
/// sets for the same controller, which all of its connections share.
pub(crate) fn check_tunables(scenario: &Scenario) -> Result<(), EngineError> {
    let (legs, mut settings) = (scenario.leg_settings().len(), scenario.leg_settings());
    settings.extend(scenario.sender_settings());
    let groups = settings.len();
    settings.extend(scenario.cross_sender_settings());
    let cross_groups = settings.len();
    let (web_keys, web): (Vec<String>, Vec<ControllerSetting>) = scenario.web_settings().into_iter().unzip();
    settings.extend(web);
    for (leg, setting) in settings.iter().enumerate() {
        let key = match leg {
            0 => "control.sender".into(),
            _ if leg < legs => "control.proxy".into(),
            _ if leg < groups => format!("flow[{}].control", leg - legs + 1),
            _ if leg < cross_groups => format!("cross_flow[{}].control", leg - groups + 1),
            _ => web_keys[leg - cross_groups].clone(),
        };
        let Some(ours) = kernel::resolve(&setting.name) else {
            if setting.tunables.is_empty() {
                continue;
            }
            let name = &setting.name;
            return EngineError::cannot(
                "lab",
                key,
                format!("this kernel's own {name:?} has no tunables: write \"td_{name}\" for Tandem's"),
            );
        };
        let other = settings[..leg].iter().find(|other| kernel::resolve(&other.name) == Some(ours) && other.tunables != setting.tunables);
        if let Some(other) = other {
            let why = format!(
                "\"{setting}\" has other tunables than \"{other}\" on another leg: in a kernel all connections share a controller's"
            );
            return EngineError::cannot("lab", key, why);
        }
    }
    Ok(())
}
