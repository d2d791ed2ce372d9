//! Certificates of a cluster: its private authority, and one for each node that names the node and its
//! region.
//!
//! Nothing here reads a clock or checks a peer: time comes in, and TLS (`tls.rs`) does the checking.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rcgen::string::Ia5String;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, SanType,
};

use x509_parser::pem::Pem;
use x509_parser::prelude::ASN1Time;

use super::identity::{self, NAME_BYTES_MAX};
use crate::core::regions::NodeName;
use crate::core::time::{Span, Timestamp};

/// The name every node's certificate carries beside its own, and the one that dialling asks for: addresses
/// may change.
pub const SERVER_NAME: &str = "peer.tidegate";
/// How long an authority is valid unless another time is asked for.
pub const CA_VALID: Span = Span::from_secs(10 * 365 * 24 * 3_600);
/// How long a node's certificate is valid unless another time is asked for. Replace it before: a running
/// daemon takes the new one without a restart.
pub const NODE_VALID: Span = Span::from_secs(365 * 24 * 3_600);
/// Certificates begin this long before they are made, for nodes whose clocks are behind.
const BACKDATED: Span = Span::from_secs(3_600);
/// No certificate can say a later date than the year 9999.
const LAST_SECOND: u64 = 253_402_300_799;
const DAY_SECONDS: i64 = 24 * 3_600;

/// A certificate and its private key, both PEM.
#[derive(Clone, PartialEq, Eq)]
pub struct Issued {
    /// The certificate.
    pub certificate_pem: String,
    /// Its private key (PKCS #8). A secret.
    pub key_pem: String,
}

impl std::fmt::Debug for Issued {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Issued").field("certificate_pem", &self.certificate_pem).finish_non_exhaustive()
    }
}

/// A cluster's private authority: who holds its key can make members.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Authority(Issued);

impl Authority {
    /// From PEM texts; they are looked at when something is to be signed.
    #[must_use]
    pub const fn new(certificate_pem: String, key_pem: String) -> Self {
        Self(Issued { certificate_pem, key_pem })
    }

    /// Its certificate, which every node must have.
    #[must_use]
    pub fn certificate_pem(&self) -> &str {
        &self.0.certificate_pem
    }

    /// Its private key, which no node needs. A secret.
    #[must_use]
    pub fn key_pem(&self) -> &str {
        &self.0.key_pem
    }
}

