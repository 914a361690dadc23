//! The live page of a running proxy, in a real browser.

use crate::{
    bond::bench::Bench,
    common::{
        Daemon, TANDEM,
        browser::{Browser, CHROMIUM},
        routed::{dial, echo},
        skip, wait_for_port, wait_until,
    },
};
use lab::Host;
use std::{
    io::{self, Read as _, Write as _},
    net::TcpStream,
    time::Instant,
};

const PAGE: &str = "127.0.0.1:9155";

/// A host with an echo server, and a proxy in front of it.
struct Watched {
    host: Host,
    proxy: Daemon,
}

fn start(host: &Host) -> Daemon {
    // The same address as the metrics.
    let arguments = ["proxy", "--listen", "forward=127.0.0.1:7000=127.0.0.1:9000", "--metrics", PAGE, "--page", PAGE];
    let proxy = Daemon::start(host.command(TANDEM).args(arguments));
    wait_for_port(host, [127, 0, 0, 1].into(), 9155);
    proxy
}

impl Watched {
    fn new() -> Self {
        let host = Host::new("watched").unwrap();
        echo(&host, 9000);
        let proxy = start(&host);
        Watched { host, proxy }
    }

    /// Opens a flow that carries `bytes` in each direction, and stays open.
    fn flow(&self, bytes: usize) -> TcpStream {
        let mut stream = dial(&self.host, "127.0.0.1", 7000, |_| Ok(())).unwrap();
        let mut echoed = vec![0; bytes];
        let mut writer = stream.try_clone().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(move || writer.write_all(&vec![7; bytes]).unwrap());
            stream.read_exact(&mut echoed).unwrap();
        });
        stream
    }
}

/// An expression: the clients in the rows of the table.
const CLIENTS: &str = "[...document.querySelectorAll('#flows tr[data-id]')].map(row => row.cells[0].textContent)";

/// An expression: the table has exactly these clients, in this order.
fn shows(streams: &[&TcpStream]) -> String {
    let clients: Vec<String> = streams.iter().map(|stream| stream.local_addr().unwrap().to_string()).collect();
    format!("JSON.stringify({CLIENTS}) === {:?}", serde_json::to_string(&clients).unwrap())
}

fn type_filter(browser: &Browser, text: &str) {
    browser.eval(&format!(
        "{{ const box = document.getElementById('filter'); box.value = {text:?}; box.dispatchEvent(new Event('input')); }}"
    ));
}

fn sort_by(browser: &Browser, order: &str) {
    browser.eval(&format!("document.querySelector('#flows-head button[data-sort={order}]').click()"));
}

#[test]
fn the_page_follows_flows_in_a_browser() {
    if skip("the_page_follows_flows_in_a_browser", &[CHROMIUM]) {
        return;
    }
    let watched = Watched::new();
    let browser = Browser::open(&watched.host, &format!("http://{PAGE}/"));
    browser.wait_for("the page is live", "document.querySelector('#status.live') && document.querySelector('#flows .none')");

    let large = watched.flow(500_000);
    let opened = Instant::now();
    browser.wait_for("a new flow is shown", &shows(&[&large]));
    println!("a new flow was shown after {:?}", opened.elapsed());
    let small = watched.flow(1000);
    sort_by(&browser, "bytes");
    browser.wait_for("flows are sorted by bytes", &shows(&[&large, &small]));
    sort_by(&browser, "bytes");
    browser.wait_for("the order is reversed", &shows(&[&small, &large]));

    // Headings sort by a direction or a leg, and that of the rates by both directions.
    for order in ["down", "near-rtt", "far-retrans", "rate"] {
        sort_by(&browser, order);
        let marked = format!("document.querySelector('#flows-head [aria-sort=descending] button')?.dataset.sort === '{order}'");
        browser.wait_for("the heading is marked", &marked);
    }
    sort_by(&browser, "bytes");
    sort_by(&browser, "bytes");
    browser.wait_for("the order is that of bytes again", &shows(&[&small, &large]));

    type_filter(&browser, &format!(":{}", large.local_addr().unwrap().port()));
    browser.wait_for("one flow meets the filter", &shows(&[&large]));
    type_filter(&browser, "phase=moon");
    browser.wait_for("a wrong filter is explained", "document.getElementById('filter-error').textContent.includes('phase=moon')");
    type_filter(&browser, "");
    browser.wait_for("all flows are shown again", &shows(&[&small, &large]));
    browser.wait_for("both legs are in the row", "document.querySelector('#flows tr[data-id]').cells[12].textContent.length > 1");

    let row = format!(
        "[...document.querySelectorAll('#flows tr[data-id]')].find(row => row.cells[0].textContent === '{}')",
        large.local_addr().unwrap()
    );
    browser.eval(&format!("{row}.click()"));
    let curves =
        "[...document.querySelectorAll('#open-plots polyline')].filter(line => (line.getAttribute('points') || '').includes(' ')).length";
    browser.wait_for("the flow's curves are drawn", &format!("{curves} === 10"));
    browser.eval("document.querySelector('#open-plots .legend button').click()");
    browser.wait_for("a curve is switched off", "document.querySelector('#open-plots polyline').classList.contains('off')");
    drop(large);
    browser.wait_for("the flow's end is shown", "document.getElementById('open-state').textContent.includes('has ended')");
    browser.wait_for("the other flow is still listed", &shows(&[&small]));
    assert_eq!(browser.errors(), Vec::<String>::new());
}

