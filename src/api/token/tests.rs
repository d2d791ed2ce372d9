//! What gets through and what does not: every algorithm, every claim, and every known way to forge.

use jsonwebtoken::{Algorithm, EncodingKey, Header as Made, encode};
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair as _};
use serde_json::{Value, json};

use super::*;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;

const NOW: Timestamp = Timestamp(1_800_000_000_000_000);
const NOW_SECS: u64 = 1_800_000_000;
const SECRET: &[u8] = b"a secret that is long enough for HS256, surely";
const RSA: &[u8] = include_bytes!("rsa_for_tests.pem");
/// The modulus of that key.
const RSA_N: &str = include_str!("rsa_for_tests.n");

/// A private key and its public half.
struct Signer {
    algorithm: Algorithm,
    key: EncodingKey,
    jwk: Value,
}

fn signers() -> [Signer; 4] {
    let random = ring::rand::SystemRandom::new();
    let ed = Ed25519KeyPair::generate_pkcs8(&random).unwrap();
    let ed_public = Ed25519KeyPair::from_pkcs8(ed.as_ref()).unwrap();
    let ec = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &random).unwrap();
    let ec_public = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, ec.as_ref(), &random).unwrap();
    let point = ec_public.public_key().as_ref();
    let text = |bytes: &[u8]| BASE64.encode(bytes);
    [
        Signer {
            algorithm: Algorithm::HS256,
            key: EncodingKey::from_secret(SECRET),
            jwk: json!({ "kty": "oct", "kid": "hs", "k": text(SECRET) }),
        },
        Signer {
            algorithm: Algorithm::RS256,
            key: EncodingKey::from_rsa_pem(RSA).unwrap(),
            jwk: json!({ "kty": "RSA", "kid": "rs", "use": "sig", "alg": "RS256", "n": RSA_N.trim(), "e": "AQAB" }),
        },
        Signer {
            algorithm: Algorithm::ES256,
            key: EncodingKey::from_ec_der(ec.as_ref()),
            jwk: json!({ "kty": "EC", "crv": "P-256", "kid": "es", "x": text(&point[1..33]), "y": text(&point[33..]) }),
        },
        Signer {
            algorithm: Algorithm::EdDSA,
            key: EncodingKey::from_ed_der(ed.as_ref()),
            jwk: json!({ "kty": "OKP", "crv": "Ed25519", "kid": "ed", "x": text(ed_public.public_key().as_ref()) }),
        },
    ]
}

fn key_set(signers: &[Signer]) -> KeySet {
    let keys: Vec<_> = signers.iter().map(|signer| signer.jwk.clone()).collect();
    KeySet::from_json(&json!({ "keys": keys }).to_string()).unwrap()
}

fn settings() -> TokenSettings {
    TokenSettings {
        user_claim: "sub".to_owned(),
        issuers: vec!["https://id.example".to_owned()],
        audiences: vec!["api".to_owned(), "web".to_owned()],
        leeway: Span::from_secs(30),
        on_invalid: OnInvalid::Address,
    }
}

fn tokens(signers: &[Signer]) -> TokenReader {
    TokenReader::new(settings(), key_set(signers), &Metrics::new())
}

fn claims() -> Value {
    json!({ "sub": "u_42", "iss": "https://id.example", "aud": "api", "exp": NOW_SECS + 60, "nbf": NOW_SECS - 60 })
}

fn with(field: &str, value: Value) -> Value {
    let mut claims = claims();
    claims[field] = value;
    claims
}

fn token(signer: &Signer, claims: &Value) -> String {
    let mut header = Made::new(signer.algorithm);
    header.kid = signer.jwk["kid"].as_str().map(str::to_owned);
    encode(&header, claims, &signer.key).unwrap()
}

/// A token put together by hand.
fn forged(header: &Value, claims: &Value, signature: &[u8]) -> String {
    let text = |value: &Value| BASE64.encode(value.to_string());
    format!("{}.{}.{}", text(header), text(claims), BASE64.encode(signature))
}

#[test]
fn each_algorithm_is_accepted_with_the_key_of_its_kind() {
    let signers = signers();
    let tokens = tokens(&signers);
    for signer in &signers {
        for _ in 0..2 {
            assert_eq!(
                tokens.verified_user(&token(signer, &claims()), NOW).as_deref(),
                Ok("u_42"),
                "{:?}",
                signer.algorithm
            );
        }
        let without_kid = encode(&Made::new(signer.algorithm), &claims(), &signer.key).unwrap();
        assert_eq!(tokens.verified_user(&without_kid, NOW).as_deref(), Ok("u_42"), "{:?}", signer.algorithm);
    }
}

