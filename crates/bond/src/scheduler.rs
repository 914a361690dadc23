//! Which connection gets the next piece.
//!
//! By the score (7) it is the one with the least, of those that have room. Two rules are added, which a sender that gives out its pieces as late as it
//! can must have, and one whose networks differ much. A piece is not given to a connection over which it would come later than all that is left would
//! come over another (as in Lim et al., "ECF", CoNEXT 2017): it waits for that one. And not to one from which the others would wait so long for it that
//! they would fill the other end's window (as in Ferlin et al., "BLEST", IFIP Networking 2016).

use crate::path::Path;
use units::Span;

/// Who gets what.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scheduler {
    /// The one with the least score.
    Score,
    /// Each in turn, whether it keeps up or not; only one that is gone or stalled is left out.
    RoundRobin,
    /// One alone, as long as it lasts: of the cheapest tier the one of which most is believed.
    Single,
    /// All of the stream over each.
    Redundant,
    /// By score among the cheapest; others only while all of these are full, or gone.
    Tiers,
}

/// What is to be given out.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ask {
    /// The piece, and all that is left with it, bytes.
    pub(crate) piece: u64,
    pub(crate) left: u64,
    /// What the other end can hold, bytes.
    pub(crate) window: u64,
    /// What may wait with a connection that is to be given more: so many bytes, or what takes so long.
    pub(crate) queue: u64,
    pub(crate) ahead: Span,
    /// The two rules that are added to the score hold.
    pub(crate) foresight: bool,
}

/// Who was chosen before.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Memory {
    pub(crate) last: usize,
    /// Whom `single` takes.
    favourite: Option<usize>,
}

impl Scheduler {
    /// Who gets the piece, of those from `among` (all, but for tiers): nobody, if it is better to wait.
    pub(crate) fn choose(self, paths: &[Path], memory: &mut Memory, ask: &Ask) -> Option<usize> {
        let is_in = is_considered(paths);
        let has_room = |path: &Path| is_in(path) && path.look.unsent < path.queue(ask.queue, ask.ahead);
        let chosen = match self {
            Scheduler::Score => best(paths, memory.last, ask, is_in, has_room),
            Scheduler::Tiers => {
                let cheapest = paths.iter().filter(|path| has_room(path)).map(|path| path.tier).min()?;
                let is_of_it = |path: &Path| path.tier == cheapest;
                best(paths, memory.last, ask, |path| is_in(path) && is_of_it(path), |path| has_room(path) && is_of_it(path))
            }
            Scheduler::RoundRobin => {
                in_turn(paths.len(), memory.last).find(|path| is_in(&paths[*path])).filter(|path| has_room(&paths[*path]))
            }
            Scheduler::Single => {
                let favourite = memory.favourite.filter(|path| paths.get(*path).is_some_and(Path::is_usable)).or_else(|| likeliest(paths));
                memory.favourite = favourite;
                favourite.filter(|path| has_room(&paths[*path]))
            }
            // Each has its own place in the stream: see `Outbound`.
            Scheduler::Redundant => None,
        };
        if let Some(chosen) = chosen {
            memory.last = chosen;
        }
        chosen
    }

    /// Whether a piece may go elsewhere if `more` bytes are left than there are.
    pub(crate) fn depends_on(self, paths: &[Path], ask: &Ask, more: u64) -> bool {
        if !ask.foresight || !matches!(self, Scheduler::Score | Scheduler::Tiers) {
            return false;
        }
        let then = Ask { left: ask.left + more, ..*ask };
        let is_in = is_considered(paths);
        (0..paths.len()).filter(|index| is_in(&paths[*index])).any(|index| {
            let is_rival = |path: &Path| is_in(path) && (self == Scheduler::Score || path.tier == paths[index].tier);
            is_worth_it(paths, index, ask, &is_rival) != is_worth_it(paths, index, &then, &is_rival)
        })
    }
}

/// Who is chosen among: those that are doubted only where there are no others.
fn is_considered(paths: &[Path]) -> impl Fn(&Path) -> bool + Copy + use<> {
    let trusts = paths.iter().any(Path::is_trusted);
    move |path| path.is_usable() && (!trusts || !path.is_doubted)
}

/// All paths, beginning behind the last one.
fn in_turn(count: usize, last: usize) -> impl Iterator<Item = usize> {
    (0..count).map(move |step| (last + 1 + step) % count)
}

/// Of the cheapest, that of which most is believed.
fn likeliest(paths: &[Path]) -> Option<usize> {
    let usable = || paths.iter().enumerate().filter(|(_, path)| path.is_usable());
    let cheapest = usable().map(|(_, path)| path.tier).min()?;
    let of_it = usable().filter(|(_, path)| path.tier == cheapest);
    of_it
        .fold(None, |best: Option<(usize, f64)>, (index, path)| match best {
            Some((_, rate)) if rate >= path.rate() => best,
            _ => Some((index, path.rate())),
        })
        .map(|(index, _)| index)
}

