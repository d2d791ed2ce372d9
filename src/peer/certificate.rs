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
    KeyPair, KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, PublicKeyData, SanType, SerialNumber,
};
use ring::digest::{SHA256, digest};
use ring::rand::{SecureRandom, SystemRandom};
use x509_parser::pem::Pem;
use x509_parser::prelude::{ASN1Time, FromDer, X509Certificate};
use x509_parser::revocation_list::CertificateRevocationList;

use super::identity::{self, IdentityError, NAME_BYTES_MAX};
use crate::core::regions::NodeName;
use crate::core::time::{Span, Timestamp};

/// The name every node's certificate carries beside its own, and the one that dialling asks for: addresses
/// may change.
pub const SERVER_NAME: &str = "peer.tidegate";
/// Time for which an authority is valid unless another time is asked for.
pub const CA_VALID: Span = Span::from_secs(10 * 365 * 24 * 3_600);
/// Time for which a node's certificate is valid unless another time is asked for. Replace it before: a
/// running daemon takes the new one without a restart.
pub const NODE_VALID: Span = Span::from_secs(365 * 24 * 3_600);
/// Certificates begin this long before they are made, for nodes whose clocks are behind.
const BACKDATED: Span = Span::from_secs(3_600);
/// No certificate can say a later date than the year 9999.
const LAST_SECOND: u64 = 253_402_300_799;
const DAY_SECONDS: i64 = 24 * 3_600;
/// Digits of its key's fingerprint that tell an authority from another by name.
const NAME_DIGITS: usize = 8;

