//! Which path carries the next piece.
//!
//! [`Scheduler::Score`] takes the path with the lowest score, Hoekstra (7), among the paths with room
//! in their queue. *Foresight* adds two rules, which a sender that schedules late over unequal paths needs:
//!
//! - A piece is not assigned to a path over which it would arrive later than all remaining data
//!   would over another path; it waits for that one (as in ECF, Lim et al., CoNEXT 2017).
//! - A piece is not assigned to a path that is so slow that the other paths would meanwhile fill
//!   the peer's window and block: head-of-line blocking (as in BLEST, Ferlin et al., IFIP
//!   Networking 2016).

use crate::path::Path;
use units::Span;

/// How paths are chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scheduler {
    /// The path with the least score.
    Score,
    /// Each path in turn, whether it keeps up or not; only closed and stalled paths are skipped.
    RoundRobin,
    /// One path, as long as it is usable: of the cheapest tier the one with the highest rate.
    Single,
    /// The whole stream over each path.
    Redundant,
    /// By score among the cheapest paths; dearer ones only while all cheaper ones are full or
    /// unusable.
    Tiers,
}

/// The piece to schedule, and what the decision depends on besides the paths.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PieceContext {
    /// Length of the piece, bytes.
    pub(crate) piece: u64,
    /// All unassigned bytes, the piece included.
    pub(crate) left: u64,
    /// Bytes from the acknowledged offset to the peer's flow-control limit.
    pub(crate) window: u64,
    /// Least queue limit of a path, bytes.
    pub(crate) queue: u64,
    /// Time that a path's queue should last; see [`Path::queue_limit`].
    pub(crate) lookahead: Span,
    /// Time of a batch; see [`Path::batch`].
    pub(crate) batch: Span,
    /// Whether the two rules of foresight apply.
    pub(crate) foresight: bool,
}

/// What a scheduler remembers from one decision to the next.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct SchedulerState {
    /// Index of the path chosen last; ties go round from there.
    pub(crate) last: usize,
    /// [`Scheduler::Single`]: index of the path in use.
    single: Option<usize>,
}

impl Scheduler {
    /// Index of the path for the piece; `None` if it is better to wait.
    pub(crate) fn choose(self, paths: &[Path], state: &mut SchedulerState, context: &PieceContext) -> Option<usize> {
        let is_eligible = eligible(paths);
        let has_room =
            |path: &Path| is_eligible(path) && path.sample.unsent < path.queue_limit(context.queue, context.lookahead, context.batch);
        let chosen = match self {
            Scheduler::Score => least_score(paths, state.last, context, is_eligible, has_room),
            Scheduler::Tiers => {
                let cheapest = paths.iter().filter(|path| has_room(path)).map(|path| path.tier).min()?;
                let in_tier = |path: &Path| path.tier == cheapest;
                let is_rival = |path: &Path| is_eligible(path) && in_tier(path);
                least_score(paths, state.last, context, is_rival, |path| has_room(path) && in_tier(path))
            }
            Scheduler::RoundRobin => {
                let next = in_turn(paths.len(), state.last).find(|index| is_eligible(&paths[*index]));
                next.filter(|index| has_room(&paths[*index]))
            }
            Scheduler::Single => {
                let current = state.single.filter(|index| paths.get(*index).is_some_and(Path::is_usable));
                state.single = current.or_else(|| fastest_of_cheapest_tier(paths));
                state.single.filter(|index| has_room(&paths[*index]))
            }
            // Not chosen here: each path has its own position in the stream. See `Outbound`.
            Scheduler::Redundant => None,
        };
        if let Some(chosen) = chosen {
            state.last = chosen;
        }
        chosen
    }

    /// Whether the chosen path may carry this piece, which is longer than that for which it was
    /// chosen.
    pub(crate) fn permits(self, paths: &[Path], chosen: usize, context: &PieceContext) -> bool {
        if !context.foresight || !self.probes() {
            return true;
        }
        let is_eligible = eligible(paths);
        let is_rival = |path: &Path| is_eligible(path) && (self == Scheduler::Score || path.tier == paths[chosen].tier);
        should_send_now(paths, chosen, context, &is_rival)
    }