#[test]
fn what_a_client_does_not_read_is_not_acknowledged() {
    if skip("what_a_client_does_not_read_is_not_acknowledged", &[]) {
        return;
    }
    let watched = Watched::new();
    let mut writer = dial(&watched.host, "127.0.0.1", 7000, |_| Ok(())).unwrap();
    let reader = writer.try_clone().unwrap();
    // More than all buffers of the way hold, so that the proxy's stay full.
    writer.set_nonblocking(true).unwrap();
    let direction = || {
        let flows = watched.host.command(TANDEM).args(["flows", "--json"]).output().unwrap().stdout;
        let flows: serde_json::Value = serde_json::from_slice(&flows).unwrap();
        let down = &flows[0]["down"];
        [&down["acknowledged_bytes"], &down["bytes"]].map(|bytes| bytes.as_u64().unwrap_or(0))
    };
    wait_until("the server's data fills the way to the client", || {
        while writer.write(&[7; 1 << 16]).is_ok() {}
        let [acknowledged, written] = direction();
        let received = rustix::io::ioctl_fionread(&reader).unwrap();
        // What is written and not sent is up to 64 KiB, in pieces of nearly as much.
        acknowledged == received && written > acknowledged + (1 << 15)
    });
}

/// An expression: the page takes an event with this minute, and adds it to the history once.
const TAKE_MINUTE: &str = "(async () => {
    const { connect, state } = await import('/state.js');
    while (!state.tick || !state.seconds.length) await new Promise(done => setTimeout(done, 100));
    const handlers = {};
    window.EventSource = class { addEventListener(name, take) { handlers[name] = take; } close() {} };
    connect();
    const minute = { at: state.seconds.at(-1).at, up: 1, down: 2, flows: 3, links: { sat0: [5, 6, 7] }, networks: { n1: [8, 9, 10] } };
    for (let count = 0; count < 2; count += 1) handlers.tick({ data: JSON.stringify({ ...state.tick, minute }) });
    return state.minutes.length === 1 && JSON.stringify(state.minutes[0]) === JSON.stringify(minute);
})()";

#[test]
fn the_minutes_of_the_page_are_those_of_the_server() {
    if skip("the_minutes_of_the_page_are_those_of_the_server", &[CHROMIUM]) {
        return;
    }
    let watched = Watched::new();
    let browser = Browser::open(&watched.host, &format!("http://{PAGE}/"));
    browser.wait_for("the page is live", "document.querySelector('#status.live')");
    assert_eq!(browser.eval(TAKE_MINUTE), true);
    assert_eq!(browser.errors(), Vec::<String>::new());
}