/// Why a certificate could not be made or written.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    /// A name that no certificate can carry.
    #[error("{what} {name:?} must have 1 to {NAME_BYTES_MAX} bytes and no control characters")]
    Name {
        /// Which of the names.
        what: &'static str,
        /// The name.
        name: String,
    },
    /// What was given as an authority is none.
    #[error("this is not a certificate authority and its key: {0}")]
    Authority(String),
    /// Making a key or a signature failed.
    #[error("the certificate could not be made: {0}")]
    Signing(#[from] rcgen::Error),
    /// There is a file already, and keys are never replaced unasked.
    #[error("{} exists already; choose another directory or move it away", .0.display())]
    Exists(PathBuf),
    /// A file holds no certificate.
    #[error("{} holds no certificate", .0.display())]
    NoCertificate(PathBuf),
    /// A file could not be read.
    #[error("{} cannot be read: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A file could not be written.
    #[error("{} cannot be written: {source}", path.display())]
    Write {
        /// The file or directory.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
}

/// Makes a private authority that may sign nodes and nothing below them.
///
/// # Errors
/// If no key could be made.
pub fn create_ca(now: Timestamp) -> Result<Authority, CertificateError> {
    create_ca_valid(now, CA_VALID)
}

/// The same for an authority that is valid for so long.
///
/// # Errors
/// As [`create_ca`].
pub fn create_ca_valid(now: Timestamp, valid: Span) -> Result<Authority, CertificateError> {
    let mut params = lasting(now, valid);
    params.distinguished_name = named("Tidegate cluster authority");
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
    let certificate = params.self_signed(&key)?;
    Ok(Authority::new(certificate.pem(), key.serialize_pem()))
}

/// Signs a certificate for a node.
///
/// # Errors
/// If a name cannot be carried, or `ca` is not an authority.
pub fn issue(ca: &Authority, node: &NodeName, now: Timestamp) -> Result<Issued, CertificateError> {
    issue_valid(ca, node, now, NODE_VALID)
}

/// The same for a certificate that is valid for so long.
///
/// # Errors
/// As [`issue`].
pub fn issue_valid(
    ca: &Authority,
    node: &NodeName,
    now: Timestamp,
    valid: Span,
) -> Result<Issued, CertificateError> {
    for (what, name) in [("region", &node.region), ("node", &node.node)] {
        if !identity::is_name(name) {
            return Err(CertificateError::Name { what, name: name.clone() });
        }
    }
    let authority = |error: rcgen::Error| CertificateError::Authority(error.to_string());
    let ca_key = KeyPair::from_pem(ca.key_pem()).map_err(authority)?;
    let issuer = Issuer::from_ca_cert_pem(ca.certificate_pem(), ca_key).map_err(authority)?;

    let mut params = lasting(now, valid);
    // A common name holds at most 64 characters; the URI is the name that counts.
    params.distinguished_name = named(&node.node.chars().take(64).collect::<String>());
    params.subject_alt_names = vec![
        SanType::DnsName(Ia5String::try_from(SERVER_NAME)?),
        SanType::URI(Ia5String::try_from(identity::uri(node))?),
    ];
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages =
        vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    params.use_authority_key_identifier_extension = true;
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
    let certificate = params.signed_by(&key, &issuer)?;
    Ok(Issued { certificate_pem: certificate.pem(), key_pem: key.serialize_pem() })
}

/// Makes an authority and writes `ca.pem` and `ca.key` (mode 0600) into `dir`, which is made if it is
/// missing.
///
/// # Errors
/// As [`create_ca`], or if a file exists or cannot be written; an existing file is left as it was.
pub fn write_ca(dir: &Path, now: Timestamp, valid: Span) -> Result<[PathBuf; 2], CertificateError> {
    write_pair(dir, ["ca.pem", "ca.key"], || create_ca_valid(now, valid).map(|ca| ca.0))
}

/// Reads `ca.pem` and `ca.key` from `ca_dir`, signs a certificate for `node` and writes `node.pem` and
/// `node.key` (mode 0600) into `dir`, which is made if it is missing.
///
/// # Errors
/// As [`issue`], or if a file cannot be read, exists or cannot be written; an existing file is left as it
/// was.
pub fn write_node(
    ca_dir: &Path,
    node: &NodeName,
    dir: &Path,
    now: Timestamp,
    valid: Span,
) -> Result<[PathBuf; 2], CertificateError> {
    let ca = Authority::new(read(&ca_dir.join("ca.pem"))?, read(&ca_dir.join("ca.key"))?);
    write_pair(dir, ["node.pem", "node.key"], || issue_valid(&ca, node, now, valid))
}

/// What a certificate file says, for people: one line for each certificate in it.
///
/// # Errors
/// If it cannot be read, or holds no certificate.
pub fn describe(path: &Path, now: Timestamp) -> Result<Vec<String>, CertificateError> {
    let text = read(path)?;
    let mut lines = Vec::new();
    for pem in Pem::iter_from_buffer(text.as_bytes()) {
        let unreadable = |_| CertificateError::NoCertificate(path.to_path_buf());
        let pem = pem.map_err(unreadable)?;
        if pem.label != "CERTIFICATE" {
            continue;
        }
        let certificate =
            pem.parse_x509().map_err(|_| CertificateError::NoCertificate(path.to_path_buf()))?;
        let who = match identity::node_of(&pem.contents) {
            Ok(name) => format!("node {} of region {}", name.node, name.region),
            Err(_) if certificate.is_ca() => format!("authority {}", certificate.subject()),
            Err(error) => format!("names no node ({error})"),
        };
        let validity = certificate.validity();
        let (begins, ends) = (validity.not_before.timestamp(), validity.not_after.timestamp());
        let left = ends.saturating_sub(i64::try_from(now.micros() / 1_000_000).unwrap_or(i64::MAX));
        let left =
            if left < 0 { "it has ended".to_owned() } else { format!("{} days left", left / DAY_SECONDS) };
        lines.push(format!(
            "{}: {who}, signed by {}, valid from {} until {} ({left})",
            path.display(),
            certificate.issuer(),
            date(begins),
            date(ends)
        ));
    }
    if lines.is_empty() { Err(CertificateError::NoCertificate(path.to_path_buf())) } else { Ok(lines) }
}

/// When the first certificate of a PEM text ends, in seconds since the epoch.
///
/// # Errors
/// If it holds none.
pub fn ends(pem: &[u8]) -> Result<i64, CertificateError> {
    let none = || CertificateError::NoCertificate(PathBuf::from("the text"));
    let first = Pem::iter_from_buffer(pem).filter_map(Result::ok).find(|pem| pem.label == "CERTIFICATE");
    let first = first.ok_or_else(none)?;
    let certificate = first.parse_x509().map_err(|_| none())?;
    Ok(certificate.validity().not_after.timestamp())
}

/// The day of an instant in seconds since the epoch, as `2026-11-22`, in UTC.
#[must_use]
pub fn date(seconds: i64) -> String {
    let time = ASN1Time::from_timestamp(seconds).map(|time| time.to_datetime());
    time.map_or_else(
        |_| "an unknown day".to_owned(),
        |time| format!("{:04}-{:02}-{:02}", time.year(), u8::from(time.month()), time.day()),
    )
}

fn lasting(now: Timestamp, valid: Span) -> CertificateParams {
    let begin = (now - BACKDATED).micros() / 1_000_000;
    let end = (now + valid).micros() / 1_000_000;
    let date = |second: u64| rcgen::date_time_ymd(1970, 1, 1) + Duration::from_secs(second.min(LAST_SECOND));
    let mut params = CertificateParams::default();
    params.not_before = date(begin);
    params.not_after = date(end);
    params
}

fn named(common_name: &str) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    name.push(DnType::CommonName, common_name);
    name
}

