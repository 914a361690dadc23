//! The page of `tandem run --page`, in a real browser: values under the pointer, and legends that
//! switch curves on and off.

use crate::common::{
    TANDEM,
    browser::{Browser, CHROMIUM},
    skip,
};
use lab::Host;
use serde_json::json;
use std::process::Command;

/// Plays a scenario in the simulator, and opens its page.
fn open(host: &Host, arguments: &[&str]) -> (tempfile::TempDir, Browser) {
    let directory = tempfile::tempdir().unwrap();
    let (scenario, page) = (directory.path().join("scenario.toml"), directory.path().join("page.html"));
    let text = "name = \"read\"\nduration = \"5s\"\n[[link]]\nrate = \"10Mbit\"\ndelay = \"10ms\"\nqueue = \"1BDP\"\n[[flow]]\ncount = 2\n";
    std::fs::write(&scenario, text).unwrap();
    let run =
        Command::new(TANDEM).arg("run").arg(&scenario).args(["--on", "sim"]).args(arguments).arg("--page").arg(&page).output().unwrap();
    assert!(run.status.success(), "{run:?}");
    let browser = Browser::open(host, &format!("file://{}", page.display()));
    (directory, browser)
}

/// The middle of the first plot with curves, or so many pixels beside it.
fn point_at(browser: &Browser, kind: &str, beside: f64) {
    browser.eval("document.querySelector('.chart:has(polyline)').scrollIntoView({ block: 'center', behavior: 'instant' })");
    let middle = |axis: &str, size: &str| {
        let of = "document.querySelector('.chart:has(polyline) svg').getBoundingClientRect()";
        browser.eval(&format!("{of}.{axis} + {of}.{size} / 2")).as_f64().unwrap()
    };
    let (x, y) = (middle("x", "width") + beside, middle("y", "height"));
    let button = if kind == "mouseMoved" { "none" } else { "left" };
    browser.call("Input.dispatchMouseEvent", json!({ "type": kind, "x": x, "y": y, "button": button, "clickCount": 1 }));
}

#[test]
fn a_sweep_is_read_in_a_browser() {
    if skip("a_sweep_is_read_in_a_browser", &[CHROMIUM]) {
        return;
    }
    let host = Host::new("reader").unwrap();
    let sets = ["--set", "link.1.loss.per_packet=0,0.1%,1%,5%", "--set", "control.sender=cubic,reno", "--seeds", "2"];
    let (_directory, browser) = open(&host, &sets);
    browser.wait_for("the legend can be clicked", "document.querySelectorAll('[data-together] .legend button').length === 2");
    let shown = "[...document.querySelectorAll('[data-together] polyline:not(.whisker, .off)')].map(line => line.dataset.group)";
    browser.wait_for("both curves are drawn in several plots", &format!("{shown}.length >= 4 && new Set({shown}).size === 2"));
    let click = "document.querySelector('[data-together] .legend button').click()";
    browser.eval(click);
    browser.wait_for("one curve is shown alone in all plots", &format!("{shown}.length >= 2 && {shown}.every(group => group === '0')"));
    browser.eval(click);
    browser.wait_for("all curves are shown again", &format!("new Set({shown}).size === 2"));
    point_at(&browser, "mouseMoved", 0.0);
    let read = "[...document.querySelectorAll('.chart .read:not([hidden]) div')].map(row => row.textContent)";
    browser.wait_for("the value under the pointer is one of a logarithmic axis", &format!("+{read}[0] > 0 && +{read}[0] < 5"));

    // Dragging the mouse zooms in, a double click shows all.
    point_at(&browser, "mousePressed", -100.0);
    point_at(&browser, "mouseMoved", 50.0);
    point_at(&browser, "mouseReleased", 50.0);
    let zoomed = "document.querySelectorAll('[data-together] .chart.zoomed').length";
    browser.wait_for("all plots of the section are zoomed", &format!("{zoomed} >= 2"));
    browser.wait_for("the axis has new ticks", "document.querySelectorAll('[data-together] .chart .x.now').length >= 10");
    browser.eval("document.querySelector('.chart.zoomed').dispatchEvent(new MouseEvent('dblclick', { bubbles: true }))");
    browser.wait_for("all is shown again", &format!("{zoomed} === 0"));
    assert_eq!(browser.errors(), Vec::<String>::new());
}

#[test]
fn plots_of_a_run_are_read_in_a_browser() {
    if skip("plots_of_a_run_are_read_in_a_browser", &[CHROMIUM]) {
        return;
    }
    let host = Host::new("reader").unwrap();
    let (_directory, browser) = open(&host, &["--set", "control.sender=cubic,reno"]);
    browser.wait_for("the legend can be clicked", "document.querySelector('figure:has(polyline) .legend button')");

    point_at(&browser, "mouseMoved", 0.0);
    let read = "[...document.querySelectorAll('.chart .read:not([hidden]) div')].map(row => row.textContent)";
    browser.wait_for("values are shown beside the pointer", &format!("{read}.length > 1 && {read}[0].endsWith(' s')"));

    // The curves of the first entry go and come back, all others stay.
    let curves = |state: &str| {
        let figure = "document.querySelector('figure:has(polyline):has(.legend button)')";
        format!(
            "(() => {{ const figure = {figure}, group = figure.querySelector('.legend button').dataset.group; \
             return [...figure.querySelectorAll('polyline')].every(line => line.classList.contains('off') === ({state})); }})()"
        )
    };
    let click = "document.querySelector('figure:has(polyline) .legend button').click()";
    browser.wait_for("all curves are drawn", &curves("false"));
    browser.eval(click);
    browser.wait_for("the entry's curves are gone", &curves("line.dataset.group === group"));
    browser.eval(click);
    browser.wait_for("they are drawn again", &curves("false"));
    assert_eq!(browser.errors(), Vec::<String>::new());
}
