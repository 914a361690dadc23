//! The web servers of a proxy: metrics and the live page.

use clap::Args;
use intercept::{OpenError, parse_address};
use live_page::LivePage;
use proxy::{PageConfig, PageError, Proxy, ProxyConfigError, Service, metrics};
use std::{
    net::{SocketAddr, TcpListener},
    path::PathBuf,
    sync::Arc,
};
use web_server::{Server, Site, parse_host_name};

/// The live page.
#[derive(Debug, Args)]
pub(crate) struct PageArguments {
    /// Serve a live page for a browser at http://ADDRESS:PORT/, which may be the address of the
    /// metrics; off the loopback it needs --page-token
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = parse_address)]
    page: Option<SocketAddr>,
    /// File with the token that a browser must have to see the page, not readable by others
    #[arg(long, value_name = "FILE")]
    page_token: Option<PathBuf>,
    /// Name of this host under which metrics and the page are served, besides its addresses
    #[arg(long = "host-name", value_name = "NAME", value_parser = parse_host_name)]
    host_names: Vec<String>,
}

impl PageArguments {
    /// The names of this host: those of the command line, if there are any, in place of those of
    /// the configuration file.
    pub(crate) fn host_names(&self, configured: Vec<String>) -> Vec<String> {
        if self.host_names.is_empty() { configured } else { self.host_names.clone() }
    }

    /// Merges the command line into the page of the configuration file, and reads the token.
    pub(crate) fn merge(&self, page: Option<PageConfig>) -> Result<Option<PageConfig>, ProxyConfigError> {
        if self.page.is_none() && self.page_token.is_none() {
            return Ok(page);
        }
        let listen = self.page.or(page.as_ref().map(|page| page.listen)).ok_or(PageError::NoPage)?;
        let token_file = self.page_token.clone().or(page.and_then(|page| page.token_file));
        let mut page = PageConfig::new(listen, token_file);
        page.read()?;
        Ok(Some(page))
    }
}

/// Running web servers, if there are any. Dropping them closes their connections.
#[derive(Default)]
pub(crate) struct WebServers {
    // Dropped first: requests for the page end before the page does.
    _servers: Vec<Server>,
    _page: Option<LivePage>,
}

/// Opens the listening sockets of the web servers, in the order of [`Service::web_addresses`].
pub(crate) fn listen(service: &Service) -> Result<Vec<TcpListener>, OpenError> {
    let addresses = service.web_addresses().into_iter();
    addresses.map(|(_, at)| TcpListener::bind(at).map_err(|why| service.web_failure(at, why))).collect()
}

/// Starts the web servers of a proxy on their listening sockets: one if metrics and page have the
/// same address.
pub(crate) fn serve(proxy: &Arc<Proxy>, service: &Service, listeners: Vec<TcpListener>) -> Result<WebServers, OpenError> {
    let mut sites: Vec<(SocketAddr, Site)> = Vec::new();
    if let Some(at) = service.metrics {
        sites.push((at, Site::named(&service.host_names).with_metrics(metrics::render(proxy))));
    }
    let mut live = None;
    if let Some(page) = &service.page {
        let started = LivePage::start(proxy, &service.name).map_err(OpenError::system("start the thread of the live page"))?;
        let pages = live.insert(started).pages();
        match sites.iter_mut().find(|(at, _)| *at == page.listen) {
            Some((_, site)) => *site = std::mem::take(site).with_pages(pages, page.token.clone()),
            None => sites.push((page.listen, Site::named(&service.host_names).with_pages(pages, page.token.clone()))),
        }
    }
    let servers = sites.into_iter().zip(listeners).map(|((_, site), listener)| Server::start_on(listener, site));
    let servers = servers.collect::<Result<_, _>>().map_err(OpenError::system("start a web server"))?;
    Ok(WebServers { _servers: servers, _page: live })
}
