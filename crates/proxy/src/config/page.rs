//! Where the live page is served, and to whom.

use std::{net::SocketAddr, path::PathBuf};
use web_server::{Token, TokenError};

/// The live page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PageConfig {
    /// Its address; that of the metrics is possible too.
    pub listen: SocketAddr,
    /// The file with the token that a browser must have; none: every browser may see the page.
    pub token_file: Option<PathBuf>,
    /// The token; that of a file once it has been [read](Self::read).
    pub token: Option<Token>,
}

/// Why the live page cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum PageError {
    /// The token cannot be used.
    #[error(transparent)]
    Token(#[from] TokenError),
    /// Other hosts could see the page.
    #[error(
        "the page at {0} would show all flows to every host that reaches it: give it a token (token_file of [page], \
         --page-token FILE), or listen at a loopback address"
    )]
    Open(SocketAddr),
    /// There is a token, but no page.
    #[error("there is a token for the page, but no page: give its address too (listen of [page], --page ADDRESS:PORT)")]
    NoPage,
}

impl PageConfig {
    /// A page at this address. A token in a file is not read yet.
    pub fn new(listen: SocketAddr, token_file: Option<PathBuf>) -> Self {
        PageConfig { listen, token_file, token: None }
    }

    /// Reads the token, and checks that only those that have it see the page from other hosts.
    ///
    /// # Errors
    /// [`PageError`] when the token cannot be used, or is missing.
    pub fn read(&mut self) -> Result<(), PageError> {
        if let Some(file) = &self.token_file {
            self.token = Some(Token::read(file)?);
        }
        if self.token.is_none() && !self.listen.ip().to_canonical().is_loopback() {
            return Err(PageError::Open(self.listen));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_for_other_hosts_needs_a_token() {
        let read = |listen: &str, token_file: Option<PathBuf>| PageConfig::new(listen.parse().unwrap(), token_file).read();
        for local in ["127.0.0.1:9155", "[::1]:9155", "[::ffff:127.0.0.1]:9155"] {
            assert!(read(local, None).is_ok(), "{local}");
        }
        for open in ["0.0.0.0:9155", "[::]:9155", "192.0.2.1:9155"] {
            let error = read(open, None).unwrap_err().to_string();
            assert!(error.starts_with(&format!("the page at {open} would show")), "{error}");
        }
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "0123456789abcdef\n").unwrap();
        assert!(read("0.0.0.0:9155", Some(file.path().into())).is_ok());
        assert!(read("127.0.0.1:9155", Some("/no/such/file".into())).unwrap_err().to_string().contains("/no/such/file"));
    }
}
