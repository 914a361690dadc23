use super::*;
use crate::{blob::BlobWriter, semantics};
use hyper::StatusCode;
use proptest::prelude::*;
use std::time::Duration;

fn target(number: u8) -> TargetResource {
    TargetResource { server: None, authority: "a.example".into(), path: format!("/{number}") }
}

fn now() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000)
}

fn presented(target: &TargetResource, language: &str) -> Request<()> {
    semantics::presented_request(target, &[(hyper::header::ACCEPT_LANGUAGE, language.parse().unwrap())].into_iter().collect())
}

/// Stores a response with a body of this length, if there is room.
async fn put(store: &Arc<ResponseStore>, target: &TargetResource, language: &str, bytes: usize) -> Option<Arc<StoredResponse>> {
    let request = presented(target, language);
    let mut headers = HeaderMap::new();
    headers.insert("cache-control", "max-age=60".parse().unwrap());
    headers.insert("vary", "accept-language".parse().unwrap());
    let mut writer = BlobWriter::new(store.clone(), Some(bytes as u64))?;
    let rules = semantics::CachingRules::new(&request, StatusCode::OK, &headers, now());
    let response = Arc::new(StoredResponse::new(rules, (StatusCode::OK, None), headers, writer.blob().clone()));
    if !writer.append(&vec![7; bytes]).await {
        return None;
    }
    writer.finish(None).await.unwrap();
    store.insert(target, &request, &response, now()).then_some(response)
}

fn find(store: &ResponseStore, target: &TargetResource, language: &str) -> Option<Arc<StoredResponse>> {
    store.lookup(target, &presented(target, language), now()).map(|(response, _)| response)
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().build().unwrap()
}

fn store(memory: u64, disk: u64) -> Arc<ResponseStore> {
    ResponseStore::new(StoreLimits { memory, disk, max_blob_bytes: disk, spill_threshold: 8192 })
}

const EMPTY: StoreUsage = StoreUsage { memory_bytes: 0, disk_bytes: 0, responses: 0 };

#[test]
fn the_least_recently_used_response_is_evicted() {
    runtime().block_on(async {
        let store = store(40_000, 1_000_000);
        for number in 0..4 {
            assert!(put(&store, &target(number), "de", 7000).await.is_some());
        }
        let found = |number| find(&store, &target(number), "de").is_some();
        assert!(found(0), "and this lookup is a use");
        assert!(put(&store, &target(9), "de", 7000).await.is_some());
        assert_eq!([0, 1, 2, 3, 9].map(found), [true, false, true, true, true]);
    });
}

#[test]
fn a_response_with_a_reader_is_not_evicted() {
    runtime().block_on(async {
        let store = store(20_000, 1_000_000);
        let first = put(&store, &target(0), "de", 7000).await.unwrap();
        let reader = first.blob.reader();
        assert!(put(&store, &target(1), "de", 8000).await.is_some());
        assert!(put(&store, &target(2), "de", 8000).await.is_some());
        assert_eq!([0, 1, 2].map(|number| find(&store, &target(number), "de").is_some()), [true, false, true]);
        drop(reader);
    });
}

#[test]
fn variants_are_stored_side_by_side_and_invalidated_together() {
    runtime().block_on(async {
        let store = store(1_000_000, 1_000_000);
        let target = target(0);
        for language in ["de", "en", "de"] {
            put(&store, &target, language, 10).await.unwrap();
        }
        assert_eq!(store.usage().responses, 2);
        assert!(find(&store, &target, "en").is_some());
        assert!(find(&store, &target, "fr").is_none());
        for number in 0..100 {
            put(&store, &target, &format!("x-{number}"), 10).await.unwrap();
        }
        assert_eq!(store.usage().responses, MAX_VARIANTS as u64);
        store.invalidate(&target);
        assert_eq!(store.usage(), EMPTY);
    });
}

#[test]
fn followers_wait_until_the_leader_is_dropped() {
    runtime().block_on(async {
        let store = store(1000, 1000);
        let CollapsedFetch::Leader(leader) = store.join_fetch(&target(0)) else { panic!("the first request must lead") };
        let CollapsedFetch::Follower(mut follower) = store.join_fetch(&target(0)) else { panic!("the second request must follow") };
        assert!(matches!(store.join_fetch(&target(1)), CollapsedFetch::Leader(_)));
        let waits = tokio::spawn(async move { follower.changed().await.is_err() });
        drop(leader);
        assert!(waits.await.unwrap());
        assert!(matches!(store.join_fetch(&target(0)), CollapsedFetch::Leader(_)));
    });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]
    /// For any sequence of insertions, lookups and invalidations the usage is within the limits,
    /// and zero once everything is removed.
    #[test]
    fn usage_stays_within_the_limits(steps in prop::collection::vec((0_u8..12, 0_u8..5, 0_usize..30_000), 0..60)) {
        let store = store(60_000, 100_000);
        runtime().block_on(async {
            let mut readers = Vec::new();
            for (number, step, bytes) in steps {
                match step {
                    0 => store.invalidate(&target(number)),
                    1 => readers.extend(find(&store, &target(number), "de").map(|response| response.blob.reader())),
                    2 => readers.clear(),
                    _ => drop(put(&store, &target(number), "de", bytes).await),
                }
                let usage = store.usage();
                prop_assert!(usage.memory_bytes <= 60_000 && usage.disk_bytes <= 100_000 && usage.responses <= 12);
                let index = store.index();
                prop_assert_eq!(index.order.len(), index.entries.values().map(Vec::len).sum::<usize>());
            }
            readers.clear();
            (0..12).for_each(|number| store.invalidate(&target(number)));
            prop_assert_eq!(store.usage(), EMPTY);
            Ok(())
        })?;
    }
}
