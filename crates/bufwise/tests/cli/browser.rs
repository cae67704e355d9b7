//! The page of `bufwise web` in Chromium, over the DevTools protocol: messages of JSON that end in zeros, through pipes.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::connections::Pair;
use crate::run::within;
use crate::web::Web;

/// Longest time for an answer of the browser, which is slow on a busy machine.
const PATIENCE: Duration = Duration::from_secs(100);

/// A browser with one page.
pub(crate) struct Browser {
    child: Child,
    requests: ChildStdin,
    messages: Receiver<Value>,
    last: u64,
    /// The page's session.
    session: Option<String>,
    /// The page's events so far.
    events: Vec<Value>,
    _profile: TempDir,
}

impl Browser {
    /// `None`, and the test skipped, without Chromium.
    pub(crate) fn start() -> Option<Self> {
        let program = bufwise_trial::program("chromium")?;
        let profile = tempfile::tempdir().unwrap();
        // The protocol uses descriptors 3 and 4.
        let mut command = Command::new("sh");
        command.args(["-c", "exec \"$@\" 3<&0 4>&1 </dev/null >/dev/null 2>/dev/null", "sh"]).arg(program);
        command.arg(format!("--user-data-dir={}", profile.path().display())).args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--no-proxy-server",
            "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
            "--remote-debugging-pipe",
        ]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (requests, mut answers) =
            (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        let (sender, messages) = mpsc::channel();
        thread::spawn(move || {
            let mut text = Vec::new();
            while answers.read_until(0, &mut text).is_ok_and(|count| count > 0) {
                text.pop();
                let heard = serde_json::from_slice(&text).map(|message| sender.send(message));
                if !matches!(heard, Ok(Ok(()))) {
                    break;
                }
                text.clear();
            }
        });
        let mut browser =
            Self { child, requests, messages, last: 0, session: None, events: Vec::new(), _profile: profile };
        let target =
            browser.call("Target.createTarget", &json!({ "url": "about:blank" }))["targetId"].clone();
        let attached = browser.call("Target.attachToTarget", &json!({ "targetId": target, "flatten": true }));
        browser.session = attached["sessionId"].as_str().map(str::to_owned);
        for part in ["Page", "Runtime", "Log", "Network"] {
            browser.call(&format!("{part}.enable"), &json!({}));
        }
        Some(browser)
    }

    /// Calls a method of the protocol, and waits for its result; fails on an error.
    pub(crate) fn call(&mut self, method: &str, parameters: &Value) -> Value {
        self.ask(method, parameters).unwrap_or_else(|error| panic!("{method}: {error}"))
    }

    /// Calls a method of the protocol; returns its result, or the browser's error.
    fn ask(&mut self, method: &str, parameters: &Value) -> Result<Value, Value> {
        self.last += 1;
        let mut message = json!({ "id": self.last, "method": method, "params": parameters });
        if let Some(session) = &self.session {
            message["sessionId"] = session.as_str().into();
        }
        self.requests.write_all(format!("{message}\0").as_bytes()).unwrap();
        loop {
            let heard = self.messages.recv_timeout(PATIENCE);
            let mut heard = heard.unwrap_or_else(|_| panic!("no answer to {method}"));
            if heard["id"] == self.last {
                let error = heard["error"].take();
                return if error.is_null() { Ok(heard["result"].take()) } else { Err(error) };
            }
            self.events.push(heard);
        }
    }

    /// Returns the value of an expression in the page.
    pub(crate) fn value(&mut self, expression: &str) -> Value {
        let parameters = json!({ "expression": expression, "awaitPromise": true, "returnByValue": true });
        let result = self.call("Runtime.evaluate", &parameters);
        assert!(result["exceptionDetails"].is_null(), "{expression}: {result}");
        result["result"]["value"].clone()
    }

    /// Waits until an expression holds in the page. Between two pages it does not hold.
    pub(crate) fn until(&mut self, condition: &str) {
        let parameters = json!({ "expression": format!("Boolean({condition})") });
        within(PATIENCE, condition, || {
            self.ask("Runtime.evaluate", &parameters).is_ok_and(|result| result["result"]["value"] == true)
        });
    }

    pub(crate) fn go_to(&mut self, url: &str) {
        self.call("Page.navigate", &json!({ "url": url }));
    }

    /// Presses a key, given by its name and the text that it writes.
    fn press(&mut self, key: &str, text: &str) {
        let code = if key == "Enter" { 13 } else { 0 };
        for kind in ["keyDown", "keyUp"] {
            let text = if kind == "keyDown" { text } else { "" };
            let event = json!({ "type": kind, "key": key, "text": text, "windowsVirtualKeyCode": code });
            self.call("Input.dispatchKeyEvent", &event);
        }
    }

