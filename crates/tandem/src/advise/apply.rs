//! Writes advice into the configuration file of the running proxy, and has the proxy read it again.

use super::path_advice::{PathAdvice, Recommendation};
use crate::{CommandError, service::usage};
use files::{Distrust, Draft};
use intercept::Rule;
use proxy::{
    ReloadReport, Service,
    control::{ControlError, ProxyStatus, Remote},
};
use std::{
    fs, io,
    path::{Path, PathBuf},
};
use toml_edit::{ArrayOfTables, DocumentMut, Item, Table};
use toml_file::LARGEST_FILE;

/// The comment before each table that advice has written. Later advice replaces these tables.
const MARK: &str = "# By tandem advise --live --apply.";

/// The configuration file of the running proxy.
///
/// # Errors
/// The proxy runs from flags; or its file is one that other users can change. The proxy may run as
/// another user than the caller, and its answer must not choose which files that one writes to.
pub(super) fn configuration(status: &ProxyStatus) -> Result<PathBuf, CommandError> {
    let cannot = |why: String| CommandError::Failed(format!("cannot apply advice: {why}"));
    let file = status.details.configuration.clone().ok_or_else(|| {
        cannot(
            "the proxy runs from flags, without a configuration file to change; start it with -c FILE, or add the printed lines yourself"
                .into(),
        )
    })?;
    let unreadable = |why: io::Error| cannot(format!("cannot read {}, the proxy's configuration: {why}", file.display()));
    let path = file.canonicalize().map_err(unreadable)?;
    let opened = files::open(&path, LARGEST_FILE).map_err(unreadable)?;
    match Distrust::of(&path, opened.source()).map_err(unreadable)? {
        None => Ok(path),
        Some(distrust) => Err(cannot(distrust.with_cure("run this as that user, or give the file to root"))),
    }
}

/// Advice that is in the configuration file and in use.
#[derive(Debug)]
pub(super) struct Applied {
    file: PathBuf,
    /// What the file has now.
    text: String,
    /// The old file.
    kept: PathBuf,
}

impl Applied {
    /// Puts the old file back, and has the proxy follow it.
    ///
    /// # Errors
    /// Always: the advice did not help. The text says whether the old settings apply again.
    pub(super) fn take_back(self, remote: &Remote) -> Result<(), CommandError> {
        let Applied { file, text, kept } = self;
        let stays = |why: String| {
            let (file, kept) = (file.display(), kept.display());
            CommandError::Failed(format!("the advice made connections slower, but stays: {why}; the old file is {kept}, for {file}"))
        };
        match files::read_text(&file, LARGEST_FILE) {
            Ok(now) if now == text => {}
            Ok(_) => return Err(stays("the file has been changed since".into())),
            Err(why) => return Err(stays(format!("the file cannot be read: {why}"))),
        }
        fs::rename(&kept, &file).map_err(|why| stays(format!("the old file cannot be put back: {why}")))?;
        match remote.reload() {
            Ok(ReloadReport { unfinished: false, refused: None, .. }) => {
                Err(CommandError::Failed("the advice made connections slower; the old file is in its place and in use again".into()))
            }
            Ok(ReloadReport { refused: Some(why), .. }) => Err(CommandError::Failed(format!(
                "the advice made connections slower; the old file is in its place again, but the proxy did not take it: {why}"
            ))),
            Ok(_) => Err(CommandError::Failed(
                "the advice made connections slower; the old file is in its place again; see the proxy's log whether it applies".into(),
            )),
            Err(why) => Err(CommandError::Failed(format!(
                "the advice made connections slower; the old file is in its place again, but the proxy has not read it: {why}"
            ))),
        }
    }
}

/// Changes the file, keeps the old one beside it, and reloads. If the proxy refuses the new file,
/// the old one is put back.
///
/// # Errors
/// The file cannot be changed, or the proxy refuses it.
pub(super) fn apply(remote: &Remote, file: &Path, all: &[PathAdvice]) -> Result<Applied, CommandError> {
    let cannot = |what: &str, why: io::Error| CommandError::Failed(format!("cannot {what} {}: {why}; nothing was changed", file.display()));
    let old = files::read_text(file, LARGEST_FILE).map_err(|why| cannot("read", why))?;
    let new = edited(&old, all).map_err(|why| CommandError::Failed(format!("cannot change {}: {why}", file.display())))?;
    let draft = Draft::beside(file, &new).map_err(|why| cannot("write beside", why))?;
    let service = Service::read(draft.path()).map_err(usage)?;
    service.check().map_err(usage)?;
    check_order(&service, all)?;
    let missing = || cannot("keep a copy of", io::ErrorKind::NotFound.into());
    let kept = draft.put("bak").map_err(|why| cannot("replace", why))?.ok_or_else(missing)?;
    let refused = match remote.reload() {
        Ok(ReloadReport { unfinished: false, refused, .. }) => refused,
        Err(ControlError::Refused(why)) => Some(why),
        // It may have read the file: the file must not say something else.
        Ok(_) | Err(_) => {
            let (file, kept) = (file.display(), kept.display());
            return Err(CommandError::Failed(format!(
                "{file} has the advice, and the proxy has not said whether it applies: see its log; the old file is {kept}"
            )));
        }
    };
    match refused {
        None => {
            outln!("The proxy has read {} again; the old file is {}.", file.display(), kept.display());
            Ok(Applied { file: file.to_owned(), text: new, kept })
        }
        Some(why) => {
            let restored = fs::rename(&kept, file);
            let then = match restored {
                Ok(()) => "the old file is in its place again".to_owned(),
                Err(error) => format!("the old file is {}, which could not be put back: {error}", kept.display()),
            };
            Err(CommandError::Failed(format!("the proxy did not take the advice: {why}; {then}")))
        }
    }
}

