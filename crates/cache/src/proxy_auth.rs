//! Authentication of the users of an explicit proxy: a name and a password with each request (RFC
//! 9110 §11.7, RFC 7617).

use crate::{client::Client, error_response::ErrorResponse};
use data_encoding::BASE64;
use hyper::{
    HeaderMap, StatusCode,
    header::{HeaderValue, PROXY_AUTHORIZATION},
};

/// The value of `Proxy-Authenticate` in a 407.
pub(crate) const CHALLENGE: HeaderValue = HeaderValue::from_static("Basic realm=\"tandem cache\", charset=\"UTF-8\"");

impl Client {
    /// Checks that a request has the credentials of one of the listener's users, if it has any.
    ///
    /// # Errors
    /// 407 when it does not.
    pub(crate) fn authenticate(&self, headers: &HeaderMap) -> Result<(), ErrorResponse> {
        if !self.users.are_required() {
            return Ok(());
        }
        let credentials = headers.get(PROXY_AUTHORIZATION);
        if credentials.and_then(parse_basic).is_some_and(|(name, password)| self.users.have(&name, &password)) {
            return Ok(());
        }
        let text = if credentials.is_some() {
            "the user or the password is wrong"
        } else {
            "this proxy requires a user and a password: configure them in your program"
        };
        tracing::info!(client = %self.address, "a request is refused: {text}");
        Err(ErrorResponse::new(StatusCode::PROXY_AUTHENTICATION_REQUIRED, text))
    }
}

/// Name and password of Basic credentials (RFC 7617 §2).
fn parse_basic(value: &HeaderValue) -> Option<(Vec<u8>, Vec<u8>)> {
    let (scheme, credentials) = value.to_str().ok()?.split_once(' ')?;
    let user_pass = scheme.eq_ignore_ascii_case("basic").then(|| BASE64.decode(credentials.trim().as_bytes()).ok())??;
    let colon = user_pass.iter().position(|byte| *byte == b':')?;
    Some((user_pass[..colon].to_vec(), user_pass[colon + 1..].to_vec()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn basic_credentials_are_parsed() {
        let read = |text: &'static str| parse_basic(&HeaderValue::from_static(text)).map(|(name, password)| [name, password]);
        let alice = Some([b"alice".to_vec(), b"a:b".to_vec()]);
        assert_eq!(read("Basic YWxpY2U6YTpi"), alice);
        assert_eq!(read("bAsIc   YWxpY2U6YTpi "), alice);
        for wrong in ["YWxpY2U6YTpi", "Bearer YWxpY2U6YTpi", "Basic YWxpY2U", "Basic", "Basic YWxpY2U=", "Basic ===="] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }
}
