//! The token that a browser must have to see the pages.

use hmac::{Hmac, KeyInit as _, Mac as _, digest::CtOutput};
use sha2::Sha256;
use std::{fmt, io::Read as _, os::unix::fs::PermissionsExt as _, path::Path};

/// The fewest characters of a token: it must not be guessed.
const SHORTEST: usize = 16;
/// The most characters of a token: more need not be hashed.
const LONGEST: usize = 256;
/// The largest file of a token, in bytes.
const LARGEST_FILE: u64 = 64 << 10;

/// A token cannot be read, or cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("cannot take the page's token from {path}: {why}")]
pub struct TokenError {
    /// The file.
    pub path: String,
    /// The reason and the cure.
    pub why: String,
}

type Mac = CtOutput<Hmac<Sha256>>;

/// A token, and the cookie that stands for it in a browser.
///
/// A browser sends its cookies to every port of a host (RFC 6265, 8.5). Other services of the host
/// would get a token in a cookie, and pages with other tokens would replace a cookie of the same
/// name. So name and value of the cookie are MACs with the token as their key. The port is not a
/// part of the name, because a browser behind a tunnel uses another one.
#[derive(Clone, PartialEq, Eq)]
pub struct Token {
    /// MACs of the token and of the cookie's value: `CtOutput` compares in constant time.
    token_mac: Mac,
    cookie_mac: Mac,
    cookie_name: String,
    cookie_value: String,
}

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
        let mut file = files::open(path, LARGEST_FILE).map_err(|why| refused(why.to_string()))?;
        let metadata = file.source().metadata().map_err(|why| refused(why.to_string()))?;
        if metadata.permissions().mode() & 0o007 != 0 {
            return Err(refused("every user of this machine can read it: chmod o= it".into()));
        }
        let mut text = String::new();
        file.read_to_string(&mut text).map_err(|why| refused(why.to_string()))?;
        Token::parse(text.lines().next().unwrap_or_default().trim()).map_err(refused)
    }

    /// A token of letters, digits, "-", "_", "." and "~", which a form does not encode.
    ///
    /// # Errors
    /// It is too short or too long, or has other characters.
    pub fn parse(text: &str) -> Result<Self, String> {
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte);
        if !(SHORTEST..=LONGEST).contains(&text.len()) || !text.bytes().all(fits) {
            return Err(format!("a token has {SHORTEST} to {LONGEST} letters and digits: write one with \"openssl rand -hex 32\""));
        }
        Token::of(text.as_bytes()).ok_or_else(|| "cannot compute HMAC-SHA-256".into())
    }

    fn of(token: &[u8]) -> Option<Self> {
        let hex = |mac: Mac| mac.into_bytes().iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let cookie_name = format!("tandem_{:.16}", hex(mac(token, b"name of the cookie")?));
        let cookie_value = hex(mac(token, b"value of the cookie")?);
        Some(Token { token_mac: compared(token)?, cookie_mac: compared(cookie_value.as_bytes())?, cookie_name, cookie_value })
    }

    /// Whether `text` is this token. The time does not depend on how much of it is right.
    pub(crate) fn is(&self, text: &[u8]) -> bool {
        text.len() <= LONGEST && compared(text).is_some_and(|said| said == self.token_mac)
    }

    /// The cookie: `NAME=VALUE`.
    pub(crate) fn cookie(&self) -> String {
        format!("{}={}", self.cookie_name, self.cookie_value)
    }

    /// Whether `pair` is the cookie. The time does not depend on how much of its value is right.
    pub(crate) fn is_cookie(&self, pair: &[u8]) -> bool {
        let value = pair.strip_prefix(self.cookie_name.as_bytes()).and_then(|rest| rest.strip_prefix(b"="));
        value.filter(|value| value.len() <= LONGEST).and_then(compared).is_some_and(|said| said == self.cookie_mac)
    }
}

fn mac(key: &[u8], text: &[u8]) -> Option<Mac> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).ok()?;
    mac.update(text);
    Some(mac.finalize())
}

/// What is compared in place of a secret.
fn compared(secret: &[u8]) -> Option<Mac> {
    mac(b"tandem: token of the page", secret)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, io::Write as _};

    #[test]
    fn a_token_is_read_from_a_secret_file_and_compared() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        writeln!(file, "0123456789abcdef\nsecond line").unwrap();
        let token = Token::read(file.path()).unwrap();
        assert!(token.is(b"0123456789abcdef"));
        for wrong in ["", "0123456789abcdeF", "0123456789abcde", "0123456789abcdef0"] {
            assert!(!token.is(wrong.as_bytes()), "{wrong}");
        }
        assert!(token.is_cookie(token.cookie().as_bytes()) && !token.cookie().contains("0123456789abcdef"));
        let other = Token::parse("0123456789abcdeF").unwrap();
        assert_ne!(token.cookie().split_once('=').unwrap().0, other.cookie().split_once('=').unwrap().0);
        for wrong in [other.cookie(), format!("{}0", token.cookie()), token.cookie()[1..].into(), "0123456789abcdef".into()] {
            assert!(!token.is_cookie(wrong.as_bytes()), "{wrong}");
        }
        fs::set_permissions(file.path(), fs::Permissions::from_mode(0o644)).unwrap();
        assert!(Token::read(file.path()).unwrap_err().why.contains("chmod o="));
    }

    #[test]
    fn a_token_that_can_be_guessed_or_that_a_form_encodes_is_refused() {
        for wrong in ["", "secret", "0123456789abcde;", "0123456789 abcdef", &"x".repeat(LONGEST + 1)] {
            assert!(Token::parse(wrong).is_err(), "{wrong}");
        }
    }
}
