//! The identity of a peer: read from its certificate, and from nothing it says.
//!
//! A certificate names a node by one URI among its subject alternative names, `tidegate://<region>/<node>`,
//! both parts percent-encoded. The certificate's signature is not checked here: TLS did that before these
//! bytes are seen.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

use crate::core::regions::NodeName;

/// Longest name of a region or a node, in bytes.
pub const NAME_BYTES_MAX: usize = 255;
const SCHEME: &str = "tidegate://";
/// Before the name in an operator's certificate. No node's certificate begins so.
const OPERATOR_SCHEME: &str = "tidegate-operator://";
/// The signs that a name may hold unescaped: letters, digits and the four marks that RFC 3986 leaves to
/// names.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Reasons why a certificate names nobody.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IdentityError {
    /// Not a certificate, or with bytes behind it.
    #[error("the certificate cannot be read")]
    Unreadable,
    /// No URI of ours.
    #[error("the certificate names no node: it has no {SCHEME}<region>/<node> among its alternative names")]
    Missing,
    /// Several URIs of ours.
    #[error("the certificate names more than one node")]
    Ambiguous,
    /// A URI of ours that does not read as a region and a node.
    #[error("the certificate's name {0:?} is not {SCHEME}<region>/<node>")]
    Malformed(String),
}

/// Reads who a certificate was issued to.
///
/// # Errors
/// If it names no node, more than one, or one that cannot be told apart from another's spelling.
pub fn node_of(certificate_der: &[u8]) -> Result<NodeName, IdentityError> {
    let (rest, certificate) =
        X509Certificate::from_der(certificate_der).map_err(|_| IdentityError::Unreadable)?;
    if !rest.is_empty() {
        return Err(IdentityError::Unreadable);
    }
    let names = certificate
        .subject_alternative_name()
        .map_err(|_| IdentityError::Unreadable)?
        .ok_or(IdentityError::Missing)?;
    let mut found = None;
    for name in &names.value.general_names {
        if let GeneralName::URI(uri) = name
            && uri.starts_with(SCHEME)
        {
            if found.is_some() {
                return Err(IdentityError::Ambiguous);
            }
            found = Some(parse_uri(uri)?);
        }
    }
    found.ok_or(IdentityError::Missing)
}

/// The URI that names a node in its certificate.
#[must_use]
pub fn uri(node: &NodeName) -> String {
    format!("{SCHEME}{}", path(node))
}

/// The URI that names an operator in his certificate.
pub(super) fn operator_uri(name: &str) -> String {
    format!("{OPERATOR_SCHEME}{}", escaped(name))
}

/// Whom an operator's certificate names; `None` for any other certificate.
#[must_use]
pub fn operator_of(certificate: &[u8]) -> Option<String> {
    let (rest, read) = X509Certificate::from_der(certificate).ok()?;
    let names = read.subject_alternative_name().ok()??;
    let [GeneralName::URI(uri)] = names.value.general_names[..] else { return None };
    let name = percent_decode_str(uri.strip_prefix(OPERATOR_SCHEME)?).decode_utf8().ok()?.into_owned();
    (rest.is_empty() && is_name(&name) && escaped(&name) == uri[OPERATOR_SCHEME.len()..]).then_some(name)
}

/// `<region>/<node>`, percent-encoded: one spelling for each node, and a `/` only between the two.
#[must_use]
pub fn path(node: &NodeName) -> String {
    format!("{}/{}", utf8_percent_encode(&node.region, ESCAPED), utf8_percent_encode(&node.node, ESCAPED))
}

/// A name as [`path`] spells it: without spaces, commas or slashes.
#[must_use]
pub fn escaped(name: &str) -> String {
    utf8_percent_encode(name, ESCAPED).to_string()
}

/// Reads what [`escaped`] wrote; `None` for anything else.
#[must_use]
pub fn unescaped(text: &str) -> Option<String> {
    parse_name(text)
}

/// Reads what [`path`] wrote; `None` for anything else.
#[must_use]
pub fn parse_path(path: &str) -> Option<NodeName> {
    let (region, node) = path.split_once('/')?;
    Some(NodeName { region: parse_name(region)?, node: parse_name(node)? })
}