fn write_pair(
    dir: &Path,
    names: [&str; 2],
    make: impl FnOnce() -> Result<Issued, CertificateError>,
) -> Result<[PathBuf; 2], CertificateError> {
    let [certificate, key] = names.map(|name| dir.join(name));
    for path in [&certificate, &key] {
        if path.symlink_metadata().is_ok() {
            return Err(CertificateError::Exists(path.clone()));
        }
    }
    let issued = make()?;
    std::fs::create_dir_all(dir)
        .map_err(|source| CertificateError::Write { path: dir.to_path_buf(), source })?;
    // The key first: a certificate without its key would look finished.
    write_new(&key, &issued.key_pem, 0o600)?;
    write_new(&certificate, &issued.certificate_pem, 0o644)?;
    Ok([certificate, key])
}

fn write_new(path: &Path, text: &str, mode: u32) -> Result<(), CertificateError> {
    use std::os::unix::fs::OpenOptionsExt;
    let failed = |source: std::io::Error| match source.kind() {
        std::io::ErrorKind::AlreadyExists => CertificateError::Exists(path.to_path_buf()),
        _ => CertificateError::Write { path: path.to_path_buf(), source },
    };
    let mut file =
        std::fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(path).map_err(failed)?;
    file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).map_err(failed)
}

