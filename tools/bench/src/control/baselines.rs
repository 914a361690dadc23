//! The kernel's own controllers, called from BPF: what Tandem's are measured against. Each is a controller of BPF whose callbacks do
//! nothing but call the kernel's, so that the kernel counts both with the same clock. And a program that does nothing: what the kernel
//! counts of it is what counting itself adds.

use anyhow::{Context as _, Result};
use libbpf_rs::{Link, MapCore as _, MapType, ObjectBuilder};

/// One of them, in the kernel for as long as this lives.
pub(super) struct BpfBaseline {
    /// What the kernel calls its own.
    pub(super) name: &'static str,
    _registration: Link,
}

/// The program that does nothing, at every segment that comes in, for as long as this lives.
pub(super) struct EmptyProgram {
    _attached: [Link; 2],
}

/// What the kernel calls its program.
pub(super) const EMPTY_PROGRAM: &str = "tb_empty";

macro_rules! object {
    ($name:literal) => {
        include_bytes!(concat!(env!("OUT_DIR"), "/", $name, ".bpf.o"))
    };
}
const OBJECTS: [(&str, &[u8]); 3] = [("cubic", object!("cubic")), ("reno", object!("reno")), ("bbr", object!("bbr"))];

impl EmptyProgram {
    pub(super) fn attach() -> Result<Self> {
        let attempt = || -> libbpf_rs::Result<Link> {
            let object = ObjectBuilder::default().open_memory(object!("empty"))?.load()?;
            let program = object.progs_mut().next();
            program.expect("the object has one").attach()
        };
        let cure = "this kernel lets no program look at its TCP (the tracepoint tcp_probe): it takes CONFIG_BPF_EVENTS";
        // Twice: the first finds the clock and its memory cold, as callbacks do not. The second is the newest of its name, which counts.
        Ok(EmptyProgram { _attached: [attempt().context(cure)?, attempt().context(cure)?] })
    }
}

impl BpfBaseline {
    /// All that this kernel has. BBR's callback has changed with Linux 6.10 and may be a module: it is no condition.
    pub(super) fn all() -> Result<Vec<Self>> {
        let mut all = Vec::new();
        for (name, object) in OBJECTS {
            match BpfBaseline::load(name, object) {
                Ok(yardstick) => all.push(yardstick),
                Err(why) if name == "bbr" => eprintln!("the kernel's bbr is left out: {why:#}"),
                Err(why) => return Err(why),
            }
        }
        Ok(all)
    }

    fn load(name: &'static str, object: &[u8]) -> Result<Self> {
        let cure = || {
            format!(
                "this kernel's {name} can't be called from BPF: it takes CONFIG_TCP_CONG_{} (a module must be loaded: `modprobe tcp_{name}`)",
                name.to_uppercase()
            )
        };
        let attempt = || -> libbpf_rs::Result<Link> {
            let mut object = ObjectBuilder::default().open_memory(object)?.load()?;
            let registration = object.maps_mut().find(|map| map.map_type() == MapType::StructOps);
            registration.expect("every yardstick has one").attach_struct_ops()
        };
        Ok(BpfBaseline { name, _registration: attempt().with_context(cure)? })
    }

    /// What a socket calls it.
    pub(super) fn control(&self) -> String {
        format!("tb_{}", self.name)
    }

    /// What its registration is called.
    pub(super) fn ops(&self) -> String {
        format!("tb_ops_{}", self.name)
    }
}
