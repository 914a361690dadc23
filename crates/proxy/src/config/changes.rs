//! What of a configuration changes when it is read again, and what that takes.

use serde::{Deserialize, Serialize};
use std::fmt;
use toml::Value;

/// What it takes to apply a changed key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Application {
    /// A reload, for new connections.
    Reload,
    /// A new process that takes over: `tandem restart`.
    Restart,
    /// The end of the proxy and a new start: listening sockets that are handed over cannot change
    /// it, or it is how the proxy is found.
    Start,
}

impl fmt::Display for Application {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Application::Reload => "a reload applies it to new connections",
            Application::Restart => "tandem restart has a new process take over with it",
            Application::Start => "it needs a stop and a new start",
        })
    }
}

/// What it takes to apply a change of this key, with or without indices: `rule.to`.
/// A `buffer` below 256 KiB or of "auto" needs more, which depends on both values.
pub fn application(key: &str) -> Application {
    let key = bare(key);
    let is_in = |table: &str| key.strip_prefix(table).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
    match key.as_str() {
        "name" | "install_rules" | "near.mss" | "buffer_max" | "bond.connection_window" => Application::Start,
        "listen.users" => Application::Reload,
        "threads" | "forward_policy" | "metrics" | "host_names" | "bond" | "bond.key" | "bond.key_file" | "bond.tls" | "bond.window" | "bond.spares"
        // The address of networks without one of their own.
        | "bond.to" => Application::Restart,
        _ if ["listen", "page", "bond.network"].into_iter().any(is_in) => Application::Restart,
        _ => Application::Reload,
    }
}

/// The path without the indices of lists: `rule[1].to` is `rule.to`.
pub(super) fn bare(path: &str) -> String {
    let mut inside = false;
    let outside = |c: &char| {
        let was_inside = inside;
        inside = *c == '[' || (inside && *c != ']');
        !(was_inside || inside)
    };
    path.chars().filter(outside).collect()
}

/// A key that has another value in another configuration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyChange {
    /// The key, with the numbers of list members from 1: `rule[2].to`. Where a member of a list is
    /// added or removed, the member: `rule[2]`.
    pub key: String,
    /// The old value as TOML; absent: there was none. Secrets are not shown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub old: Option<String>,
    /// The new value as TOML; absent: there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub new: Option<String>,
    /// What it takes to apply it.
    pub application: Application,
}

impl fmt::Display for KeyChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.old, &self.new) {
            // A secret: its values are not shown.
            (Some(old), Some(new)) if old == new => write!(f, "{}: changed", self.key),
            (Some(old), Some(new)) => write!(f, "{}: {old} → {new}", self.key),
            (Some(old), None) => write!(f, "{}: {old} removed", self.key),
            (None, Some(new)) => write!(f, "{}: {new} added", self.key),
            (None, None) => write!(f, "{}: changed", self.key),
        }
    }
}

/// The answer to a reload.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReloadReport {
    /// What the files change, in the order of the files.
    pub changes: Vec<KeyChange>,
    /// Why nothing of it has been applied; absent: all has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
    /// The reload has not ended yet, so that it is not known what will be applied: see the log.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unfinished: bool,
}

/// A configuration as it applies and as it is shown.
type Pair = (Value, Value);

/// Compares two configurations.
pub(super) fn compare(old: &Pair, new: &Pair) -> Vec<KeyChange> {
    let mut changes = Vec::new();
    compare_values("", Part::of(old), Part::of(new), &mut changes);
    changes
}

/// A part of a configuration, as it applies and as it is shown.
#[derive(Clone, Copy)]
struct Part<'a> {
    value: Option<&'a Value>,
    shown: Option<&'a Value>,
}

impl<'a> Part<'a> {
    fn of((value, shown): &'a Pair) -> Self {
        Part { value: Some(value), shown: Some(shown) }
    }

    fn key(self, key: &str) -> Self {
        Part { value: self.value.and_then(|it| it.get(key)), shown: self.shown.and_then(|it| it.get(key)) }
    }

    fn item(self, index: usize) -> Self {
        Part { value: self.value.and_then(|it| it.get(index)), shown: self.shown.and_then(|it| it.get(index)) }
    }

    fn keys(self) -> impl Iterator<Item = &'a String> {
        self.value.and_then(Value::as_table).into_iter().flat_map(toml::Table::keys)
    }

    /// Its tables, if it is a list of these.
    fn tables(self) -> Option<&'a [Value]> {
        let items = self.value?.as_array()?;
        (!items.is_empty() && items.iter().all(Value::is_table)).then_some(items)
    }

    fn text(self) -> Option<String> {
        self.shown.map(toml_file::inline)
    }
}

fn compare_values(path: &str, old: Part<'_>, new: Part<'_>, changes: &mut Vec<KeyChange>) {
    if old.value == new.value {
        return;
    }
    let is_table = |part: Part<'_>| part.value.is_none_or(Value::is_table);
    if is_table(old) && is_table(new) {
        let added = new.keys().filter(|key| old.key(key).value.is_none());
        for key in old.keys().chain(added) {
            compare_values(&toml_file::under(path, key), old.key(key), new.key(key), changes);
        }
        return;
    }
    match (old.tables(), new.tables()) {
        (Some(before), Some(after)) => compare_lists(path, (old, before), (new, after), changes),
        (Some(before), None) if new.value.is_none() => compare_lists(path, (old, before), (new, &[]), changes),
        (None, Some(after)) if old.value.is_none() => compare_lists(path, (old, &[]), (new, after), changes),
        _ => changes.push(change(path, old.text(), new.text())),
    }
}

