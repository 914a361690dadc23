//! The binary: a file for each subcommand, which parses arguments, calls the crates below, and prints.

// Use `out!` and `outln!` below: `print!` panics where the reader has closed the pipe.
#![warn(clippy::print_stdout)]

/// Prints to standard output. A closed pipe (`tandem … | head`) is neither a failure nor a panic.
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
mod cache;
mod check;
mod control;
mod demo;
mod detect;
mod doctor;
mod evidence;
mod flows;
mod lab;
mod manual;
mod output;
mod paper;
mod probe;
mod proxy;
mod reference;
mod run;
mod runs;
mod service;
mod watchdog;

use clap::{Parser, Subcommand};
use std::{fmt, process::ExitCode};

/// Splits TCP connections where that helps, and tells where it helps.
///
/// Exit status: 0 done, 1 failed, 2 wrong usage or a wrong file, 3 cannot tell.
#[derive(Debug, Parser)]
#[command(name = "tandem", version, max_term_width = 110)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// One satellite link, with and without the proxy
    Demo(demo::Demo),
    /// Plays a scenario file
    Run(run::Run),
    Paper(paper::Paper),
    Advise(advise::Advise),
    /// Splits the connections that come to this machine
    Proxy(Box<proxy::Proxy>),
    #[command(subcommand)]
    Bond(bond::Bond),
    Flows(flows::Flows),
    Bypass(flows::Bypass),
    Cache(Box<cache::Cache>),
    #[command(hide = true)]
    PictureWorker(cache::PictureWorker),
    Control(control::Control),
    Detect(detect::Detect),
    /// Holds a scenario's network up, to try real programs in it
    Lab(lab::Lab),
    /// What this machine can do, and the cure for what it can't
    Doctor(doctor::Doctor),
    Completions(manual::Completions),
    #[command(name = "man")]
    Manual(manual::Manual),
    #[command(hide = true)]
    Reference(reference::Reference),
}

/// An exit status of the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Status {
    Done = 0,
    Failed = 1,
    Usage = 2,
    CannotTell = 3,
}

impl Status {
    pub(crate) const ALL: [Status; 4] = [Status::Done, Status::Failed, Status::Usage, Status::CannotTell];

    /// What it means, for the documentation.
    pub(crate) fn meaning(self) -> &'static str {
        match self {
            Status::Done => "done",
            Status::Failed => "failed: something was tried and did not work",
            Status::Usage => "wrong usage, or a wrong file",
            Status::CannotTell => "cannot tell: no engine answers the file as it is written, or the traces show too little",
        }
    }
}

/// Why a command failed; each kind has its exit status.
#[derive(Debug)]
pub(crate) enum Failure {
    /// It was tried and failed: status 1.
    Failed(String),
    /// The command line or a file is wrong: status 2.
    Usage(String),
    /// There is no answer: status 3.
    CannotTell(String),
    /// This status; the message has been printed already.
    Silent(u8),
}

impl Failure {
    fn status(&self) -> u8 {
        match self {
            Failure::Failed(_) => Status::Failed as u8,
            Failure::Usage(_) => Status::Usage as u8,
            Failure::CannotTell(_) => Status::CannotTell as u8,
            Failure::Silent(status) => *status,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Failed(text) | Failure::Usage(text) | Failure::CannotTell(text) => f.write_str(text),
            Failure::Silent(_) => Ok(()),
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
        // The subscriber reports failures to write to stderr with a macro that panics if that write fails, too.
        .log_internal_errors(false)
        .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
        .init();
    let done = match arguments.command {
        Command::Demo(command) => command.run(),
        Command::Run(command) => command.run(),
        Command::Paper(command) => command.run(),
        Command::Advise(command) => command.run(),
        Command::Proxy(command) => command.run(),
        Command::Bond(command) => command.run(),
        Command::Flows(command) => command.run(),
        Command::Bypass(command) => command.run(),
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
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            let text = failure.to_string();
            if !text.is_empty() {
                use std::io::Write as _;
                // If stderr cannot be written to, there is still the exit status.
                let _ = writeln!(std::io::stderr(), "tandem: {text}");
            }
            ExitCode::from(failure.status())
        }
    }
}