/// A certificate and its private key, both PEM.
#[derive(Clone, PartialEq, Eq)]
pub struct Issued {
    /// Certificate in PEM, which is no secret.
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

/// Reasons why a certificate could not be made or written.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    /// A name that no certificate can carry.
    #[error("{what} {name:?} must have 1 to {NAME_BYTES_MAX} bytes and no control characters")]
    Name {
        /// Name of the certificate that is meant, such as `node`.
        what: &'static str,
        /// Name as it was given, which no certificate can carry.
        name: String,
    },
    /// The texts given as an authority are none.
    #[error("this is not a certificate authority and its key: {0}")]
    Authority(String),
    /// The key is not that of the authority's certificate.
    #[error("{} is not the key of {}", key.display(), certificate.display())]
    OtherKey {
        /// File of the key that does not fit.
        key: PathBuf,
        /// File of the certificate that the key was taken for.
        certificate: PathBuf,
    },
    /// The authority's own certificate is over.
    #[error("the authority {} ended on {ended}: make a new one with `tidegate cert ca`", path.display())]
    AuthorityEnded {
        /// File of the certificate that has ended.
        path: PathBuf,
        /// Day on which the authority ended.
        ended: String,
    },
    /// The certificate would outlive the authority that signs it.
    #[error(
        "the authority {} ends on {ends}, before {asked}: ask for at most {days} days (--days), or make a new \
         authority with `tidegate cert ca`",
        path.display()
    )]
    AuthorityEndsSooner {
        /// File of the authority's own certificate.
        path: PathBuf,
        /// Last day on which the authority is valid.
        ends: String,
        /// The last day that was asked for.
        asked: String,
        /// For how many days it can sign.
        days: i64,
    },
    /// The certificate is no daemon's.
    #[error("{} is no certificate of a daemon: {reason}", path.display())]
    NotNode {
        /// File of the certificate that names no daemon.
        path: PathBuf,
        /// The fault of the name in it.
        reason: IdentityError,
    },
    /// The text given as the serial number of a certificate is none.
    #[error("{0:?} is no serial number: write it as `tidegate cert show` does, in hexadecimal digits")]
    NoSerial(String),
    /// Another authority signed the certificate.
    #[error("{} was signed by {issuer}, and not by {}", path.display(), ca.display())]
    OtherAuthority {
        /// File of the certificate that another authority signed.
        path: PathBuf,
        /// Name of the authority that signed it, as the certificate has it.
        issuer: String,
        /// The file of the authority that was named.
        ca: PathBuf,
    },
    /// Making a key or a signature failed.
    #[error("the certificate could not be made: {0}")]
    Signing(#[from] rcgen::Error),
    /// There is a file already, and keys are never replaced unasked.
    #[error("{} exists already; choose another directory or move it away", .0.display())]
    Exists(PathBuf),
    /// A file holds no certificate.
    #[error("{} holds no certificate", .0.display())]
    NoCertificate(PathBuf),
    /// A file holds no list of revoked certificates.
    #[error("{} holds no list of revoked certificates", .0.display())]
    NoList(PathBuf),
    /// A file could not be read.
    #[error("{} cannot be read: {reason}", path.display())]
    Read {
        /// File that could not be read.
        path: PathBuf,
        /// Reason that the operating system gives.
        reason: std::io::Error,
    },
    /// A file could not be written.
    #[error("{} cannot be written: {reason}", path.display())]
    Write {
        /// File or directory that could not be written.
        path: PathBuf,
        /// Reason that the operating system gives.
        reason: std::io::Error,
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
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
    // While authorities are exchanged there are two: each has a name of its own, by its key.
    let digits = hex(digest(&SHA256, &key.subject_public_key_info()).as_ref());
    params.distinguished_name = named(&format!("Tidegate cluster authority {}", &digits[..NAME_DIGITS]));
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
    let names = vec![
        SanType::DnsName(Ia5String::try_from(SERVER_NAME)?),
        SanType::URI(Ia5String::try_from(identity::uri(node))?),
    ];
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
    // A common name holds at most 64 characters; the URI is the name that counts.
    let common_name: String = node.node.chars().take(64).collect();
    let certificate_pem = sign(ca, &common_name, names, &key, now, valid)?;
    Ok(Issued { certificate_pem, key_pem: key.serialize_pem() })
}

/// Signs a certificate for a node's key, with a common name and alternative names.
pub(super) fn sign(
    ca: &Authority,
    common_name: &str,
    names: Vec<SanType>,
    key: &KeyPair,
    now: Timestamp,
    valid: Span,
) -> Result<String, CertificateError> {
    let mut params = lasting(now, valid);
    params.distinguished_name = named(common_name);
    params.subject_alt_names = names;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages =
        vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    params.use_authority_key_identifier_extension = true;
    // A list of revoked certificates names them by this number. By default it would follow from the key, and
    // a certificate that is renewed with its key would have the number of the one before.
    let mut serial = [0; 16];
    SystemRandom::new().fill(&mut serial).map_err(|_| rcgen::Error::RingUnspecified)?;
    // Positive, and of one length.
    serial[0] = serial[0] & 0x7f | 0x40;
    params.serial_number = Some(SerialNumber::from_slice(&serial));
    Ok(params.signed_by(key, &issuer(ca)?)?.pem())
}

/// The authority as one that signs.
pub(super) fn issuer(ca: &Authority) -> Result<Issuer<'static, KeyPair>, CertificateError> {
    let authority = |error: rcgen::Error| CertificateError::Authority(error.to_string());
    let key = KeyPair::from_pem(ca.key_pem()).map_err(authority)?;
    Issuer::from_ca_cert_pem(ca.certificate_pem(), key).map_err(authority)
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
    let ca = read_authority(ca_dir)?;
    outlives(&ca, &ca_dir.join("ca.pem"), now, valid)?;
    write_pair(dir, ["node.pem", "node.key"], || issue_valid(&ca, node, now, valid))
}

