//! A proxy on a host of the lab. Where other programs use the network, it has a control socket, so
//! that `tandem flows` and `tandem top` on that host show it.

use crate::{LabError, host::Host};
use proxy::{
    FlowRecord, Proxy, ProxyConfig, ProxyStartError,
    control::{self, ControlSocket},
    takeover::{ControlEvent, Takeovers},
};
use std::{ops::Deref, sync::Arc};

/// A running proxy. To be dropped inside its host, because it removes its firewall rules there.
#[derive(Debug)]
pub(crate) struct ReachableProxy {
    /// Dropped first: its threads use the proxy.
    _control: Option<ControlSocket>,
    proxy: Arc<Proxy>,
}

impl ReachableProxy {
    /// Starts a proxy on a host, with a control socket of this name if it has one.
    pub(crate) fn start(
        host: &Host,
        config: ProxyConfig,
        name: Option<&str>,
        on_end: impl Fn(FlowRecord) + Send + Sync + 'static,
    ) -> Result<Self, LabError> {
        let started = host.enter(|| {
            let proxy = Arc::new(Proxy::start(config, on_end)?);
            let control = name.map(|name| serve(&proxy, name)).transpose()?.flatten();
            Ok(ReachableProxy { _control: control, proxy })
        });
        started?.map_err(|why: ProxyStartError| LabError::Proxy { host: host.name().into(), why: Box::new(why) })
    }
}

impl Deref for ReachableProxy {
    type Target = Proxy;

    fn deref(&self) -> &Proxy {
        &self.proxy
    }
}

/// A control socket that shows flows; the scenario is the proxy's configuration.
fn serve(proxy: &Arc<Proxy>, name: &str) -> Result<Option<ControlSocket>, ProxyStartError> {
    let takeovers = Takeovers::new(None, Vec::new(), |event| {
        if let ControlEvent::Reload(reply) = event {
            let _ = reply.send(Err("this proxy belongs to a lab: change its scenario, and start the lab again".into()));
        }
    });
    // No process takes over from a lab.
    takeovers.close();
    control::serve(proxy, name, Arc::new(takeovers))
}
