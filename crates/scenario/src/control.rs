//! The controllers of a scenario's legs, and their tunables.

use control::{Controller, TunableError};
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, de::Error as _};
use std::{collections::BTreeMap, fmt, str::FromStr};
use toml_file::Fault;

/// Congestion controllers by name, or own ones by the path of their file (`"./my.ctl"`). Tandem's and
/// own controllers can have tunables after the name: `"mpcp,law=1,kappa_milli=500"`; `tandem control
/// list` shows them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Control {
    /// Controller of the first leg, or of the whole path if nothing is split. With networks in
    /// parallel: of all connections.
    #[serde(default = "cubic")]
    pub sender: String,
    /// Controller of the following legs: one name for all, or a list with one for each `[[split]]`.
    #[serde(default = "cubics", deserialize_with = "one_or_many")]
    #[schemars(with = "OneOrMany", default = "cubic")]
    pub proxy: Vec<String>,
    /// Tunables of Tandem's controllers on every leg that uses them, by controller:
    /// `tunables.mpcp.law = 1`. Those after a controller's name prevail. In this form `--set` sweeps
    /// them: `--set control.tunables.mpcp.law=0,1`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub tunables: BTreeMap<String, BTreeMap<String, u32>>,
}

fn cubic() -> String {
    "cubic".into()
}

fn cubics() -> Vec<String> {
    vec![cubic()]
}

impl Default for Control {
    fn default() -> Self {
        Control { sender: cubic(), proxy: cubics(), tunables: BTreeMap::new() }
    }
}

/// The forms that [`one_or_many`] reads.
#[derive(JsonSchema)]
#[serde(untagged)]
#[allow(dead_code)]
enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

fn one_or_many<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    let not_a_name = || D::Error::custom("is not the name of a controller, such as \"bbr\", or a list of names, one for each [[split]]");
    match toml::Value::deserialize(deserializer)? {
        toml::Value::String(name) => Ok(vec![name]),
        toml::Value::Array(names) if !names.is_empty() => {
            names.into_iter().map(|name| name.as_str().map(str::to_owned).ok_or_else(not_a_name)).collect()
        }
        _ => Err(not_a_name()),
    }
}

/// A controller and the tunables that a scenario sets: `"mpcp,law=1"`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ControllerSetting {
    /// Name of the controller.
    pub name: String,
    /// Tunables by name, with their values.
    pub tunables: BTreeMap<String, u32>,
}

impl FromStr for ControllerSetting {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut parts = text.split(',');
        let name = parts.next().unwrap_or_default().trim().to_owned();
        let setting = |part: &str| {
            let (tunable, value) = part.split_once('=')?;
            Some((tunable.trim().to_owned(), value.trim().parse().ok()?))
        };
        let tunables: Result<BTreeMap<String, u32>, String> = parts
            .map(|part| {
                setting(part)
                    .ok_or_else(|| format!("has {part:?} after the name of a controller: expected TUNABLE=NUMBER, as in \"mpcp,law=1\""))
            })
            .collect();
        Ok(ControllerSetting { name, tunables: tunables? })
    }
}

impl fmt::Display for ControllerSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        self.tunables.iter().try_for_each(|(name, value)| write!(f, ",{name}={value}"))
    }
}

impl ControllerSetting {
    /// The tunables in the form that [`Controller::tuned`] takes.
    pub fn pairs(&self) -> Vec<(String, u32)> {
        self.tunables.iter().map(|(name, value)| (name.clone(), *value)).collect()
    }
}

impl Control {
    /// The sender's controller without its tunables.
    pub fn sender_name(&self) -> &str {
        bare(&self.sender)
    }

    /// A leg's controller from its text, with its tunables: those of [`Control::tunables`], then those
    /// of the text. `Control::check` has excluded texts of another form.
    pub(crate) fn setting(&self, text: &str) -> ControllerSetting {
        let own = text.parse().unwrap_or_else(|_| ControllerSetting { name: text.into(), tunables: BTreeMap::new() });
        let ours = Controller::named(&own.name);
        let of_this = |name: &str| ours.is_some() && Controller::named(name) == ours;
        let shared = self.tunables.iter().filter(|(name, _)| of_this(name)).flat_map(|(_, tunables)| tunables.clone());
        ControllerSetting { name: own.name, tunables: shared.chain(own.tunables).collect() }
    }

    pub(crate) fn check(&self) -> Result<(), Fault> {
        let texts = std::iter::once(("control.sender".to_owned(), &self.sender));
        for (key, text) in texts.chain(self.proxy.iter().map(|text| ("control.proxy".to_owned(), text))) {
            check_text(key, text)?;
        }
        self.tunables.iter().try_for_each(|(name, tunables)| check_tunables(format!("control.tunables.{name}"), name, tunables))
    }
}

