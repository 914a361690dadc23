//! `tandem control`: Tandem's congestion controllers, and own ones, in this kernel.

mod build;

use crate::{CommandError, output};
use clap::{Args, Subcommand};
use control::{Controller, OwnController};
use kernel::{ControllerStatus, ControllerUser, Error};
use report::{Alignment, TextColumn, TextStyle, TextTable};
use serde::Serialize;
use std::path::Path;

/// Width of the list in characters if the output is not a terminal.
const DEFAULT_WIDTH: usize = 140;

/// Load, unload and list congestion controllers (BPF) in this kernel, and build own ones
///
/// Any program can use a loaded controller by its name: iperf3 -C td_hybla
#[derive(Debug, Args)]
pub(crate) struct ControlCommand {
    #[command(subcommand)]
    action: ControlAction,
    /// Print JSON
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum ControlAction {
    /// List all controllers, whether each is loaded, its connections and its tunables
    List,
    /// Load controllers into the kernel, where they stay until `unload` or a reboot
    Load {
        /// Names of controllers, or paths of own ones: hybla ./my.ctl
        #[arg(value_name = "NAME", required = true)]
        names: Vec<String>,
        /// Set a tunable (`tandem control list` shows them): hybla.rtt0_us=50000
        #[arg(long, value_name = "NAME.TUNABLE=VALUE", value_parser = setting)]
        set: Vec<TunableSetting>,
    },
    /// Unload controllers; connections that use one keep it until they end
    Unload {
        /// Names of controllers: hybla
        #[arg(value_name = "NAME", required = true)]
        names: Vec<String>,
    },
    Build(build::BuildCommand),
    Headers(build::HeadersCommand),
}

#[derive(Debug, Clone)]
struct TunableSetting {
    controller: String,
    tunable: String,
    value: u32,
}

fn setting(text: &str) -> Result<TunableSetting, String> {
    let wrong = || format!("cannot parse the setting {text:?}: expected NAME.TUNABLE=VALUE, such as hybla.rtt0_us=50000");
    let (name, value) = text.split_once('=').ok_or_else(wrong)?;
    let (controller, tunable) = name.trim().split_once('.').ok_or_else(wrong)?;
    let value =
        value.trim().parse().map_err(|_| format!("cannot parse the value {value:?}: expected a whole number from 0 to {}", u32::MAX))?;
    Ok(TunableSetting { controller: controller.trim_start_matches("td_").into(), tunable: tunable.into(), value })
}

/// A row of the list.
#[derive(Debug, Serialize)]
struct ControllerRow {
    name: String,
    what: &'static str,
    /// The file of an own controller.
    file: Option<&'static Path>,
    /// `no`, `loaded` (until `unload`), or `held` (by a running program, until that ends).
    in_kernel: &'static str,
    connections: usize,
    users: Vec<String>,
    tunables: Vec<TunableRow>,
}

#[derive(Debug, Serialize)]
struct TunableRow {
    name: &'static str,
    value: u32,
    default: u32,
    what: &'static str,
}

impl ControlCommand {
    pub(crate) fn run(self) -> Result<(), CommandError> {
        match self.action {
            ControlAction::List => {
                let rows = rows().map_err(failed)?;
                for why in Controller::refused() {
                    eprintln!("tandem: {why}");
                }
                if self.json {
                    outln!("{}", serde_json::to_string(&rows).unwrap_or_default());
                } else {
                    out!("{}", table(&rows).render(Some(output::width().unwrap_or(DEFAULT_WIDTH))));
                }
                Ok(())
            }
            ControlAction::Load { names, set } => load(&names, &set),
            ControlAction::Unload { names } => unload(&names),
            ControlAction::Build(command) => command.run(self.json),
            ControlAction::Headers(command) => command.run(),
        }
    }
}

/// An unknown controller or tunable is a usage error; other errors are failures.
fn failed(error: Error) -> CommandError {
    match error {
        Error::Unknown { .. } | Error::Tunable(_) | Error::Own(_) | Error::OtherLayout { .. } => CommandError::Usage(error.to_string()),
        other => CommandError::Failed(other.to_string()),
    }
}

fn load(names: &[String], settings: &[TunableSetting]) -> Result<(), CommandError> {
    let bare = |name: &String| bare_name(name);
    let names = names.iter().map(bare).collect::<Result<Vec<_>, _>>()?;
    if let Some(stray) = settings.iter().find(|setting| !names.contains(&setting.controller)) {
        let text = format!("--set {}.{}: {} is not one of the controllers to load", stray.controller, stray.tunable, stray.controller);
        return Err(CommandError::Usage(text));
    }
    for bare in &names {
        let of_this = settings.iter().filter(|setting| setting.controller == *bare);
        let tunables: Vec<_> = of_this.map(|setting| (setting.tunable.clone(), setting.value)).collect();
        let mut held = kernel::load(bare, &tunables).map_err(failed)?;
        held.pin().map_err(failed)?;
        outln!("td_{bare} is loaded");
    }
    Ok(())
}

/// The name of a controller without `td_`. The file of an own controller is read, so that its name
/// finds it from then on.
fn bare_name(name: &str) -> Result<String, CommandError> {
    if !name.contains('/') {
        return Ok(name.trim_start_matches("td_").to_owned());
    }
    let found = Controller::find(name).map_err(|why| CommandError::Usage(why.to_string()))?;
    Ok(found.map_or_else(|| name.to_owned(), |controller| controller.name().to_owned()))
}

fn unload(names: &[String]) -> Result<(), CommandError> {
    for name in names {
        let bare = &bare_name(name)?;
        let users = kernel::controller_users(&format!("td_{bare}"));
        kernel::unload(bare).map_err(failed)?;
        outln!("td_{bare} is unloaded");
        for user in &users {
            outln!("  {} still {} it", user_text(user), if user.connections == 1 { "uses" } else { "use" });
        }
    }
    Ok(())
}

/// The connections of a process that use a controller.
fn user_text(user: &ControllerUser) -> String {
    let connections = match user.connections {
        1 => "1 connection".to_owned(),
        many => format!("{many} connections"),
    };
    match &user.process {
        Some((pid, name)) => format!("{connections} of {name} ({pid})"),
        None => format!("{connections} without a process"),
    }
}

fn rows() -> Result<Vec<ControllerRow>, Error> {
    let loaded = kernel::list()?;
    let row_of = |controller: Controller| row(controller, loaded.iter().find(|it| it.controller == controller));
    Ok(Controller::available().into_iter().map(row_of).collect())
}

fn row(controller: Controller, loaded: Option<&ControllerStatus>) -> ControllerRow {
    let name = format!("td_{}", controller.name());
    let users = kernel::controller_users(&name);
    let value = |at: usize, default: u32| loaded.and_then(|loaded| loaded.tunables.get(at)).copied().unwrap_or(default);
    let tuned = |(at, tunable): (usize, control::Tunable)| TunableRow {
        name: tunable.name,
        value: value(at, tunable.default),
        default: tunable.default,
        what: tunable.text,
    };
    ControllerRow {
        what: controller.description(),
        file: controller.own().map(OwnController::file),
        in_kernel: match loaded {
            None => "no",
            Some(loaded) if loaded.pinned => "loaded",
            Some(_) => "held",
        },
        connections: users.iter().map(|user| user.connections).sum(),
        users: users.iter().map(user_text).collect(),
        tunables: controller.tunables().enumerate().map(tuned).collect(),
        name,
    }
}

fn table(rows: &[ControllerRow]) -> TextTable {
    let heads = ["name", "what", "in kernel", "used by", "tunables"];
    let mut table = TextTable::new(TextStyle::Open, heads.map(|head| TextColumn::new(head, Alignment::Left)).into());
    for row in rows {
        let tunables = row.tunables.iter().map(|it| format!("{}={}", it.name, it.value)).collect::<Vec<_>>().join(" ");
        table.push(vec![row.name.clone(), row.what.into(), row.in_kernel.into(), row.users.join(", "), tunables]);
    }
    table
}
