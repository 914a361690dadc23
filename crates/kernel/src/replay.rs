//! Runs the BPF build of a controller on given events, without a connection.

use crate::{
    Error, Result, controllers, shared_maps,
    sys::{self, Plain},
};
use control::{Controller, Event, FlowState, LinkRecord, MOST_STATE_WORDS, TunedController};
use libbpf_rs::{MapCore, MapFlags, MapHandle, Object, ProgramInput};

/// The BPF build of a controller, to which events are given. Its decisions can be compared with
/// those of the native build of the same header.
#[derive(Debug)]
pub struct Replay {
    controller: Controller,
    object: Object,
    memory: MapHandle,
    state: [u64; MOST_STATE_WORDS],
}

/// The program's variables (`td_replayed`).
#[repr(C)]
#[derive(Clone, Copy)]
struct Memory {
    flow: FlowState,
    state: [u64; MOST_STATE_WORDS],
    link: LinkRecord,
    event: Event,
    has_link: u32,
    reserved: u32,
}
impl Plain for Memory {}

impl Replay {
    /// Loads the program of a controller with its tunables for replay only; connections cannot use it.
    ///
    /// # Errors
    /// As [`load`](crate::load).
    pub fn new(tuned: TunedController) -> Result<Replay> {
        let controller = tuned.controller();
        let attempt = format!("load the program of {} for replay", controller.name());
        let _lock = shared_maps::lock();
        let object = shared_maps::load(&attempt, || {
            let mut open = controllers::open(controller)?;
            controllers::set_tunables(&mut open, tuned.values());
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
        let bss = object.maps().find(|map| map.name().to_string_lossy().ends_with(".bss")).expect("the object has a .bss");
        let memory = MapHandle::try_from(&bss).map_err(Error::kernel(&attempt))?;
        Ok(Replay { controller, object, memory, state: [0; MOST_STATE_WORDS] })
    }

    /// Gives it an event, as [`control::ControllerState::step`].
    ///
    /// # Errors
    /// When the kernel does not run the program.
    pub fn step(&mut self, flow: &mut FlowState, link: Option<&mut LinkRecord>, event: &Event) -> Result<()> {
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
        let program = self.object.progs_mut().find(|program| program.name() == "td_replay").expect("the object has td_replay");
        program.test_run(ProgramInput::default()).map_err(Error::kernel(attempt))?;
        let bytes = self.memory.lookup(&key, MapFlags::ANY).map_err(Error::kernel(attempt))?.expect("an array map has all its values");
        memory = sys::plain_from(&bytes);
        *flow = memory.flow;
        self.state = memory.state;
        if let Some(link) = link {
            *link = memory.link;
        }
        Ok(())
    }

    /// The controller's own state.
    pub fn words(&self) -> &[u64] {
        &self.state[..self.controller.state_words()]
    }
}