fn read(path: &Path) -> Result<String, CertificateError> {
    std::fs::read_to_string(path)
        .map_err(|source| CertificateError::Read { path: path.to_path_buf(), source })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use x509_parser::pem::parse_x509_pem;

    use super::*;

    const NOW: Timestamp = Timestamp(1_760_000_000_000_000);

    fn node() -> NodeName {
        NodeName { region: "eu west/1".into(), node: "nœud".into() }
    }

    #[test]
    fn a_node_certificate_names_its_node_and_serves_both_sides() {
        let ca = create_ca(NOW).unwrap();
        let issued = issue(&ca, &node(), NOW).unwrap();
        let (_, pem) = parse_x509_pem(issued.certificate_pem.as_bytes()).unwrap();
        assert_eq!(identity::node_of(&pem.contents), Ok(node()));
        let certificate = pem.parse_x509().unwrap();
        let usage = certificate.extended_key_usage().unwrap().unwrap().value;
        assert!(usage.server_auth && usage.client_auth && !certificate.is_ca());
        let validity = certificate.validity();
        let now = 1_760_000_000;
        assert_eq!(validity.not_before.timestamp(), now - 3_600);
        assert_eq!(validity.not_after.timestamp(), now + 365 * 24 * 3_600);
    }

    #[test]
    fn the_authority_signs_nodes_only() {
        let ca = create_ca(NOW).unwrap();
        let (_, pem) = parse_x509_pem(ca.certificate_pem().as_bytes()).unwrap();
        let certificate = pem.parse_x509().unwrap();
        let constraints = certificate.basic_constraints().unwrap().unwrap().value;
        assert!(constraints.ca);
        assert_eq!(constraints.path_len_constraint, Some(0));
        assert!(certificate.key_usage().unwrap().unwrap().value.key_cert_sign());
    }

    #[test]
    fn bad_names_and_bad_authorities_are_refused() {
        let ca = create_ca(NOW).unwrap();
        for name in ["", "a\nb", &"x".repeat(NAME_BYTES_MAX + 1)] {
            let bad = NodeName { region: "eu".into(), node: name.into() };
            assert!(matches!(issue(&ca, &bad, NOW), Err(CertificateError::Name { what: "node", .. })));
        }
        let swapped = Authority::new(ca.key_pem().to_owned(), ca.certificate_pem().to_owned());
        assert!(matches!(issue(&swapped, &node(), NOW), Err(CertificateError::Authority(_))));
    }

    #[test]
    fn any_clock_makes_a_certificate() {
        for now in [0, u64::MAX] {
            let ca = create_ca(Timestamp(now)).unwrap();
            issue(&ca, &node(), Timestamp(now)).unwrap();
        }
    }

    #[test]
    fn files_are_private_and_never_overwritten() {
        let dir = tempfile::tempdir().unwrap();
        let ca_dir = dir.path().join("deep/ca");
        let [ca, ca_key] = write_ca(&ca_dir, NOW, CA_VALID).unwrap();
        let [pem, key] = write_node(&ca_dir, &node(), &dir.path().join("node"), NOW, NODE_VALID).unwrap();
        for (path, mode) in [(&ca, 0o644), (&ca_key, 0o600), (&pem, 0o644), (&key, 0o600)] {
            let found = std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
            assert_eq!(found & 0o600, 0o600);
            assert_eq!(found & !mode, 0, "{} is {found:o}", path.display());
        }
        let before = std::fs::read_to_string(&ca_key).unwrap();
        assert!(matches!(write_ca(&ca_dir, NOW, CA_VALID), Err(CertificateError::Exists(_))));
        std::fs::remove_file(&ca).unwrap();
        let error = write_ca(&ca_dir, NOW, CA_VALID).unwrap_err().to_string();
        assert!(error.contains("ca.key exists already"), "{error}");
        assert_eq!(std::fs::read_to_string(&ca_key).unwrap(), before);
        assert!(!ca.exists());
    }

    #[test]
    fn a_missing_authority_is_told_by_its_path() {
        let dir = tempfile::tempdir().unwrap();
        let error = write_node(dir.path(), &node(), dir.path(), NOW, NODE_VALID).unwrap_err().to_string();
        assert!(error.contains("ca.pem cannot be read"), "{error}");
    }

    #[test]
    fn a_certificate_is_described_with_its_days() {
        let dir = tempfile::tempdir().unwrap();
        let [ca, _] = write_ca(&dir.path().join("ca"), NOW, CA_VALID).unwrap();
        let valid = Span::from_secs(10 * 86_400);
        let [pem, key] =
            write_node(&dir.path().join("ca"), &node(), &dir.path().join("n"), NOW, valid).unwrap();
        let [line] = &describe(&pem, NOW).unwrap()[..] else { panic!("one line") };
        assert!(line.contains("node nœud of region eu west/1"), "{line}");
        assert!(line.contains("valid from 2025-10-09 until 2025-10-19 (10 days left)"), "{line}");
        let line = describe(&ca, Timestamp(u64::MAX)).unwrap().concat();
        assert!(line.contains("Tidegate cluster authority") && line.contains("it has ended"), "{line}");
        assert!(matches!(describe(&key, NOW), Err(CertificateError::NoCertificate(_))));
    }

    #[test]
    fn a_private_key_is_not_printed_by_accident() {
        let ca = create_ca(NOW).unwrap();
        assert!(!format!("{ca:?}").contains("PRIVATE"));
    }
}
