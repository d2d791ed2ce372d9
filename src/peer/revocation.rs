//! Revoking certificates of daemons: the list that an authority signs, and every daemon is given.

use std::path::{Path, PathBuf};

use rcgen::{CertificateRevocationListParams, KeyIdMethod, RevokedCertParams, SerialNumber};
use rustls::pki_types::CertificateRevocationListDer;
use rustls::pki_types::pem::PemObject;
use x509_parser::prelude::FromDer;
use x509_parser::revocation_list::CertificateRevocationList;

use super::certificate::{self, Authority, CA_VALID, CertificateError};
use super::renewal::{AuthorityFile, replace, signed_by};
use crate::core::time::Timestamp;

/// The list's name in the authority's folder.
const LIST: &str = "revoked.pem";
/// Everybody may read it.
const MODE: u32 = 0o644;

/// A list as it was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Revoked {
    /// File of the list that the certificate was added to.
    pub path: PathBuf,
    /// Number of certificates that the list names now.
    pub certificates: usize,
}

/// One certificate on the list: its number, and when it was revoked, in seconds since the epoch.
type Entry = (Vec<u8>, u64);

/// Longest serial number of a certificate, in bytes (RFC 5280, 4.1.2.2).
const SERIAL_BYTES_MAX: usize = 20;

/// Adds certificates to `revoked.pem` in an authority's folder, which is made if it is missing: those in
/// files, and those whose files are lost, by their serial numbers in hexadecimal digits.
///
/// # Errors
/// If a file cannot be read, is no certificate of a daemon that this authority signed, a number is none, or
/// the list cannot be written.
pub fn revoke(
    ca_dir: &Path,
    files: &[PathBuf],
    serials: &[String],
    now: Timestamp,
) -> Result<Revoked, CertificateError> {
    let ca = certificate::read_authority(ca_dir)?;
    let (path, ca_path) = (ca_dir.join(LIST), ca_dir.join("ca.pem"));
    let (number, mut entries) = before(&path, &ca, &ca_path)?;
    let mut revoked = Vec::new();
    for text in serials {
        revoked.push(serial_of(text).ok_or_else(|| CertificateError::NoSerial(text.clone()))?);
    }
    for file in files {
        let text = certificate::read(file)?;
        let pem = certificate::first(text.as_bytes(), file)?;
        let read = pem.parse_x509().map_err(|_| CertificateError::NoCertificate(file.clone()))?;
        let authority = AuthorityFile { pem: ca.certificate_pem(), path: &ca_path };
        signed_by(&pem.contents, &read, file, authority)?;
        revoked.push(read.raw_serial().to_vec());
    }
    for serial in revoked {
        if !entries.iter().any(|(known, _)| *known == serial) {
            entries.push((serial, now.micros() / 1_000_000));
        }
    }
    let text = signed(&ca, number + 1, &entries, now)?;
    replace(&path, &text, MODE)?;
    Ok(Revoked { path, certificates: entries.len() })
}

/// The number that `tidegate cert show` prints as `serial`; colons between its digits may stand.
fn serial_of(text: &str) -> Option<Vec<u8>> {
    let digits: Vec<u32> = text
        .chars()
        .filter(|letter| *letter != ':')
        .map(|letter| letter.to_digit(16))
        .collect::<Option<_>>()?;
    if digits.is_empty() || digits.len() % 2 == 1 || digits.len() / 2 > SERIAL_BYTES_MAX {
        return None;
    }
    digits
        .chunks(2)
        .map(|pair| u8::try_from(pair.iter().fold(0, |byte, digit| byte * 16 + digit)).ok())
        .collect()
}

/// The number and the entries of the list that is there.
fn before(path: &Path, ca: &Authority, ca_path: &Path) -> Result<(u64, Vec<Entry>), CertificateError> {
    if !path.exists() {
        return Ok((0, Vec::new()));
    }
    let unfit = || CertificateError::NoList(path.to_path_buf());
    let der = CertificateRevocationListDer::from_pem_slice(certificate::read(path)?.as_bytes())
        .map_err(|_| unfit())?;
    let (_, list) = CertificateRevocationList::from_der(&der).map_err(|_| unfit())?;
    let pem = certificate::first(ca.certificate_pem().as_bytes(), ca_path)?;
    let authority = pem.parse_x509().map_err(|_| unfit())?;
    if list.issuer().as_raw() != authority.subject().as_raw() {
        return Err(CertificateError::OtherAuthority {
            path: path.to_path_buf(),
            issuer: list.issuer().to_string(),
            ca: ca_path.to_path_buf(),
        });
    }
    let number = list.crl_number().and_then(|number| u64::try_from(number).ok()).unwrap_or(0);
    let entry = |revoked: &x509_parser::revocation_list::RevokedCertificate<'_>| {
        let at = u64::try_from(revoked.revocation_date.timestamp()).unwrap_or(0);
        (revoked.raw_serial().to_vec(), at)
    };
    Ok((number, list.iter_revoked_certificates().map(entry).collect()))
}

