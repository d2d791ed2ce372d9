//! Operators: certificates of the cluster's authority that name a person and no node, and what they sign.
//!
//! Their keys lie on no daemon. So who takes a node over cannot speak for an operator.

use std::path::{Path, PathBuf};

use rcgen::string::Ia5String;
use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256, SanType};
use ring::rand::SystemRandom;
use ring::signature::{
    ECDSA_P256_SHA256_ASN1, ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair, UnparsedPublicKey,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, UnixTime};
use x509_parser::prelude::{FromDer, X509Certificate};

use super::certificate::{self, CertificateError, Issued};
use super::identity::{self, operator_of};
use super::trust::Trust;
use crate::core::region_list::{RegionOrder, RegionState, Signed};
use crate::core::time::{Span, Timestamp};

const FILES: [&str; 2] = ["operator.pem", "operator.key"];

/// Reasons why what somebody signed is not an operator's word.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotOperator {
    /// The certificate names nobody.
    #[error("the certificate is no operator's: `tidegate cert operator` makes one")]
    NoOperator,
    /// The cluster's authority did not sign it, it had ended or had not begun when it signed, or it is
    /// revoked.
    #[error("the operator's certificate is not accepted: {0}")]
    Certificate(String),
    /// The signature is not of this change by this key.
    #[error("the signature is not of this change")]
    Signature,
}

/// Makes an operator's certificate and writes `operator.pem` and `operator.key` (mode 0600) into `dir`, which
/// is made if it is missing.
///
/// # Errors
/// A name that no certificate carries; a file that cannot be read or written, or is there; an authority that
/// ends sooner.
pub fn write(
    ca_dir: &Path,
    name: &str,
    dir: &Path,
    now: Timestamp,
    valid: Span,
) -> Result<[PathBuf; 2], CertificateError> {
    if !identity::is_name(name) {
        return Err(CertificateError::Name { what: "operator", name: name.to_owned() });
    }
    let ca = certificate::read_authority(ca_dir)?;
    certificate::outlives(&ca, &ca_dir.join("ca.pem"), now, valid)?;
    certificate::write_pair(dir, FILES, || {
        let names = vec![SanType::URI(Ia5String::try_from(identity::operator_uri(name))?)];
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let common_name: String = name.chars().take(64).collect();
        let certificate_pem = certificate::sign(&ca, &common_name, names, &key, now, valid)?;
        Ok(Issued { certificate_pem, key_pem: key.serialize_pem() })
    })
}

/// An operator's certificate with its key.
pub struct OperatorKey {
    certificate: Vec<u8>,
    key: EcdsaKeyPair,
}

impl OperatorKey {
    /// Reads what [`write`] wrote.
    ///
    /// # Errors
    /// A file that cannot be read, or that holds something else.
    pub fn read(dir: &Path) -> Result<Self, CertificateError> {
        let [path, key_path] = FILES.map(|name| dir.join(name));
        let certificate = certificate::first(certificate::read(&path)?.as_bytes(), &path)?.contents;
        if operator_of(&certificate).is_none() {
            return Err(CertificateError::Authority(format!(
                "{} names no operator: `tidegate cert operator` makes such a certificate",
                path.display()
            )));
        }
        let other = || CertificateError::OtherKey { key: key_path.clone(), certificate: path.clone() };
        let der = PrivatePkcs8KeyDer::from_pem_slice(certificate::read(&key_path)?.as_bytes());
        let der = der.map_err(|_| other())?;
        let key = EcdsaKeyPair::from_pkcs8(
            &ECDSA_P256_SHA256_ASN1_SIGNING,
            der.secret_pkcs8_der(),
            &SystemRandom::new(),
        );
        Ok(Self { certificate, key: key.map_err(|_| other())? })
    }

    /// Signs a change of a region.
    ///
    /// # Errors
    /// The system has no randomness.
    pub fn sign(&self, region: &str, state: RegionState, stamp: u64) -> Result<Signed, CertificateError> {
        let message = RegionOrder::message(region, state, stamp);
        let signature = self.key.sign(&SystemRandom::new(), &message);
        let signature = signature.map_err(|_| rcgen::Error::RingUnspecified)?.as_ref().to_vec();
        Ok(Signed { certificate: self.certificate.clone(), signature })
    }
}

