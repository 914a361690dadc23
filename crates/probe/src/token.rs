//! Proof that a prober knows the token, without sending it (HMAC-SHA256 over a nonce).

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use std::{
    fs::File,
    io::{self, Read as _},
};

/// 128 random bits in hexadecimal.
pub(crate) fn random_hex() -> io::Result<String> {
    let mut bytes = [0; 16];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(hex(&bytes))
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn mac(token: &str, nonce: &str) -> Hmac<Sha256> {
    let mut mac = <Hmac<Sha256> as KeyInit>::new_from_slice(token.as_bytes()).expect("a key may have any length");
    mac.update(b"tandem detect 1");
    mac.update(nonce.as_bytes());
    mac
}

/// Proof of knowing the token, for the responder's nonce.
pub(crate) fn proof(token: &str, nonce: &str) -> String {
    hex(&mac(token, nonce).finalize().into_bytes())
}

/// Whether the proof is correct.
pub(crate) fn verify_proof(token: &str, nonce: &str, proof: &str) -> bool {
    // `from_str_radix` would also accept a sign or a single digit.
    if proof.len() != 64 || !proof.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return false;
    }
    let bytes: Option<Vec<u8>> =
        proof.as_bytes().chunks(2).map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()).collect();
    // Constant time.
    bytes.is_some_and(|bytes| mac(token, nonce).verify_slice(&bytes).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_exact_proof_is_accepted() {
        // A nonce whose proof has a byte below 16, for which a sign and a digit could stand too.
        let nonces = (0..100).map(|number| number.to_string());
        let (nonce, right, at) = nonces
            .filter_map(|nonce| {
                let right = proof("token", &nonce);
                let at = (0..64).step_by(2).find(|at| right.as_bytes()[*at] == b'0')?;
                Some((nonce, right, at))
            })
            .next()
            .expect("one of a hundred has such a byte");
        assert!(verify_proof("token", &nonce, &right));
        let mut other = right.clone();
        other.replace_range(at..=at, "+");
        assert!(!verify_proof("token", &nonce, &other), "{other}");
        assert!(!verify_proof("token", &nonce, &right[..63]));
    }

    #[test]
    fn a_proof_fits_one_token_and_nonce() {
        let proof = proof("secret", "nonce");
        assert!(verify_proof("secret", "nonce", &proof));
        for (token, nonce, proof) in [
            ("Secret", "nonce", proof.as_str()),
            ("secret", "once", &proof),
            ("secret", "nonce", "zz"),
            ("secret", "nonce", ""),
            ("secret", "nonce", "é1"),
        ] {
            assert!(!verify_proof(token, nonce, proof), "{token} {nonce} {proof}");
        }
    }
}