/// Reads `ca.pem` and `ca.key` of an authority.
pub(super) fn read_authority(dir: &Path) -> Result<Authority, CertificateError> {
    let [certificate, key] = ["ca.pem", "ca.key"].map(|name| dir.join(name));
    let ca = Authority::new(read(&certificate)?, read(&key)?);
    let pem = first(ca.certificate_pem().as_bytes(), &certificate)?;
    let read = pem.parse_x509().map_err(|_| CertificateError::NoCertificate(certificate.clone()))?;
    let wrong = |why: String| CertificateError::Authority(format!("{}: {why}", dir.display()));
    if !read.is_ca() {
        return Err(wrong("ca.pem is the certificate of no authority".to_owned()));
    }
    let pair = KeyPair::from_pem(ca.key_pem()).map_err(|error| wrong(format!("ca.key: {error}")))?;
    if pair.subject_public_key_info() != read.public_key().raw {
        return Err(CertificateError::OtherKey { key, certificate });
    }
    Ok(ca)
}

/// Refuses an authority that is over, or that ends before what it is to sign.
pub(super) fn outlives(
    ca: &Authority,
    path: &Path,
    now: Timestamp,
    valid: Span,
) -> Result<(), CertificateError> {
    let last = i64::try_from(LAST_SECOND).unwrap_or(i64::MAX);
    let seconds = |at: Timestamp| i64::try_from(at.micros() / 1_000_000).unwrap_or(i64::MAX).min(last);
    let (ends, path) = (ends(ca.certificate_pem().as_bytes())?, path.to_path_buf());
    let left = ends.saturating_sub(seconds(now));
    if left < 0 {
        return Err(CertificateError::AuthorityEnded { path, ended: date(ends) });
    }
    let asked = seconds(now + valid);
    if ends < asked {
        let days = left / DAY_SECONDS;
        return Err(CertificateError::AuthorityEndsSooner {
            path,
            ends: date(ends),
            asked: date(asked),
            days,
        });
    }
    Ok(())
}

/// The contents of a file, for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Description {
    /// Lines of at most 80 columns, unless names are long.
    pub lines: Vec<String>,
    /// True if every certificate in it is valid at the time that was asked about.
    pub is_valid: bool,
}

/// Describes the certificates and lists of revoked certificates in a file.
///
/// # Errors
/// If it cannot be read, or holds neither.
pub fn describe(path: &Path, now: Timestamp) -> Result<Description, CertificateError> {
    describe_text(&read(path)?, path, now)
}

/// The same for the text of a file.
pub(super) fn describe_text(
    text: &str,
    path: &Path,
    now: Timestamp,
) -> Result<Description, CertificateError> {
    let unreadable = || CertificateError::NoCertificate(path.to_path_buf());
    let mut found = Description { lines: Vec::new(), is_valid: true };
    for pem in Pem::iter_from_buffer(text.as_bytes()) {
        let pem = pem.map_err(|_| unreadable())?;
        match pem.label.as_str() {
            "CERTIFICATE" => describe_certificate(&pem, path, now, &mut found).ok_or_else(unreadable)?,
            "X509 CRL" => {
                let (_, list) =
                    CertificateRevocationList::from_der(&pem.contents).map_err(|_| unreadable())?;
                found.lines.push(format!("{}: a list of revoked certificates", path.display()));
                found.lines.push(format!("  signed by  {}", list.issuer()));
                found.lines.push(format!("  made on    {}", date(list.last_update().timestamp())));
                if let Some(next) = list.next_update() {
                    found.lines.push(format!("  next by    {}", date(next.timestamp())));
                }
                found.lines.push(format!("  revokes    {}", list.iter_revoked_certificates().count()));
            }
            _ => {}
        }
    }
    if found.lines.is_empty() { Err(unreadable()) } else { Ok(found) }
}

/// The numbers that lists of revoked certificates come to together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RevokedLists {
    /// Number of revoked certificates that the lists name together.
    pub certificates: usize,
    /// True if one was to be followed by a newer one already. It is used all the same.
    pub overdue: bool,
}

