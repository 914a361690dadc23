//! Baselines for Tandem's controllers: the kernel's own controllers, registered from BPF. Their
//! callbacks only call the kernel's functions, so the kernel counts both kinds with the same clock.
//! A program that does nothing shows what counting itself adds.

use anyhow::{Context as _, Result};
use libbpf_rs::{Link, MapCore as _, MapType, ObjectBuilder};

/// A controller of the kernel, registered from BPF until dropped.
pub(super) struct BpfBaseline {
    /// The kernel's name for it.
    pub(super) name: &'static str,
    _registration: Link,
}

/// A program that does nothing, attached to each received segment until dropped.
pub(super) struct EmptyProgram {
    _attached: [Link; 2],
}

/// Name of that program in the kernel.
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
        let cure = "cannot attach a BPF program to the tracepoint tcp_probe: it needs a kernel with CONFIG_BPF_EVENTS";
        // Attached twice: the first one finds clock and memory cold, which callbacks do not. The
        // second is the newest of its name and is counted.
        Ok(EmptyProgram { _attached: [attempt().context(cure)?, attempt().context(cure)?] })
    }
}

impl BpfBaseline {
    /// All controllers that this kernel has. BBR is optional: its callback changed in Linux 6.10,
    /// and it may be a module.
    pub(super) fn all() -> Result<Vec<Self>> {
        let mut all = Vec::new();
        for (name, object) in OBJECTS {
            match BpfBaseline::load(name, object) {
                Ok(baseline) => all.push(baseline),
                Err(why) if name == "bbr" => eprintln!("the kernel's bbr is left out: {why:#}"),
                Err(why) => return Err(why),
            }
        }
        Ok(all)
    }

    fn load(name: &'static str, object: &[u8]) -> Result<Self> {
        let cure = || {
            format!(
                "cannot call this kernel's {name} from BPF: it needs a kernel with CONFIG_TCP_CONG_{} (load a module first: `modprobe tcp_{name}`)",
                name.to_uppercase()
            )
        };
        let attempt = || -> libbpf_rs::Result<Link> {
            let mut object = ObjectBuilder::default().open_memory(object)?.load()?;
            let registration = object.maps_mut().find(|map| map.map_type() == MapType::StructOps);
            registration.expect("every baseline has one").attach_struct_ops()
        };
        Ok(BpfBaseline { name, _registration: attempt().with_context(cure)? })
    }

    /// Name for the socket option.
    pub(super) fn control(&self) -> String {
        format!("tb_{}", self.name)
    }

    /// Name of its registration.
    pub(super) fn ops(&self) -> String {
        format!("tb_ops_{}", self.name)
    }
}
