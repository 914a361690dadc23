//! What the program tells the service manager.

use sd_notify::NotifyState;

/// Notifies the service manager, if there is one.
pub(crate) fn tell_manager(state: &[NotifyState<'_>]) {
    if let Err(why) = sd_notify::notify(state) {
        tracing::warn!("cannot notify the service manager: {why}");
    }
}