/// Reads a file of such lists, which may be empty.
///
/// # Errors
/// It cannot be read, or holds something else.
pub fn read_lists(path: &Path, now: Timestamp) -> Result<RevokedLists, CertificateError> {
    let unfit = || CertificateError::NoList(path.to_path_buf());
    let mut all = RevokedLists { certificates: 0, overdue: false };
    let now = i64::try_from(now.micros() / 1_000_000).unwrap_or(i64::MAX);
    let text = read(path)?;
    let mut found = text.trim_ascii().is_empty();
    for pem in Pem::iter_from_buffer(text.as_bytes()) {
        let pem = pem.map_err(|_| unfit())?;
        found = true;
        let (_, list) = CertificateRevocationList::from_der(&pem.contents).map_err(|_| unfit())?;
        all.certificates += list.iter_revoked_certificates().count();
        all.overdue |= list.next_update().is_some_and(|next| next.timestamp() < now);
    }
    if found { Ok(all) } else { Err(unfit()) }
}

fn describe_certificate(pem: &Pem, path: &Path, now: Timestamp, into: &mut Description) -> Option<()> {
    let certificate = pem.parse_x509().ok()?;
    let who = match identity::node_of(&pem.contents) {
        Ok(name) => format!("node {} of region {}", name.node, name.region),
        Err(_) if identity::operator_of(&pem.contents).is_some() => {
            format!("operator {}", identity::operator_of(&pem.contents).unwrap_or_default())
        }
        Err(_) if certificate.is_ca() => format!("authority {}", certificate.subject()),
        Err(error) => format!("names no node ({error})"),
    };
    let validity = certificate.validity();
    let (begins, ends) = (validity.not_before.timestamp(), validity.not_after.timestamp());
    let now = i64::try_from(now.micros() / 1_000_000).unwrap_or(i64::MAX);
    let left = ends.saturating_sub(now);
    let state = if left < 0 {
        "it has ended".to_owned()
    } else if begins > now {
        "it has not begun".to_owned()
    } else {
        format!("{} days left", left / DAY_SECONDS)
    };
    into.is_valid &= left >= 0 && begins <= now;
    into.lines.push(format!("{}: {who}", path.display()));
    into.lines.push(format!("  signed by  {}", certificate.issuer()));
    into.lines.push(format!("  valid      {} to {}, {state}", date(begins), date(ends)));
    into.lines.push(format!("  serial     {}", hex(certificate.raw_serial())));
    into.lines.push(format!("  SHA-256    {}", hex(digest(&SHA256, &pem.contents).as_ref())));
    Some(())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        let digit = |nibble: u8| char::from_digit(u32::from(nibble), 16).unwrap_or('0');
        text.extend([digit(byte >> 4), digit(byte & 0xf)]);
        text
    })
}

/// The first certificate of a PEM text.
pub(super) fn first(pem: &[u8], path: &Path) -> Result<Pem, CertificateError> {
    let mut found = Pem::iter_from_buffer(pem).filter_map(Result::ok);
    let first = found.find(|pem| pem.label == "CERTIFICATE");
    first
        .filter(|pem| X509Certificate::from_der(&pem.contents).is_ok())
        .ok_or_else(|| CertificateError::NoCertificate(path.to_path_buf()))
}

/// Returns when the first certificate of a PEM text ends, in seconds since the epoch.
///
/// # Errors
/// If it holds none.
pub fn ends(pem: &[u8]) -> Result<i64, CertificateError> {
    let path = Path::new("the text");
    let first = first(pem, path)?;
    let certificate = first.parse_x509().map_err(|_| CertificateError::NoCertificate(path.to_path_buf()))?;
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
    let mut params = CertificateParams::default();
    params.not_before = instant(begin);
    params.not_after = instant(end);
    params
}

/// A second since the epoch as certificates say it.
pub(super) fn instant(second: u64) -> time::OffsetDateTime {
    rcgen::date_time_ymd(1970, 1, 1) + Duration::from_secs(second.min(LAST_SECOND))
}