    /// Whether the decision could differ if `more` bytes were left than are: only foresight depends
    /// on that.
    pub(crate) fn depends_on_more_data(self, paths: &[Path], context: &PieceContext, more: u64) -> bool {
        if !context.foresight || !self.probes() {
            return false;
        }
        let with_more = PieceContext { left: context.left + more, ..*context };
        let is_eligible = eligible(paths);
        (0..paths.len()).filter(|index| is_eligible(&paths[*index])).any(|index| {
            let is_rival = |path: &Path| is_eligible(path) && (self == Scheduler::Score || path.tier == paths[index].tier);
            should_send_now(paths, index, context, &is_rival) != should_send_now(paths, index, &with_more, &is_rival)
        })
    }

    /// Whether it judges paths by their measurements. Such a scheduler probes idle paths, suspects
    /// those that have stalled, and uses foresight.
    pub(crate) fn probes(self) -> bool {
        matches!(self, Scheduler::Score | Scheduler::Tiers)
    }
}

/// Which paths take part: suspected ones only if no path is trusted.
fn eligible(paths: &[Path]) -> impl Fn(&Path) -> bool + Copy + use<> {
    let any_trusted = paths.iter().any(Path::is_trusted);
    move |path| path.is_usable() && (!any_trusted || !path.is_suspected)
}

/// All indices, from behind `last` on.
fn in_turn(count: usize, last: usize) -> impl Iterator<Item = usize> {
    (0..count).map(move |step| (last + 1 + step) % count)
}

/// Index of the path with the highest rate in the cheapest tier that has a usable path.
fn fastest_of_cheapest_tier(paths: &[Path]) -> Option<usize> {
    let usable = || paths.iter().enumerate().filter(|(_, path)| path.is_usable());
    let cheapest = usable().map(|(_, path)| path.tier).min()?;
    usable()
        .filter(|(_, path)| path.tier == cheapest)
        .fold(None, |best: Option<(usize, f64)>, (index, path)| match best {
            Some((_, rate)) if rate >= path.rate() => best,
            _ => Some((index, path.rate())),
        })
        .map(|(index, _)| index)
}

/// The least score of the paths with room over which the piece should be sent now. Ties go to the
/// shorter round trip, then to the next in turn. `is_rival` tells for which paths a piece may wait.
fn least_score(
    paths: &[Path],
    last: usize,
    context: &PieceContext,
    is_rival: impl Fn(&Path) -> bool,
    has_room: impl Fn(&Path) -> bool,
) -> Option<usize> {
    let mut best: Option<(usize, f64)> = None;
    for index in in_turn(paths.len(), last).filter(|index| has_room(&paths[*index])) {
        let score = paths[index].score(0);
        let is_better = best.is_none_or(|(other, least)| {
            let srtt = |path: usize| paths[path].sample.srtt;
            score < least || (score == least && srtt(index) < srtt(other))
        });
        if is_better && (!context.foresight || should_send_now(paths, index, context, &is_rival)) {
            best = Some((index, score));
        }
    }
    best.map(|(index, _)| index)
}