    pub(crate) fn view(&mut self, scheme: &str, width: u32, height: u32) {
        let feature = json!([{ "name": "prefers-color-scheme", "value": scheme }]);
        self.call("Emulation.setEmulatedMedia", &json!({ "features": feature }));
        let size = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false });
        self.call("Emulation.setDeviceMetricsOverride", &size);
    }

    /// Returns a picture of the screen, in base64, and keeps it as a file.
    pub(crate) fn shot(&mut self, name: &str) -> String {
        let shot = self.call("Page.captureScreenshot", &json!({ "format": "png" }));
        let data = shot["data"].as_str().unwrap().to_owned();
        keep(&Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}.png")), &data);
        data
    }

    /// Returns the number of colours and the mean brightness (0 to 255) of the screen, and keeps its picture as a file.
    fn picture(&mut self, name: &str) -> (u64, u64) {
        let data = self.shot(&format!("web-{name}"));
        let seen = self.value(&format!(
            "(async () => {{ const image = new Image(); image.src = 'data:image/png;base64,{data}'; await image.decode(); \
             const pen = new OffscreenCanvas(image.width, image.height).getContext('2d'); pen.drawImage(image, 0, 0); \
             const all = pen.getImageData(0, 0, image.width, image.height).data, colours = new Set(); let sum = 0; \
             for (let at = 0; at < all.length; at += 4) {{ colours.add(all[at] << 16 | all[at + 1] << 8 | all[at + 2]); \
             sum += all[at] + all[at + 1] + all[at + 2]; }} \
             return [colours.size, Math.round(sum / all.length * 4 / 3)]; }})()"
        ));
        (seen[0].as_u64().unwrap(), seen[1].as_u64().unwrap())
    }

    /// Returns the errors, warnings and violations of the page so far.
    pub(crate) fn complaints(&self) -> Vec<&Value> {
        let is_complaint = |event: &&Value| {
            let complaints = ["Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded"];
            event["method"].as_str().is_some_and(|method| complaints.contains(&method))
        };
        self.events.iter().filter(is_complaint).collect()
    }

    /// Returns the URLs of all requests so far.
    pub(crate) fn requests(&self) -> Vec<&str> {
        let sent = self.events.iter().filter(|event| event["method"] == "Network.requestWillBeSent");
        sent.filter_map(|event| event["params"]["request"]["url"].as_str()).collect()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _over = self.child.kill();
        let _over = self.child.wait();
    }
}

/// Writes a picture, given in base64.
pub(crate) fn keep(path: &Path, data: &str) {
    let file = std::fs::File::create(path).unwrap();
    let mut decoder = Command::new("base64");
    let mut decoder = decoder.arg("-d").stdin(Stdio::piped()).stdout(file).spawn().expect("base64 is there");
    decoder.stdin.take().unwrap().write_all(data.as_bytes()).unwrap();
    assert!(decoder.wait().unwrap().success());
}

/// A transfer of some Mbit/s, slow enough to leave the processors to the browser. Ends when dropped.
struct Trickle {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Trickle {
    fn start(pair: &Pair) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (mut client, mut server) = (pair.client.try_clone().unwrap(), pair.server.try_clone().unwrap());
        let (over, closing) = (Arc::clone(&stop), pair.client.try_clone().unwrap());
        let sender = thread::spawn(move || {
            let mut size = 1;
            while !over.load(Ordering::Relaxed) && client.write_all(&vec![7; 1_000 * size]).is_ok() {
                size = size % 40 + 1;
                thread::sleep(Duration::from_millis(40));
            }
            let _over = closing.shutdown(std::net::Shutdown::Both);
        });
        let reader = thread::spawn(move || {
            while std::io::copy(&mut server, &mut std::io::sink()).is_ok_and(|count| count > 0) {}
        });
        Self { stop, threads: vec![sender, reader] }
    }
}

impl Drop for Trickle {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            thread.join().unwrap();
        }
    }
}

/// A process whose name is markup, and which holds a connection. Ends when dropped.
struct Holder(Child);

impl Holder {
    fn start(directory: &Path, stream: TcpStream) -> Self {
        let program = directory.join("<img src=x>");
        symlink("/bin/sleep", &program).unwrap();
        Self(Command::new(program).arg("1000").stdin(OwnedFd::from(stream)).spawn().unwrap())
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _over = self.0.kill();
        let _over = self.0.wait();
    }
}

/// Returns an expression for the text of a cell: in the row of that peer, below that title.
fn cell(peer: &str, title: &str) -> String {
    format!(
        "[...document.querySelectorAll('#rows tr')].find(row => row.cells[0].textContent === '{peer}')\
         .cells[[...document.querySelectorAll('#titles th')].findIndex(head => head.textContent === '{title}')].textContent"
    )
}

