//! A real browser: headless Chromium, driven by the DevTools protocol over two pipes.

use super::{Daemon, PATIENCE, wait_until};
use lab::Host;
use serde_json::{Value, json};
use std::{
    cell::{Cell, RefCell},
    io::{BufRead as _, BufReader, Write as _},
    process::{ChildStdin, Stdio},
    sync::mpsc,
    thread,
};

pub(crate) const CHROMIUM: &str = "chromium";

/// A browser that shows one page.
pub(crate) struct Browser {
    _program: Daemon,
    _profile: tempfile::TempDir,
    input: RefCell<ChildStdin>,
    messages: mpsc::Receiver<Value>,
    last_id: Cell<u64>,
    session: String,
    /// Exceptions of scripts, and what the page's policy has forbidden.
    errors: RefCell<Vec<String>>,
}

impl Browser {
    /// Opens a page on a host.
    pub(crate) fn open(host: &Host, url: &str) -> Self {
        let profile = tempfile::tempdir().unwrap();
        // The browser reads commands from descriptor 3 and writes answers to 4.
        let script = "exec \"$@\" 3<&0 4>&1 </dev/null >/dev/null 2>/dev/null";
        let mut command = host.command("sh");
        command.args(["-c", script, "sh", CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]);
        command.args(["--remote-debugging-pipe", "--no-first-run", "--window-size=1400,1000"]);
        command.arg(format!("--user-data-dir={}", profile.path().display()));
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (input, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let (sender, messages) = mpsc::channel();
        thread::spawn(move || {
            // Ends with the browser, or with the test.
            for message in BufReader::new(output).split(0).map_while(Result::ok) {
                let _ = serde_json::from_slice(&message).map(|message| sender.send(message));
            }
        });
        let mut browser = Browser {
            _program: Daemon(child),
            _profile: profile,
            input: RefCell::new(input),
            messages,
            last_id: Cell::new(0),
            session: String::new(),
            errors: RefCell::default(),
        };
        let target = browser.call("Target.createTarget", json!({ "url": "about:blank" }));
        let attached = browser.call("Target.attachToTarget", json!({ "targetId": target["targetId"], "flatten": true }));
        browser.session = attached["sessionId"].as_str().unwrap().into();
        for domain in ["Runtime", "Log", "Page"] {
            browser.call(&format!("{domain}.enable"), json!({}));
        }
        browser.call("Page.navigate", json!({ "url": url }));
        browser
    }

    /// Calls a method, and waits for its result.
    pub(crate) fn call(&self, method: &str, parameters: Value) -> Value {
        let id = self.last_id.get() + 1;
        self.last_id.set(id);
        let mut message = json!({ "id": id, "method": method, "params": parameters });
        if !self.session.is_empty() {
            message["sessionId"] = self.session.clone().into();
        }
        let mut input = self.input.borrow_mut();
        input.write_all(message.to_string().as_bytes()).unwrap();
        input.write_all(&[0]).unwrap();
        input.flush().unwrap();
        loop {
            let answer = self.messages.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("the browser does not answer to {method}"));
            self.note_error(&answer);
            if answer["id"] == id {
                assert!(answer["error"].is_null(), "{method}: {answer}");
                return answer["result"].clone();
            }
        }
    }

    fn note_error(&self, message: &Value) {
        let parameters = &message["params"];
        match message["method"].as_str() {
            Some("Runtime.exceptionThrown") => self.errors.borrow_mut().push(parameters["exceptionDetails"].to_string()),
            // Others are of the network: while the proxy restarts, the page reaches no one.
            Some("Log.entryAdded") if parameters["entry"]["source"] == "security" => {
                self.errors.borrow_mut().push(parameters["entry"]["text"].to_string());
            }
            _ => {}
        }
    }

    /// Evaluates a JavaScript expression in the page.
    pub(crate) fn eval(&self, expression: &str) -> Value {
        let result = self.call("Runtime.evaluate", json!({ "expression": expression, "returnByValue": true, "awaitPromise": true }));
        assert!(result["exceptionDetails"].is_null(), "{expression}: {result}");
        result["result"]["value"].clone()
    }

    /// Waits until an expression is true.
    pub(crate) fn wait_for(&self, what: &str, expression: &str) {
        wait_until(what, || self.eval(&format!("Boolean({expression})")) == true);
    }

    /// Exceptions of scripts, and what the page's policy has forbidden, so far.
    pub(crate) fn errors(&self) -> Vec<String> {
        self.eval("0");
        self.errors.borrow().clone()
    }
}
