//! The file of an own controller, `NAME.ctl`: a line of JSON that describes it, then its program
//! for the simulator, then its BPF object for the kernel.

use serde::{Deserialize, Serialize};
use std::{fmt, path::Path};

use crate::{MOST_STATE_WORDS, MOST_TUNABLES};

/// Version of the interface between a controller and its host: a hash of the files that define it.
pub const INTERFACE: &str = env!("TD_INTERFACE");

/// Ending of the name of a controller's file.
pub const ARTEFACT_ENDING: &str = "ctl";

/// Longest name of an own controller: the kernel's names have 15 characters, and begin with `td_`.
const LONGEST_NAME: usize = 12;
/// Largest file that is read.
pub(crate) const MOST_BYTES: u64 = 16 << 20;

/// A built controller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Artefact {
    /// Its description.
    pub manifest: Manifest,
    /// Its program for the simulator: BPF instructions.
    pub simulated: Vec<u8>,
    /// Its BPF object for the kernel.
    pub object: Vec<u8>,
}

/// The description of a built controller.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// Version of this file format.
    pub tandem_controller: u32,
    /// The version of Tandem that built it.
    pub tandem: String,
    /// [`INTERFACE`] of the version that built it.
    pub interface: String,
    /// Layout of the records that the kernel's programs share, in that version.
    pub layout: String,
    /// Identifies the build: a hash of the program.
    pub build: String,
    /// The controller's name.
    pub name: String,
    /// Description, one line.
    pub text: String,
    /// Whether it owns the window.
    pub owns_window: bool,
    /// `td_NAME_WANTS` of its header.
    pub wants: u32,
    /// Size of its state of a flow, bytes.
    pub state_bytes: u32,
    /// Its parameters.
    pub tunables: Vec<ManifestTunable>,
    /// Size of the program for the simulator, bytes.
    pub simulated_bytes: usize,
    /// Size of the BPF object, bytes.
    pub object_bytes: usize,
}

/// A parameter of a built controller.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ManifestTunable {
    /// Its name.
    pub name: String,
    /// Default value.
    pub default: u32,
    /// Lowest value.
    pub lowest: u32,
    /// Highest value.
    pub highest: u32,
    /// Description.
    pub text: String,
}

/// Why a file is not the controller that it should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ArtefactFault {
    /// Another version of the interface, which this version of Tandem built.
    OtherInterface(String),
    /// Not a controller, or a damaged one.
    Damaged(String),
}

impl fmt::Display for ArtefactFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ArtefactFault::OtherInterface(tandem) => {
                let ours = env!("CARGO_PKG_VERSION");
                write!(f, "it was built by Tandem {tandem} for another version of the interface than that of this Tandem {ours}")
            }
            ArtefactFault::Damaged(why) => f.write_str(why),
        }
    }
}

/// The version of the file format.
const FORMAT: u32 = 1;

impl Manifest {
    /// A description in which everything is to be filled in but what this version of Tandem knows.
    pub fn of_this_version() -> Manifest {
        Manifest {
            tandem_controller: FORMAT,
            tandem: env!("CARGO_PKG_VERSION").into(),
            interface: INTERFACE.into(),
            layout: String::new(),
            build: String::new(),
            name: String::new(),
            text: String::new(),
            owns_window: false,
            wants: 0,
            state_bytes: 0,
            tunables: Vec::new(),
            simulated_bytes: 0,
            object_bytes: 0,
        }
    }

    /// Checks the values that a header chooses.
    ///
    /// # Errors
    /// What is wrong, as the end of a sentence about the controller.
    pub fn check(&self) -> Result<(), String> {
        check_name(&self.name)?;
        if self.text.chars().any(char::is_control) {
            return Err("has a description with control characters: write one line of text".into());
        }
        if self.state_bytes as usize > MOST_STATE_WORDS * 8 {
            return Err(format!("has a state of {} bytes: at most {} are possible", self.state_bytes, MOST_STATE_WORDS * 8));
        }
        if self.tunables.len() > MOST_TUNABLES {
            return Err(format!("has {} tunables: at most {MOST_TUNABLES} are possible", self.tunables.len()));
        }
        for tunable in &self.tunables {
            let ManifestTunable { name, default, lowest, highest, text } = tunable;
            if !name.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '_') || name.is_empty() {
                return Err(format!("has a tunable {name:?}: letters, digits and _ are possible, 31 at most"));
            }
            if !(lowest..=highest).contains(&default) {
                return Err(format!("has a tunable {name} whose default {default} is not from {lowest} to {highest}"));
            }
            if text.chars().any(char::is_control) {
                return Err(format!("has a tunable {name} whose text has control characters: write one line"));
            }
        }
        Ok(())
    }
}

