//! Access to a listener whose clients name their destination: which clients may use it, and which
//! destinations they may name.

use crate::{Destinations, Users};

/// Which clients may use a listener, and which destinations they may name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ListenerAccess {
    /// The destinations that clients may name.
    pub destinations: Destinations,
    /// The clients that may use it, by name and password. None: every client.
    pub users: Users,
}

impl ListenerAccess {
    /// Why an open listener is doubtful.
    pub const OPEN: &'static str = "every client that reaches this address can use it to connect to other hosts";
    /// How to restrict an open listener.
    pub const CLOSE: &'static str = "name its users (,users=FILE), limit its destinations (,allow=PREFIX) or listen on loopback";

    /// Whether every client may use the listener, for every destination except those that
    /// [`Destinations`] refuses by default.
    pub fn is_open(&self) -> bool {
        self.destinations.allow.is_empty() && !self.users.are_required()
    }
}

/// Parses the access options of a listener: `allow=PREFIX`, `deny=PREFIX`, `user=NAME:PASSWORD`,
/// each any number of times, and `users=FILE` once. Call [`take`](Self::take) for each option, then
/// [`finish`](Self::finish).
#[derive(Debug, Default)]
pub struct AccessOptions<'a> {
    access: ListenerAccess,
    file: Option<&'a str>,
}

impl<'a> AccessOptions<'a> {
    /// The options that are parsed here, for messages about unknown ones.
    pub const EXPECTED: &'static str = "allow=PREFIX, deny=PREFIX, users=FILE or user=NAME:PASSWORD";

    /// Takes one option. Returns false if it is not an access option.
    ///
    /// # Errors
    /// The option's value cannot be parsed.
    pub fn take(&mut self, option: &'a str) -> Result<bool, String> {
        match option.split_once('=') {
            Some(("allow", prefix)) => self.access.destinations.allow.push(prefix.parse()?),
            Some(("deny", prefix)) => self.access.destinations.deny.push(prefix.parse()?),
            Some(("users", path)) if !path.is_empty() => self.file = Some(path),
            Some(("user", user)) => self.access.users.add(user)?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// The access that the options describe.
    ///
    /// # Errors
    /// A prefix would match no address (see [`Destinations::check_prefixes`]).
    pub fn finish(self) -> Result<ListenerAccess, String> {
        let ListenerAccess { destinations, users } = self.access;
        destinations.check_prefixes()?;
        Ok(ListenerAccess { destinations, users: users.with_file(self.file) })
    }
}
