//! A real Chromium, driven by WebDriver as a person would use it.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::process::Process;
use crate::support::{SOON, eventually, free_tcp};

/// What Chromium is told so that it asks nobody but the daemon.
const QUIET: [&str; 9] = [
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-dev-shm-usage",
    "--window-size=1280,800",
];
/// What names an element in WebDriver's answers (W3C WebDriver, 12.1).
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";

/// One browser. It ends when dropped.
pub(crate) struct Browser {
    session: String,
    /// In this order: the driver ends the browser, then its folder goes.
    _driver: Process,
    _profile: TempDir,
}

impl Browser {
    pub(crate) fn start() -> Self {
        let profile = TempDir::new().unwrap();
        let port = free_tcp().port();
        let mut command = Command::new("chromedriver");
        command.arg(format!("--port={port}"));
        let driver = Process::start(&mut command, &profile.path().join("driver.log"));
        let base = format!("http://127.0.0.1:{port}");
        eventually("chromedriver is ready", || {
            call("GET", &format!("{base}/status"), None).ok()?["ready"].as_bool()?.then_some(())
        });
        let folder = format!("--user-data-dir={}", profile.path().join("profile").display());
        let arguments: Vec<&str> = QUIET.into_iter().chain([folder.as_str()]).collect();
        let wanted = json!({ "capabilities": { "alwaysMatch": {
            "browserName": "chrome",
            "goog:chromeOptions": { "args": arguments },
            "goog:loggingPrefs": { "browser": "ALL" },
        } } });
        let made = call("POST", &format!("{base}/session"), Some(&wanted)).unwrap();
        let session = format!("{base}/session/{}", made["sessionId"].as_str().unwrap());
        Self { session, _driver: driver, _profile: profile }
    }

    fn post(&self, command: &str, body: &Value) -> Value {
        let done = call("POST", &format!("{}/{command}", self.session), Some(body));
        done.unwrap_or_else(|error| panic!("{command} {body}: {error}"))
    }

    pub(crate) fn open(&self, url: &str) {
        self.post("url", &json!({ "url": url }));
    }

    /// What a person reads on the page.
    pub(crate) fn text(&self) -> String {
        let read = json!({ "script": "return document.body.innerText", "args": [] });
        self.post("execute/sync", &read).as_str().unwrap_or_default().to_owned()
    }

