//! Reads the object of `own_simulated.c`: the program for the simulator, and the controller's
//! description.

use control::{Manifest, ManifestTunable};
use elf::{ElfBytes, abi, endian::AnyEndian};

/// The sections of the object.
const PROGRAM: &str = "td_step";
const DESCRIPTION: &str = "td_description";
/// Sizes of the texts in `struct td_description`.
const NAME_BYTES: usize = 32;
const TEXT_BYTES: usize = 256;

/// The program for the simulator, and the controller's description as the header has it: without
/// its name and versions.
pub(crate) struct Description {
    pub(crate) program: Vec<u8>,
    pub(crate) manifest: Manifest,
    /// Hash of both: identifies the build.
    pub(crate) build: String,
}

/// Reads an object.
///
/// # Errors
/// What the header must not have, as the end of a sentence about the controller.
pub(crate) fn read(object: &[u8]) -> Result<Description, String> {
    let malformed = |error: elf::ParseError| format!("was compiled to an object that cannot be read: {error}");
    let elf = ElfBytes::<AnyEndian>::minimal_parse(object).map_err(malformed)?;
    let common = elf.section_headers_with_strtab().map_err(malformed)?;
    let (Some(headers), Some(names)) = common else { return Err("was compiled to an object without sections".into()) };
    let mut sections = [None, None];
    for (index, header) in headers.iter().enumerate() {
        let name = names.get(header.sh_name as usize).map_err(malformed)?;
        for (section, wanted) in sections.iter_mut().zip([PROGRAM, DESCRIPTION]) {
            if name == wanted && header.sh_type == abi::SHT_PROGBITS {
                *section = Some((index as u32, elf.section_data(&header).map_err(malformed)?.0));
            }
        }
    }
    let [Some((program_index, program)), Some((_, description))] = sections else {
        return Err("was compiled to an object without its program".into());
    };
    let has_relocations = |header: elf::section::SectionHeader| {
        matches!(header.sh_type, abi::SHT_REL | abi::SHT_RELA) && header.sh_info == program_index && header.sh_size > 0
    };
    if headers.iter().any(has_relocations) {
        return Err("uses a variable or a table outside of its state, or calls a function that is not inline: keep what changes in \
                    struct td_NAME_state, write constants into expressions, and define functions with TD_INLINE"
            .into());
    }
    Ok(Description { manifest: manifest(description)?, program: program.to_vec(), build: build(&[program, description]) })
}

/// The description (`struct td_description`).
fn manifest(bytes: &[u8]) -> Result<Manifest, String> {
    let mut fields = Fields(bytes);
    let (owns_window, wants, state_bytes, count) = (fields.number()?, fields.number()?, fields.number()?, fields.number()?);
    let text = fields.text(TEXT_BYTES)?;
    let mut tunable = || {
        Ok(ManifestTunable {
            name: fields.text(NAME_BYTES)?,
            default: fields.number()?,
            lowest: fields.number()?,
            highest: fields.number()?,
            text: fields.text(TEXT_BYTES)?,
        })
    };
    let tunables = (0..count).map(|_| tunable()).collect::<Result<Vec<_>, String>>()?;
    Ok(Manifest { text, owns_window: owns_window != 0, wants, state_bytes, tunables, ..Manifest::of_this_version() })
}

/// The fields of a struct, one after the other.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn take(&mut self, bytes: usize) -> Result<&[u8], String> {
        let (taken, rest) = self.0.split_at_checked(bytes).ok_or("has a description that is too short")?;
        self.0 = rest;
        Ok(taken)
    }

    fn number(&mut self) -> Result<u32, String> {
        let bytes = self.take(4)?;
        Ok(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    }

    fn text(&mut self, bytes: usize) -> Result<String, String> {
        let bytes = self.take(bytes)?;
        let Some(end) = bytes.iter().position(|byte| *byte == 0) else {
            let most = bytes.len() - 1;
            let text = String::from_utf8_lossy(bytes).into_owned();
            return Err(format!("has a text that is too long, {text:?}…: at most {most} bytes are possible"));
        };
        String::from_utf8(bytes[..end].to_vec()).map_err(|_| "has a text that is not UTF-8".into())
    }
}

/// Hash of the program and its description, seven digits, as many as the kernel keeps of the name
/// of a section.
fn build(parts: &[&[u8]]) -> String {
    let bytes = parts.iter().copied().flatten();
    let hash = bytes.fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193));
    format!("{:07x}", (hash ^ hash >> 28) & 0x0fff_ffff)
}