/// Checks the name of an own controller.
///
/// # Errors
/// What is wrong, as the end of a sentence about the controller.
pub fn check_name(name: &str) -> Result<(), String> {
    let is_letter = |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '_';
    if name.len() > LONGEST_NAME || !name.starts_with(|first: char| first.is_ascii_lowercase()) || !name.chars().all(is_letter) {
        return Err(format!(
            "cannot be called {name:?}: a name has at most {LONGEST_NAME} characters, lower-case letters, digits and _, and begins with a letter"
        ));
    }
    if name.starts_with("td_") {
        return Err(format!("cannot be called {name:?}: td_ is put before the name in the kernel; leave it out"));
    }
    Ok(())
}

impl Artefact {
    /// The bytes of its file.
    ///
    /// # Panics
    /// Never: a manifest is always valid JSON.
    pub fn to_bytes(&self) -> Vec<u8> {
        let manifest = Manifest { simulated_bytes: self.simulated.len(), object_bytes: self.object.len(), ..self.manifest.clone() };
        let mut bytes = serde_json::to_vec(&manifest).expect("a manifest is valid JSON");
        bytes.push(b'\n');
        bytes.extend_from_slice(&self.simulated);
        bytes.extend_from_slice(&self.object);
        bytes
    }

    /// Reads the file of the controller `name`.
    pub(crate) fn read(bytes: &[u8], name: &str) -> Result<Artefact, ArtefactFault> {
        /// What every version of the format has.
        #[derive(Deserialize)]
        struct Versions {
            tandem_controller: u32,
            tandem: String,
            interface: String,
        }
        let damaged = |why: &str| ArtefactFault::Damaged(why.into());
        let end = bytes.iter().position(|byte| *byte == b'\n').ok_or_else(|| damaged("it is not the file of a controller"))?;
        let (line, rest) = (&bytes[..end], &bytes[end + 1..]);
        let versions: Versions = serde_json::from_slice(line).map_err(|_| damaged("it is not the file of a controller"))?;
        if versions.tandem_controller != FORMAT || versions.interface != INTERFACE {
            return Err(ArtefactFault::OtherInterface(versions.tandem));
        }
        let manifest: Manifest =
            serde_json::from_slice(line).map_err(|error| damaged(&format!("its description cannot be read: {error}")))?;
        manifest.check().map_err(|why| damaged(&format!("it is damaged: the controller {why}")))?;
        if manifest.name != name {
            return Err(damaged(&format!("it is the file of the controller {:?}: call it {0}.{ARTEFACT_ENDING}", manifest.name)));
        }
        if manifest.simulated_bytes.checked_add(manifest.object_bytes) != Some(rest.len()) {
            return Err(damaged("it is damaged: it has not the length that it should have"));
        }
        let (simulated, object) = rest.split_at(manifest.simulated_bytes);
        Ok(Artefact { simulated: simulated.to_vec(), object: object.to_vec(), manifest })
    }
}

/// The name of the controller in a file: that of the file, without its ending.
pub(crate) fn name_of(path: &Path) -> Option<&str> {
    if path.extension()? != ARTEFACT_ENDING {
        return None;
    }
    path.file_stem()?.to_str()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A controller that does nothing.
    pub(crate) fn idle(name: &str) -> Artefact {
        let tunable = ManifestTunable { name: "gain".into(), default: 2, lowest: 1, highest: 3, text: "its gain".into() };
        let manifest = Manifest {
            name: name.into(),
            text: "does nothing".into(),
            state_bytes: 8,
            tunables: vec![tunable],
            simulated_bytes: 8,
            object_bytes: 3,
            ..Manifest::of_this_version()
        };
        Artefact { manifest, simulated: vec![0x95, 0, 0, 0, 0, 0, 0, 0], object: vec![1, 2, 3] }
    }

    #[test]
    fn a_file_is_read_as_it_was_written() {
        let artefact = idle("my");
        assert_eq!(Artefact::read(&artefact.to_bytes(), "my"), Ok(artefact));
    }

    #[test]
    fn other_versions_other_names_and_damaged_files_are_refused() {
        let bytes = idle("my").to_bytes();
        let refused = |bytes: &[u8], name: &str| Artefact::read(bytes, name).unwrap_err().to_string();
        assert!(refused(&bytes, "your").contains("of the controller \"my\""), "{}", refused(&bytes, "your"));
        assert!(refused(&bytes[..bytes.len() - 1], "my").contains("length"));
        assert!(refused(b"#!/bin/sh\nexit\n", "my").contains("is not the file of a controller"));
        let mut other = idle("my");
        other.manifest.interface = "01234567".into();
        other.manifest.tandem = "0.1.9".into();
        assert!(refused(&other.to_bytes(), "my").starts_with("it was built by Tandem 0.1.9 for another version of the interface"));
        let mut other = idle("my");
        other.manifest.tunables[0].default = 4;
        assert!(refused(&other.to_bytes(), "my").contains("whose default 4 is not from 1 to 3"));
        for name in ["", "My", "9th", "a-b", "../my", "averylongname", "td_my"] {
            assert!(check_name(name).is_err(), "{name}");
        }
        assert_eq!(check_name("my_2"), Ok(()));
    }
}