/// The text of the file with this advice.
///
/// # Errors
/// The file is no TOML, or has other things in these places.
fn edited(old: &str, all: &[PathAdvice]) -> Result<String, String> {
    let mut document: DocumentMut = old.parse().map_err(|error: toml_edit::TomlError| error.to_string())?;
    let mut position = document.iter().filter_map(|(_, item)| last_position(item)).max().unwrap_or(0);
    let kept = all.iter().filter(|advice| matches!(advice.recommendation, Recommendation::Keep(_)));
    let kept: Vec<String> = kept.map(PathAdvice::profile).collect();
    for key in ["leg", "rule"] {
        tables(&mut document, key)?.retain(|table| !is_ours(table) || is_about(table, &kept));
    }
    for advice in all {
        let Some(lines) = &advice.config else { continue };
        let added: DocumentMut = lines.parse().map_err(|error: toml_edit::TomlError| error.to_string())?;
        for key in ["leg", "rule"] {
            let Some(new) = added.get(key).and_then(Item::as_array_of_tables) else { continue };
            let target = tables(&mut document, key)?;
            for table in new {
                let mut table = table.clone();
                position += 1;
                table.set_position(Some(position));
                table.decor_mut().set_prefix(format!("\n{MARK} {}\n", why(advice)));
                // Rules of the operator come first, except for one that matches everything.
                let rest = if key == "rule" { take_catch_all(target) } else { None };
                target.push(table);
                if let Some(mut rest) = rest {
                    position += 1;
                    rest.set_position(Some(position));
                    target.push(rest);
                }
            }
        }
    }
    for key in ["leg", "rule"] {
        if tables(&mut document, key)?.is_empty() {
            document.remove(key);
        }
    }
    Ok(document.to_string())
}

/// What the comment says.
fn why(advice: &PathAdvice) -> &'static str {
    match advice.recommendation {
        Recommendation::Split(_) => "Splitting pays with this controller.",
        _ => "Splitting does not pay.",
    }
}

fn is_ours(table: &Table) -> bool {
    table.decor().prefix().and_then(|prefix| prefix.as_str()).is_some_and(|prefix| prefix.contains(MARK))
}

/// Whether a leg is one of these profiles, or a rule names one.
fn is_about(table: &Table, profiles: &[String]) -> bool {
    let named = ["name", "near", "far"].iter().filter_map(|key| table.get(key)?.as_str());
    named.into_iter().any(|name| profiles.iter().any(|profile| profile == name))
}

/// Fails if an earlier rule of the operator decides about all connections that a rule of this
/// advice is about.
fn check_order(service: &Service, all: &[PathAdvice]) -> Result<(), CommandError> {
    let policy = &service.config.policy;
    // The rules of the advice are the last ones, but for one that matches everything.
    let count = all.iter().filter(|advice| advice.config.is_some()).count();
    let end = policy.rules.len() - usize::from(policy.rules.last().is_some_and(|last| last.covers(&Rule::default())));
    let ours = end.saturating_sub(count)..end;
    match policy.shadowed_rules().find(|(later, _)| ours.contains(later)) {
        None => Ok(()),
        Some((_, earlier)) => Err(CommandError::Failed(format!(
            "cannot apply advice: rule[{}] of the file comes first, and decides about all connections that the advice is about: change that \
             rule as printed, or delete it; nothing was changed",
            earlier + 1
        ))),
    }
}

/// Removes the last rule, if it matches everything.
fn take_catch_all(rules: &mut ArrayOfTables) -> Option<Table> {
    let conditions = ["from", "to", "ports", "in", "out"];
    let last = rules.iter().last().filter(|rule| conditions.iter().all(|key| !rule.contains_key(key)))?.clone();
    rules.remove(rules.len() - 1);
    Some(last)
}

/// The array of tables under a key, made if it is missing.
fn tables<'a>(document: &'a mut DocumentMut, key: &str) -> Result<&'a mut ArrayOfTables, String> {
    let item = document.entry(key).or_insert_with(|| Item::ArrayOfTables(ArrayOfTables::new()));
    item.as_array_of_tables_mut().ok_or_else(|| format!("write {key} as [[{key}]] first"))
}

