//! The binary: one file per subcommand, which parses arguments, calls the library crates and
//! prints.

// Use `out!` and `outln!` below: `print!` panics if the reader has closed the pipe.
#![warn(clippy::print_stdout)]

/// Prints to standard output, and ignores a closed pipe (`tandem … | head`).
macro_rules! out {
    ($($what:tt)*) => {{
        use std::io::Write as _;
        let _ = write!(std::io::stdout(), $($what)*);
    }};
}

/// Prints to standard output, with a newline.
macro_rules! outln {
    () => { out!("\n") };
    ($($what:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stdout(), $($what)*);
    }};
}

mod advise;
mod bond;
mod bypass;
mod cache;
mod check;
mod config;
mod control;
mod demo;
mod detect;
mod doctor;
mod end_guard;
mod evidence;
mod experiment;
mod flows;
mod host_interfaces;
mod lab;
mod manager;
mod manual;
mod output;
mod paper;
mod probe;
mod proxy;
mod reference;
mod reload;
mod restart;
mod run;
mod runs;
mod service;
mod setup;
mod signals;
mod test_connection;
mod watchdog;
mod web;

use clap::{Parser, Subcommand};
use std::{fmt, process::ExitCode};

/// Split-TCP proxy, and tools that predict, measure and detect connection splitting
///
/// Exit status: 0 success, 1 failure, 2 usage error or invalid file, 3 no answer (no engine
/// supports the scenario as written, or the evidence does not suffice), 4 no takeover, but a stop and
/// a start would work.
#[derive(Debug, Parser)]
#[command(name = "tandem", version, max_term_width = 110)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Demo(demo::DemoCommand),
    Run(run::RunCommand),
    Paper(paper::PaperCommand),
    Advise(advise::AdviseCommand),
    Proxy(Box<proxy::ProxyCommand>),
    #[command(subcommand)]
    Bond(bond::BondCommand),
    Flows(flows::FlowsCommand),
    Top(flows::TopCommand),
    Bypass(bypass::BypassCommand),
    Experiment(experiment::ExperimentCommand),
    Reload(reload::ReloadCommand),
    Restart(restart::RestartCommand),
    Setup(setup::SetupCommand),
    #[command(subcommand)]
    Config(config::ConfigCommand),
    Cache(Box<cache::CacheCommand>),
    #[command(hide = true)]
    PictureWorker(cache::PictureWorkerCommand),
    Control(control::ControlCommand),
    Detect(detect::DetectCommand),
    Lab(lab::LabCommand),
    Doctor(doctor::DoctorCommand),
    Completions(manual::CompletionsCommand),
    #[command(name = "man")]
    Manual(manual::ManualCommand),
    #[command(hide = true)]
    Reference(reference::ReferenceCommand),
}

/// The exit statuses of the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum ExitStatus {
    Done = 0,
    Failed = 1,
    Usage = 2,
    CannotTell = 3,
    NeedsStart = 4,
}

impl ExitStatus {
    pub(crate) const ALL: [Self; 5] = [Self::Done, Self::Failed, Self::Usage, Self::CannotTell, Self::NeedsStart];

    /// The meaning that the documentation states.
    pub(crate) fn meaning(self) -> &'static str {
        match self {
            ExitStatus::Done => "success",
            ExitStatus::Failed => "failure: an operation was attempted and did not succeed",
            ExitStatus::Usage => "usage error, or an invalid file",
            ExitStatus::CannotTell => {
                "no answer: no engine supports the scenario as written, or the evidence does not suffice for a verdict"
            }
            ExitStatus::NeedsStart => {
                "`tandem restart -c FILE`: the takeover has failed, but this program can use the file, so that a stop and a start would work"
            }
        }
    }
}

/// Why a command failed. Each variant determines the exit status.
#[derive(Debug)]
pub(crate) enum CommandError {
    /// An operation failed: status 1.
    Failed(String),
    /// The command line or a file is invalid: status 2.
    Usage(String),
    /// There is no answer: status 3.
    CannotTell(String),
    /// The proxy cannot be taken over, but stopped and started: status 4.
    NeedsStart(String),
    /// Exit with this status; the message has been printed already.
    Silent(u8),
}

impl CommandError {
    fn status(&self) -> u8 {
        match self {
            CommandError::Failed(_) => ExitStatus::Failed as u8,
            CommandError::Usage(_) => ExitStatus::Usage as u8,
            CommandError::CannotTell(_) => ExitStatus::CannotTell as u8,
            CommandError::NeedsStart(_) => ExitStatus::NeedsStart as u8,
            CommandError::Silent(status) => *status,
        }
    }
}

impl fmt::Display for CommandError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CommandError::Failed(text) | CommandError::Usage(text) | CommandError::CannotTell(text) | CommandError::NeedsStart(text) => {
                f.write_str(text)
            }
            CommandError::Silent(_) => Ok(()),
        }
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::try_from_env("TANDEM_LOG").unwrap_or_else(|_| match arguments.command {
            Command::Proxy(_) | Command::Bond(_) | Command::Cache(_) => "info".into(),
            _ => "error".into(),
        }))
        .with_writer(std::io::stderr)
        .with_target(false)
        // The subscriber reports a failed write to stderr with a macro that panics if that write
        // fails too.
        .log_internal_errors(false)
        .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
        .init();
    let result = match arguments.command {
        Command::Demo(command) => command.run(),
        Command::Run(command) => command.run(),
        Command::Paper(command) => command.run(),
        Command::Advise(command) => command.run(),
        Command::Proxy(command) => command.run(),
        Command::Bond(command) => command.run(),
        Command::Flows(command) => command.run(),
        Command::Top(command) => command.run(),
        Command::Bypass(command) => command.run(),
        Command::Experiment(command) => command.run(),
        Command::Reload(command) => command.run(),
        Command::Restart(command) => command.run(),
        Command::Setup(command) => command.run(),
        Command::Config(command) => command.run(),
        Command::Cache(command) => command.run(),
        Command::PictureWorker(command) => command.run(),
        Command::Control(command) => command.run(),
        Command::Detect(command) => command.run(),
        Command::Lab(command) => command.run(),
        Command::Doctor(command) => command.run(),
        Command::Completions(command) => command.run(),
        Command::Manual(command) => command.run(),
        Command::Reference(command) => command.run(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let text = error.to_string();
            if !text.is_empty() {
                use std::io::Write as _;
                // If stderr is not writable, the exit status still reports the error.
                let _ = writeln!(std::io::stderr(), "tandem: {text}");
            }
            ExitCode::from(error.status())
        }
    }
}