/// Checks the text of a controller, that of `key`.
pub(crate) fn check_text(key: String, text: &str) -> Result<(), Fault> {
    let setting: ControllerSetting = text.parse().map_err(|why: String| Fault::new(key.clone(), why))?;
    if setting.tunables.is_empty() { Ok(()) } else { check_tunables(key, &setting.name, &setting.tunables) }
}

/// The name in a controller's text.
pub(crate) fn bare(text: &str) -> &str {
    text.split(',').next().unwrap_or_default().trim()
}

fn check_tunables(key: String, name: &str, tunables: &BTreeMap<String, u32>) -> Result<(), Fault> {
    let Some(controller) = Controller::find(name).map_err(|why| Fault::new(key.clone(), why.to_string()))? else {
        let ours = Controller::available_names();
        let message = format!("sets tunables of {name:?}, but only Tandem's controllers have some: {}", ours.join(", "));
        return Err(Fault::new(key, message));
    };
    let settings: Vec<(&String, u32)> = tunables.iter().map(|(name, value)| (name, *value)).collect();
    controller.tuned(&settings).map(drop).map_err(|why: TunableError| Fault::new(key, why.to_string()))
}

#[cfg(test)]
mod tests {
    use crate::{Assignment, ScenarioFile};

    const PATH: &str = "name = \"x\"\n[[link]]\nrate = \"1Gbit\"\ndelay = \"1ms\"\n[[link]]\nrate = \"10Mbit\"\ndelay = \"20ms\"\n\
        [[split]]\nafter = 1\n[[flow]]\nbytes = \"1MB\"\n";

    /// The legs' controllers with `text` and changes, in each variant.
    fn controls(text: &str, sets: &[&str]) -> Result<Vec<Vec<String>>, String> {
        let file = ScenarioFile::parse(&format!("{PATH}{text}"), "x").map_err(|error| error.to_string())?;
        let sets: Vec<Assignment> = sets.iter().map(|set| set.parse().unwrap()).collect();
        let variants = file.variants(&sets).map_err(|error| error.to_string())?;
        let texts = |variant: &crate::Variant| variant.scenario.leg_settings().iter().map(ToString::to_string).collect();
        Ok(variants.iter().map(texts).collect())
    }

    #[test]
    fn tunables_follow_a_name_or_stand_in_a_table() {
        let both = "[control]\nproxy = \"td_mpcp,law=1\"\n[control.tunables.mpcp]\nlaw = 2\nkappa_milli = 500\n";
        assert_eq!(controls(both, &[]).unwrap(), [["cubic", "td_mpcp,kappa_milli=500,law=1"]]);
        // Those of a controller that no leg uses are without effect.
        assert_eq!(controls("[control.tunables.hybla]\nper_ack = 1\n", &[]).unwrap(), [["cubic", "cubic"]]);
    }

    #[test]
    fn tunables_are_swept_from_the_command_line() {
        let swept = controls("[control]\nproxy = \"mpcp\"\n", &["control.tunables.mpcp.law=0,1"]).unwrap();
        assert_eq!(swept, [["cubic", "mpcp,law=0"], ["cubic", "mpcp,law=1"]]);
        let swept = controls("", &["control.proxy=mpcp,law=1,rtt_scaling=1,xcp,mpcp"]).unwrap();
        assert_eq!(swept, [["cubic", "mpcp,law=1,rtt_scaling=1"], ["cubic", "xcp"], ["cubic", "mpcp"]]);
    }

    #[test]
    fn wrong_tunables_are_refused_with_a_list_of_those_that_exist() {
        let wrong = |proxy: &str| controls(&format!("[control]\nproxy = \"{proxy}\"\n"), &[]).unwrap_err();
        let list = "its tunables are beta_milli (100 to 999, default 500)";
        assert!(wrong("reno,beta=3").contains(&format!("control.proxy: reno has no tunable \"beta\"; {list}")), "{}", wrong("reno,beta=3"));
        assert!(wrong("reno,beta_milli=3").contains(&format!("beta_milli of reno cannot be 3; {list}")));
        assert!(wrong("reno,beta_milli").contains("has \"beta_milli\" after the name of a controller: expected TUNABLE=NUMBER"));
        assert!(wrong("htcp,x=3").contains("only Tandem's controllers have some: reno, cubic"));
        let table = controls("[control.tunables.mpcp]\nlaw = 3\n", &[]).unwrap_err();
        assert!(table.contains("control.tunables.mpcp: law of mpcp cannot be 3; its tunables are law (0 to 2, default 0)"), "{table}");
        assert!(controls("", &["control.tunables.mpcp.law=3"]).unwrap_err().contains("law of mpcp cannot be 3"));
    }
}