/// The last place of a table in the document.
fn last_position(item: &Item) -> Option<isize> {
    match item {
        Item::Table(table) => table.iter().filter_map(|(_, item)| last_position(item)).chain(table.position()).max(),
        Item::ArrayOfTables(all) => {
            all.iter().flat_map(|table| table.iter().filter_map(|(_, item)| last_position(item)).chain(table.position())).max()
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::path_advice::{SplitSettings, example},
        *,
    };
    use units::Bytes;

    const FILE: &str = "# My gateway.\nbuffer = \"4MiB\" # enough\n\n[[listen]]\ntransparent = \"[::]:5000\"\n\n[[rule]]\nto = \"10.0.0.0/8\"\n\
                        action = \"bypass\"\n\n# All others.\n[[rule]]\n\n[near]\nkeepalive = \"10min\"\n";

    fn advice() -> [PathAdvice; 2] {
        let settings = SplitSettings { leg: "near", control: "bbr".into(), capacity: None, link: None, shape: None };
        [example("192.0.2.0/24", Recommendation::Split(settings)), example("198.51.100.0/24", Recommendation::Bypass)]
    }

    #[test]
    fn advice_is_taken_back_unless_the_file_has_changed_since() {
        let directory = tempfile::tempdir().unwrap();
        let [file, kept] = ["proxy.toml", "proxy.toml.bak"].map(|name| directory.path().join(name));
        let taken_back = |now: &str| {
            fs::write(&file, now).unwrap();
            fs::write(&kept, "old").unwrap();
            let applied = Applied { file: file.clone(), text: "new".into(), kept: kept.clone() };
            let Err(CommandError::Failed(said)) = applied.take_back(&Remote::named("absent")) else { panic!("it is always an error") };
            (said, fs::read_to_string(&file).unwrap())
        };
        let (said, text) = taken_back("new");
        assert!(said.contains("the old file is in its place again, but the proxy has not read it") && text == "old", "{said}: {text}");
        let (said, text) = taken_back("edited");
        assert!(said.contains("stays: the file has been changed since") && text == "edited", "{said}: {text}");
    }

    #[test]
    fn advice_is_added_and_comments_stay() {
        let new = edited(FILE, &advice()).unwrap();
        let config = Service::parse(&new, "new").unwrap_or_else(|error| panic!("{error}\n{new}")).config;
        assert_eq!(config.buffer.most(), Some(Bytes(4 << 20)), "a reload cannot change it");
        let actions: Vec<_> = config.policy.rules.iter().map(|rule| (rule.to.len(), rule.near.as_deref(), rule.action)).collect();
        use intercept::Action::{Bypass, Split};
        let profile = config.policy.legs[0].name.as_deref();
        assert_eq!(actions, [(1, None, Bypass), (1, profile, Split), (1, None, Bypass), (0, None, Split)], "{new}");
        assert!(new.contains("# My gateway.") && new.contains("# enough") && new.contains("# All others.") && new.contains(MARK), "{new}");
    }

    #[test]
    fn later_advice_replaces_earlier_advice() {
        let once = edited(FILE, &advice()).unwrap();
        let twice = edited(&once, &advice()).unwrap();
        let count = |text: &str| text.matches(MARK).count();
        assert_eq!((count(&once), count(&twice)), (3, 3), "{twice}");
        Service::parse(&twice, "twice").unwrap();
        // Settings that are there, by earlier advice, stay while others go.
        let [split, bypass] = advice();
        let Recommendation::Split(settings) = split.recommendation else { panic!("it splits") };
        let kept = edited(&twice, &[example("192.0.2.0/24", Recommendation::Keep(settings)), bypass]).unwrap();
        assert_eq!(Service::parse(&kept, "kept").unwrap().config.policy.legs.len(), 1, "{kept}");
        let only = edited(&twice, &advice()[1..]).unwrap();
        assert!(count(&only) == 1 && Service::parse(&only, "only").unwrap().config.policy.legs.is_empty(), "{only}");
    }

    #[test]
    fn advice_that_an_earlier_rule_makes_void_is_refused() {
        let checked = |old: &str| check_order(&Service::parse(&edited(old, &advice()).unwrap(), "new").unwrap(), &advice());
        checked(FILE).unwrap();
        let before = FILE.replace("to = \"10.0.0.0/8\"\naction = \"bypass\"", "to = \"192.0.2.0/24\"");
        let Err(CommandError::Failed(said)) = checked(&before) else { panic!("{before}") };
        assert!(said.contains("rule[1] of the file comes first"), "{said}");
    }

    #[test]
    fn a_file_that_cannot_be_changed_is_refused() {
        assert!(edited("rule = 3\n", &advice()).unwrap_err().contains("[[rule]]"));
        assert!(edited("rule = [", &advice()).is_err());
    }
}
