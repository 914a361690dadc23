//! Users of an explicit proxy, who say name and password with each request (RFC 9110 §11.7, RFC 7617).

use crate::{error_response::ErrorResponse, shared::Caller};
use data_encoding::BASE64;
use hyper::{
    HeaderMap, StatusCode,
    header::{HeaderValue, PROXY_AUTHORIZATION},
};

/// What a client without user and password is asked for.
pub(crate) const CHALLENGE: HeaderValue = HeaderValue::from_static("Basic realm=\"tandem cache\", charset=\"UTF-8\"");

impl Caller {
    /// Finds out whether a request comes from one of the listener's users, if it has any.
    ///
    /// # Errors
    /// 407 when it does not.
    pub(crate) fn authenticate(&self, headers: &HeaderMap) -> Result<(), ErrorResponse> {
        if !self.users.are_required() {
            return Ok(());
        }
        let said = headers.get(PROXY_AUTHORIZATION);
        if said.and_then(basic).is_some_and(|(name, password)| self.users.have(&name, &password)) {
            return Ok(());
        }
        let text = if said.is_some() { "a wrong user or password" } else { "this proxy is for its users: say user and password" };
        tracing::info!(client = %self.client, "refused: {text}");
        Err(ErrorResponse::new(StatusCode::PROXY_AUTHENTICATION_REQUIRED, text.into()))
    }
}

/// Name and password of Basic credentials.
fn basic(value: &HeaderValue) -> Option<(Vec<u8>, Vec<u8>)> {
    let (scheme, credentials) = value.to_str().ok()?.split_once(' ')?;
    let both = scheme.eq_ignore_ascii_case("basic").then(|| BASE64.decode(credentials.trim().as_bytes()).ok())??;
    let colon = both.iter().position(|byte| *byte == b':')?;
    Some((both[..colon].to_vec(), both[colon + 1..].to_vec()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_read_as_clients_write_them() {
        let read = |text: &'static str| basic(&HeaderValue::from_static(text)).map(|(name, password)| [name, password]);
        let alice = Some([b"alice".to_vec(), b"a:b".to_vec()]);
        assert_eq!(read("Basic YWxpY2U6YTpi"), alice);
        assert_eq!(read("bAsIc   YWxpY2U6YTpi "), alice);
        for wrong in ["YWxpY2U6YTpi", "Bearer YWxpY2U6YTpi", "Basic YWxpY2U", "Basic", "Basic YWxpY2U=", "Basic ===="] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }
}