#[test]
fn the_page_shows_a_live_connection_in_light_and_dark_and_complains_of_nothing() {
    let Some(mut browser) = Browser::start() else { return };
    let pair = Pair::on("127.0.0.1:0");
    let _trickle = Trickle::start(&pair);
    let peer = pair.address().to_string();
    let web = Web::start(&[]);
    browser.view("light", 1280, 860);
    browser.go_to(&format!("{}#all=1&filter={}", web.url, pair.address().port()));
    browser.until(&format!("/^[\\d.]+[KMG]?$/.test({})", cell(&peer, "RATE")));
    browser.until(&format!("{}.length > 3", cell(&peer, "LIMITED BY")));
    browser.until("document.querySelector('#rows .spark path').getAttribute('d').length > 20");
    browser.until("document.getElementById('status').textContent === 'live, every second'");
    assert_eq!(browser.value("location.search"), "", "the token has left the address");
    let (colours, brightness) = browser.picture("light");
    assert!(colours > 100 && brightness > 200, "{colours} colours of brightness {brightness}");
    browser.view("dark", 1280, 860);
    let (colours, brightness) = browser.picture("dark");
    assert!(colours > 100 && brightness < 70, "{colours} colours of brightness {brightness}");
    browser.view("light", 390, 844);
    assert_eq!(
        browser.value("document.documentElement.scrollWidth <= 390"),
        true,
        "a narrow screen is enough"
    );
    browser.picture("narrow");
    assert!(browser.complaints().is_empty(), "{:#?}", browser.complaints());
    let own = format!("http://{}/", web.place);
    let requests = browser.requests();
    assert!(requests.iter().all(|url| url.starts_with(&own) || url.starts_with("data:")), "{requests:?}");

    // After a reload the page still has its token.
    browser.call("Page.reload", &json!({}));
    browser.until(&format!("/^[\\d.]+[KMG]?$/.test({})", cell(&peer, "RATE")));
    assert_eq!(browser.value("location.search"), "");
}

#[test]
fn keys_sort_filter_open_and_leave_and_names_are_no_markup() {
    let Some(mut browser) = Browser::start() else { return };
    let directory = tempfile::tempdir().unwrap();
    let pair = Pair::on("127.0.0.1:0");
    let _trickle = Trickle::start(&pair);
    let Pair { client, server: _held } = Pair::on("127.0.0.1:0");
    let local = client.local_addr().unwrap().port();
    let _holder = Holder::start(directory.path(), client);
    let web = Web::start(&[]);
    browser.view("dark", 1280, 860);
    browser.go_to(&web.url);
    browser.until("document.getElementById('titles').children.length > 0");
    browser.press("a", "a");
    browser.until("document.querySelectorAll('#rows tr').length >= 3");
    browser.press("w", "w");
    browser.until("document.querySelector('[aria-sort]').textContent === 'WASTE'");
    browser.value("document.querySelector('[data-sort=peer] button').click()");
    browser.until("document.querySelector('[aria-sort=ascending]').textContent === 'PEER'");
    browser.press("/", "/");
    assert_eq!(browser.value("document.activeElement.id"), "filter");
    browser.call("Input.insertText", &json!({ "text": local.to_string() }));
    browser.until("[...document.querySelectorAll('#rows tr')].some(row => row.cells[1].textContent.startsWith('<img src=x>'))");
    assert_eq!(browser.value("document.querySelectorAll('img').length"), 0);
    browser.press("Escape", "");
    browser.press("/", "/");
    browser.call("Input.insertText", &json!({ "text": pair.address().to_string() }));
    browser.until("document.querySelectorAll('#rows tr').length === 2");
    browser.press("Enter", "\r");
    browser.press("r", "r");
    browser.until("document.querySelector('[aria-sort]').textContent === 'RATE'");
    browser.press("e", "e");
    browser.until("document.querySelector('[aria-sort]').textContent === 'PEER'");
    browser.press("ArrowDown", "");
    browser.until("document.querySelectorAll('#rows tr')[1].getAttribute('aria-selected') === 'true'");
    browser.press("Home", "");
    browser.press("Enter", "\r");
    browser.until("document.getElementById('sentences').textContent.includes('Limited by')");
    browser.until("document.querySelectorAll('#graphs svg[role=img]').length === 5");
    browser.until("document.querySelector('#graphs .plot path').getAttribute('d').split('L').length > 3");
    let (colours, brightness) = browser.picture("opened");
    assert!(colours > 100 && brightness < 70, "{colours} colours of brightness {brightness}");
    browser.press("Escape", "");
    browser.until(
        "document.getElementById('detail').hidden && document.querySelectorAll('#rows tr').length === 2",
    );
    browser.press("Escape", "");
    browser.until("document.getElementById('filter').value === ''");
    browser.press("g", "g");
    browser.until("document.querySelector('#titles th').textContent === 'PROCESS'");
    // The cells before were those of connections, whose names are titles.
    let has_title = "[...document.querySelectorAll('#rows .figure')].some(cell => cell.title)";
    assert_eq!(browser.value(has_title), false);
    // Groups have no round trip.
    browser.press("t", "t");
    browser.until("document.querySelector('[aria-sort]').textContent === 'RATE'");
    browser.press("/", "/");
    browser.call("Input.insertText", &json!({ "text": "send " }));
    browser.until("location.hash.includes('filter=send')");
    assert_eq!(browser.value("document.getElementById('filter').value"), "send ", "a second word may follow");
    assert!(browser.complaints().is_empty(), "{:#?}", browser.complaints());
}
