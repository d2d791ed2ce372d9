//! Renewing the certificate of a daemon in its place.
//!
//! A daemon reads certificate and key one after the other, at any time. So the two files go together at every
//! instant, also when this process is killed between two of its steps: first the key's file holds the key
//! before and the new one, then the certificate is replaced, and then the key before is gone. The reader
//! takes the key that belongs to the certificate (`tls.rs`).

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rcgen::string::Ia5String;
use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256, PublicKeyData, SanType};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use x509_parser::prelude::{GeneralName, X509Certificate};

use super::certificate::{self, CertificateError, Description, SERVER_NAME};
use super::identity;
use super::trust::Trust;
use crate::core::regions::NodeName;
use crate::core::time::{Span, Timestamp};

/// The permissions of the key before that its new one may have: its group may read it where that one's could.
const KEY_MODE: u32 = 0o640;
const CERTIFICATE_MODE: u32 = 0o644;
const OWNER_ONLY: u32 = 0o600;

/// The terms on which a certificate is renewed.
#[derive(Debug, Clone, Copy)]
pub struct RenewalTerms {
    /// For how long the new one is valid.
    pub valid: Span,
    /// True to sign the present key again; false makes another.
    pub keep_key: bool,
    /// True if another authority may have signed the certificate before.
    pub change_authority: bool,
}

/// Reasons why a certificate could not be renewed.
#[derive(Debug, thiserror::Error)]
pub enum RenewalError {
    /// The reason is one that any certificate may have.
    #[error(transparent)]
    Certificate(#[from] CertificateError),
    /// Another authority signed the certificate before.
    #[error("{0}; in a change of the authority say --change-authority")]
    OtherAuthority(CertificateError),
    /// The key beside the certificate is missing.
    #[error(
        "{} cannot be read: {reason}; `tidegate cert renew` replaces the key beside its certificate",
        path.display()
    )]
    Key {
        /// File of the key beside the certificate.
        path: PathBuf,
        /// Reason that the operating system gives.
        reason: std::io::Error,
    },
    /// The key is to be kept and cannot be.
    #[error("{} holds no key of {} that can be kept: leave out --keep-key", key.display(), certificate.display())]
    UnfitKey {
        /// File of the key that cannot be kept.
        key: PathBuf,
        /// File of the certificate that is renewed.
        certificate: PathBuf,
    },
    /// The certificate has a name that a new one could not have.
    #[error("{} has a name of a kind that cannot be carried over: {name}", path.display())]
    Name {
        /// File of the certificate that is renewed.
        path: PathBuf,
        /// Name in the certificate, as text.
        name: String,
    },
    /// Somebody else renews it now.
    #[error("another `tidegate cert renew` is at work in {}", .0.display())]
    Busy(PathBuf),
}

/// A certificate that is signed and not yet written.
pub struct Renewal {
    name: NodeName,
    certificate: PathBuf,
    key: PathBuf,
    certificate_pem: String,
    /// The file of the key as it was, and the new key; `None`: it stays.
    keys: Option<(String, String)>,
    at: Timestamp,
}

impl std::fmt::Debug for Renewal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Renewal").field("certificate", &self.certificate).finish_non_exhaustive()
    }
}

