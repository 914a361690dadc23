use super::*;
use crate::{blob::Writer, semantics};
use hyper::StatusCode;
use proptest::prelude::*;
use std::time::Duration;

fn target(name: u8) -> Target {
    Target { server: None, authority: "a.example".into(), path: format!("/{name}") }
}

fn now() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000)
}

fn asked(target: &Target, language: &str) -> Request<()> {
    semantics::question(target, &[(hyper::header::ACCEPT_LANGUAGE, language.parse().unwrap())].into_iter().collect())
}

/// An answer of so many bytes, kept where there is room.
async fn put(store: &Arc<Store>, target: &Target, language: &str, bytes: usize) -> Option<Arc<Entry>> {
    let question = asked(target, language);
    let mut headers = HeaderMap::new();
    headers.insert("cache-control", "max-age=60".parse().unwrap());
    headers.insert("vary", "accept-language".parse().unwrap());
    let mut writer = Writer::new(store.clone(), Some(bytes as u64))?;
    let rules = semantics::Rules::of(&question, StatusCode::OK, &headers, now());
    let entry = Arc::new(Entry::new(rules, StatusCode::OK, headers, writer.blob().clone()));
    if !writer.push(&vec![7; bytes]).await {
        return None;
    }
    writer.finish(None).await.unwrap();
    store.keep(target, &question, &entry, now()).then_some(entry)
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().build().unwrap()
}

fn store(memory: u64, disk: u64) -> Arc<Store> {
    Store::new(Bounds { memory, disk, largest: disk, spill_from: 8192 })
}

#[test]
fn the_least_recently_used_goes_first() {
    runtime().block_on(async {
        let store = store(40_000, 1_000_000);
        for name in 0..4 {
            assert!(put(&store, &target(name), "de", 7000).await.is_some());
        }
        let found = |name| store.look(&target(name), &asked(&target(name), "de"), now()).is_some();
        assert!(found(0), "and is used by that");
        assert!(put(&store, &target(9), "de", 7000).await.is_some());
        assert_eq!([0, 1, 2, 3, 9].map(found), [true, false, true, true, true]);
    });
}

#[test]
fn one_that_is_read_stays() {
    runtime().block_on(async {
        let store = store(20_000, 1_000_000);
        let first = put(&store, &target(0), "de", 7000).await.unwrap();
        let reader = first.blob.reader();
        assert!(put(&store, &target(1), "de", 8000).await.is_some());
        assert!(put(&store, &target(2), "de", 8000).await.is_some());
        let found = |name| store.look(&target(name), &asked(&target(name), "de"), now()).is_some();
        assert_eq!([0, 1, 2].map(found), [true, false, true]);
        drop(reader);
    });
}

#[test]
fn variants_stand_side_by_side_and_go_together() {
    runtime().block_on(async {
        let store = store(1_000_000, 1_000_000);
        let here = target(0);
        for language in ["de", "en", "de"] {
            put(&store, &here, language, 10).await.unwrap();
        }
        assert_eq!(store.taken().2, 2);
        assert!(store.look(&here, &asked(&here, "en"), now()).is_some());
        assert!(store.look(&here, &asked(&here, "fr"), now()).is_none());
        for number in 0..100 {
            put(&store, &here, &format!("x-{number}"), 10).await.unwrap();
        }
        assert_eq!(store.taken().2, VARIANTS as u64);
        store.invalidate(&here);
        assert_eq!(store.taken(), (0, 0, 0));
    });
}

#[test]
fn those_who_follow_hear_of_the_end() {
    runtime().block_on(async {
        let store = store(1000, 1000);
        let Flight::Lead(lead) = store.fly(&target(0)) else { panic!("nobody flies yet") };
        let Flight::Follow(mut follower) = store.fly(&target(0)) else { panic!("somebody does") };
        assert!(matches!(store.fly(&target(1)), Flight::Lead(_)));
        let waits = tokio::spawn(async move { follower.changed().await.is_err() });
        drop(lead);
        assert!(waits.await.unwrap());
        assert!(matches!(store.fly(&target(0)), Flight::Lead(_)));
    });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]
    /// Whatever is kept, looked at and forgotten: never more than the bounds, and nothing is left of nothing.
    #[test]
    fn the_bounds_hold(steps in prop::collection::vec((0_u8..12, 0_u8..5, 0_usize..30_000), 0..60)) {
        let store = store(60_000, 100_000);
        runtime().block_on(async {
            let mut held = Vec::new();
            for (name, what, bytes) in steps {
                match what {
                    0 => store.invalidate(&target(name)),
                    1 => held.extend(store.look(&target(name), &asked(&target(name), "de"), now()).map(|(entry, _)| entry.blob.reader())),
                    2 => held.clear(),
                    _ => drop(put(&store, &target(name), "de", bytes).await),
                }
                let (memory, disk, kept) = store.taken();
                prop_assert!(memory <= 60_000 && disk <= 100_000 && kept <= 12);
                let inner = store.inner();
                prop_assert_eq!(inner.order.len(), inner.entries.values().map(Vec::len).sum::<usize>());
            }
            held.clear();
            (0..12).for_each(|name| store.invalidate(&target(name)));
            prop_assert_eq!(store.taken(), (0, 0, 0));
            Ok(())
        })?;
    }
}
