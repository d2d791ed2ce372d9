//! As much of an S3-compatible store as uploads in parts, downloads and lists need, on loopback.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

/// Objects by path, and uploads that are not finished, by their ids, with their parts.
#[derive(Debug, Default)]
struct Kept {
    objects: BTreeMap<String, Vec<u8>>,
    uploads: BTreeMap<String, BTreeMap<u32, Vec<u8>>>,
    begun: u32,
}

/// A bucket. Its threads end with the process.
#[derive(Debug)]
pub(crate) struct Bucket {
    pub(crate) address: SocketAddr,
    kept: Arc<Mutex<Kept>>,
}

impl Bucket {
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let bucket = Self { address: listener.local_addr().unwrap(), kept: Arc::default() };
        let kept = Arc::clone(&bucket.kept);
        std::thread::spawn(move || {
            for socket in listener.incoming().flatten() {
                let kept = Arc::clone(&kept);
                std::thread::spawn(move || while answer(&socket, &kept).is_some() {});
            }
        });
        bucket
    }

    /// Paths of all objects, with their sizes.
    pub(crate) fn objects(&self) -> Vec<(String, usize)> {
        let kept = self.kept.lock().unwrap();
        kept.objects.iter().map(|(path, bytes)| (path.clone(), bytes.len())).collect()
    }
}

fn answer(mut socket: &TcpStream, kept: &Mutex<Kept>) -> Option<()> {
    let mut reader = BufReader::new(socket);
    let mut line = String::new();
    reader.read_line(&mut line).ok().filter(|read| *read > 0)?;
    let mut words = line.split_whitespace();
    let (method, target) = (words.next()?.to_owned(), words.next()?.to_owned());
    let (mut len, mut signed, mut is_new, mut header) = (0, false, false, String::new());
    while reader.read_line(&mut header).ok()? > 2 {
        let (name, value) = header.split_once(':')?;
        if name.eq_ignore_ascii_case("content-length") {
            len = value.trim().parse().ok()?;
        }
        signed |= name.eq_ignore_ascii_case("authorization") && value.contains("AWS4-HMAC-SHA256");
        is_new |= name.eq_ignore_ascii_case("if-none-match");
        header.clear();
    }
    let mut body = vec![0; len];
    reader.read_exact(&mut body).ok()?;
    assert!(signed, "{method} {target} is not signed");
    let (path, query) = target.split_once('?').unwrap_or((&target, ""));
    let asked = |name: &str| {
        query.split('&').find_map(|pair| Some(pair.strip_prefix(name)?.strip_prefix('=')?.to_owned()))
    };
    let mut kept = kept.lock().unwrap();
    let xml = |text: &str| Some(text.as_bytes().to_vec());
    // Nothing: there is no such object, or one where there must be none.
    let reply = match (method.as_str(), asked("uploadId")) {
        ("POST", None) if query.starts_with("uploads") => {
            kept.begun += 1;
            let id = format!("upload-{}", kept.begun);
            kept.uploads.insert(id.clone(), BTreeMap::new());
            xml(&format!(
                "<InitiateMultipartUploadResult><UploadId>{id}</UploadId></InitiateMultipartUploadResult>"
            ))
        }
        ("PUT", Some(id)) => {
            let number = asked("partNumber")?.parse().ok()?;
            kept.uploads.get_mut(&id)?.insert(number, body);
            xml("")
        }
        ("PUT", None) if is_new && kept.objects.contains_key(path) => None,
        ("PUT", None) => {
            kept.objects.insert(path.to_owned(), body);
            xml("")
        }
        ("POST", Some(id)) => {
            let whole = kept.uploads.remove(&id)?.into_values().flatten().collect();
            kept.objects.insert(path.to_owned(), whole);
            xml("<CompleteMultipartUploadResult><ETag>e</ETag></CompleteMultipartUploadResult>")
        }
        ("DELETE", Some(id)) => {
            kept.uploads.remove(&id);
            xml("")
        }
        ("GET", None) if query.contains("list-type=2") => {
            let bucket = format!("{}/", path.trim_end_matches('/'));
            let prefix = asked("prefix").unwrap_or_default().replace("%2F", "/");
            let keys = kept
                .objects
                .iter()
                .filter_map(|(path, bytes)| Some((path.strip_prefix(&bucket)?, bytes.len())));
            let listed = keys.filter(|(key, _)| key.starts_with(&prefix)).map(|(key, size)| {
                format!(
                    "<Contents><Key>{key}</Key><Size>{size}</Size><LastModified>2026-03-10T12:00:00.000Z</LastModified>\
                     <ETag>e</ETag></Contents>"
                )
            });
            xml(&format!("<ListBucketResult>{}</ListBucketResult>", listed.collect::<String>()))
        }
        ("GET" | "HEAD", None) => kept.objects.get(path).cloned(),
        ("DELETE", None) => {
            kept.objects.remove(path);
            xml("")
        }
        _ => panic!("{method} {target} is not expected"),
    };
    let status = match (&reply, &*method) {
        (Some(_), _) => "200 OK",
        (None, "PUT") => "412 Precondition Failed",
        (None, _) => "404 Not Found",
    };
    let reply = reply.unwrap_or_default();
    let head = format!(
        "HTTP/1.1 {status}\r\ncontent-length: {}\r\netag: \"e\"\r\nlast-modified: Tue, 10 Mar 2026 12:00:00 GMT\r\n\r\n",
        reply.len()
    );
    let body: &[u8] = if method == "HEAD" { &[] } else { &reply };
    socket.write_all(head.as_bytes()).and_then(|()| socket.write_all(body)).ok()
}