#[test]
fn the_page_survives_a_restart_of_the_proxy() {
    if skip("the_page_survives_a_restart_of_the_proxy", &[CHROMIUM]) {
        return;
    }
    let mut watched = Watched::new();
    let browser = Browser::open(&watched.host, &format!("http://{PAGE}/"));
    let flow = watched.flow(1000);
    browser.wait_for("the flow is shown", &shows(&[&flow]));
    browser.eval("document.querySelector('#flows tr[data-id]').click()");
    browser.wait_for("the flow is open", "document.querySelector('#open-plots polyline')");
    watched.proxy.signal("KILL");
    wait_until("the proxy is dead", || watched.proxy.0.try_wait().unwrap().is_some());
    browser.wait_for("the loss is shown", "document.querySelector('#status.lost')");
    watched.proxy = start(&watched.host);
    browser.wait_for("the page is live again", "document.querySelector('#status.live')");
    let other = watched.flow(1000);
    browser.wait_for("the new proxy's flow is shown", &shows(&[&other]));
    browser.wait_for("the old flow has ended", "document.getElementById('open-state').textContent.includes('has ended')");
    assert_eq!(browser.errors(), Vec::<String>::new());
}

#[test]
fn a_network_that_appears_later_has_a_row_and_curves() {
    if skip("a_network_that_appears_later_has_a_row_and_curves", &[CHROMIUM]) {
        return;
    }
    let mut bench = Bench::hosts();
    // The accepting end knows a network only when a stream has used it.
    bench.serve(&["--page", PAGE]);
    bench.server(|mut stream| drop(io::copy(&mut stream.try_clone().unwrap(), &mut stream)));
    let browser = Browser::open(&bench.far, &format!("http://{PAGE}/"));
    let networks = ["--network", "n1,to=10.0.1.2:7000", "--network", "n2,to=10.0.2.2:7000"];
    for count in 1..=2 {
        bench.connect(&["--listen", "forward=127.0.0.1:4000=127.0.0.1:8000"], &networks[..2 * count]);
        let shown = format!(
            "document.querySelectorAll('#networks tr').length === {count} && \
             [...document.querySelectorAll('#network-plots svg')].every(svg => svg.querySelectorAll('polyline').length === {count})"
        );
        let mut streams = Vec::new();
        wait_until("every network has a row and curves", || {
            let mut stream = bench.call();
            let carries = stream.write_all(b"x").is_ok() && stream.read_exact(&mut [0]).is_ok();
            streams.push(stream);
            carries && browser.eval(&shown) == true
        });
        browser.wait_for("what follows the networks is drawn", "document.querySelectorAll('#flows tr[data-id]').length > 0");
        drop(bench.daemons.pop());
    }
    let entries = "[...document.querySelectorAll('#network-plots .legend')].map(legend => legend.children.length)";
    assert_eq!(browser.eval(entries), serde_json::json!([2, 2]));
    assert_eq!(browser.errors(), Vec::<String>::new());
}

#[test]
fn a_page_for_other_hosts_needs_a_token() {
    if skip("a_page_for_other_hosts_needs_a_token", &[CHROMIUM]) {
        return;
    }
    let host = Host::new("watched").unwrap();
    let listen = ["proxy", "--listen", "forward=127.0.0.1:7000=127.0.0.1:9000"];
    let refused = host.command(TANDEM).args(listen).args(["--page", "0.0.0.0:9155"]).output().unwrap();
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.status.code() == Some(2) && said.contains("--page-token"), "{said}");
    let token = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(token.path(), "0123456789abcdef\n").unwrap();
    let path = token.path().to_str().unwrap();
    let _proxy = Daemon::start(host.command(TANDEM).args(listen).args(["--page", "0.0.0.0:9155", "--page-token", path]));
    wait_for_port(&host, [127, 0, 0, 1].into(), 9155);
    let browser = Browser::open(&host, &format!("http://{PAGE}/"));
    browser.wait_for("the token is asked for", "document.querySelector('input[type=password]')");
    let log_in = |token: &str| {
        browser.eval(&format!("{{ document.querySelector('input').value = '{token}'; document.querySelector('form').submit(); }}"));
    };
    log_in("0123456789abcdeF");
    browser.wait_for("a wrong token is refused", "document.querySelector('[role=alert]')");
    log_in("0123456789abcdef");
    browser.wait_for("the page is live", "document.querySelector('#status.live')");
    assert_eq!(browser.errors(), Vec::<String>::new());
}
