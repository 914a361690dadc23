//! Work on many items by several threads.

use anyhow::Result;
use std::{
    sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    thread,
};

/// Results of `work` on all items, in the items' order, by so many threads. After an error no
/// further item is begun, and the error is returned.
pub(crate) fn in_parallel<T: Sync, R: Send>(threads: usize, items: &[T], work: impl Fn(&T) -> Result<R> + Sync) -> Result<Vec<R>> {
    let (next, has_failed) = (AtomicUsize::new(0), AtomicBool::new(false));
    let take = || -> Result<Vec<(usize, R)>> {
        let mut done = Vec::new();
        while !has_failed.load(Relaxed) {
            let at = next.fetch_add(1, Relaxed);
            let Some(item) = items.get(at) else { break };
            let result = work(item).inspect_err(|_| has_failed.store(true, Relaxed))?;
            done.push((at, result));
        }
        Ok(done)
    };
    let done: Vec<Vec<(usize, R)>> = thread::scope(|scope| {
        let running: Vec<_> = (0..threads.max(1)).map(|_| scope.spawn(take)).collect();
        running.into_iter().map(|thread| thread.join().expect("no item's work panics")).collect::<Result<_>>()
    })?;
    let mut done: Vec<(usize, R)> = done.into_iter().flatten().collect();
    done.sort_unstable_by_key(|(at, _)| *at);
    Ok(done.into_iter().map(|(_, result)| result).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn results_have_the_order_of_the_items() {
        let slower_first = |item: &u64| {
            thread::sleep(Duration::from_millis(5 - item));
            Ok(item * 10)
        };
        assert_eq!(in_parallel(3, &[1, 2, 3, 4, 5], slower_first).unwrap(), [10, 20, 30, 40, 50]);
        assert_eq!(in_parallel(0, &[1], slower_first).unwrap(), [10]);
        assert_eq!(in_parallel(2, &[], slower_first).unwrap(), [0; 0]);
    }

    #[test]
    fn nothing_begins_after_an_error() {
        let begun = AtomicUsize::new(0);
        let fails_at_2 = |item: &u64| {
            begun.fetch_add(1, Relaxed);
            anyhow::ensure!(*item != 2, "item 2");
            Ok(())
        };
        assert_eq!(in_parallel(1, &[1, 2, 3], fails_at_2).unwrap_err().to_string(), "item 2");
        assert_eq!(begun.into_inner(), 2);
    }
}