    /// Waits until the page says this.
    pub(crate) fn shows(&self, wanted: &str) {
        let deadline = Instant::now() + SOON;
        loop {
            let text = self.text();
            if text.contains(wanted) {
                return;
            }
            assert!(Instant::now() < deadline, "the page does not show {wanted:?}: {text}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Waits for an element: an XPath.
    fn element(&self, path: &str) -> String {
        let body = json!({ "using": "xpath", "value": path });
        eventually(&format!("there is {path}; the page shows {}", self.text()), || {
            let found = call("POST", &format!("{}/element", self.session), Some(&body)).ok()?;
            Some(found[ELEMENT].as_str()?.to_owned())
        })
    }

    /// How many elements there are of an XPath.
    pub(crate) fn count(&self, path: &str) -> usize {
        let body = json!({ "using": "xpath", "value": path });
        self.post("elements", &body).as_array().map_or(0, Vec::len)
    }

    /// The longest time for which the page was busy without a pause since it was opened, in milliseconds.
    pub(crate) fn longest_task(&self) -> f64 {
        let run = "const done = arguments[0], all = [0]; new PerformanceObserver((list) => \
                   all.push(...list.getEntries().map((one) => one.duration))).observe({ type: 'longtask', buffered: true }); \
                   setTimeout(() => done(Math.max(...all)), 500)";
        self.post("execute/async", &json!({ "script": run, "args": [] })).as_f64().unwrap_or_default()
    }

    pub(crate) fn click(&self, path: &str) {
        // An update may draw the element anew between finding and clicking.
        eventually(&format!("{path} can be clicked"), || {
            let element = self.element(path);
            call("POST", &format!("{}/element/{element}/click", self.session), Some(&json!({}))).ok()
        });
    }

    pub(crate) fn button(&self, name: &str) {
        self.click(&format!("//button[normalize-space()='{name}']"));
    }

    /// Types into a field, in place of what stands there.
    pub(crate) fn fill(&self, path: &str, text: &str) {
        // An update may draw the field anew between emptying it and typing.
        eventually(&format!("{path} holds {text:?}"), || {
            let element = format!("{}/element/{}", self.session, self.element(path));
            call("POST", &format!("{element}/clear"), Some(&json!({}))).ok()?;
            call("POST", &format!("{element}/value"), Some(&json!({ "text": text }))).ok()?;
            (self.value(path) == text).then_some(())
        });
    }

    /// What a field holds.
    pub(crate) fn value(&self, path: &str) -> String {
        let element = self.element(path);
        let at = format!("{}/element/{element}/property/value", self.session);
        call("GET", &at, None).unwrap().as_str().unwrap_or_default().to_owned()
    }

    /// What an attribute of an element says, as a number.
    pub(crate) fn number(&self, path: &str, attribute: &str) -> f64 {
        let element = self.element(path);
        let at = format!("{}/element/{element}/attribute/{attribute}", self.session);
        let said = call("GET", &at, None).unwrap();
        said.as_str()
            .and_then(|text| text.parse().ok())
            .unwrap_or_else(|| panic!("{path} {attribute}: {said}"))
    }

    /// How far below the top of the page an element begins, in pixels.
    pub(crate) fn depth(&self, path: &str) -> f64 {
        let element = self.element(path);
        let rect = call("GET", &format!("{}/element/{element}/rect", self.session), None).unwrap();
        rect["y"].as_f64().unwrap_or_else(|| panic!("{path}: {rect}"))
    }

    /// Presses and lets go of keys, wherever the focus is.
    pub(crate) fn keys(&self, keys: &str) {
        let press = |key: char| {
            let key = key.to_string();
            [json!({ "type": "keyDown", "value": key }), json!({ "type": "keyUp", "value": key })]
        };
        let keys: Vec<Value> = keys.chars().flat_map(press).collect();
        self.post("actions", &json!({ "actions": [{ "type": "key", "id": "keyboard", "actions": keys }] }));
    }

    /// The parts of the page that have to be moved sideways to be seen whole, by their headings.
    pub(crate) fn sideways(&self) -> Vec<String> {
        let ask = "return [...document.querySelectorAll('section, .why, .plan')].filter((one) => one.scrollWidth > one.clientWidth) \
                   .map((one) => one.querySelector('h1, h2, h3')?.textContent ?? 'a part without a heading')";
        let found = self.post("execute/sync", &json!({ "script": ask, "args": [] }));
        found.as_array().unwrap().iter().map(|one| one.as_str().unwrap().to_owned()).collect()
    }

    /// Looks at the page while the window is so wide, in pixels.
    pub(crate) fn at_width<T>(&self, width: u32, look: impl FnOnce() -> T) -> T {
        let size = json!({ "width": width, "height": 800, "deviceScaleFactor": 1, "mobile": false });
        let emulate = |command: &str, size: Value| {
            self.post("goog/cdp/execute", &json!({ "cmd": command, "params": size }))
        };
        emulate("Emulation.setDeviceMetricsOverride", size);
        let seen = look();
        emulate("Emulation.clearDeviceMetricsOverride", json!({}));
        seen
    }

    /// True if the page has to be moved sideways to be seen whole.
    pub(crate) fn is_too_wide(&self) -> bool {
        let ask = "return document.documentElement.scrollWidth > innerWidth";
        self.post("execute/sync", &json!({ "script": ask, "args": [] })) == true
    }

    /// Which colours the person has asked the system for: `light` or `dark`.
    pub(crate) fn prefer(&self, scheme: &str) {
        let features = json!([{ "name": "prefers-color-scheme", "value": scheme }]);
        let command = json!({ "cmd": "Emulation.setEmulatedMedia", "params": { "features": features } });
        self.post("goog/cdp/execute", &command);
    }

    /// What the page said on the browser's console since it was last asked.
    pub(crate) fn said(&self) -> Vec<String> {
        let log = self.post("se/log", &json!({ "type": "browser" }));
        let lines = log.as_array().into_iter().flatten();
        lines.filter_map(|line| line["message"].as_str().map(str::to_owned)).collect()
    }

    /// Keeps a picture of the page.
    pub(crate) fn picture(&self, file: &Path) {
        use base64::Engine as _;
        let taken = call("GET", &format!("{}/screenshot", self.session), None).unwrap();
        let bytes = base64::engine::general_purpose::STANDARD.decode(taken.as_str().unwrap()).unwrap();
        std::fs::write(file, bytes).unwrap();
    }

    /// What a judge of accessibility finds wrong: an identifier and an element each.
    pub(crate) fn barriers(&self, judge: &str) -> Vec<String> {
        self.post("execute/sync", &json!({ "script": judge, "args": [] }));
        let run = "const done = arguments[0]; axe.run(document).then((result) => done(result.violations.flatMap((one) => \
                   one.nodes.map((node) => `${one.id}: ${node.html}`))), (error) => done([String(error)]))";
        let found = self.post("execute/async", &json!({ "script": run, "args": [] }));
        found.as_array().unwrap().iter().map(|one| one.as_str().unwrap().to_owned()).collect()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = call("DELETE", &self.session, None);
    }
}

/// One command of WebDriver, and its value.
fn call(method: &str, url: &str, body: Option<&Value>) -> Result<Value, String> {
    let agent = ureq::Agent::config_builder()
        .http_status_as_error(false)
        .timeout_global(Some(Duration::from_secs(60)))
        .build()
        .new_agent();
    let text = body.map(Value::to_string).unwrap_or_default();
    let request = http::Request::builder().method(method).uri(url).body(text).unwrap();
    let mut answer = agent.run(request).map_err(|error| error.to_string())?;
    let status = answer.status();
    let text = answer.body_mut().read_to_string().map_err(|error| error.to_string())?;
    let json: Value = serde_json::from_str(&text).map_err(|error| format!("{error}: {text}"))?;
    if status.is_success() { Ok(json["value"].clone()) } else { Err(json["value"]["message"].to_string()) }
}
