//! Where the capacity of a leg's link comes from: the configuration, a file that a modem's program
//! keeps up to date, or an estimate of what the link delivers.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer};
use std::{
    borrow::Cow,
    fmt, fs,
    io::{self, Read as _},
    path::{Path, PathBuf},
    str::FromStr,
    time::SystemTime,
};
use toml_file::text_or_table;
use units::{Rate, UnitError};

/// The capacity of a leg's egress link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CapacitySource {
    /// A fixed rate, in IP bits a second.
    Rate(Rate),
    /// Estimated by `share` from what all flows of the link deliver.
    Auto,
    /// A file with the present rate. It is read again and again.
    File(PathBuf),
}

/// Why a file gives no capacity.
#[derive(Debug, thiserror::Error)]
#[error("cannot take the capacity from {}: {why}; {cure}", .path.display())]
pub struct CapacityFileError {
    /// The file.
    pub path: PathBuf,
    /// The reason.
    pub why: String,
    /// The cure.
    pub cure: &'static str,
}

/// The long form of a capacity.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct CapacityKeys {
    /// File with the link's present rate, as a modem's program writes it: `8.5Mbit`, or a number of
    /// bit/s of at least 100000. The first line counts that is not empty and does not begin with `#`.
    /// The file is read twice a second. While it cannot be used, the last rate stays.
    file: PathBuf,
}

/// More than this is not read.
const MAX_BYTES: u64 = 4096;
/// A smaller number without a unit was meant in kbit/s or Mbit/s. The rate of a link that is as slow
/// is written with its unit.
const LEAST_NUMBER: u64 = 100_000;
const WRITE: &str = "have the modem's program write a rate such as 8.5Mbit, or bit/s as a number";

impl CapacitySource {
    /// The rate at present; `None` if it is estimated.
    ///
    /// # Errors
    /// The file cannot be read, or has no rate.
    pub fn rate(&self) -> Result<Option<Rate>, CapacityFileError> {
        match self {
            CapacitySource::Rate(rate) => Ok(Some(*rate)),
            CapacitySource::Auto => Ok(None),
            CapacitySource::File(path) => read_rate(path).map(Some),
        }
    }

    /// When the file was last modified; none: the capacity is in no file, or it cannot be read.
    pub fn modified(&self) -> Option<SystemTime> {
        match self {
            CapacitySource::File(path) => fs::metadata(path).and_then(|data| data.modified()).ok(),
            CapacitySource::Rate(_) | CapacitySource::Auto => None,
        }
    }
}

/// Reads the rate in a file. Never waits: the file must be a regular one.
fn read_rate(path: &Path) -> Result<Rate, CapacityFileError> {
    let fails = |why: String, cure| CapacityFileError { path: path.to_owned(), why, cure };
    let unread = |error: io::Error| {
        let cure = match error.kind() {
            io::ErrorKind::NotFound => "correct the path, or start the program that writes it first",
            io::ErrorKind::PermissionDenied => "let the user that the proxy runs as read it",
            io::ErrorKind::InvalidInput | io::ErrorKind::IsADirectory => {
                "have the modem's program write a file, under a new name, and rename it"
            }
            _ => "see whether it can be read by hand (cat)",
        };
        fails(error.to_string(), cure)
    };
    let mut text = Vec::new();
    files::open(path, u64::MAX).and_then(|file| file.take(MAX_BYTES).read_to_end(&mut text)).map_err(unread)?;
    let text = String::from_utf8_lossy(&text);
    let Some(line) = text.lines().map(str::trim).find(|line| !line.is_empty() && !line.starts_with('#')) else {
        return Err(fails("it is empty".into(), WRITE));
    };
    let line_quoted = || format!("{:?}", files::quotation(line));
    let rate = match line.parse::<f64>() {
        Ok(number) if number > 0.0 && number < LEAST_NUMBER as f64 => {
            let why = format!("{} has no unit, and is too small for bit/s", line_quoted());
            return Err(fails(why, "have the modem's program write the unit, as in 30Mbit, or bit/s as a number"));
        }
        _ => line.parse::<u64>().map(Rate).or_else(|_| line.parse::<Rate>()),
    };
    let rate = rate.map_err(|why: UnitError| fails(files::shorten_quotations(&why.to_string()), WRITE))?;
    if rate.bits_per_s() == 0 { Err(fails(format!("{} is no capacity", line_quoted()), "have it write a rate above 0")) } else { Ok(rate) }
}

impl FromStr for CapacitySource {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(CapacitySource::Auto),
            _ if !text.contains(|c: char| c.is_ascii_digit()) => Err(format!(
                "cannot be {text:?}: write the link's rate such as \"10Mbit\", \"auto\" to have it estimated, or {{ file = \"PATH\" }}"
            )),
            _ => text.parse().map(CapacitySource::Rate).map_err(|error: UnitError| error.to_string()),
        }
    }
}