#[test]
fn a_changed_token_is_refused() {
    let signers = signers();
    let tokens = tokens(&signers);
    for signer in &signers {
        let good = token(signer, &claims());
        let parts: Vec<_> = good.split('.').collect();
        let other = BASE64.encode(with("sub", json!("admin")).to_string());
        assert_eq!(
            tokens.verified_user(&format!("{}.{other}.{}", parts[0], parts[2]), NOW),
            Err(Invalid::Signature)
        );
        assert_eq!(
            tokens.verified_user(&format!("{}.{}.", parts[0], parts[1]), NOW),
            Err(Invalid::Signature)
        );
    }
}

#[test]
fn neither_none_nor_a_public_key_taken_for_a_secret_gets_through() {
    let signers = signers();
    let tokens = tokens(&signers);
    for alg in ["none", "None", "NONE", "nOnE", "HS384", "RS512", "PS256", "", "ES384"] {
        let forged = forged(&json!({ "alg": alg, "kid": "rs" }), &claims(), b"");
        assert_eq!(tokens.verified_user(&forged, NOW), Err(Invalid::Algorithm(alg.to_owned())));
    }
    // The public half of the RSA key, in every form it is published in, as the secret of an HMAC.
    for secret in [RSA_N.trim().as_bytes().to_vec(), BASE64.decode(RSA_N.trim()).unwrap()] {
        let mut header = Made::new(Algorithm::HS256);
        header.kid = Some("rs".to_owned());
        let forged = encode(&header, &claims(), &EncodingKey::from_secret(&secret)).unwrap();
        assert_eq!(tokens.verified_user(&forged, NOW), Err(Invalid::UnknownKey));
        header.kid = None;
        let forged = encode(&header, &claims(), &EncodingKey::from_secret(&secret)).unwrap();
        assert_eq!(tokens.verified_user(&forged, NOW), Err(Invalid::Signature));
    }
    // A key of another kind under the right name.
    let mut header = Made::new(Algorithm::RS256);
    header.kid = Some("es".to_owned());
    let forged = encode(&header, &claims(), &signers[1].key).unwrap();
    assert_eq!(tokens.verified_user(&forged, NOW), Err(Invalid::UnknownKey));
}

#[test]
fn times_issuer_audience_and_user_are_checked() {
    let signers = signers();
    let tokens = tokens(&signers);
    let claim = |name: &'static str| Invalid::Claim(name.into());
    for (claims, answer) in [
        (with("exp", json!(NOW_SECS - 31)), Err(Invalid::Expired)),
        (with("exp", json!(NOW_SECS - 29)), Ok("u_42")),
        (with("exp", json!(NOW_SECS as f64 + 0.5)), Ok("u_42")),
        (with("exp", Value::Null), Err(claim("exp"))),
        (with("exp", json!("soon")), Err(claim("exp"))),
        (with("exp", json!(-1)), Err(claim("exp"))),
        (with("nbf", json!(NOW_SECS + 31)), Err(Invalid::NotYet)),
        (with("nbf", json!(NOW_SECS + 29)), Ok("u_42")),
        (with("iss", json!("https://evil.example")), Err(claim("iss"))),
        (with("iss", Value::Null), Err(claim("iss"))),
        (with("aud", json!(["other", "web"])), Ok("u_42")),
        (with("aud", json!(["other"])), Err(claim("aud"))),
        (with("aud", Value::Null), Err(claim("aud"))),
        (with("sub", json!(42)), Err(claim("sub"))),
        (with("sub", json!("")), Err(claim("sub"))),
        (with("sub", json!("u".repeat(1_025))), Err(claim("sub"))),
    ] {
        for _ in 0..2 {
            let user = tokens.verified_user(&token(&signers[0], &claims), NOW);
            assert_eq!(user.as_deref().map_err(Clone::clone), answer, "{claims}");
        }
    }
}

#[test]
fn a_remembered_token_expires_and_is_forgotten_with_its_key() {
    let signers = signers();
    let tokens = tokens(&signers);
    let good = token(&signers[3], &claims());
    assert!(tokens.verified_user(&good, NOW).is_ok());
    assert_eq!(tokens.verified_user(&good, Timestamp(NOW.0 + 90_000_000)), Err(Invalid::Expired));
    assert!(tokens.verified_user(&good, NOW).is_ok());
    tokens.replace(key_set(&signers[..1]));
    assert_eq!(tokens.verified_user(&good, NOW), Err(Invalid::UnknownKey));
}

