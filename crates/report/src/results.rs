//! Which columns a table of outcomes has: the results, and what the links were configured to do and
//! did. A column is there only if an outcome has something for it. Columns have ranks: in a narrow
//! terminal those with the highest rank are left out first.

use crate::{
    cases::case_columns,
    grid::{Grid, written},
    group::{OutcomeGroup, SeedNumber, differs},
    markup::plain,
    number_format::{NONE, QuantityKind, count, three},
};
use account::{AccountShares, Cause};
use outcome::{LinkOutcome, OVER_CAN, Outcome, Phases, ProxyOutcome, SOJOURNS, TimePercentiles};
use std::collections::BTreeSet;

/// A row for each group.
pub(crate) fn results(groups: &[OutcomeGroup<'_>]) -> Grid {
    let mut grid = Grid::default();
    names(&mut grid, groups, &groups.iter().collect::<Vec<_>>());
    let any = |has: fn(&Outcome) -> bool| groups.iter().flat_map(|group| &group.outcomes).any(|outcome| has(outcome));

    if any(|outcome| !outcome.flows.is_empty()) {
        done_in(&mut grid, groups);
    }
    if any(|outcome| outcome.flows.len() > 1) {
        let numbers: Vec<_> = groups.iter().map(|group| group.number("mean_flow_s", Outcome::mean_flow_s)).collect();
        grid.numbers("mean flow", QuantityKind::Time, &numbers).droppable(2);
    }
    if any(|outcome| outcome.jain.is_some()) {
        let cell = |group: &OutcomeGroup<'_>| group.mean(|outcome| outcome.jain).map_or(NONE.into(), |jain| format!("{jain:.3}"));
        grid.written("Jain", "", groups.iter().map(cell).collect()).droppable(4);
    }
    sojourns(&mut grid, groups);
    percentiles(&mut grid, groups, "page load", |outcome| outcome.page_load_s);
    percentiles(&mut grid, groups, "response", |outcome| outcome.response_s);
    if !any(has_only_web) || any(|outcome| !outcome.flows.is_empty()) {
        let of = |outcome: &Outcome| (!has_only_web(outcome)).then_some(outcome.goodput_bps);
        let goodput: Vec<_> = groups.iter().map(|group| group.number("goodput_bps", of)).collect();
        grid.numbers("goodput", QuantityKind::Rate, &goodput);
    }
    if any(|outcome| outcome.flows.iter().any(|flow| flow.reverse)) {
        let of = |outcome: &Outcome| Some(outcome.flows.iter().filter(|flow| flow.reverse).map(|flow| flow.goodput_bps).sum::<f64>());
        let reverse: Vec<_> = groups.iter().map(|group| group.mean(of).map(without_interval)).collect();
        grid.numbers("reverse flows", QuantityKind::Rate, &reverse).droppable(3);
    }
    if any(|outcome| !outcome.cross_flows.is_empty()) {
        let of = |outcome: &Outcome| Some(outcome.cross_flows.iter().map(|flow| flow.goodput_bps).sum::<f64>());
        let cross: Vec<_> = groups.iter().map(|group| group.mean(of).map(without_interval)).collect();
        grid.numbers("cross flows", QuantityKind::Rate, &cross).droppable(5);
    }
    let used: Vec<_> = groups.iter().map(|group| group.number("utilization", |outcome| Some(outcome.utilization))).collect();
    grid.numbers("utilization", QuantityKind::Share, &used).droppable(5);
    if any(has_legs) {
        let retransmits = |group: &OutcomeGroup<'_>| group.mean(|outcome| has_legs(outcome).then(|| outcome.retransmits() as f64));
        let cells = groups.iter().map(|group| retransmits(group).map_or(NONE.into(), count)).collect();
        grid.written("retransmits", "", cells).droppable(6);
    }
    if any(|outcome| outcome.proxy.is_some()) {
        proxy(&mut grid, groups);
    }
    grid.words("valid", groups.iter().map(valid).collect());
    grid
}

/// The meaning of "±", if it occurs.
pub(crate) fn footnote(groups: &[OutcomeGroup<'_>]) -> Option<String> {
    if !groups.iter().flat_map(|group| &group.outcomes).any(|outcome| !outcome.ci95.is_empty()) {
        return None;
    }
    let sizes: BTreeSet<usize> = groups.iter().map(|group| group.outcomes.len()).collect();
    let seeds = match (sizes.first(), sizes.last()) {
        (_, Some(1)) => return Some("± is half the width of the 95 % interval that the engine itself gives its mean.".into()),
        (Some(least), Some(most)) if least == most => format!("{most} seeds"),
        (Some(least), Some(most)) => format!("{least} to {most} seeds"),
        _ => "seeds".into(),
    };
    Some(format!("Means over {seeds}; ± is half the width of the 95 % interval of the mean."))
}

/// What would make the large losses of any group less, a sentence for each.
pub(crate) fn cures(groups: &[OutcomeGroup<'_>]) -> BTreeSet<String> {
    let accounts = groups.iter().flat_map(|group| &group.outcomes).filter_map(|outcome| outcome.account.as_ref());
    accounts.flat_map(AccountShares::cures).collect()
}

/// How much of what the bottleneck allows each group used, and what the rest was lost to, percent;
/// no rows where no engine tells.
pub(crate) fn accounts(groups: &[OutcomeGroup<'_>]) -> Grid {
    let with: Vec<&OutcomeGroup<'_>> =
        groups.iter().filter(|group| group.outcomes.iter().any(|outcome| outcome.account.is_some())).collect();
    let mut grid = Grid::default();
    if with.is_empty() {
        return grid;
    }
    names(&mut grid, groups, &with);
    let percent = |of: &dyn Fn(&AccountShares) -> f64| -> Vec<f64> {
        with.iter().map(|group| 100.0 * group.mean(|outcome| outcome.account.as_ref().map(of)).unwrap_or_default()).collect()
    };
    let cells = |percents: &[f64]| percents.iter().map(|percent| format!("{percent:.0}")).collect();
    grid.written("used of the link", "%", cells(&percent(&|account| account.used.unwrap_or_default())));
    // The largest first, so that a narrow terminal leaves out the least.
    let mut lost: Vec<(Cause, Vec<f64>)> =
        Cause::ALL.into_iter().map(|cause| (cause, percent(&|account| account.lost_to(cause)))).collect();
    let sum = |percents: &[f64]| percents.iter().sum::<f64>();
    lost.sort_by(|(_, one), (_, other)| sum(other).total_cmp(&sum(one)));
    let shown = lost.iter().filter(|(_, percents)| percents.iter().any(|percent| *percent >= 0.5));
    for (rank, (cause, percents)) in (1..).zip(shown) {
        grid.written(&format!("lost to {}", cause.name()), "%", cells(percents)).droppable(rank);
    }
    grid
}

/// A row for each link of each group. Numbers are means over the seeds, except for lateness and the
/// largest queue, which are the worst.
pub(crate) fn links(groups: &[OutcomeGroup<'_>]) -> Grid {
    let mut of: Vec<&OutcomeGroup<'_>> = Vec::new();
    let mut link: Vec<usize> = Vec::new();
    for group in groups {
        let numbers: BTreeSet<usize> = group.outcomes.iter().flat_map(|outcome| &outcome.links).map(|link| link.link).collect();
        for number in numbers {
            of.push(group);
            link.push(number);
        }
    }
    let every = |get: fn(&LinkOutcome) -> Option<f64>| -> Vec<Option<f64>> {
        of.iter().zip(&link).map(|(group, number)| group.mean(|outcome| find(outcome, *number).and_then(get))).collect()
    };
    let worst = |get: fn(&LinkOutcome) -> Option<f64>| -> Vec<Option<f64>> {
        of.iter().zip(&link).map(|(group, number)| group.max(|outcome| find(outcome, *number).and_then(get))).collect()
    };
    let scale =
        |kind: QuantityKind, columns: &[&[Option<f64>]]| kind.scale(columns.iter().flat_map(|column| column.iter().flatten().copied()));

    let mut grid = Grid::default();
    names(&mut grid, groups, &of);
    grid.written("link", "", link.iter().map(ToString::to_string).collect());
    let (asked, delivered) = (every(|link| Some(link.rate_bps)), every(|link| link.delivered_rate_bps));
    let unit = scale(QuantityKind::Rate, &[&asked, &delivered]);
    grid.scaled("rate asked", unit, &asked);
    grid.scaled("delivered", unit, &delivered).droppable(2);
    let (asked, delivered) = (every(|link| Some(link.delay_s)), every(|link| link.delivered_delay_s));
    let unit = scale(QuantityKind::Delay, &[&asked, &delivered]);
    grid.scaled("delay asked", unit, &asked).droppable(6);
    grid.scaled("delay delivered", unit, &delivered).droppable(5);
    let late = worst(|link| Some(link.late_p99_s));
    grid.scaled("late, p99", scale(QuantityKind::Delay, &[&late]), &late).droppable(7);
    let (asked, seen) = (every(|link| link.loss_asked), every(loss_seen));
    if asked.iter().chain(&seen).flatten().any(|share| *share > 0.0) {
        let unit = scale(QuantityKind::Share, &[&asked, &seen]);
        grid.scaled("loss asked", unit, &asked).droppable(6);
        grid.scaled("loss seen", unit, &seen).droppable(5);
    }
    let drops = every(|link| Some(link.queue_drops as f64));
    let cells = drops.into_iter().map(|drops| drops.map_or(NONE.into(), count)).collect();
    grid.written("queue drops", "", cells).droppable(3);
    let reverse = every(|link| link.reverse.map(|reverse| reverse.queue_drops as f64));
    if reverse.iter().any(Option::is_some) {
        let cells = reverse.into_iter().map(|drops| drops.map_or(NONE.into(), count)).collect();
        grid.written("reverse drops", "", cells).droppable(3);
    }
    let queue = worst(|link| Some(link.queue_max_bytes as f64));
    let wait = worst(|link| link.queue_delay_p95_s);
    grid.scaled("wait, p95", scale(QuantityKind::Delay, &[&wait]), &wait).droppable(1);
    grid.scaled("queue, max", scale(QuantityKind::Bytes, &[&queue]), &queue).droppable(4);
    grid
}

fn find(outcome: &Outcome, number: usize) -> Option<&LinkOutcome> {
    outcome.links.iter().find(|link| link.link == number)
}

/// The share of arriving packets that the loss process dropped.
fn loss_seen(link: &LinkOutcome) -> Option<f64> {
    (link.packets > 0).then(|| link.losses as f64 / link.packets as f64)
}

fn has_legs(outcome: &Outcome) -> bool {
    outcome.flows.iter().any(|flow| !flow.legs.is_empty())
}

/// Adds the scenario, case and engine of `rows`, as far as they distinguish `groups`.
fn names(grid: &mut Grid, groups: &[OutcomeGroup<'_>], rows: &[&OutcomeGroup<'_>]) {
    let cells = |of: fn(&Outcome) -> &str| rows.iter().map(|row| plain(of(row.outcomes[0]))).collect();
    if differs(groups, |outcome| &outcome.scenario) {
        grid.words("scenario", cells(|outcome| &outcome.scenario));
    }
    if groups.iter().any(|group| !group.outcomes[0].case.is_empty()) {
        let names: Vec<&str> = rows.iter().map(|row| row.outcomes[0].case.as_str()).collect();
        let (heads, cases) = case_columns(&names);
        for (at, head) in heads.into_iter().enumerate() {
            grid.words(plain(&head), cases.iter().map(|row| plain(&row[at])).collect());
        }
    }
    if differs(groups, |outcome| &outcome.engine) {
        grid.words("engine", cells(|outcome| &outcome.engine));
    }
}

fn done_in(grid: &mut Grid, groups: &[OutcomeGroup<'_>]) {
    let times: Vec<_> = groups.iter().map(OutcomeGroup::completion).collect();
    let scale = QuantityKind::Time.scale(times.iter().flatten().map(|number| number.mean));
    let cells = groups.iter().zip(&times).map(|(group, time)| not_done(group).unwrap_or_else(|| written(*time, scale)));
    grid.written("done in", scale.unit, cells.collect());
}

/// What stands instead of a time when flows had not ended.
pub(crate) fn not_done(group: &OutcomeGroup<'_>) -> Option<String> {
    match group.unended() {
        (0, _) => None,
        (unended, all) => Some(format!("not done ({unended} of {all})")),
    }
}

/// Parallel networks: the mean time of a transfer of each class; the foreground's with its
/// interval.
fn sojourns(grid: &mut Grid, groups: &[OutcomeGroup<'_>]) {
    let classes = groups.iter().flat_map(|group| &group.outcomes).map(|outcome| outcome.sojourn_s.len()).max().unwrap_or(0);
    if classes == 0 {
        return;
    }
    let time = |group: &OutcomeGroup<'_>, class: usize| group.number(SOJOURNS[class], |outcome| outcome.number(SOJOURNS[class]));
    let unit = QuantityKind::Time.scale(groups.iter().flat_map(|group| (0..classes).filter_map(|class| Some(time(group, class)?.mean))));
    grid.written("foreground", unit.unit, groups.iter().map(|group| written(time(group, 0), unit)).collect());
    if classes > 1 {
        let cell = |group: &OutcomeGroup<'_>| -> String {
            let mean = |class| time(group, class).map_or(NONE.into(), |time| three(time.mean / unit.per));
            (1..classes).map(mean).collect::<Vec<String>>().join(" / ")
        };
        grid.written("background", unit.unit, groups.iter().map(cell).collect()).droppable(1);
    }
    let over = |group: &OutcomeGroup<'_>| group.number(OVER_CAN[0], |outcome| outcome.number(OVER_CAN[0]));
    if groups.iter().any(|group| over(group).is_some()) {
        let ratio = |number: SeedNumber| match number.half {
            Some(half) if half.is_finite() => format!("{:.3} ± {half:.3}", number.mean),
            _ => format!("{:.3}", number.mean),
        };
        let cells = groups.iter().map(|group| over(group).map_or(NONE.into(), ratio)).collect();
        grid.written("over ideal", "ratio", cells).droppable(3);
    }
}

/// Whether an outcome has web traffic and no flow whose goodput it could be.
fn has_only_web(outcome: &Outcome) -> bool {
    outcome.flows.is_empty() && (!outcome.pages.is_empty() || !outcome.exchanges.is_empty())
}

fn without_interval(mean: f64) -> SeedNumber {
    SeedNumber { mean, half: None }
}

/// Adds a column with the percentiles of a time, if an outcome has them: means over the seeds.
fn percentiles(grid: &mut Grid, groups: &[OutcomeGroup<'_>], head: &str, of: fn(&Outcome) -> Option<TimePercentiles>) {
    let all: Vec<Option<[f64; 3]>> = groups
        .iter()
        .map(|group| {
            let mean = |number: fn(TimePercentiles) -> f64| group.mean(|outcome| of(outcome).map(number));
            Some([mean(|time| time.p50)?, mean(|time| time.p95)?, mean(|time| time.p99)?])
        })
        .collect();
    if all.iter().all(Option::is_none) {
        return;
    }
    // The unit suits the largest of them.
    let scale = QuantityKind::Time.scale(all.iter().flatten().map(|times| times[2]));
    let cell = |times: [f64; 3]| times.map(|time| three(time / scale.per)).join(" / ");
    let cells = all.into_iter().map(|times| times.map_or(NONE.into(), cell)).collect();
    grid.written(head, &format!("p50 / p95 / p99, {}", scale.unit), cells).droppable(1);
}

fn proxy(grid: &mut Grid, groups: &[OutcomeGroup<'_>]) {
    let held: Vec<Option<(f64, f64)>> = groups
        .iter()
        .map(|group| {
            let mean = group.mean(|outcome| Some(outcome.proxy.as_ref()?.buffer_bytes.mean));
            mean.zip(group.max(|outcome| Some(outcome.proxy.as_ref()?.buffer_bytes.max)))
        })
        .collect();
    // The unit suits the maxima: a small mean beside a large maximum may read as nearly zero.
    let scale = QuantityKind::Bytes.scale(held.iter().flatten().map(|(_, max)| *max));
    let cell = |(mean, max): (f64, f64)| format!("{} / {}", three(mean / scale.per), three(max / scale.per));
    let cells = held.into_iter().map(|held| held.map_or(NONE.into(), cell)).collect();
    grid.written("proxy held", &format!("mean / max, {}", scale.unit), cells).droppable(7);

    let share = |group: &OutcomeGroup<'_>, of: fn(&ProxyOutcome) -> f64| {
        group.mean(|outcome| outcome.proxy.as_ref().map(of)).map(|share| format!("{:.0}", share * 100.0))
    };
    let has_phases = |outcome: &Outcome| outcome.proxy.as_ref().is_some_and(|proxy| proxy.phases != Phases::default());
    let phases = |group: &OutcomeGroup<'_>| -> Option<String> {
        if !group.outcomes.iter().any(|outcome| has_phases(outcome)) {
            return None;
        }
        let [free, starved, held_back] = [
            share(group, |proxy| proxy.phases.free)?,
            share(group, |proxy| proxy.phases.starvation)?,
            share(group, |proxy| proxy.phases.backpressure)?,
        ];
        Some(format!("{free} / {starved} / {held_back}"))
    };
    let cells = groups.iter().map(|group| phases(group).unwrap_or(NONE.into())).collect();
    grid.written("phases", "free/starv./backp., %", cells).droppable(8);
}

fn valid(group: &OutcomeGroup<'_>) -> String {
    match (group.valid(), group.outcomes.len()) {
        (valid, all) if valid == all => "✓".into(),
        (0, _) => "✗".into(),
        (valid, all) => format!("✗ {} of {all}", all - valid),
    }
}