fn signed(
    ca: &Authority,
    number: u64,
    entries: &[Entry],
    now: Timestamp,
) -> Result<String, CertificateError> {
    let revoked = |(serial, at): &Entry| RevokedCertParams {
        serial_number: SerialNumber::from_slice(serial),
        revocation_time: certificate::instant(*at),
        reason_code: None,
        invalidity_date: None,
    };
    let list = CertificateRevocationListParams {
        this_update: certificate::instant(now.micros() / 1_000_000),
        // No list follows by itself: daemons use one for as long as they are given it.
        next_update: certificate::instant((now + CA_VALID).micros() / 1_000_000),
        crl_number: SerialNumber::from(number),
        issuing_distribution_point: None,
        revoked_certs: entries.iter().map(revoked).collect(),
        key_identifier_method: KeyIdMethod::Sha256,
    };
    Ok(list.signed_by(&certificate::issuer(ca)?)?.pem()?)
}

#[cfg(test)]
mod tests {
    use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, KeyPair, KeyUsagePurpose};

    use super::*;
    use crate::core::regions::NodeName;
    use crate::core::time::Span;
    use crate::peer::certificate::{NODE_VALID, write_ca, write_node};
    use crate::peer::tls::{TlsError, TlsPem, check};

    const NOW: Timestamp = Timestamp(1_760_000_000_000_000);

    fn issue(dir: &Path, ca: &str, node: &str) -> PathBuf {
        let name = NodeName { region: "eu".into(), node: node.into() };
        let [path, _] = write_node(&dir.join(ca), &name, &dir.join(node), NOW, NODE_VALID).unwrap();
        path
    }

    fn pem(dir: &Path, ca: Vec<u8>, node: &str, revoked: Vec<u8>) -> TlsPem {
        let read = |file: &str| std::fs::read(dir.join(node).join(file)).unwrap();
        TlsPem { ca, cert: read("node.pem"), key: read("node.key"), revoked }
    }

    #[test]
    fn each_call_adds_to_the_list_of_the_authority() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        write_ca(&dir.join("ca"), NOW, CA_VALID).unwrap();
        let [a, b, c] = ["a", "b", "c"].map(|node| issue(dir, "ca", node));
        let list = || std::fs::read(dir.join("ca/revoked.pem")).unwrap();
        let judged = |node: &str| {
            let ca = std::fs::read(dir.join("ca/ca.pem")).unwrap();
            check(&pem(dir, ca, node, list()), NOW).map(drop)
        };
        let made = revoke(&dir.join("ca"), std::slice::from_ref(&a), &[], NOW).unwrap();
        assert_eq!(made, Revoked { path: dir.join("ca/revoked.pem"), certificates: 1 });
        assert!(matches!(judged("a"), Err(TlsError::Revoked)) && judged("b").is_ok());
        let later = NOW + Span::from_secs(60);
        assert_eq!(revoke(&dir.join("ca"), &[a, b], &[], later).unwrap().certificates, 2);
        assert!(judged("a").is_err() && judged("b").is_err() && judged("c").is_ok());
        // Of one whose file is lost the number is enough, as it was shown.
        let number = certificate::describe(&c, NOW).unwrap().lines;
        let number = number.iter().find_map(|line| line.trim().strip_prefix("serial ")).unwrap().trim();
        for wrong in ["", "0", "xy", &"00".repeat(21)] {
            let refused = revoke(&dir.join("ca"), &[], &[wrong.to_owned()], later).unwrap_err().to_string();
            assert!(refused.contains("is no serial number"), "{refused}");
        }
        assert_eq!(revoke(&dir.join("ca"), &[], &[number.to_owned()], later).unwrap().certificates, 3);
        assert!(judged("c").is_err());
        let shown = certificate::describe(&dir.join("ca/revoked.pem"), NOW).unwrap().lines;
        assert_eq!(shown.last().unwrap(), "  revokes    3");
        write_ca(&dir.join("ca2"), NOW, CA_VALID).unwrap();
        let other = issue(dir, "ca2", "other");
        let error = revoke(&dir.join("ca"), &[other], &[], NOW).unwrap_err().to_string();
        assert!(error.contains("was signed by") && error.contains("and not by"), "{error}");
        assert!(c.exists());
    }

    /// An authority as earlier versions made them: all have one name.
    fn write_ca_of_one_name(dir: &Path) {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "Tidegate cluster authority");
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate().unwrap();
        std::fs::create_dir(dir).unwrap();
        std::fs::write(dir.join("ca.pem"), params.self_signed(&key).unwrap().pem()).unwrap();
        std::fs::write(dir.join("ca.key"), key.serialize_pem()).unwrap();
    }

    /// Each authority's list is held against its own certificates alone, also where the two have one name.
    #[test]
    fn the_list_of_one_authority_says_nothing_of_another() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        write_ca_of_one_name(&dir.join("ca"));
        write_ca_of_one_name(&dir.join("ca2"));
        let [a, _b] = ["a", "b"].map(|node| issue(dir, "ca", node));
        let other = issue(dir, "ca2", "other");
        let read = |file: &str| std::fs::read(dir.join(file)).unwrap();
        revoke(&dir.join("ca"), &[a], &[], NOW).unwrap();
        let cas = [read("ca/ca.pem"), read("ca2/ca.pem")].concat();
        let judged =
            |node: &str, list: &[u8]| check(&pem(dir, cas.clone(), node, list.to_vec()), NOW).map(drop);
        let first = read("ca/revoked.pem");
        assert!(
            judged("a", &first).is_err() && judged("b", &first).is_ok() && judged("other", &first).is_ok()
        );
        revoke(&dir.join("ca2"), &[other], &[], NOW).unwrap();
        let both = [first, read("ca2/revoked.pem")].concat();
        assert!(judged("a", &both).is_err() && judged("b", &both).is_ok() && judged("other", &both).is_err());
    }
}