#[test]
fn what_is_no_token_is_refused() {
    let signers = signers();
    let tokens = tokens(&signers);
    let good = token(&signers[0], &claims());
    assert_eq!(
        tokens.verified_user(&format!("{good}{}", "A".repeat(TOKEN_BYTES_MAX)), NOW),
        Err(Invalid::TooLong)
    );
    let crit = forged(&json!({ "alg": "HS256", "crit": ["exp"] }), &claims(), b"x");
    for text in ["", ".", "..", "a.b.c", "a.b", "ä.ö.ü", &crit, &good.replace('.', "")] {
        assert!(matches!(tokens.verified_user(text, NOW), Err(Invalid::Malformed(_))), "{text}");
    }
}

#[test]
fn a_key_file_says_what_is_wrong_with_it() {
    let problem = |text: &str| KeySet::from_json(text).unwrap_err().to_string();
    assert!(problem("{").contains("expected a JWKS document"));
    // Empty is an answer: the last key was withdrawn.
    assert!(KeySet::from_json("{\"keys\":[]}").unwrap().is_empty());
    assert!(
        problem(r#"{"keys":[{"kty":"oct","k":"c2hvcnQ"}]}"#).contains("at least 32 bytes, this one has 5")
    );
    assert!(
        problem(r#"{"keys":[{"kty":"oct","alg":"RS256","k":"c2hvcnQ"}]}"#)
            .contains("is for HS256, not for \"RS256\"")
    );
    assert!(
        problem(r#"{"keys":[{"kty":"EC","crv":"P-521"}]}"#)
            .contains("keys[0]: type \"EC\" P-521 is not known")
    );
    assert!(problem(r#"{"keys":[{"kty":"RSA","use":"enc"}]}"#).contains("not for signatures"));
    assert!(problem(r#"{"keys":[{"kty":"RSA"}]}"#).contains("\"n\" is missing"));
    let one = json!({ "keys": [{ "kty": "oct", "k": BASE64.encode(SECRET) }, { "kty": "new" }] }).to_string();
    let set = KeySet::from_json(&one).unwrap();
    assert_eq!((set.len(), set.skipped().len()), (1, 1));
}

#[test]
fn a_token_is_found_however_its_client_spells_what_stands_before_it() {
    let signers = signers();
    let lenient = tokens(&signers);
    let strict = TokenSettings { on_invalid: OnInvalid::Refuse, ..settings() };
    let strict = TokenReader::new(strict, key_set(&signers), &Metrics::new());
    let good = token(&signers[0], &claims());
    let read = |reader: &TokenReader, text: &[u8]| reader.user_of(text, NOW);
    for before in ["Bearer ", "bearer  ", "Bearer\t", " Bearer\u{b}", "JWT ", "", "Bearer!", "Bearer x "] {
        for text in [format!("{before}{good}"), format!("{before}{good} trailing")] {
            for reader in [&lenient, &strict] {
                assert_eq!(read(reader, text.as_bytes()), Ok(TokenUser::Named("u_42".into())), "{text}");
            }
        }
    }
    let latin = [b"Bearer\xa0", good.as_bytes()].concat();
    assert_eq!(read(&strict, &latin), Ok(TokenUser::Named("u_42".into())));
    for (bad, found) in [
        ("Bearer a.b.c", TokenUser::Nobody),
        ("bearer\ta.b.c", TokenUser::Nobody),
        ("Bearer opaque", TokenUser::Nothing),
        ("Bearer a.b", TokenUser::Nothing),
        ("Bearer", TokenUser::Nothing),
        ("BEARER:k", TokenUser::Nothing),
    ] {
        assert_eq!(read(&lenient, bad.as_bytes()), Ok(found), "{bad}");
        assert!(read(&strict, bad.as_bytes()).is_err(), "{bad}");
    }
    for other in ["", "Basic a.b.c", "a.b.c", "Bearers a.b.c", "k"] {
        assert_eq!(read(&strict, other.as_bytes()), Ok(TokenUser::Nothing), "{other}");
    }
}

proptest::proptest! {
    #[test]
    fn any_text_is_refused_without_panic(text in ".{0,80}", header in ".{0,40}") {
        let tokens = tokens(&signers()[..1]);
        proptest::prop_assert!(tokens.verified_user(&text, NOW).is_err());
        let forged = format!("{}.{}.x", BASE64.encode(header), BASE64.encode("{}"));
        proptest::prop_assert!(tokens.verified_user(&forged, NOW).is_err());
    }
}
