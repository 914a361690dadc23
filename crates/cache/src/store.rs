//! The store of responses, by target resource, within bounds; the least recently used are evicted
//! first. It also collapses requests: equal requests at the same time cost the origin server one
//! request.

use crate::{
    blob::{Medium, StorageQuota, StorageShares},
    budget::{Budget, BudgetShare},
    semantics::{Freshness, StoredResponse},
    target::TargetResource,
};
use hyper::{HeaderMap, Request};
use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::SystemTime,
};
use tokio::sync::watch;

/// Responses for one target that are stored at the same time (`Vary`).
const MAX_VARIANTS: usize = 16;
/// Memory that a response takes besides its fields and its body, bytes.
const RESPONSE_OVERHEAD: u64 = 1024;
/// Memory that a header field takes besides its name and its value, bytes.
const FIELD_OVERHEAD: usize = 64;

/// The bounds of the store, bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StoreLimits {
    pub(crate) memory: u64,
    pub(crate) disk: u64,
    /// Size of a body that is stored, at most.
    pub(crate) max_blob_bytes: u64,
    /// Size of a body that stays in memory, at most.
    pub(crate) spill_threshold: u64,
}

/// What the store holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StoreUsage {
    pub(crate) memory_bytes: u64,
    pub(crate) disk_bytes: u64,
    /// Responses that can be found.
    pub(crate) responses: u64,
}

#[derive(Debug)]
struct StoreEntry {
    /// Its key in [`StoreIndex::order`].
    last_use: u64,
    response: Arc<StoredResponse>,
    /// The memory that its fields take.
    _share: BudgetShare,
}

#[derive(Debug, Default)]
struct StoreIndex {
    entries: HashMap<TargetResource, Vec<StoreEntry>>,
    /// The targets of all entries, by their last use.
    order: BTreeMap<u64, TargetResource>,
    /// Counts lookups and insertions: the clock of `last_use`.
    uses: u64,
    /// Fetches that other requests may wait for.
    fetches: HashMap<TargetResource, watch::Receiver<()>>,
}

impl StoreIndex {
    /// Removes the entries of a target for which `which` holds.
    fn remove_where(&mut self, target: &TargetResource, which: impl Fn(&StoreEntry) -> bool) {
        let Some(variants) = self.entries.get_mut(target) else { return };
        variants.retain(|entry| {
            let remove = which(entry);
            if remove {
                self.order.remove(&entry.last_use);
            }
            !remove
        });
        if variants.is_empty() {
            self.entries.remove(target);
        }
    }

    fn next_use(&mut self) -> u64 {
        self.uses += 1;
        self.uses
    }
}

/// The store that all connections share.
#[derive(Debug)]
pub(crate) struct ResponseStore {
    memory: Arc<Budget>,
    disk: Arc<Budget>,
    limits: StoreLimits,
    index: Mutex<StoreIndex>,
}

/// How a request takes part in the fetch of a response (collapsed forwarding).
#[derive(Debug)]
pub(crate) enum CollapsedFetch {
    /// It asks the origin server. Equal requests wait until the leader is dropped.
    Leader(FetchLeader),
    /// Another request asks already. The channel closes once its response is known.
    Follower(watch::Receiver<()>),
}

/// See [`CollapsedFetch::Leader`].
#[derive(Debug)]
pub(crate) struct FetchLeader {
    store: Arc<ResponseStore>,
    target: TargetResource,
    _done: watch::Sender<()>,
}

impl Drop for FetchLeader {
    fn drop(&mut self) {
        self.store.index().fetches.remove(&self.target);
    }
}

impl ResponseStore {
    pub(crate) fn new(limits: StoreLimits) -> Arc<Self> {
        let memory = Budget::new(limits.memory);
        let disk = Budget::new(limits.disk);
        Arc::new(ResponseStore { memory, disk, limits, index: Mutex::default() })
    }

    fn index(&self) -> MutexGuard<'_, StoreIndex> {
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is stored now. Messages in transit that are stored temporarily count too.
    pub(crate) fn usage(&self) -> StoreUsage {
        StoreUsage { memory_bytes: self.memory.used(), disk_bytes: self.disk.used(), responses: self.index().order.len() as u64 }
    }

    /// The stored response that answers `presented`, fresh or stale. A fresh one is preferred, then
    /// the newest.
    pub(crate) fn lookup(
        &self,
        target: &TargetResource,
        presented: &Request<()>,
        now: SystemTime,
    ) -> Option<(Arc<StoredResponse>, Freshness)> {
        let mut index = self.index();
        let this_use = index.next_use();
        let StoreIndex { entries, order, .. } = &mut *index;
        let variants = entries.get_mut(target)?;
        let judged = variants.iter_mut().map(|entry| (entry.response.freshness(presented, now), entry));
        let selected = judged.rev().filter(|(freshness, _)| *freshness != Freshness::NotSelected);
        let (freshness, entry) = selected.min_by_key(|(freshness, _)| *freshness != Freshness::Fresh)?;
        order.remove(&entry.last_use);
        entry.last_use = this_use;
        order.insert(this_use, target.clone());
        Some((entry.response.clone(), freshness))
    }

