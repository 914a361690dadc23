//! Plays events to the kernel's build of a controller, without a connection.

use crate::{
    Error, Result, controllers, shared_maps,
    sys::{self, Plain},
};
use control::{Controller, Event, Flow, Link, STATE_WORDS};
use libbpf_rs::{MapCore, MapFlags, MapHandle, Object, ProgramInput};

/// A controller's program, to be told what happened. It is what the kernel runs, compiled from the same header, so that what it
/// decides can be laid beside the native build's.
#[derive(Debug)]
pub struct Replay {
    object: Object,
    memory: MapHandle,
    state: [u64; STATE_WORDS],
}

/// What the program works on.
#[repr(C)]
#[derive(Clone, Copy)]
struct Memory {
    flow: Flow,
    state: [u64; STATE_WORDS],
    link: Link,
    event: Event,
    has_link: u32,
    reserved: u32,
}
impl Plain for Memory {}

impl Replay {
    /// Loads a controller's program for this alone; no connection can use it.
    pub fn new(controller: Controller) -> Result<Replay> {
        let attempt = format!("load the program of {} for a replay", controller.name());
        let _alone = shared_maps::alone();
        let object = shared_maps::load(&attempt, || {
            let mut open = controllers::open(controller)?;
            for mut program in open.progs_mut() {
                let replays = program.name() == "td_replay";
                program.set_autoload(replays);
            }
            for mut map in open.maps_mut() {
                if map.map_type() == libbpf_rs::MapType::StructOps {
                    map.set_autocreate(false).map_err(Error::kernel(&attempt))?;
                }
            }
            Ok(open)
        })?;
        let bss = object.maps().find(|map| map.name().to_string_lossy().ends_with(".bss")).expect("the program has it");
        let memory = MapHandle::try_from(&bss).map_err(Error::kernel(&attempt))?;
        Ok(Replay { object, memory, state: [0; STATE_WORDS] })
    }

    /// Tells it what happened, as [`control::State::step`].
    pub fn step(&mut self, flow: &mut Flow, link: Option<&mut Link>, event: &Event) -> Result<()> {
        let attempt = "replay an event";
        let mut memory = Memory {
            flow: *flow,
            state: self.state,
            link: link.as_deref().copied().unwrap_or_default(),
            event: *event,
            has_link: link.is_some().into(),
            reserved: 0,
        };
        let key = 0u32.to_ne_bytes();
        self.memory.update(&key, sys::bytes_of(&memory), MapFlags::ANY).map_err(Error::kernel(attempt))?;
        let program = self.object.progs_mut().find(|program| program.name() == "td_replay").expect("the object has it");
        program.test_run(ProgramInput::default()).map_err(Error::kernel(attempt))?;
        let bytes = self.memory.lookup(&key, MapFlags::ANY).map_err(Error::kernel(attempt))?.expect("an array has all its values");
        memory = sys::plain_from(&bytes);
        *flow = memory.flow;
        self.state = memory.state;
        if let Some(link) = link {
            *link = memory.link;
        }
        Ok(())
    }

    /// The controller's own words.
    pub fn words(&self) -> &[u64; STATE_WORDS] {
        &self.state
    }
}
