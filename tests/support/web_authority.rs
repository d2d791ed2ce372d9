//! An authority that signs certificates for listeners and their clients, and revokes them.

use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, DnType, ExtendedKeyUsagePurpose,
    IsCa, Issuer, KeyIdMethod, KeyPair, KeyUsagePurpose, RevokedCertParams, SerialNumber, date_time_ymd,
};

/// The authority.
pub(crate) struct WebAuthority {
    issuer: Issuer<'static, KeyPair>,
    /// Its certificate, in PEM.
    pub(crate) pem: String,
}

/// A certificate and its key, in PEM.
pub(crate) struct WebCertificate {
    pub(crate) cert: String,
    pub(crate) key: String,
}

impl WebAuthority {
    /// Makes one.
    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::default();
        // Not the name of what it signs: that would look self-signed.
        params.distinguished_name.push(DnType::CommonName, "test authority");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        Self { issuer: Issuer::new(params, key), pem }
    }

    /// A certificate for `localhost` and 127.0.0.1, which may also be shown by a client.
    pub(crate) fn issue(&self, serial: u64) -> WebCertificate {
        self.issue_until(serial, SystemTime::now() + Duration::from_secs(365 * 24 * 3_600))
    }

    /// The same, which ends then.
    pub(crate) fn issue_until(&self, serial: u64, ends: SystemTime) -> WebCertificate {
        self.issue_to(&["localhost", "127.0.0.1"], serial, ends)
    }

    /// A certificate for these names.
    pub(crate) fn issue_for(&self, names: &[&str], serial: u64) -> WebCertificate {
        self.issue_to(names, serial, SystemTime::now() + Duration::from_secs(365 * 24 * 3_600))
    }

    fn issue_to(&self, names: &[&str], serial: u64, ends: SystemTime) -> WebCertificate {
        let names = names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let mut params = CertificateParams::new(names).unwrap();
        params.serial_number = Some(SerialNumber::from(serial));
        let seconds = ends.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
        params.not_after = date_time_ymd(1970, 1, 1) + Duration::from_secs(seconds);
        params.use_authority_key_identifier_extension = true;
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate().unwrap();
        let cert = params.signed_by(&key, &self.issuer).unwrap().pem();
        WebCertificate { cert, key: key.serialize_pem() }
    }

    /// A list that revokes the certificate of this number.
    pub(crate) fn revoke(&self, serial: u64) -> String {
        let revoked = RevokedCertParams {
            serial_number: SerialNumber::from(serial),
            revocation_time: date_time_ymd(2024, 1, 1),
            reason_code: None,
            invalidity_date: None,
        };
        let list = CertificateRevocationListParams {
            this_update: date_time_ymd(2024, 1, 1),
            next_update: date_time_ymd(4000, 1, 1),
            crl_number: SerialNumber::from(1_u64),
            issuing_distribution_point: None,
            revoked_certs: vec![revoked],
            key_identifier_method: KeyIdMethod::Sha256,
        };
        list.signed_by(&self.issuer).unwrap().pem().unwrap()
    }
}
