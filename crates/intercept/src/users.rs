//! Users of a listener: clients must authenticate by name and password before they name their
//! destination (RFC 1929, or HTTP Basic authentication).

use hmac::{Hmac, KeyInit as _, Mac as _, digest::CtOutput};
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, de};
use sha2::Sha256;
use std::{
    borrow::Cow,
    fmt, fs,
    io::Read as _,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    str::FromStr,
    sync::Arc,
};

/// Upper bound on a name and a password, in bytes: RFC 1929 §2 has one byte for the length.
const LONGEST: usize = 255;
/// Upper bound on the file, in bytes. A larger file is not a list of users.
const LARGEST_FILE: u64 = 1 << 20;

/// A file of users cannot be read, or other users of this host can read it.
#[derive(Debug, thiserror::Error)]
#[error("cannot take users from {path}: {why}")]
pub struct UsersError {
    /// Which file.
    pub path: String,
    /// The reason and the cure.
    pub why: String,
}

/// The users of a listener. Without users every client may use it.
///
/// Two are equal if they have the same file name and the same inline users. The contents of the
/// file are not compared.
#[derive(Debug, Clone, Default)]
pub struct Users {
    file: Option<Arc<Path>>,
    in_file: Arc<[User]>,
    inline: Arc<[User]>,
}

/// A user: a MAC of name and password, which is compared in constant time (`CtOutput`).
#[derive(Clone, PartialEq, Eq)]
struct User(CtOutput<Hmac<Sha256>>);

impl fmt::Debug for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("User")
    }
}

impl PartialEq for Users {
    fn eq(&self, other: &Self) -> bool {
        (&self.file, &self.inline) == (&other.file, &other.inline)
    }
}

impl Eq for Users {}

impl User {
    fn new(name: &[u8], password: &[u8]) -> Option<Self> {
        // With the lengths, "a", "bc" and "ab", "c" have different MACs.
        let mut mac = Hmac::<Sha256>::new_from_slice(b"tandem: user and password").ok()?;
        for part in [&(name.len() as u64).to_be_bytes()[..], name, password] {
            mac.update(part);
        }
        Some(User(mac.finalize()))
    }
}

impl FromStr for User {
    type Err = String;

    /// Parses `NAME:PASSWORD`.
    fn from_str(text: &str) -> Result<Self, String> {
        // The message does not quote the text, which may contain a password.
        let (name, password) = text.split_once(':').ok_or("cannot parse a user: the colon is missing; write NAME:PASSWORD")?;
        for (what, part) in [("name", name), ("password", password)] {
            if part.is_empty() || part.len() > LONGEST {
                return Err(format!("the {what} of a user has {} bytes: write 1 to {LONGEST} (RFC 1929)", part.len()));
            }
        }
        User::new(name.as_bytes(), password.as_bytes()).ok_or_else(|| "cannot compute HMAC-SHA-256".into())
    }
}

impl Users {
    /// The users in a file. None is accepted until the file is [read](Users::read).
    pub fn in_file(path: impl Into<PathBuf>) -> Self {
        Users { file: Some(path.into().into()), ..Users::default() }
    }

    /// Adds the users in a file, if one is named.
    pub fn with_file(self, path: Option<&str>) -> Self {
        Users { file: path.map(|path| Path::new(path).into()).or(self.file), ..self }
    }

    /// Adds a user, written `NAME:PASSWORD`.
    ///
    /// # Errors
    /// The text has no colon, or a part is empty or longer than 255 bytes.
    pub fn add(&mut self, text: &str) -> Result<(), String> {
        self.inline = self.inline.iter().cloned().chain([text.parse()?]).collect();
        Ok(())
    }

    /// Whether clients must authenticate.
    pub fn are_required(&self) -> bool {
        self.file.is_some() || !self.inline.is_empty()
    }

    /// Whether passwords are in the configuration itself, not in a separate file.
    pub fn are_inline(&self) -> bool {
        !self.inline.is_empty()
    }

    /// Whether there is a user with this name and password. The time does not depend on which of
    /// them is wrong.
    pub fn have(&self, name: &[u8], password: &[u8]) -> bool {
        let Some(said) = User::new(name, password) else { return false };
        self.inline.iter().chain(&*self.in_file).fold(false, |found, user| found | (*user == said))
    }

    /// Reads the file, or reads it again, if there is one.
    ///
    /// # Errors
    /// The file cannot be read, other users of this host can read it, a line cannot be parsed, or
    /// it contains no user.
    pub fn read(&mut self) -> Result<(), UsersError> {
        let Some(path) = &self.file else { return Ok(()) };
        self.in_file = users_of(path).map_err(|why| UsersError { path: path.display().to_string(), why })?.into();
        Ok(())
    }
}

