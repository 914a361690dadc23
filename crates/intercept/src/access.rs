//! ListenerAccess to a listener whose clients name their destination: which clients, and where to.

use crate::{Destinations, Users};

/// Which clients may use a listener, and where they may go.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ListenerAccess {
    /// The destinations that clients may name.
    pub destinations: Destinations,
    /// The clients, by name and password.
    pub users: Users,
}

impl ListenerAccess {
    /// What is doubtful about a listener that is open, and the cure.
    pub const OPEN: &'static str = "every client that reaches this address can use it to connect to other hosts";
    /// How an open listener is closed.
    pub const CLOSE: &'static str = "name its users (,users=FILE), limit its destinations (,allow=PREFIX) or listen on loopback";

    /// Whether every client may use the listener, for every destination that is not refused by
    /// default.
    pub fn is_open(&self) -> bool {
        self.destinations.allow.is_empty() && !self.users.are_required()
    }
}

/// Reads the access options of a listener: `allow=PREFIX`, `deny=PREFIX`, `users=FILE`,
/// `user=NAME:PASSWORD`, each as often as wanted but the file.
#[derive(Debug, Default)]
pub struct AccessOptions<'a> {
    access: ListenerAccess,
    file: Option<&'a str>,
}

impl<'a> AccessOptions<'a> {
    /// The options that are read here, for messages about others.
    pub const EXPECTED: &'static str = "allow=PREFIX, deny=PREFIX, users=FILE or user=NAME:PASSWORD";

    /// Takes an option; false when it is not one of these.
    ///
    /// # Errors
    /// Its value cannot be parsed.
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

    /// What the options came to.
    ///
    /// # Errors
    /// The prefixes contradict each other.
    pub fn finish(self) -> Result<ListenerAccess, String> {
        let ListenerAccess { destinations, users } = self.access;
        destinations.check_prefixes()?;
        Ok(ListenerAccess { destinations, users: users.with_file(self.file) })
    }
}