/// Reads `ca.pem` and `ca.key` from `ca_dir`, and `node.pem` and `node.key` from `dir`, and signs a
/// certificate with the same names. Nothing is written yet.
///
/// # Errors
/// What is wrong with the authority, with the certificate or its key, or with how they belong together.
pub fn prepare(
    ca_dir: &Path,
    dir: &Path,
    terms: RenewalTerms,
    now: Timestamp,
) -> Result<Renewal, RenewalError> {
    let ca = certificate::read_authority(ca_dir)?;
    let ca_path = ca_dir.join("ca.pem");
    certificate::outlives(&ca, &ca_path, now, terms.valid)?;

    let [path, key_path] = ["node.pem", "node.key"].map(|name| dir.join(name));
    let text = certificate::read(&path)?;
    let pem = certificate::first(text.as_bytes(), &path)?;
    let name = identity::node_of(&pem.contents)
        .map_err(|reason| CertificateError::NotNode { path: path.clone(), reason })?;
    let before = pem.parse_x509().map_err(|_| CertificateError::NoCertificate(path.clone()))?;
    if !terms.change_authority {
        let authority = AuthorityFile { pem: ca.certificate_pem(), path: &ca_path };
        signed_by(&pem.contents, &before, &path, authority).map_err(|error| match error {
            CertificateError::OtherAuthority { .. } => RenewalError::OtherAuthority(error),
            error => error.into(),
        })?;
    }

    let key_text = std::fs::read_to_string(&key_path)
        .map_err(|reason| RenewalError::Key { path: key_path.clone(), reason })?;
    let kept = if terms.keep_key {
        let unfit = || RenewalError::UnfitKey { key: key_path.clone(), certificate: path.clone() };
        Some(key_of(&before, &key_text).ok_or_else(unfit)?)
    } else {
        None
    };
    let (pair, keys) = match kept {
        Some(pair) => (pair, None),
        None => {
            let pair = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(CertificateError::from)?;
            let new = pair.serialize_pem();
            (pair, Some((key_text, new)))
        }
    };
    let common_name = before.subject().iter_common_name().find_map(|name| name.as_str().ok());
    let common_name = common_name.unwrap_or(&name.node).to_owned();
    let names = names_of(&before, &path)?;
    let certificate_pem = certificate::sign(&ca, &common_name, names, &pair, now, terms.valid)?;
    Ok(Renewal { name, certificate: path, key: key_path, certificate_pem, keys, at: now })
}

impl Renewal {
    /// Whom it names.
    #[must_use]
    pub const fn name(&self) -> &NodeName {
        &self.name
    }

    /// The certificate as it will be.
    ///
    /// # Errors
    /// It cannot be read, which would be a fault of this program.
    pub fn describe(&self) -> Result<Description, CertificateError> {
        certificate::describe_text(&self.certificate_pem, &self.certificate, self.at)
    }

    /// Puts the certificate and its key in the place of those before. At every instant the two files go
    /// together. The key is readable by its owner, and by its group where the one before was.
    ///
    /// # Errors
    /// A file cannot be written. The files that are there then go together, and the renewal can be repeated.
    pub fn write(&self) -> Result<(), RenewalError> {
        let unwritten = |reason| CertificateError::Write { path: self.certificate.clone(), reason };
        let folder = self.certificate.parent().filter(|parent| !parent.as_os_str().is_empty());
        let folder = folder.unwrap_or_else(|| Path::new("."));
        let lock = File::open(folder).map_err(unwritten)?;
        if lock.try_lock().is_err() {
            return Err(RenewalError::Busy(folder.to_path_buf()));
        }
        let Some((before, new)) = &self.keys else {
            return Ok(replace(&self.certificate, &self.certificate_pem, CERTIFICATE_MODE)?);
        };
        let gap = if before.ends_with('\n') { "" } else { "\n" };
        replace(&self.key, &format!("{before}{gap}{new}"), KEY_MODE)?;
        replace(&self.certificate, &self.certificate_pem, CERTIFICATE_MODE)?;
        Ok(replace(&self.key, new, KEY_MODE)?)
    }
}

/// An authority's certificate and the file that it was read from.
#[derive(Clone, Copy)]
pub(super) struct AuthorityFile<'a> {
    pub(super) pem: &'a str,
    pub(super) path: &'a Path,
}

/// Refuses a certificate that an authority did not sign, whether or not it has ended. `path`: the file of the
/// certificate.
pub(super) fn signed_by(
    certificate: &[u8],
    read: &X509Certificate<'_>,
    path: &Path,
    ca: AuthorityFile<'_>,
) -> Result<(), CertificateError> {
    let unfit = |why: String| CertificateError::Authority(format!("{}: {why}", ca.path.display()));
    let authority =
        CertificateDer::from_pem_slice(ca.pem.as_bytes()).map_err(|error| unfit(error.to_string()))?;
    let provider = std::sync::Arc::new(rustls::crypto::ring::default_provider());
    let trust = Trust::new(&[authority], &[], &provider).map_err(unfit)?;
    trust.still_accepts(&[CertificateDer::from(certificate)]).map_err(|_| CertificateError::OtherAuthority {
        path: path.to_path_buf(),
        issuer: read.issuer().to_string(),
        ca: ca.path.to_path_buf(),
    })
}

/// Returns the key in a text that belongs to a certificate.
fn key_of(certificate: &X509Certificate<'_>, text: &str) -> Option<KeyPair> {
    PrivateKeyDer::pem_slice_iter(text.as_bytes())
        .filter_map(|key| KeyPair::try_from(&key.ok()?).ok())
        .find(|pair| pair.subject_public_key_info() == certificate.public_key().raw)
}