/// Returns whose word an order is. The certificate must have been valid when it was signed: so changes of
/// years ago can still be told to a daemon that is new.
pub(super) fn verify(trust: &Trust, order: &RegionOrder) -> Result<String, NotOperator> {
    let RegionOrder { region, state, stamp, signed } = order;
    let name = operator_of(&signed.certificate).ok_or(NotOperator::NoOperator)?;
    let at = UnixTime::since_unix_epoch(std::time::Duration::from_micros(*stamp));
    let chain = [CertificateDer::from_slice(&signed.certificate)];
    trust.check(&chain, at).map_err(|error| NotOperator::Certificate(error.to_string()))?;
    let (_, read) = X509Certificate::from_der(&signed.certificate).map_err(|_| NotOperator::NoOperator)?;
    let key = UnparsedPublicKey::new(&ECDSA_P256_SHA256_ASN1, &read.public_key().subject_public_key.data);
    let message = RegionOrder::message(region, *state, *stamp);
    key.verify(&message, &signed.signature).map_err(|_| NotOperator::Signature)?;
    Ok(name)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rustls::pki_types::CertificateRevocationListDer;

    use super::*;
    use crate::core::regions::NodeName;
    use crate::peer::certificate::{CA_VALID, NODE_VALID, write_ca, write_node};
    use crate::peer::{identity, revocation};

    const NOW: Timestamp = Timestamp(1_760_000_000_000_000);

    fn trust(dir: &Path) -> Trust {
        let ca = CertificateDer::from_pem_file(dir.join("ca/ca.pem")).unwrap();
        let list = CertificateRevocationListDer::from_pem_file(dir.join("ca/revoked.pem"));
        let lists: Vec<_> = list.into_iter().collect();
        Trust::new(&[ca], &lists, &Arc::new(rustls::crypto::ring::default_provider())).unwrap()
    }

    fn order(key: &OperatorKey, stamp: u64) -> RegionOrder {
        let (region, state) = ("eu".to_owned(), RegionState::Drained);
        RegionOrder { signed: key.sign(&region, state, stamp).unwrap(), region, state, stamp }
    }

    #[test]
    fn only_an_operator_signs_changes_and_only_while_his_certificate_holds() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        for ca in ["ca", "other"] {
            write_ca(&dir.join(ca), NOW, CA_VALID).unwrap();
        }
        write(&dir.join("ca"), "Ann of ops", &dir.join("ann"), NOW, NODE_VALID).unwrap();
        write(&dir.join("other"), "Eve", &dir.join("eve"), NOW, NODE_VALID).unwrap();
        let ann = OperatorKey::read(&dir.join("ann")).unwrap();
        let order_of_ann = order(&ann, NOW.micros());
        assert_eq!(verify(&trust(dir), &order_of_ann), Ok("Ann of ops".to_owned()));
        assert!(identity::node_of(&ann.certificate).is_err(), "an operator is no node");

        for changed in [
            RegionOrder { region: "us".to_owned(), ..order_of_ann.clone() },
            RegionOrder { state: RegionState::Gone, ..order_of_ann.clone() },
            RegionOrder { stamp: NOW.micros() + 1, ..order_of_ann.clone() },
        ] {
            assert_eq!(verify(&trust(dir), &changed), Err(NotOperator::Signature), "{changed:?}");
        }
        let eve = OperatorKey::read(&dir.join("eve")).unwrap();
        assert!(matches!(verify(&trust(dir), &order(&eve, NOW.micros())), Err(NotOperator::Certificate(_))));
        for at in [NOW.micros() / 2, (NOW + NODE_VALID).micros() + 2_000_000] {
            let refused = verify(&trust(dir), &order(&ann, at));
            assert!(matches!(refused, Err(NotOperator::Certificate(_))), "{at}: {refused:?}");
        }

        // A node's key signs nothing.
        let node = NodeName { region: "eu".into(), node: "a".into() };
        write_node(&dir.join("ca"), &node, &dir.join("node"), NOW, NODE_VALID).unwrap();
        for (from, to) in [("node.pem", "operator.pem"), ("node.key", "operator.key")] {
            std::fs::rename(dir.join("node").join(from), dir.join("node").join(to)).unwrap();
        }
        assert!(OperatorKey::read(&dir.join("node")).is_err());
        let der = CertificateDer::from_pem_file(dir.join("node/operator.pem")).unwrap().to_vec();
        let signed = Signed { certificate: der, ..order_of_ann.signed.clone() };
        let of_node = RegionOrder { signed, ..order_of_ann.clone() };
        assert_eq!(verify(&trust(dir), &of_node), Err(NotOperator::NoOperator));

        let pem = dir.join("ann/operator.pem");
        revocation::revoke(&dir.join("ca"), &[pem], &[], NOW).unwrap();
        assert!(matches!(verify(&trust(dir), &order_of_ann), Err(NotOperator::Certificate(_))));
        assert!(trust(dir).is_revoked(&[CertificateDer::from_slice(&ann.certificate)]));
    }
}