fn named(common_name: &str) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    name.push(DnType::CommonName, common_name);
    name
}

pub(super) fn write_pair(
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
        .map_err(|reason| CertificateError::Write { path: dir.to_path_buf(), reason })?;
    // The key first: a certificate without its key would look finished.
    write_new(&key, &issued.key_pem, 0o600)?;
    write_new(&certificate, &issued.certificate_pem, 0o644)?;
    Ok([certificate, key])
}

fn write_new(path: &Path, text: &str, mode: u32) -> Result<(), CertificateError> {
    use std::os::unix::fs::OpenOptionsExt;
    let failed = |reason: std::io::Error| match reason.kind() {
        std::io::ErrorKind::AlreadyExists => CertificateError::Exists(path.to_path_buf()),
        _ => CertificateError::Write { path: path.to_path_buf(), reason },
    };
    let mut file =
        std::fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(path).map_err(failed)?;
    file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).map_err(failed)
}

pub(super) fn read(path: &Path) -> Result<String, CertificateError> {
    std::fs::read_to_string(path)
        .map_err(|reason| CertificateError::Read { path: path.to_path_buf(), reason })
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
        let Description { lines, is_valid } = describe(&pem, NOW).unwrap();
        assert!(lines[0].ends_with("node.pem: node nœud of region eu west/1") && is_valid, "{lines:?}");
        assert_eq!(lines[2], "  valid      2025-10-09 to 2025-10-19, 10 days left");
        let digits = lines[4].strip_prefix("  SHA-256    ").unwrap();
        assert!(digits.len() == 64 && digits.chars().all(|digit| digit.is_ascii_hexdigit()), "{digits}");
        assert!(lines[1..].iter().all(|line| line.chars().count() <= 80), "{lines:?}");
        let Description { lines, is_valid } = describe(&ca, Timestamp(u64::MAX)).unwrap();
        let text = lines.concat();
        assert!(text.contains("Tidegate cluster authority") && text.contains("it has ended"), "{text}");
        assert!(!is_valid && !describe(&pem, Timestamp(0)).unwrap().is_valid);
        assert!(matches!(describe(&key, NOW), Err(CertificateError::NoCertificate(_))));
    }

    #[test]
    fn an_authority_signs_nothing_that_outlives_it() {
        let dir = tempfile::tempdir().unwrap();
        let (ca, out) = (dir.path().join("ca"), dir.path().join("n"));
        write_ca(&ca, NOW, Span::from_secs(30 * 86_400)).unwrap();
        let asked = |days: u64, now| {
            let valid = Span::from_secs(days * 86_400);
            write_node(&ca, &node(), &out, now, valid).map(drop).map_err(|error| error.to_string())
        };
        let error = asked(31, NOW).unwrap_err();
        assert!(error.contains("ends on 2025-11-08, before 2025-11-09: ask for at most 30 days"), "{error}");
        let error = asked(1, NOW + Span::from_secs(31 * 86_400)).unwrap_err();
        assert!(error.contains("ca.pem ended on 2025-11-08: make a new one"), "{error}");
        assert!(!out.exists());
        assert_eq!(asked(30, NOW), Ok(()));
    }

    #[test]
    fn an_authority_with_the_key_of_another_signs_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let [ca, other] = ["ca", "other"].map(|name| dir.path().join(name));
        write_ca(&ca, NOW, CA_VALID).unwrap();
        write_ca(&other, NOW, CA_VALID).unwrap();
        std::fs::copy(other.join("ca.key"), ca.join("ca.key")).unwrap();
        let error = write_node(&ca, &node(), &dir.path().join("n"), NOW, NODE_VALID).unwrap_err();
        assert!(matches!(error, CertificateError::OtherKey { .. }), "{error}");
    }

    #[test]
    fn a_private_key_is_not_printed_by_accident() {
        let ca = create_ca(NOW).unwrap();
        assert!(!format!("{ca:?}").contains("PRIVATE"));
    }
}