/// The least score of those with room over which the piece is worth sending. Of equals the nearest one, then the next in turn.
fn best(paths: &[Path], last: usize, ask: &Ask, is_in: impl Fn(&Path) -> bool, has_room: impl Fn(&Path) -> bool) -> Option<usize> {
    let mut best: Option<(usize, f64)> = None;
    for index in in_turn(paths.len(), last).filter(|index| has_room(&paths[*index])) {
        let score = paths[index].score(0);
        let is_better = best.is_none_or(|(other, least)| {
            let srtt = |path: usize| paths[path].look.srtt;
            score < least || (score == least && srtt(index) < srtt(other))
        });
        if is_better && (!ask.foresight || is_worth_it(paths, index, ask, &is_in)) {
            best = Some((index, score));
        }
    }
    best.map(|(index, _)| index)
}

/// Whether a piece had better go over this one now than wait for another. Of whichever would have all that is left at the other end first that is always
/// so: nobody waits for ever.
fn is_worth_it(paths: &[Path], index: usize, ask: &Ask, is_in: &impl Fn(&Path) -> bool) -> bool {
    let arrives = paths[index].arrives(ask.piece);
    let (mut clears, mut others) = (f64::INFINITY, 0.0);
    for (_, path) in paths.iter().enumerate().filter(|(other, path)| *other != index && is_in(path)) {
        clears = path.clears(ask.left).min(clears);
        others += path.rate();
    }
    if paths[index].clears(ask.left) <= clears {
        return true;
    }
    arrives <= clears && arrives * others <= ask.window.saturating_sub(ask.piece) as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Look, Smoothing};

    const PIECE: u64 = 10_000;
    const ASK: Ask = Ask { piece: PIECE, left: 1 << 40, window: 1 << 50, queue: 20_000, ahead: Span(0), foresight: true };

    /// Connections of these rates (bytes/s), round trips (ms) and tiers.
    fn paths(of: &[(f64, u64, u8)]) -> Vec<Path> {
        let path = |&(rate, rtt, tier): &(f64, u64, u8)| {
            let mut path = Path::new(Span::ZERO, tier, 0);
            let srtt = Span(rtt * 1_000_000);
            let look = Look { window: (rate * srtt.secs()) as u64, srtt, rto: srtt, ..Look::default() };
            path.look(Span::ZERO, look, &Smoothing::default());
            path
        };
        of.iter().map(path).collect()
    }

    /// Pieces go out one by one for so many ms, while each connection sends at its rate; how many each got, and the first ten choices.
    fn play(scheduler: Scheduler, paths: &mut [Path], ms: u64, ask: Ask) -> (Vec<u64>, Vec<usize>) {
        let (mut memory, mut got, mut order) = (Memory { last: paths.len() - 1, ..Memory::default() }, vec![0; paths.len()], Vec::new());
        let mut sent: Vec<f64> = vec![0.0; paths.len()];
        for at in 0..ms {
            while let Some(chosen) = scheduler.choose(paths, &mut memory, &ask) {
                paths[chosen].look.unsent += PIECE;
                got[chosen] += 1;
                order.push(chosen);
                assert!(order.len() as u64 <= 100 * (at + 1), "it ends");
            }
            for (path, sent) in paths.iter_mut().zip(&mut sent) {
                *sent += path.rate() / 1000.0;
                let whole = sent.floor().min(path.look.unsent as f64);
                *sent = (*sent - whole).min(path.rate() / 1000.0);
                path.look.unsent -= whole as u64;
            }
        }
        order.truncate(10);
        (got, order)
    }

    #[test]
    fn equal_networks_take_turns() {
        let (got, order) = play(Scheduler::Score, &mut paths(&[(1e6, 20, 0); 2]), 1000, ASK);
        assert_eq!(order, [0, 1, 0, 1, 0, 1, 0, 1, 0, 1]);
        assert!(got[0].abs_diff(got[1]) <= 1, "{got:?}");
        let (got, order) = play(Scheduler::Score, &mut paths(&[(1e6, 20, 0); 3]), 1000, ASK);
        assert_eq!(order[..6], [0, 1, 2, 0, 1, 2], "{got:?}");
    }

    #[test]
    fn unequal_networks_share_by_throughput() {
        let (got, _) = play(Scheduler::Score, &mut paths(&[(3e6, 20, 0), (1e6, 20, 0)]), 4000, ASK);
        let share = got[0] as f64 / (got[0] + got[1]) as f64;
        assert!((share - 0.75).abs() < 0.01, "{got:?}");
        // So too where the one is far away: while there is much to send both are kept busy.
        let (got, _) = play(Scheduler::Score, &mut paths(&[(3e6, 20, 0), (1e6, 600, 0)]), 4000, ASK);
        let share = got[0] as f64 / (got[0] + got[1]) as f64;
        assert!((share - 0.75).abs() < 0.01, "{got:?}");
    }

    #[test]
    fn the_least_score_is_chosen_and_who_has_no_room_is_not() {
        let mut two = paths(&[(1e6, 20, 0), (1e6, 50, 0)]);
        let choose = |paths: &[Path], ask: &Ask| Scheduler::Score.choose(paths, &mut Memory::default(), ask);
        assert_eq!(choose(&two, &ASK), Some(0));
        // 10 ms of bytes before it, and 10 ms of travel: 20 against 25 ms; with 19 kB it is 29.
        two[0].look.unsent = 10_000;
        assert_eq!(choose(&two, &ASK), Some(0));
        two[0].look.unsent = 19_000;
        assert_eq!(choose(&two, &ASK), Some(1));
        two[1].is_stalled = true;
        assert_eq!(choose(&two, &ASK), Some(0));
        two[0].look.unsent = 20_000;
        assert_eq!(choose(&two, &ASK), None);
        two[0].is_up = false;
        two[0].look.unsent = 0;
        assert_eq!(choose(&two, &ASK), None);
    }

    #[test]
    fn the_last_pieces_wait_for_who_would_be_sooner() {
        // The first is full for 20 ms more. Over the second a piece takes a second, and the first would have sent 40 kB in 60 ms.
        let mut two = paths(&[(1e6, 20, 0), (1e4, 20, 0)]);
        two[0].look.unsent = 20_000;
        let choose = |left: u64, foresight: bool| Scheduler::Score.choose(&two, &mut Memory::default(), &Ask { left, foresight, ..ASK });
        assert_eq!(choose(40_000, true), None);
        assert_eq!(choose(40_000, false), Some(1));
        assert_eq!(choose(2_000_000, true), Some(1));
        let depends = |left: u64, foresight: bool| Scheduler::Score.depends_on(&two, &Ask { left, foresight, ..ASK }, 2_000_000);
        assert_eq!([depends(40_000, true), depends(40_000, false), depends(2_000_000, true)], [true, false, false]);
    }

    #[test]
    fn a_far_network_is_not_used_where_the_window_is_too_small_for_what_would_wait() {
        // Until a piece comes over the far one, in 0.36 s, the near one would send 360 kB.
        let mut two = paths(&[(1e6, 20, 0), (1e6, 700, 0)]);
        two[0].look.unsent = 20_000;
        let choose = |window: u64| Scheduler::Score.choose(&two, &mut Memory::default(), &Ask { window, ..ASK });
        assert_eq!(choose(300_000), None);
        assert_eq!(choose(400_000), Some(1));
    }

    #[test]
    fn dear_networks_are_used_only_while_cheap_ones_are_full() {
        let (got, order) = play(Scheduler::Tiers, &mut paths(&[(1e6, 20, 1), (1e6, 300, 0)]), 1, ASK);
        // The cheap one is filled first, far as it is.
        assert_eq!((got, order), (vec![2, 2], vec![1, 1, 0, 0]));
        // A stream that the cheap one carries alone does not touch the dear one.
        let mut two = paths(&[(1e6, 20, 1), (1e6, 300, 0)]);
        two[1].look.unsent = 5000;
        assert_eq!(Scheduler::Tiers.choose(&two, &mut Memory::default(), &ASK), Some(1));
        two[1].is_up = false;
        assert_eq!(Scheduler::Tiers.choose(&two, &mut Memory::default(), &ASK), Some(0));
    }

    #[test]
    fn turns_wait_for_who_is_slow_but_not_for_who_is_gone() {
        let (got, _) = play(Scheduler::RoundRobin, &mut paths(&[(1e6, 20, 0), (1e5, 20, 0)]), 1000, ASK);
        assert!(got[0].abs_diff(got[1]) <= 1 && got[1] <= 12, "{got:?}");
        let mut two = paths(&[(1e6, 20, 0), (1e5, 20, 0)]);
        two[1].is_stalled = true;
        let (got, _) = play(Scheduler::RoundRobin, &mut two, 1000, ASK);
        assert!(got[1] == 0 && got[0] > 90, "{got:?}");
    }

    #[test]
    fn single_keeps_to_the_best_until_it_is_gone() {
        let mut three = paths(&[(1e6, 20, 0), (3e6, 20, 0), (9e6, 20, 1)]);
        let mut memory = Memory::default();
        let mut choose = |paths: &[Path]| Scheduler::Single.choose(paths, &mut memory, &ASK);
        assert_eq!(choose(&three), Some(1));
        three[0].look.window = 1_000_000;
        assert_eq!(choose(&three), Some(1), "once chosen it stays");
        three[1].look.unsent = 20_000;
        assert_eq!(choose(&three), None, "it waits for it");
        three[1].is_up = false;
        assert_eq!(choose(&three), Some(0));
        three[0].is_stalled = true;
        assert_eq!(choose(&three), Some(2));
    }
}
