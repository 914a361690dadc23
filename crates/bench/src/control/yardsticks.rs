//! The kernel's own controllers, called from BPF: what Tandem's are measured against. Each is a controller of BPF whose callbacks do
//! nothing but call the kernel's, so that the kernel counts both with the same clock.

use anyhow::{Context as _, Result};
use libbpf_rs::{Link, MapCore as _, MapType, ObjectBuilder};

/// One of them, in the kernel for as long as this lives.
pub(super) struct Yardstick {
    /// What the kernel calls its own.
    pub(super) name: &'static str,
    _registration: Link,
}

macro_rules! objects {
    ($($name:literal),*) => {
        [$(($name, include_bytes!(concat!(env!("OUT_DIR"), "/", $name, ".bpf.o")).as_slice())),*]
    };
}
const OBJECTS: [(&str, &[u8]); 3] = objects!["cubic", "reno", "bbr"];

impl Yardstick {
    /// All that this kernel has. Without cubic there is nothing to measure against, and without Reno nothing to tell what counting adds.
    pub(super) fn all() -> Result<Vec<Self>> {
        let mut all = Vec::new();
        for (name, object) in OBJECTS {
            match Yardstick::load(name, object) {
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
                "this kernel's {name} can't be called from BPF: it takes Linux 6.10 or newer with CONFIG_TCP_CONG_{}",
                name.to_uppercase()
            )
        };
        let attempt = || -> libbpf_rs::Result<Link> {
            let mut object = ObjectBuilder::default().open_memory(object)?.load()?;
            let registration = object.maps_mut().find(|map| map.map_type() == MapType::StructOps);
            registration.expect("every yardstick has one").attach_struct_ops()
        };
        Ok(Yardstick { name, _registration: attempt().with_context(cure)? })
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