/// True if a certificate can carry this name.
#[must_use]
pub fn is_name(name: &str) -> bool {
    !name.is_empty() && name.len() <= NAME_BYTES_MAX && !name.chars().any(char::is_control)
}

fn parse_uri(uri: &str) -> Result<NodeName, IdentityError> {
    uri.strip_prefix(SCHEME).and_then(parse_path).ok_or_else(|| {
        // A stranger's text is quoted and cut: it ends in a log line.
        IdentityError::Malformed(uri.chars().take(80).collect())
    })
}

fn parse_name(escaped: &str) -> Option<String> {
    let name = percent_decode_str(escaped).decode_utf8().ok()?.into_owned();
    // Written back it must be the same, or two spellings would be one node to us and two to others.
    let canonical = utf8_percent_encode(&name, ESCAPED).to_string();
    (is_name(&name) && canonical == escaped).then_some(name)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rcgen::{CertificateParams, KeyPair, SanType};

    use super::*;

    fn certificate(uris: &[&str]) -> Vec<u8> {
        let mut params = CertificateParams::default();
        params.subject_alt_names = uris
            .iter()
            .map(|uri| SanType::URI((*uri).to_owned().try_into().unwrap()))
            .chain([SanType::DnsName("peer.tidegate".to_owned().try_into().unwrap())])
            .collect();
        params.self_signed(&KeyPair::generate().unwrap()).unwrap().der().to_vec()
    }

    fn node(region: &str, node: &str) -> NodeName {
        NodeName { region: region.into(), node: node.into() }
    }

    #[test]
    fn a_certificate_names_its_region_and_node() {
        assert_eq!(
            node_of(&certificate(&["tidegate://eu-west/eu-west-1"])),
            Ok(node("eu-west", "eu-west-1"))
        );
        assert_eq!(
            node_of(&certificate(&["https://elsewhere/x", "tidegate://eu%2Fwest/%C3%A9"])),
            Ok(node("eu/west", "é"))
        );
    }

    #[test]
    fn a_certificate_without_a_name_or_with_two_is_nobody() {
        assert_eq!(node_of(&certificate(&[])), Err(IdentityError::Missing));
        assert_eq!(node_of(&certificate(&["https://eu/a"])), Err(IdentityError::Missing));
        assert_eq!(
            node_of(&certificate(&["tidegate://eu/a", "tidegate://us/b"])),
            Err(IdentityError::Ambiguous)
        );
    }

    #[test]
    fn hostile_names_are_refused() {
        let long = format!("tidegate://{}/a", "x".repeat(NAME_BYTES_MAX + 1));
        for uri in [
            "tidegate://",
            "tidegate:///a",
            "tidegate://eu/",
            "tidegate://eu",
            "tidegate://eu/a/b",
            "tidegate://eu/a?b",
            "tidegate://eu/%61",
            "tidegate://eu/%2f",
            "tidegate://eu/%00",
            "tidegate://eu/%0A",
            "tidegate://eu/%FF",
            "tidegate://eu/%",
            "tidegate://e u/a",
            &long,
        ] {
            let answer = node_of(&certificate(&[uri]));
            assert!(matches!(answer, Err(IdentityError::Malformed(_))), "{uri}: {answer:?}");
        }
    }

    #[test]
    fn bytes_behind_a_certificate_are_refused() {
        let mut der = certificate(&["tidegate://eu/a"]);
        der.push(0);
        assert_eq!(node_of(&der), Err(IdentityError::Unreadable));
    }

    proptest! {
        #[test]
        fn every_name_comes_back_from_its_path(region in "\\PC{1,40}", name in "\\PC{1,40}") {
            prop_assume!(is_name(&region) && is_name(&name));
            let node = node(&region, &name);
            prop_assert_eq!(parse_path(&path(&node)), Some(node));
        }

        #[test]
        fn random_bytes_are_never_a_node(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            prop_assert!(node_of(&bytes).is_err());
        }

        #[test]
        fn a_damaged_certificate_never_panics(at in 0_usize..400, bit in 0_u8..8) {
            let mut der = certificate(&["tidegate://eu/a"]);
            let at = at % der.len();
            der[at] ^= 1 << bit;
            let _ = node_of(&der);
        }
    }
}
