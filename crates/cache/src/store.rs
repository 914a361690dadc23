//! What is kept: answers by what they answer, within bounds; the least recently used go first. And who is fetching what, so that many who ask
//! for the same at once cost its origin one request.

use crate::{
    blob::Room,
    budget::{Budget, Share},
    fields::Target,
    semantics::{Entry, Verdict},
};
use hyper::{HeaderMap, Request};
use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::SystemTime,
};
use tokio::sync::watch;

/// Answers of one URI that are kept side by side (`Vary`).
const VARIANTS: usize = 16;
/// What an entry takes of the memory besides its fields and its body.
const OVERHEAD: u64 = 1024;

/// The bounds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    pub(crate) memory: u64,
    pub(crate) disk: u64,
    pub(crate) largest: u64,
    pub(crate) spill_from: u64,
}

/// An answer that is kept.
#[derive(Debug)]
struct Kept {
    /// When it was last used, in uses.
    used: u64,
    entry: Arc<Entry>,
    /// What its fields take of the memory.
    _share: Share,
}

#[derive(Debug, Default)]
struct Inner {
    entries: HashMap<Target, Vec<Kept>>,
    /// By when they were last used.
    order: BTreeMap<u64, Target>,
    uses: u64,
    flights: HashMap<Target, watch::Receiver<()>>,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Store {
    memory: Arc<Budget>,
    disk: Arc<Budget>,
    bounds: Bounds,
    inner: Mutex<Inner>,
}

/// Whether somebody fetches the same already.
#[derive(Debug)]
pub(crate) enum Flight {
    /// Nobody did: others wait until this is dropped.
    Lead(Lead),
    /// Somebody does: this ends when it is known what came.
    Follow(watch::Receiver<()>),
}

/// See [`Flight::Lead`].
#[derive(Debug)]
pub(crate) struct Lead {
    store: Arc<Store>,
    target: Target,
    _known: watch::Sender<()>,
}

impl Drop for Lead {
    fn drop(&mut self) {
        self.store.inner().flights.remove(&self.target);
    }
}

impl Store {
    pub(crate) fn new(bounds: Bounds) -> Arc<Self> {
        let (memory, disk) = (Budget::new(bounds.memory), Budget::new(bounds.disk));
        Arc::new(Store { memory, disk, bounds, inner: Mutex::default() })
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is taken of the memory and of the disk, and how many answers are kept.
    pub(crate) fn taken(&self) -> (u64, u64, u64) {
        (self.memory.taken(), self.disk.taken(), self.inner().order.len() as u64)
    }

    /// The answer to a request that is kept, fresh or stale.
    pub(crate) fn look(&self, target: &Target, question: &Request<()>, now: SystemTime) -> Option<(Arc<Entry>, Verdict)> {
        let mut inner = self.inner();
        let Inner { entries, order, uses, .. } = &mut *inner;
        let kept = entries.get_mut(target)?;
        let judged = kept.iter_mut().map(|kept| (kept.entry.judge(question, now), kept));
        // The newest of those that are as good.
        let usable = judged.rev().filter(|(verdict, _)| *verdict != Verdict::Other);
        let (verdict, kept) = usable.min_by_key(|(verdict, _)| *verdict != Verdict::Fresh)?;
        order.remove(&kept.used);
        *uses += 1;
        kept.used = *uses;
        order.insert(*uses, target.clone());
        Some((kept.entry.clone(), verdict))
    }

    /// Keeps an answer in the place of those to the same request; whether there was room for it.
    pub(crate) fn keep(&self, target: &Target, question: &Request<()>, entry: &Arc<Entry>, now: SystemTime) -> bool {
        let fields = |headers: &HeaderMap| headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 64).sum::<usize>() as u64;
        let mut share = self.memory.share();
        // Its own fields and those of the request, twice: the rules have them too.
        let bytes = OVERHEAD + 2 * (fields(&entry.headers) + fields(question.headers()) + target.path.len() as u64);
        if !self.take(&mut share, bytes, false) {
            return false;
        }
        let mut inner = self.inner();
        let Inner { entries, order, uses, .. } = &mut *inner;
        let kept = entries.entry(target.clone()).or_default();
        kept.retain(|old| {
            let stays = old.entry.judge(question, now) == Verdict::Other;
            if !stays {
                order.remove(&old.used);
            }
            stays
        });
        if kept.len() >= VARIANTS {
            order.remove(&kept.remove(0).used);
        }
        *uses += 1;
        kept.push(Kept { used: *uses, entry: entry.clone(), _share: share });
        order.insert(*uses, target.clone());
        true
    }

    /// Forgets an answer, where it is still kept.
    pub(crate) fn forget(&self, target: &Target, entry: &Arc<Entry>) {
        self.forget_those(target, |kept| Arc::ptr_eq(kept, entry));
    }

    /// Forgets all answers for a target (RFC 9111 §4.4).
    pub(crate) fn invalidate(&self, target: &Target) {
        self.forget_those(target, |_| true);
    }

    fn forget_those(&self, target: &Target, which: impl Fn(&Arc<Entry>) -> bool) {
        let mut inner = self.inner();
        let Inner { entries, order, .. } = &mut *inner;
        let Some(kept) = entries.get_mut(target) else { return };
        kept.retain(|kept| {
            let goes = which(&kept.entry);
            if goes {
                order.remove(&kept.used);
            }
            !goes
        });
        if kept.is_empty() {
            entries.remove(target);
        }
    }

    /// Joins those who want the same, or leads them.
    pub(crate) fn fly(self: &Arc<Self>, target: &Target) -> Flight {
        let mut inner = self.inner();
        if let Some(flight) = inner.flights.get(target) {
            return Flight::Follow(flight.clone());
        }
        let (known, flight) = watch::channel(());
        inner.flights.insert(target.clone(), flight);
        Flight::Lead(Lead { store: self.clone(), target: target.clone(), _known: known })
    }

    /// Lets go of the answer used least recently of those that take some of the memory, or of the disk, and that nobody reads.
    fn let_go(&self, on_disk: bool) -> bool {
        let mut inner = self.inner();
        let Inner { entries, order, .. } = &mut *inner;
        let frees = |entry: &Entry| {
            let idle = entry.blob.end().is_some() && entry.blob.is_idle() && entry.pictures.are_idle();
            idle && (!on_disk || entry.blob.held().1 > 0 || entry.pictures.take_disk())
        };
        let of = |used: &u64, target: &Target| entries.get(target)?.iter().position(|kept| kept.used == *used && frees(&kept.entry));
        let Some((used, target, index)) =
            order.iter().find_map(|(used, target)| of(used, target).map(|index| (*used, target.clone(), index)))
        else {
            return false;
        };
        order.remove(&used);
        if let Some(kept) = entries.get_mut(&target) {
            kept.remove(index);
            if kept.is_empty() {
                entries.remove(&target);
            }
        }
        true
    }
}

impl Room for Store {
    fn shares(&self) -> (Share, Share) {
        (self.memory.share(), self.disk.share())
    }

    fn take(&self, share: &mut Share, bytes: u64, on_disk: bool) -> bool {
        let limit = if on_disk { self.disk.limit() } else { self.memory.limit() };
        if bytes > limit {
            return false;
        }
        while !share.resize(bytes) {
            if !self.let_go(on_disk) {
                return false;
            }
        }
        true
    }

    fn spill_from(&self) -> u64 {
        self.bounds.spill_from
    }

    fn largest(&self) -> u64 {
        self.bounds.largest
    }
}

#[cfg(test)]
#[path = "store_tests.rs"]
mod tests;
