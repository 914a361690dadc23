//! `tandem control`: congestion controllers in this kernel.

use crate::{Failure, output};
use clap::{Args, Subcommand};
use control::Controller;
use kernel::{ControllerStatus, ControllerUser, Error};
use report::{Alignment, TextColumn, TextStyle, TextTable};
use serde::Serialize;

/// The width of the list where the output is no terminal.
const DEFAULT_WIDTH: usize = 140;

/// Congestion controllers in this kernel, beside its own: any program may use them (`iperf3 -C td_hybla`)
#[derive(Debug, Args)]
pub(crate) struct Control {
    #[command(subcommand)]
    what: What,
    /// Prints JSON
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Prints all there are: what they are, which are in the kernel, who uses them, how they are tuned
    List,
    /// Puts controllers into the kernel, where they stay until they are unloaded or the machine starts anew
    Load {
        #[arg(value_name = "NAME", required = true)]
        names: Vec<String>,
        /// Sets a tunable (`tandem control list` has them): hybla.rtt0_us=50000
        #[arg(long, value_name = "NAME.TUNABLE=VALUE", value_parser = setting)]
        set: Vec<Setting>,
    },
    /// Takes controllers out of the kernel; connections that use one keep it until they end
    Unload {
        #[arg(value_name = "NAME", required = true)]
        names: Vec<String>,
    },
}

#[derive(Debug, Clone)]
struct Setting {
    controller: String,
    tunable: String,
    value: u32,
}

fn setting(text: &str) -> Result<Setting, String> {
    let wrong = || format!("{text:?} sets nothing: write NAME.TUNABLE=VALUE, such as hybla.rtt0_us=50000");
    let (name, value) = text.split_once('=').ok_or_else(wrong)?;
    let (controller, tunable) = name.trim().split_once('.').ok_or_else(wrong)?;
    let value = value.trim().parse().map_err(|_| format!("{value:?} is no whole number from 0 to {}", u32::MAX))?;
    Ok(Setting { controller: controller.trim_start_matches("td_").into(), tunable: tunable.into(), value })
}

/// A controller, as the list has it.
#[derive(Debug, Serialize)]
struct Row {
    name: String,
    what: &'static str,
    /// `no`, `loaded` (it stays), or `held` (by a running program, with which it goes).
    in_kernel: &'static str,
    connections: usize,
    users: Vec<String>,
    tunables: Vec<Tuned>,
}

#[derive(Debug, Serialize)]
struct Tuned {
    name: &'static str,
    value: u32,
    default: u32,
    what: &'static str,
}

impl Control {
    pub(crate) fn run(self) -> Result<(), Failure> {
        match self.what {
            What::List => {
                let rows = rows().map_err(failed)?;
                if self.json {
                    outln!("{}", serde_json::to_string(&rows).unwrap_or_default());
                } else {
                    out!("{}", table(&rows).render(Some(output::width().unwrap_or(DEFAULT_WIDTH))));
                }
                Ok(())
            }
            What::Load { names, set } => load(&names, &set),
            What::Unload { names } => unload(&names),
        }
    }
}

/// What is wrong with the question is the asker's; the rest failed.
fn failed(error: Error) -> Failure {
    match error {
        Error::Unknown { .. } | Error::Tunable { .. } => Failure::Usage(error.to_string()),
        other => Failure::Failed(other.to_string()),
    }
}

fn load(names: &[String], settings: &[Setting]) -> Result<(), Failure> {
    if let Some(stray) = settings.iter().find(|setting| !names.iter().any(|name| name.trim_start_matches("td_") == setting.controller)) {
        let text = format!("--set {}.{}: {} is not among those to be loaded", stray.controller, stray.tunable, stray.controller);
        return Err(Failure::Usage(text));
    }
    for name in names {
        let bare = name.trim_start_matches("td_");
        let of_this = settings.iter().filter(|setting| setting.controller == bare);
        let tunables: Vec<_> = of_this.map(|setting| (setting.tunable.clone(), setting.value)).collect();
        let mut held = kernel::load(bare, &tunables).map_err(failed)?;
        held.pin().map_err(failed)?;
        outln!("td_{bare} is in this kernel");
    }
    Ok(())
}

fn unload(names: &[String]) -> Result<(), Failure> {
    for name in names {
        let bare = name.trim_start_matches("td_");
        let users = kernel::controller_users(&format!("td_{bare}"));
        kernel::unload(bare).map_err(failed)?;
        outln!("td_{bare} is out of this kernel");
        for user in &users {
            outln!("  {} keeps it until {} over", who(user), if user.connections == 1 { "that is" } else { "those are" });
        }
    }
    Ok(())
}

fn who(user: &ControllerUser) -> String {
    let connections = match user.connections {
        1 => "a connection".to_owned(),
        many => format!("{many} connections"),
    };
    match &user.process {
        Some((pid, name)) => format!("{connections} of {name} ({pid})"),
        None => format!("{connections} of no process"),
    }
}

fn rows() -> Result<Vec<Row>, Error> {
    let loaded = kernel::list()?;
    Ok(Controller::all().map(|controller| row(controller, loaded.iter().find(|it| it.controller.name() == controller.name()))).collect())
}

fn row(controller: Controller, loaded: Option<&ControllerStatus>) -> Row {
    let name = format!("td_{}", controller.name());
    let users = kernel::controller_users(&name);
    let value = |at: usize, default: u32| loaded.and_then(|loaded| loaded.tunables.get(at)).copied().unwrap_or(default);
    let tuned = |(at, tunable): (usize, control::Tunable)| Tuned {
        name: tunable.name,
        value: value(at, tunable.default),
        default: tunable.default,
        what: tunable.text,
    };
    Row {
        what: controller.description(),
        in_kernel: match loaded {
            None => "no",
            Some(loaded) if loaded.pinned => "loaded",
            Some(_) => "held",
        },
        connections: users.iter().map(|user| user.connections).sum(),
        users: users.iter().map(who).collect(),
        tunables: controller.tunables().enumerate().map(tuned).collect(),
        name,
    }
}

fn table(rows: &[Row]) -> TextTable {
    let heads = ["name", "what", "in kernel", "used by", "tunables"];
    let mut table = TextTable::new(TextStyle::Open, heads.map(|head| TextColumn::new(head, Alignment::Left)).into());
    for row in rows {
        let tunables = row.tunables.iter().map(|it| format!("{}={}", it.name, it.value)).collect::<Vec<_>>().join(" ");
        table.push(vec![row.name.clone(), row.what.into(), row.in_kernel.into(), row.users.join(", "), tunables]);
    }
    table
}