/// Parses a file of users: one per line, as `NAME:PASSWORD`. Empty lines and lines that begin with
/// # are ignored.
fn users_of(path: &Path) -> Result<Vec<User>, String> {
    let mut file = files::open(path, LARGEST_FILE).map_err(|why| why.to_string())?;
    let metadata = file.source().metadata().map_err(|why| why.to_string())?;
    if metadata.permissions().mode() & 0o007 != 0 {
        return Err("every user of this machine can access the passwords in it (it is world-readable): chmod o= it".into());
    }
    let mut text = String::new();
    file.read_to_string(&mut text).map_err(|why| why.to_string())?;
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty() && !line.starts_with('#'));
    let users: Vec<User> =
        lines.map(|(at, line)| line.parse().map_err(|why| format!("line {}: {why}", at + 1))).collect::<Result<_, String>>()?;
    if users.is_empty() { Err("it has no user: write one per line, as NAME:PASSWORD".into()) } else { Ok(users) }
}

/// Checks that a configuration file with passwords cannot be accessed by every user of this
/// machine.
///
/// # Errors
/// Every user can access it.
pub fn check_secrecy(path: &Path) -> Result<(), UsersError> {
    let mode = fs::metadata(path).map_or(0, |metadata| metadata.permissions().mode());
    if mode & 0o007 == 0 {
        return Ok(());
    }
    let why = "it has passwords, and every user of this machine has access to it (it is world-readable): chmod o= it, or \
               move them to a file of their own (users = \"/etc/tandem/users\") or into the environment (\"${NAME}\")";
    Err(UsersError { path: path.display().to_string(), why: why.into() })
}

impl JsonSchema for Users {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Users".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({ "type": ["string", "array"], "title": "a file or a list", "examples": ["/etc/tandem/users"] })
    }
}

impl<'de> Deserialize<'de> for Users {
    /// A text is the name of a file, a list contains users.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct FileOrList;
        impl<'de> de::Visitor<'de> for FileOrList {
            type Value = Users;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the name of a file, or a list of NAME:PASSWORD")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Users, E> {
                Ok(Users::in_file(text))
            }
            fn visit_seq<A: de::SeqAccess<'de>>(self, mut items: A) -> Result<Users, A::Error> {
                let mut users = Users::default();
                while let Some(text) = items.next_element::<String>()? {
                    users.add(&text).map_err(de::Error::custom)?;
                }
                if users.are_inline() {
                    return Ok(users);
                }
                Err(de::Error::custom("an empty list of users would let every client in: name some, or leave users out"))
            }
        }
        deserializer.deserialize_any(FileOrList)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The result of reading a file with this text and these permissions.
    fn read(text: &str, mode: u32) -> Result<Users, String> {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(&file, text).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
        let mut users = Users::in_file(file.path());
        assert!(users.are_required() && !users.have(b"alice", b"secret"), "no user is accepted before the file is read");
        users.read().map(|()| users).map_err(|error| error.to_string())
    }

    #[test]
    fn a_user_is_let_in_by_name_and_password_alone() {
        let users = read("# who\nalice:secret\n\nbob:a:b c \n", 0o640).unwrap();
        assert!(users.have(b"alice", b"secret") && users.have(b"bob", b"a:b c "));
        for (name, password) in [("alice", "a:b c "), ("alices", "ecret"), ("alice", ""), ("", "secret"), ("bob", "a:b c"), ("# who", "")] {
            assert!(!users.have(name.as_bytes(), password.as_bytes()), "{name} {password}");
        }
        let mut users = Users::default();
        assert!(!users.are_required());
        users.add("carol:x").unwrap();
        assert!(users.are_required() && users.have(b"carol", b"x") && !users.have(b"carol", b"y"));
        assert!(!format!("{users:?}").contains("carol"));
    }

    #[test]
    fn a_file_that_others_can_read_is_refused() {
        for mode in [0o644, 0o604, 0o602] {
            let error = read("alice:secret\n", mode).unwrap_err();
            assert!(error.contains("world-readable") && error.contains("chmod o= it"), "{error}");
        }
    }

    #[test]
    fn errors_name_the_line_and_not_the_password() {
        let long = format!("alice:{}\n", "x".repeat(256));
        for (text, said) in
            [("alice:secret\nhidden\n", "line 2: "), (":secret\n", "line 1: "), (&long, "256 bytes"), ("# none\n", "no user")]
        {
            let error = read(text, 0o600).unwrap_err();
            assert!(error.contains(said) && !error.contains("hidden") && !error.contains("secret"), "{error}");
        }
        let error = Users::in_file("/nowhere/users").read().unwrap_err().to_string();
        assert!(error.starts_with("cannot take users from /nowhere/users: No such file"), "{error}");
    }
}