/// Compares lists of tables without the members that are the same at their beginnings and ends.
fn compare_lists(path: &str, old: (Part<'_>, &[Value]), new: (Part<'_>, &[Value]), changes: &mut Vec<KeyChange>) {
    let ((old, before), (new, after)) = (old, new);
    let same = before.iter().zip(after).take_while(|(one, other)| one == other).count();
    let (rest_before, rest_after) = (&before[same..], &after[same..]);
    let same_end = rest_before.iter().rev().zip(rest_after.iter().rev()).take_while(|(one, other)| one == other).count();
    let (gone, come) = (rest_before.len() - same_end, rest_after.len() - same_end);
    let at = |index: usize| format!("{path}[{index}]");
    for index in same..same + gone.max(come) {
        if index < same + gone.min(come) {
            compare_values(&at(index), old.item(index), new.item(index), changes);
        } else if gone > come {
            changes.push(change(&at(index), old.item(index).text(), None));
        } else {
            changes.push(change(&at(index), None, new.item(index).text()));
        }
    }
}

fn change(path: &str, old: Option<String>, new: Option<String>) -> KeyChange {
    KeyChange { key: toml_file::from_one(path), old, new, application: application(path) }
}

#[cfg(test)]
mod tests {
    use super::super::file::Service;
    use super::*;

    const FILE: &str = include_str!("../../tests/proxy.toml");

    fn changes(from: &str, to: &str) -> Vec<String> {
        assert!(FILE.contains(from), "{from}");
        let (old, new) = (Service::parse(FILE, "old").unwrap(), Service::parse(&FILE.replacen(from, to, 1), "new").unwrap());
        old.source.changes(&new.source).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn changes_name_the_key_and_both_values() {
        assert_eq!(changes("\"16MiB\" ", "\"8MiB\" "), ["buffer_max: \"16MiB\" → \"8MiB\""]);
        assert_eq!(changes("idle_timeout    = \"12h\"", ""), ["idle_timeout: \"12h\" removed"]);
        assert_eq!(changes("[far] ", "[far]\nmark = 3\n#"), ["far.mark: 3 added"]);
        assert_eq!(changes("-8999\"", "-8998\""), ["rule[2].ports: [443, \"8000-8999\"] → [443, \"8000-8998\"]"]);
        let first = "[[rule]] ";
        assert_eq!(
            changes(first, "[[rule]]\nports = 22\naction = \"bypass\"\n[[rule]] "),
            ["rule[1]: { ports = 22, action = \"bypass\" } added"]
        );
        assert_eq!(
            changes("[[rule]]\nto     = \"169.254.0.0/16\"\naction = \"refuse\"", "#"),
            ["rule[3]: { to = \"169.254.0.0/16\", action = \"refuse\" } removed"]
        );
        assert_eq!(changes("keep     = 4", "keep     = 5"), ["flow_records.keep: 4 → 5"]);
        assert!(changes("# A gateway", "# Another").is_empty());
    }

    /// What [`application`] says of a key is what the proxy does.
    #[test]
    fn keys_that_a_reload_cannot_change_are_known_as_such() {
        let old = Service::parse(FILE, "old").unwrap();
        for (from, to) in [
            ("\"gateway\"", "\"other\""),
            ("threads         = 2", "threads = 3"),
            ("\"12h\"", "\"13h\""),
            ("\"16MiB\" ", "\"8MiB\" "),
            ("9000", "9001"),
            ("\"2GiB\"", "\"3GiB\""),
            ("forward_policy  = \"heed\"", "forward_policy = \"ignore\""),
            ("install_rules   = true", "install_rules = false"),
            ("127.0.0.1:9155", "127.0.0.1:9156"),
            ("\"gateway.lan\"", "\"router.lan\""),
            ("page.token\"", "other.token\""),
            ("[::]:5000", "[::]:5001"),
            ("\"/etc/tandem/users\"", "\"/etc/tandem/others\""),
            ("bond.key\"", "other.key\""),
            ("tls       = true", "tls = false"),
            ("\"8MiB\"", "\"9MiB\""),
            ("connection_window = \"4MiB\"", "connection_window = \"5MiB\""),
            ("spares    = 2", "spares = 3"),
            ("outage    = \"60s\"", "outage = \"61s\""),
            ("\"score\"", "\"tiers\""),
            ("198.51.100.1:7000", "198.51.100.2:7000"),
            ("wlan0", "wlan1"),
            ("[near] ", "[near]\nmss = 1300\n#"),
            ("[near] ", "[near]\nmark = 7\n#"),
            ("\"gentle\"\ncontrol    = \"reno\"", "\"gentle\"\ncontrol = \"cubic\""),
            ("10.0.0.0/8\", \"fd00", "10.0.0.0/9\", \"fd00"),
            ("keep     = 4", "keep = 5"),
        ] {
            assert!(FILE.contains(from), "{from}");
            let new = Service::parse(&FILE.replacen(from, to, 1), "new").unwrap();
            let changes = old.source.changes(&new.source);
            assert_eq!(changes.len(), 1, "{from}: {changes:?}");
            let is_fixed = old.needs_restart(&new).is_some() || new.config.needs_restart(&old.config).is_some();
            assert_eq!(changes[0].application != Application::Reload, is_fixed, "{}", changes[0]);
        }
    }
}