    /// Stores a response, and removes those that answer the same request. Returns false, and stores
    /// nothing, when there is no room for its fields.
    pub(crate) fn insert(&self, target: &TargetResource, presented: &Request<()>, response: &Arc<StoredResponse>, now: SystemTime) -> bool {
        let mut share = self.memory.share();
        // The fields of the response and of the request, twice: the caching rules have a copy.
        let fields = size_of_fields(&response.headers) + size_of_fields(presented.headers());
        let bytes = RESPONSE_OVERHEAD + 2 * (fields + target.path.len() as u64);
        if !self.try_resize(&mut share, bytes, Medium::Memory) {
            return false;
        }
        let mut index = self.index();
        index.remove_where(target, |old| old.response.freshness(presented, now) != Freshness::NotSelected);
        let last_use = index.next_use();
        let StoreIndex { entries, order, .. } = &mut *index;
        let variants = entries.entry(target.clone()).or_default();
        if variants.len() >= MAX_VARIANTS {
            order.remove(&variants.remove(0).last_use);
        }
        variants.push(StoreEntry { last_use, response: response.clone(), _share: share });
        order.insert(last_use, target.clone());
        true
    }

    /// Removes a response, if it is still stored.
    pub(crate) fn remove(&self, target: &TargetResource, response: &Arc<StoredResponse>) {
        self.index().remove_where(target, |entry| Arc::ptr_eq(&entry.response, response));
    }

    /// Removes all responses for a target (invalidation, RFC 9111 §4.4).
    pub(crate) fn invalidate(&self, target: &TargetResource) {
        self.index().remove_where(target, |_| true);
    }

    /// Joins the fetch of a target, as its leader if there is none yet.
    pub(crate) fn join_fetch(self: &Arc<Self>, target: &TargetResource) -> CollapsedFetch {
        let mut index = self.index();
        if let Some(fetch) = index.fetches.get(target) {
            return CollapsedFetch::Follower(fetch.clone());
        }
        let (done, fetch) = watch::channel(());
        index.fetches.insert(target.clone(), fetch);
        CollapsedFetch::Leader(FetchLeader { store: self.clone(), target: target.clone(), _done: done })
    }

    /// Evicts the least recently used response that is complete, has no reader, and frees space on
    /// `medium`. Returns false when there is none.
    fn evict_one(&self, medium: Medium) -> bool {
        let mut index = self.index();
        let StoreIndex { entries, order, .. } = &mut *index;
        // Every response takes memory, for its fields.
        let evictable = |response: &StoredResponse| {
            let idle = response.blob.end().is_some() && response.blob.is_idle() && response.pictures.are_idle();
            idle && (medium == Medium::Memory || response.blob.disk_bytes() > 0 || response.pictures.use_disk())
        };
        let position = |last_use: u64, target: &TargetResource| {
            entries.get(target)?.iter().position(|entry| entry.last_use == last_use && evictable(&entry.response))
        };
        let Some((last_use, target, position)) =
            order.iter().find_map(|(last_use, target)| position(*last_use, target).map(|position| (*last_use, target.clone(), position)))
        else {
            return false;
        };
        order.remove(&last_use);
        if let Some(variants) = entries.get_mut(&target) {
            variants.remove(position);
            if variants.is_empty() {
                entries.remove(&target);
            }
        }
        true
    }
}

/// Memory that header fields take, bytes.
fn size_of_fields(headers: &HeaderMap) -> u64 {
    headers.iter().map(|(name, value)| name.as_str().len() + value.len() + FIELD_OVERHEAD).sum::<usize>() as u64
}

impl StorageQuota for ResponseStore {
    fn empty_shares(&self) -> StorageShares {
        StorageShares::empty(&self.memory, &self.disk)
    }

    fn try_resize(&self, share: &mut BudgetShare, bytes: u64, medium: Medium) -> bool {
        let budget = match medium {
            Medium::Memory => &self.memory,
            Medium::Disk => &self.disk,
        };
        if bytes > budget.limit() {
            return false;
        }
        while !share.try_resize(bytes) {
            if !self.evict_one(medium) {
                return false;
            }
        }
        true
    }

    fn spill_threshold(&self) -> u64 {
        self.limits.spill_threshold
    }

    fn max_blob_bytes(&self) -> u64 {
        self.limits.max_blob_bytes
    }
}

#[cfg(test)]
#[path = "store_tests.rs"]
mod tests;
