//! Detects kernel features from the kernel's type information (BTF), never from its version.

use crate::{Error, Result};
use libbpf_rs::btf::{
    Btf, ReferencesType as _,
    types::{Enum, FuncProto, Ptr, Struct},
};
use std::{path::Path, sync::OnceLock};

const BTF: &str = "/sys/kernel/btf/vmlinux";

/// Features that differ between kernels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Features {
    /// struct_ops programs can implement a congestion control (Linux 5.6).
    pub(crate) struct_ops: bool,
    /// A struct_ops registration is a BPF link, and ends with its last descriptor (Linux 6.4).
    pub(crate) links: bool,
    /// Number of arguments of `cong_control`: 2, or 4 from Linux 6.10 on.
    pub(crate) cong_control_arguments: u32,
    /// Programs attach to the egress of one interface by a BPF link (tcx, Linux 6.6).
    pub(crate) tcx: bool,
}

/// The features of this kernel. Fails without BTF.
pub(crate) fn features() -> Result<Features> {
    static FOUND: OnceLock<Features> = OnceLock::new();
    if !Path::new(BTF).exists() {
        return Err(Error::NoBtf);
    }
    if let Some(found) = FOUND.get() {
        return Ok(*found);
    }
    let btf = Btf::from_vmlinux().map_err(Error::kernel(format!("read this kernel's type information ({BTF})")))?;
    Ok(*FOUND.get_or_init(|| Features::of(&btf)))
}

impl Features {
    fn of(btf: &Btf<'_>) -> Features {
        let has_struct = |name| btf.type_by_name::<Struct<'_>>(name).is_some();
        let attach_types = btf.type_by_name::<Enum<'_>>("bpf_attach_type");
        Features {
            struct_ops: has_struct("bpf_struct_ops_tcp_congestion_ops"),
            links: has_struct("bpf_struct_ops_link"),
            cong_control_arguments: cong_control_arguments(btf).unwrap_or(4),
            tcx: attach_types.is_some_and(|all| all.iter().any(|one| one.name.is_some_and(|name| name == "BPF_TCX_EGRESS"))),
        }
    }
}

/// Number of arguments of `tcp_congestion_ops.cong_control`, a pointer to a function.
fn cong_control_arguments(btf: &Btf<'_>) -> Option<u32> {
    let operations = btf.type_by_name::<Struct<'_>>("tcp_congestion_ops")?;
    let member = operations.iter().find(|member| member.name.is_some_and(|name| name == "cong_control"))?;
    let pointer: Ptr<'_> = btf.type_by_id(member.ty)?;
    let function: FuncProto<'_> = pointer.referenced_type().try_into().ok()?;
    u32::try_from(function.len()).ok()
}
