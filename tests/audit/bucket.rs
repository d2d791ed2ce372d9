//! As much of an S3-compatible store as an upload in parts and a download need, on loopback.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

/// Objects by path, and the parts of uploads that are not finished.
#[derive(Debug, Default)]
struct Kept {
    objects: BTreeMap<String, Vec<u8>>,
    parts: BTreeMap<u32, Vec<u8>>,
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
    let (mut len, mut signed, mut header) = (0, false, String::new());
    while reader.read_line(&mut header).ok()? > 2 {
        let (name, value) = header.split_once(':')?;
        if name.eq_ignore_ascii_case("content-length") {
            len = value.trim().parse().ok()?;
        }
        signed |= name.eq_ignore_ascii_case("authorization") && value.contains("AWS4-HMAC-SHA256");
        header.clear();
    }
    let mut body = vec![0; len];
    reader.read_exact(&mut body).ok()?;
    assert!(signed, "{method} {target} is not signed");
    let (path, query) = target.split_once('?').unwrap_or((&target, ""));
    let mut kept = kept.lock().unwrap();
    let xml = |text: &str| text.as_bytes().to_vec();
    let reply = match method.as_str() {
        "POST" if query.starts_with("uploads") => {
            kept.parts.clear();
            xml("<InitiateMultipartUploadResult><UploadId>one</UploadId></InitiateMultipartUploadResult>")
        }
        "PUT" if query.contains("uploadId=one") => {
            let number = query.split('&').find_map(|pair| pair.strip_prefix("partNumber="))?.parse().ok()?;
            kept.parts.insert(number, body);
            Vec::new()
        }
        "POST" if query.contains("uploadId=one") => {
            let whole = std::mem::take(&mut kept.parts).into_values().flatten().collect();
            kept.objects.insert(path.to_owned(), whole);
            xml("<CompleteMultipartUploadResult><ETag>e</ETag></CompleteMultipartUploadResult>")
        }
        "GET" => kept.objects.get(path).cloned()?,
        "DELETE" => {
            kept.objects.remove(path);
            Vec::new()
        }
        _ => panic!("{method} {target} is not expected"),
    };
    let head = format!(
        "HTTP/1.1 200 OK\r\ncontent-length: {}\r\netag: \"e\"\r\nlast-modified: Tue, 10 Mar 2026 12:00:00 GMT\r\n\r\n",
        reply.len()
    );
    socket.write_all(head.as_bytes()).and_then(|()| socket.write_all(&reply)).ok()
}
