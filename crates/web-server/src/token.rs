//! The token that a browser must have to see the pages.

use hmac::{Hmac, KeyInit as _, Mac as _, digest::CtOutput};
use sha2::Sha256;
use std::{fmt, fs, os::unix::fs::PermissionsExt as _, path::Path};

/// The fewest characters of a token: it must not be guessed.
const SHORTEST: usize = 16;
/// The most characters of a token: a cookie has to carry it.
const LONGEST: usize = 256;

/// A token cannot be read, or cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("cannot take the page's token from {path}: {why}")]
pub struct TokenError {
    /// The file.
    pub path: String,
    /// The reason and the cure.
    pub why: String,
}

/// A token: a MAC of it, which is compared in constant time (`CtOutput`).
#[derive(Clone, PartialEq, Eq)]
pub struct Token(CtOutput<Hmac<Sha256>>);

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token")
    }
}

impl Token {
    /// Reads the token in the first line of a file.
    ///
    /// # Errors
    /// The file cannot be read, other users of this host can read it, or its first line is no token.
    pub fn read(path: &Path) -> Result<Self, TokenError> {
        let refused = |why: String| TokenError { path: path.display().to_string(), why };
        let metadata = fs::metadata(path).map_err(|why| refused(why.to_string()))?;
        if metadata.permissions().mode() & 0o007 != 0 {
            return Err(refused("every user of this machine can read it: chmod o= it".into()));
        }
        let text = fs::read_to_string(path).map_err(|why| refused(why.to_string()))?;
        Token::parse(text.lines().next().unwrap_or_default().trim()).map_err(refused)
    }

    /// A token of letters, digits, "-", "_", "." and "~", which need no quotes in a cookie.
    ///
    /// # Errors
    /// It is too short or too long, or has other characters.
    pub fn parse(text: &str) -> Result<Self, String> {
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte);
        if !(SHORTEST..=LONGEST).contains(&text.len()) || !text.bytes().all(fits) {
            return Err(format!("a token has {SHORTEST} to {LONGEST} letters and digits: write one with \"openssl rand -hex 32\""));
        }
        Token::mac_of(text.as_bytes()).ok_or_else(|| "cannot compute HMAC-SHA-256".into())
    }

    /// Whether `text` is this token. The time does not depend on how much of it is right.
    pub(crate) fn is(&self, text: &[u8]) -> bool {
        text.len() <= LONGEST && Token::mac_of(text).is_some_and(|said| said == *self)
    }

    fn mac_of(text: &[u8]) -> Option<Self> {
        let mut mac = Hmac::<Sha256>::new_from_slice(b"tandem: token of the page").ok()?;
        mac.update(text);
        Some(Token(mac.finalize()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    #[test]
    fn a_token_is_read_from_a_secret_file_and_compared() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        writeln!(file, "0123456789abcdef\nsecond line").unwrap();
        let token = Token::read(file.path()).unwrap();
        assert!(token.is(b"0123456789abcdef"));
        for wrong in ["", "0123456789abcdeF", "0123456789abcde", "0123456789abcdef0"] {
            assert!(!token.is(wrong.as_bytes()), "{wrong}");
        }
        fs::set_permissions(file.path(), fs::Permissions::from_mode(0o644)).unwrap();
        assert!(Token::read(file.path()).unwrap_err().why.contains("chmod o="));
    }

    #[test]
    fn a_token_that_can_be_guessed_or_breaks_a_cookie_is_refused() {
        for wrong in ["", "secret", "0123456789abcde;", "0123456789 abcdef", &"x".repeat(LONGEST + 1)] {
            assert!(Token::parse(wrong).is_err(), "{wrong}");
        }
    }
}
