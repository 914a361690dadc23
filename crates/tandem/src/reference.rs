//! `tandem reference`: writes the reference pages of the documentation and the JSON Schemas, from
//! the definitions in the code. Hidden, since only developers of Tandem need it.

mod metrics_page;
mod schema_keys;
mod schema_page;

use crate::{CommandError, ExitStatus};
use clap::Args;
use report::PlainTable;
pub(crate) use schema_keys::SchemaKeys;
pub(crate) use schema_page::wrap_at;
use schema_page::{PathStyle, SchemaPage};
use std::{fs, path::PathBuf};

/// Write the reference pages and JSON Schemas into a directory
#[derive(Debug, Args)]
pub(crate) struct ReferenceCommand {
    /// Directory for the pages: docs/reference of the sources
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

impl ReferenceCommand {
    pub(crate) fn run(self) -> Result<(), CommandError> {
        let failed = |path: &PathBuf, why| CommandError::Failed(format!("cannot write the reference page {}: {why}", path.display()));
        fs::create_dir_all(&self.directory).map_err(|why| failed(&self.directory, why))?;
        for (name, text) in pages() {
            let path = self.directory.join(name);
            fs::write(&path, text).map_err(|why| failed(&path, why))?;
        }
        Ok(())
    }
}

/// Returns the files and their names.
fn pages() -> Vec<(&'static str, String)> {
    let (scenario, proxy, outcome) = (scenario::schema(), proxy::config_schema(), outcome::schema());
    let pretty = |schema: &schemars::Schema| serde_json::to_string_pretty(schema).expect("a schema has only text keys") + "\n";
    let page = |title, introduction, style, schema: &schemars::Schema| {
        SchemaPage { title, introduction, style, schema: schema.as_value() }.markdown()
    };
    vec![
        ("scenario.schema.json", pretty(&scenario)),
        ("proxy.schema.json", pretty(&proxy)),
        ("outcome.schema.json", pretty(&outcome)),
        ("scenario.md", page("Keys of a scenario file", SCENARIO, PathStyle::Toml, &scenario)),
        ("proxy.md", page("Keys of the proxy's configuration file", PROXY, PathStyle::Toml, &proxy)),
        ("outcome.md", page("Fields of an outcome", OUTCOME, PathStyle::Json, &outcome) + &numbers()),
        ("metrics.md", metrics_page::markdown(&proxy::metrics::reference(), &cache::metrics::reference())),
        ("exit-status.md", exit_status()),
    ]
}

const SCENARIO: &str = "Every key of a scenario file. [Scenarios](../scenarios.md) explains them, and lists the keys that each engine supports. \
An editor that checks TOML against a JSON Schema can use [scenario.schema.json](scenario.schema.json), for example after the comment \
`#:schema` and its path in the first line of the file.";

const PROXY: &str = "Every key of the file of `tandem proxy -c FILE`. [Operation](../operation.md#the-configuration-file) shows a whole \
file and explains it. The JSON Schema is [proxy.schema.json](proxy.schema.json).";

const OUTCOME: &str = "Every field of what `tandem run --json` prints: a list of outcomes, one for each engine, case and seed. Names are \
stable. A field that does not always have a value is either absent or null, as its description says. [Outcomes](../outcome.md) has the \
JSON of the other commands. The JSON Schema is [outcome.schema.json](outcome.schema.json).";

/// Returns the section on the numbers that are derived from an outcome.
fn numbers() -> String {
    let names: Vec<String> = outcome::NUMBERS.iter().map(|name| format!("`{name}`")).collect();
    let text = format!("`ci95`, the claims of papers and tables name these numbers of an outcome: {}.", names.join(", "));
    format!("\n## Numbers\n\n{}", schema_page::wrap(&text))
}

fn exit_status() -> String {
    let rows: Vec<Vec<String>> =
        ExitStatus::ALL.iter().map(|status| vec![(*status as u8).to_string(), status.meaning().to_owned()]).collect();
    let introduction = "The exit status of every command of `tandem`. A run exits with 0 even if the machine could not keep up: its outcome then \
                        has `\"valid\": false` and a warning.";
    schema_page::head("Exit status", introduction) + "\n" + &PlainTable::new(&["status", "meaning"], rows).markdown()
}