/// The alternative names of a certificate, so that a new one has the same.
fn names_of(certificate: &X509Certificate<'_>, path: &Path) -> Result<Vec<SanType>, RenewalError> {
    let text = |text: &str| Ia5String::try_from(text).map_err(CertificateError::from);
    let found = certificate.subject_alternative_name().ok().flatten();
    let mut names = Vec::new();
    for name in found.iter().flat_map(|found| &found.value.general_names) {
        names.push(match name {
            GeneralName::DNSName(name) => SanType::DnsName(text(name)?),
            GeneralName::URI(name) => SanType::URI(text(name)?),
            GeneralName::RFC822Name(name) => SanType::Rfc822Name(text(name)?),
            GeneralName::IPAddress(bytes) => match address(bytes) {
                Some(address) => SanType::IpAddress(address),
                None => return Err(RenewalError::Name { path: path.to_path_buf(), name: name.to_string() }),
            },
            name => return Err(RenewalError::Name { path: path.to_path_buf(), name: name.to_string() }),
        });
    }
    let server = SanType::DnsName(text(SERVER_NAME)?);
    if !names.contains(&server) {
        names.push(server);
    }
    Ok(names)
}

fn address(bytes: &[u8]) -> Option<std::net::IpAddr> {
    let four = <[u8; 4]>::try_from(bytes).map(std::net::IpAddr::from);
    four.or_else(|_| <[u8; 16]>::try_from(bytes).map(std::net::IpAddr::from)).ok()
}

/// Puts a text in the place of a file, in one step. Owner and group stay, and of the permissions those in
/// `mode`; a file that is new has [`OWNER_ONLY`] of them, or all of them if everybody may read it.
pub(super) fn replace(path: &Path, text: &str, mode: u32) -> Result<(), CertificateError> {
    // A link goes on to lead to the file.
    let real = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
    let failed = |reason| CertificateError::Write { path: path.to_path_buf(), reason };
    let folder = real.parent().filter(|parent| !parent.as_os_str().is_empty());
    let folder = folder.unwrap_or_else(|| Path::new("."));
    let name = real.file_name().unwrap_or_default().to_string_lossy();
    let fresh = folder.join(format!(".{name}.{}.new", std::process::id()));
    let written = write_beside(&fresh, &real, text, mode).and_then(|()| {
        std::fs::rename(&fresh, &real)?;
        // So that the steps of a renewal are on the disk in their order.
        File::open(folder)?.sync_all()
    });
    written.map_err(|error| {
        let _ = std::fs::remove_file(&fresh);
        failed(error)
    })
}

