//! Own controllers, as `tandem control build` makes them.

use crate::common::scenario;
use control::{Artefact, Event, EventKind, FlowState, Manifest};
use outcome::{Engine as _, EngineError};
use sim::Sim;
use std::{
    fs,
    mem::{offset_of, size_of},
    path::Path,
};

/// Writes a controller that leaves the window as it is, and reads a null pointer at events of this
/// kind. Returns its file.
fn failing_at(directory: &Path, name: &str, kind: EventKind) -> String {
    // The program's argument (register 1) is the flow, followed by the event.
    let [kind_low, kind_high] = u16::try_from(size_of::<FlowState>() + offset_of!(Event, kind)).unwrap().to_le_bytes();
    let instructions: [[u8; 8]; 4] = [
        // r0 = *(u32 *)(r1 + kind)
        [0x61, 0x10, kind_low, kind_high, 0, 0, 0, 0],
        // if (r0 != KIND) goto exit
        [0x55, 0x00, 1, 0, kind as u8, 0, 0, 0],
        // r0 = *(u64 *)(r2 + 0), and r2 is null
        [0x79, 0x20, 0, 0, 0, 0, 0, 0],
        // exit
        [0x95, 0x00, 0, 0, 0, 0, 0, 0],
    ];
    let simulated = instructions.concat();
    let manifest = Manifest { name: name.into(), simulated_bytes: simulated.len(), object_bytes: 1, ..Manifest::of_this_version() };
    let file = directory.join(name).with_extension(control::ARTEFACT_ENDING);
    fs::write(&file, Artefact { manifest, simulated, object: vec![0] }.to_bytes()).unwrap();
    file.to_str().unwrap().into()
}

/// How a run of this scenario ends.
fn end_of(text: &str) -> Result<(), String> {
    match Sim::default().run(&scenario(text), 1, &()) {
        Ok(_) => Ok(()),
        Err(EngineError::Failed(why)) => Err(why),
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn a_controller_whose_program_fails_ends_the_run_with_an_error() {
    let directory = tempfile::tempdir().unwrap();
    for (name, kind) in [("at_init", EventKind::Init), ("at_loss", EventKind::Loss), ("at_undo", EventKind::Undo)] {
        let file = failing_at(directory.path(), name, kind);
        let control = format!("[control]\nsender = {file:?}\n[[flow]]\nbytes = \"300kB\"\n");
        let in_series = format!("{control}[[link]]\nrate = \"10Mbit\"\ndelay = \"10ms\"\nloss = {{ per_packet = 0.05 }}\n");
        let network = "[[network]]\nrate = \"5Mbit\"\ndelay = \"2ms\"\nloss = { per_packet = 0.05 }\n";
        let in_parallel = format!("{control}{network}{network}[bond]\nscheduler = \"score\"\n");
        for text in [in_series, in_parallel] {
            // Without reordering no reduction is undone.
            match end_of(&text) {
                Ok(()) => assert_eq!(name, "at_undo"),
                Err(why) => {
                    assert_ne!(name, "at_undo", "{why}");
                    assert!(why.contains(&file) && why.contains("null pointer") && why.contains("build it again"), "{why}");
                }
            }
        }
    }
}
