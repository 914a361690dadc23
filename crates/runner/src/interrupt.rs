//! SIGINT and SIGTERM as a flag.

use std::sync::{Arc, atomic::AtomicBool};

/// A flag that SIGINT and SIGTERM set. A second signal ends the process at once, with status 130:
/// what it leaves behind in the kernel goes with its namespaces or is cleared by the next start.
pub fn interrupt_flag() -> Arc<AtomicBool> {
    let flag = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        let _ = signal_hook::flag::register_conditional_shutdown(signal, 130, flag.clone());
        let _ = signal_hook::flag::register(signal, flag.clone());
    }
    flag
}