fn write_beside(fresh: &Path, real: &Path, text: &str, mode: u32) -> std::io::Result<()> {
    // A killed process of the same number may have left such a file.
    let _ = std::fs::remove_file(fresh);
    let mut file = OpenOptions::new().write(true).create_new(true).mode(OWNER_ONLY).open(fresh)?;
    file.write_all(text.as_bytes())?;
    let kept = match std::fs::metadata(real) {
        Ok(before) => {
            let own = file.metadata()?;
            if (before.uid(), before.gid()) != (own.uid(), own.gid()) {
                std::os::unix::fs::fchown(&file, Some(before.uid()), Some(before.gid()))?;
            }
            before.mode() & mode | OWNER_ONLY
        }
        Err(_) if mode == CERTIFICATE_MODE => mode,
        Err(_) => OWNER_ONLY,
    };
    file.set_permissions(std::fs::Permissions::from_mode(kept))?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peer::certificate::{CA_VALID, NODE_VALID, write_ca, write_node};
    use crate::peer::tls::{TlsPem, check};

    const NOW: Timestamp = Timestamp(1_760_000_000_000_000);
    const DAY: u64 = 24 * 3_600;
    const TERMS: RenewalTerms =
        RenewalTerms { valid: Span::from_secs(90 * DAY), keep_key: false, change_authority: false };

    /// A folder with the authorities `ca` and `ca2`, and the node `n` of the first.
    fn folder() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for ca in ["ca", "ca2"] {
            write_ca(&dir.path().join(ca), NOW, CA_VALID).unwrap();
        }
        let name = NodeName { region: "eu west".into(), node: "n/1".into() };
        write_node(&dir.path().join("ca"), &name, &dir.path().join("n"), NOW, NODE_VALID).unwrap();
        dir
    }

    fn read(dir: &Path, file: &str) -> Vec<u8> {
        std::fs::read(dir.join(file)).unwrap()
    }

    fn pem(dir: &Path, ca: &str) -> TlsPem {
        let [ca, cert, key] = [ca, "n/node.pem", "n/node.key"].map(|file| read(dir, file));
        TlsPem { ca, cert, key, revoked: Vec::new() }
    }

    fn refused(dir: &Path, ca: &str, terms: RenewalTerms, now: Timestamp) -> String {
        let before = pem(dir, "ca/ca.pem");
        let error = prepare(&dir.join(ca), &dir.join("n"), terms, now).unwrap_err().to_string();
        assert!(before == pem(dir, "ca/ca.pem"), "nothing is changed");
        error
    }

    #[test]
    fn a_renewed_certificate_names_the_same_node_for_longer_and_has_another_key() {
        let dir = folder();
        let dir = dir.path();
        let before = pem(dir, "ca/ca.pem");
        let later = NOW + Span::from_secs(400 * DAY);
        assert!(check(&before, later).is_err(), "it has ended, and can be renewed all the same");
        let renewal = prepare(&dir.join("ca"), &dir.join("n"), TERMS, later).unwrap();
        assert_eq!(renewal.name().node, "n/1");
        let lines = renewal.describe().unwrap().lines;
        assert!(lines[0].ends_with("node.pem: node n/1 of region eu west"), "{lines:?}");
        assert!(lines[2].ends_with("90 days left"), "{lines:?}");
        assert!(pem(dir, "ca/ca.pem") == before, "nothing is written yet");
        renewal.write().unwrap();
        let after = pem(dir, "ca/ca.pem");
        assert_ne!(after.key, before.key);
        let ends = check(&after, later).unwrap().node;
        assert_eq!(ends, i64::try_from(later.micros() / 1_000_000 + 90 * DAY).unwrap());
        let mode = std::fs::metadata(dir.join("n/node.key")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let files = std::fs::read_dir(dir.join("n")).unwrap().count();
        assert_eq!(files, 2, "nothing is left beside them");
    }

    #[test]
    fn the_key_can_stay_and_the_number_is_another() {
        let dir = folder();
        let dir = dir.path();
        let before = pem(dir, "ca/ca.pem");
        let terms = RenewalTerms { keep_key: true, ..TERMS };
        prepare(&dir.join("ca"), &dir.join("n"), terms, NOW).unwrap().write().unwrap();
        let after = pem(dir, "ca/ca.pem");
        assert_eq!(after.key, before.key);
        check(&after, NOW).unwrap();
        let serial = |pem: &[u8]| {
            let pem = certificate::first(pem, Path::new("x")).unwrap();
            pem.parse_x509().unwrap().raw_serial().to_vec()
        };
        assert_ne!(serial(&after.cert), serial(&before.cert));
    }

    /// Who reads the two files while they are replaced again and again never meets two that do not go
    /// together, if the certificate is the same before and after the key was read.
    #[test]
    fn at_every_instant_the_two_files_go_together() {
        let dir = folder();
        let path = dir.path().to_path_buf();
        let writer = std::thread::spawn(move || {
            for _ in 0..20 {
                prepare(&path.join("ca"), &path.join("n"), TERMS, NOW).unwrap().write().unwrap();
            }
        });
        let (mut judged, mut seen) = (0, std::collections::BTreeSet::new());
        while !writer.is_finished() || judged == 0 {
            let found = pem(dir.path(), "ca/ca.pem");
            if read(dir.path(), "n/node.pem") != found.cert {
                continue;
            }
            check(&found, NOW).unwrap();
            judged += 1;
            seen.insert(found.cert);
        }
        writer.join().unwrap();
        assert!(judged > 0 && !seen.is_empty(), "{judged}");
    }

    /// A process that is killed between two of its steps leaves files that go together.
    #[test]
    fn a_renewal_that_was_broken_off_is_repeated() {
        let dir = folder();
        let dir = dir.path();
        let renewal = prepare(&dir.join("ca"), &dir.join("n"), TERMS, NOW).unwrap();
        let (before, new) = renewal.keys.clone().unwrap();
        replace(&renewal.key, &format!("{before}{new}"), KEY_MODE).unwrap();
        check(&pem(dir, "ca/ca.pem"), NOW).unwrap();
        replace(&renewal.certificate, &renewal.certificate_pem, CERTIFICATE_MODE).unwrap();
        check(&pem(dir, "ca/ca.pem"), NOW).unwrap();
        let terms = RenewalTerms { keep_key: true, ..TERMS };
        prepare(&dir.join("ca"), &dir.join("n"), terms, NOW).unwrap().write().unwrap();
        check(&pem(dir, "ca/ca.pem"), NOW).unwrap();
        prepare(&dir.join("ca"), &dir.join("n"), TERMS, NOW).unwrap().write().unwrap();
        let keys = String::from_utf8(pem(dir, "ca/ca.pem").key).unwrap();
        assert_eq!(keys.matches("BEGIN").count(), 1);
        check(&pem(dir, "ca/ca.pem"), NOW).unwrap();
    }

    #[test]
    fn another_authority_renews_it_only_when_it_is_told_to() {
        let dir = folder();
        let dir = dir.path();
        let error = refused(dir, "ca2", TERMS, NOW);
        assert!(error.contains("was signed by CN=Tidegate cluster authority"), "{error}");
        assert!(error.contains("ca2/ca.pem") && error.contains("--change-authority"), "{error}");
        let terms = RenewalTerms { change_authority: true, ..TERMS };
        prepare(&dir.join("ca2"), &dir.join("n"), terms, NOW).unwrap().write().unwrap();
        check(&pem(dir, "ca2/ca.pem"), NOW).unwrap();
        assert!(check(&pem(dir, "ca/ca.pem"), NOW).is_err());
    }

    #[test]
    fn who_names_something_else_is_told_what_it_is() {
        let dir = folder();
        let dir = dir.path();
        let error = refused(dir, "ca", TERMS, NOW + Span::from_secs(3_651 * DAY));
        assert!(error.contains("ca.pem ended on 2035-10-07"), "{error}");
        let error = refused(dir, "ca", RenewalTerms { valid: CA_VALID, ..TERMS }, NOW + Span::from_secs(DAY));
        assert!(error.contains("ask for at most 3649 days"), "{error}");
        let error = refused(dir, "nowhere", TERMS, NOW);
        assert!(error.contains("nowhere/ca.pem cannot be read"), "{error}");
        let own = std::fs::read(dir.join("n/node.pem")).unwrap();
        std::fs::copy(dir.join("ca/ca.pem"), dir.join("n/node.pem")).unwrap();
        let error = refused(dir, "ca", TERMS, NOW);
        assert!(error.contains("n/node.pem is no certificate of a daemon"), "{error}");
        std::fs::write(dir.join("n/node.pem"), own).unwrap();
        std::fs::copy(dir.join("ca/ca.key"), dir.join("n/node.key")).unwrap();
        let error = refused(dir, "ca", RenewalTerms { keep_key: true, ..TERMS }, NOW);
        assert!(error.contains("holds no key of") && error.contains("--keep-key"), "{error}");
        std::fs::remove_file(dir.join("n/node.key")).unwrap();
        let error = prepare(&dir.join("ca"), &dir.join("n"), TERMS, NOW).unwrap_err().to_string();
        assert!(error.contains("n/node.key cannot be read"), "{error}");
        std::fs::remove_file(dir.join("ca/ca.key")).unwrap();
        let error = prepare(&dir.join("ca"), &dir.join("n"), TERMS, NOW).unwrap_err().to_string();
        assert!(error.contains("ca/ca.key cannot be read"), "{error}");
    }

    #[test]
    fn permissions_of_a_group_stay_and_others_may_not_read_a_key() {
        let dir = folder();
        let key = dir.path().join("n/node.key");
        for (before, after) in [(0o640, 0o640), (0o644, 0o640), (0o400, 0o600), (0o600, 0o600)] {
            std::fs::set_permissions(&key, std::fs::Permissions::from_mode(before)).unwrap();
            prepare(&dir.path().join("ca"), &dir.path().join("n"), TERMS, NOW).unwrap().write().unwrap();
            let mode = std::fs::metadata(&key).unwrap().permissions().mode() & 0o777;
            assert_eq!(mode, after, "{before:o}");
        }
    }
}