impl fmt::Display for CapacitySource {
    /// As in a configuration file.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CapacitySource::Rate(rate) => write!(f, "\"{rate}\""),
            CapacitySource::Auto => f.write_str("\"auto\""),
            CapacitySource::File(path) => write!(f, "{{ file = {:?} }}", path.display().to_string()),
        }
    }
}

impl TryFrom<CapacityKeys> for CapacitySource {
    type Error = String;

    fn try_from(keys: CapacityKeys) -> Result<Self, String> {
        if keys.file.as_os_str().is_empty() {
            return Err("file is empty: write the path of the file that has the rate".into());
        }
        Ok(CapacitySource::File(keys.file))
    }
}

impl<'de> Deserialize<'de> for CapacitySource {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let expected = "a rate such as \"10Mbit\", \"auto\", or { file = \"PATH\" }";
        text_or_table::<D, CapacitySource, CapacityKeys>(deserializer, expected, str::parse)
    }
}

impl JsonSchema for CapacitySource {
    fn schema_name() -> Cow<'static, str> {
        "CapacitySource".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let text = json_schema!({ "type": "string", "title": "a rate or \"auto\"", "examples": ["10Mbit"] });
        json_schema!({ "anyOf": [text, CapacityKeys::json_schema(generator)] })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(text: &str) -> Result<Rate, CapacityFileError> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("rate");
        fs::write(&path, text).unwrap();
        read_rate(&path)
    }

    #[test]
    fn a_file_has_a_rate_with_a_unit_or_a_number_of_bits() {
        assert_eq!(with("8.5Mbit\n").unwrap(), Rate(8_500_000));
        assert_eq!(with("# ACM\n\n  1200000  \n9Mbit\n").unwrap(), Rate(1_200_000));
        assert_eq!((with("100000\n").unwrap(), with("30bit\n").unwrap()), (Rate(100_000), Rate(30)));
    }

    #[test]
    fn a_file_without_a_rate_says_so_and_names_the_cure() {
        let said = |text: &str| with(text).unwrap_err().to_string();
        assert!(said("").ends_with(": it is empty; have the modem's program write a rate such as 8.5Mbit, or bit/s as a number"));
        assert!(said("0\n").contains("\"0\" is no capacity; have it write a rate above 0"));
        for small in ["30\n", "0.5\n", "8500\n", "99999\n"] {
            let expected = format!(
                "{:?} has no unit, and is too small for bit/s; have the modem's program write the unit, as in 30Mbit",
                small.trim()
            );
            assert!(said(small).contains(&expected), "{}", said(small));
        }
        let other = said(&format!("{}\n", "root:x:0:0:".repeat(100)));
        assert!(other.contains(&format!("\"{}…\"", &"root:x:0:0:".repeat(9)[..40])) && other.len() < 300, "{other}");
        assert!(said("8.5M\n").contains("ambiguous unit \"M\""), "{}", said("8.5M\n"));
        let missing = read_rate(Path::new("/nonexistent/rate")).unwrap_err().to_string();
        assert!(missing.starts_with("cannot take the capacity from /nonexistent/rate: No such file"), "{missing}");
        assert!(missing.ends_with("; correct the path, or start the program that writes it first"), "{missing}");
        let directory = read_rate(Path::new("/")).unwrap_err().to_string();
        assert!(directory.contains("is a directory; have the modem's program write a file"), "{directory}");
        let device = read_rate(Path::new("/dev/zero")).unwrap_err().to_string();
        assert!(device.contains("it is not a regular file, but a device"), "{device}");
    }

    #[test]
    fn a_profile_has_a_rate_auto_or_a_file() {
        let profile = |text: &str| toml::from_str::<crate::LegProfile>(text).map(|profile| profile.capacity.unwrap());
        assert_eq!(profile("capacity = \"10Mbit\"").unwrap(), CapacitySource::Rate(Rate(10_000_000)));
        assert_eq!(profile("capacity = \"auto\"").unwrap(), CapacitySource::Auto);
        assert_eq!(profile("capacity = { file = \"/run/modem\" }").unwrap(), CapacitySource::File("/run/modem".into()));
        assert!(profile("capacity = \"Auto\"").unwrap_err().to_string().contains("\"auto\" to have it estimated"));
        assert!(profile("capacity = { path = \"/run/modem\" }").is_err());
        let flag: crate::LegProfile = "control=share,capacity={file=\"/run/modem\"},link=eth0".parse().unwrap();
        assert_eq!(flag.capacity, Some(CapacitySource::File("/run/modem".into())));
    }
}