/// Foresight: whether the piece should go over this path now, rather than wait for a rival. For the
/// path that would deliver all remaining data first this is always true, so a piece never waits for
/// ever.
fn should_send_now(paths: &[Path], index: usize, context: &PieceContext, is_rival: &impl Fn(&Path) -> bool) -> bool {
    let arrival = paths[index].arrival_time(context.piece);
    let mut rivals_completion = f64::INFINITY;
    let mut rivals_rate = 0.0;
    for (_, path) in paths.iter().enumerate().filter(|(other, path)| *other != index && is_rival(path)) {
        rivals_completion = path.completion_time(context.left).min(rivals_completion);
        rivals_rate += path.rate();
    }
    if paths[index].completion_time(context.left) <= rivals_completion {
        return true;
    }
    let fits_window = arrival * rivals_rate <= context.window.saturating_sub(context.piece) as f64;
    arrival <= rivals_completion && fits_window
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{PathSample, Smoothing};

    const PIECE: u64 = 10_000;
    const CONTEXT: PieceContext =
        PieceContext { piece: PIECE, left: 1 << 40, window: 1 << 50, queue: 20_000, lookahead: Span(0), batch: Span(0), foresight: true };

    /// Paths of these rates (bytes/s), round trips (ms) and tiers.
    fn paths(of: &[(f64, u64, u8)]) -> Vec<Path> {
        let path = |&(rate, rtt, tier): &(f64, u64, u8)| {
            let mut path = Path::new(Span::ZERO, tier, 0);
            let srtt = Span(rtt * 1_000_000);
            let sample = PathSample { window: (rate * srtt.secs()) as u64, srtt, rto: srtt, ..PathSample::default() };
            path.update(Span::ZERO, sample, &Smoothing::default());
            path
        };
        of.iter().map(path).collect()
    }

    /// Schedules pieces for `ms` milliseconds while each path sends at its rate; returns how many
    /// pieces each path was assigned, and the first ten choices.
    fn simulate(scheduler: Scheduler, paths: &mut [Path], ms: u64, context: PieceContext) -> (Vec<u64>, Vec<usize>) {
        let mut state = SchedulerState { last: paths.len() - 1, ..SchedulerState::default() };
        let (mut got, mut order) = (vec![0; paths.len()], Vec::new());
        let mut sent: Vec<f64> = vec![0.0; paths.len()];
        for at in 0..ms {
            while let Some(chosen) = scheduler.choose(paths, &mut state, &context) {
                paths[chosen].sample.unsent += PIECE;
                got[chosen] += 1;
                order.push(chosen);
                assert!(order.len() as u64 <= 100 * (at + 1), "it does not end");
            }
            for (path, sent) in paths.iter_mut().zip(&mut sent) {
                *sent += path.rate() / 1000.0;
                let whole = sent.floor().min(path.sample.unsent as f64);
                *sent = (*sent - whole).min(path.rate() / 1000.0);
                path.sample.unsent -= whole as u64;
            }
        }
        order.truncate(10);
        (got, order)
    }

    #[test]
    fn equal_paths_take_turns() {
        let (got, order) = simulate(Scheduler::Score, &mut paths(&[(1e6, 20, 0); 2]), 1000, CONTEXT);
        assert_eq!(order, [0, 1, 0, 1, 0, 1, 0, 1, 0, 1]);
        assert!(got[0].abs_diff(got[1]) <= 1, "{got:?}");
        let (got, order) = simulate(Scheduler::Score, &mut paths(&[(1e6, 20, 0); 3]), 1000, CONTEXT);
        assert_eq!(order[..6], [0, 1, 2, 0, 1, 2], "{got:?}");
    }

    #[test]
    fn unequal_paths_share_by_throughput() {
        let (got, _) = simulate(Scheduler::Score, &mut paths(&[(3e6, 20, 0), (1e6, 20, 0)]), 4000, CONTEXT);
        let share = got[0] as f64 / (got[0] + got[1]) as f64;
        assert!((share - 0.75).abs() < 0.01, "{got:?}");
        // A long round trip changes nothing while there is much to send: both are kept busy.
        let (got, _) = simulate(Scheduler::Score, &mut paths(&[(3e6, 20, 0), (1e6, 600, 0)]), 4000, CONTEXT);
        let share = got[0] as f64 / (got[0] + got[1]) as f64;
        assert!((share - 0.75).abs() < 0.01, "{got:?}");
    }

    #[test]
    fn the_least_score_with_room_is_chosen() {
        let mut two = paths(&[(1e6, 20, 0), (1e6, 50, 0)]);
        let choose = |paths: &[Path], context: &PieceContext| Scheduler::Score.choose(paths, &mut SchedulerState::default(), context);
        assert_eq!(choose(&two, &CONTEXT), Some(0));
        // 10 kB queued take 10 ms, half the round trip another 10: 20 ms against 25. With 19 kB: 29
        // ms.
        two[0].sample.unsent = 10_000;
        assert_eq!(choose(&two, &CONTEXT), Some(0));
        two[0].sample.unsent = 19_000;
        assert_eq!(choose(&two, &CONTEXT), Some(1));
        two[1].is_stalled = true;
        assert_eq!(choose(&two, &CONTEXT), Some(0));
        two[0].sample.unsent = 20_000;
        assert_eq!(choose(&two, &CONTEXT), None);
        two[0].is_open = false;
        two[0].sample.unsent = 0;
        assert_eq!(choose(&two, &CONTEXT), None);
    }

    #[test]
    fn the_last_pieces_wait_for_the_faster_path() {
        // The first path is full for another 20 ms. A piece takes a second over the second path;
        // the first one would have delivered 40 kB after 70 ms.
        let mut two = paths(&[(1e6, 20, 0), (1e4, 20, 0)]);
        two[0].sample.unsent = 20_000;
        let choose = |left: u64, foresight: bool| {
            Scheduler::Score.choose(&two, &mut SchedulerState::default(), &PieceContext { left, foresight, ..CONTEXT })
        };
        assert_eq!(choose(40_000, true), None);
        assert_eq!(choose(40_000, false), Some(1));
        assert_eq!(choose(2_000_000, true), Some(1));
        let depends = |left: u64, foresight: bool| {
            Scheduler::Score.depends_on_more_data(&two, &PieceContext { left, foresight, ..CONTEXT }, 2_000_000)
        };
        assert_eq!([depends(40_000, true), depends(40_000, false), depends(2_000_000, true)], [true, false, false]);
    }

    #[test]
    fn a_slow_path_is_not_used_if_the_other_would_fill_the_window_meanwhile() {
        // A piece takes 0.36 s over the far path; the near one would send 360 kB meanwhile.
        let mut two = paths(&[(1e6, 20, 0), (1e6, 700, 0)]);
        two[0].sample.unsent = 20_000;
        let choose = |window: u64| Scheduler::Score.choose(&two, &mut SchedulerState::default(), &PieceContext { window, ..CONTEXT });
        assert_eq!(choose(300_000), None);
        assert_eq!(choose(400_000), Some(1));
    }

    #[test]
    fn dear_paths_are_used_only_while_cheap_ones_are_full() {
        let (got, order) = simulate(Scheduler::Tiers, &mut paths(&[(1e6, 20, 1), (1e6, 300, 0)]), 1, CONTEXT);
        // The cheap path is filled first, in spite of its long round trip.
        assert_eq!((got, order), (vec![2, 2], vec![1, 1, 0, 0]));
        // The dear path is not used while the cheap one has room.
        let mut two = paths(&[(1e6, 20, 1), (1e6, 300, 0)]);
        two[1].sample.unsent = 5000;
        assert_eq!(Scheduler::Tiers.choose(&two, &mut SchedulerState::default(), &CONTEXT), Some(1));
        two[1].is_open = false;
        assert_eq!(Scheduler::Tiers.choose(&two, &mut SchedulerState::default(), &CONTEXT), Some(0));
    }

    #[test]
    fn round_robin_waits_for_slow_paths_but_skips_stalled_ones() {
        let (got, _) = simulate(Scheduler::RoundRobin, &mut paths(&[(1e6, 20, 0), (1e5, 20, 0)]), 1000, CONTEXT);
        assert!(got[0].abs_diff(got[1]) <= 1 && got[1] <= 12, "{got:?}");
        let mut two = paths(&[(1e6, 20, 0), (1e5, 20, 0)]);
        two[1].is_stalled = true;
        let (got, _) = simulate(Scheduler::RoundRobin, &mut two, 1000, CONTEXT);
        assert!(got[1] == 0 && got[0] > 90, "{got:?}");
    }

    #[test]
    fn single_stays_on_its_path_until_that_is_unusable() {
        let mut three = paths(&[(1e6, 20, 0), (3e6, 20, 0), (9e6, 20, 1)]);
        let mut state = SchedulerState::default();
        let mut choose = |paths: &[Path]| Scheduler::Single.choose(paths, &mut state, &CONTEXT);
        assert_eq!(choose(&three), Some(1));
        three[0].sample.window = 1_000_000;
        assert_eq!(choose(&three), Some(1), "it stays, once chosen");
        three[1].sample.unsent = 20_000;
        assert_eq!(choose(&three), None, "it waits until the queue has room");
        three[1].is_open = false;
        assert_eq!(choose(&three), Some(0));
        three[0].is_stalled = true;
        assert_eq!(choose(&three), Some(2));
    }
}
