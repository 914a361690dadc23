//! Which columns a table of outcomes has: the results, and what links were asked for and delivered. A column nobody needs is left out.

use crate::grid::{Grid, written};
use crate::group::{Group, Number, differs};
use crate::human::{Kind, NONE, count, three};
use crate::markup::plain;
use outcome::{LinkOutcome, OVER_CAN, Outcome, ProxyOutcome, SOJOURNS};
use std::collections::BTreeSet;

/// A row for each group.
pub(crate) fn results(groups: &[Group<'_>]) -> Grid {
    let mut grid = Grid::default();
    names(&mut grid, groups, &groups.iter().collect::<Vec<_>>());
    let any = |has: fn(&Outcome) -> bool| groups.iter().flat_map(|group| &group.outcomes).any(|outcome| has(outcome));

    if any(|outcome| !outcome.flows.is_empty()) {
        done_in(&mut grid, groups);
    }
    if any(|outcome| outcome.flows.len() > 1) {
        let numbers: Vec<_> = groups.iter().map(|group| group.number("mean_flow_s", Outcome::mean_flow_s)).collect();
        grid.numbers("mean flow", Kind::Time, &numbers);
    }
    if any(|outcome| outcome.jain.is_some()) {
        let cell = |group: &Group<'_>| group.mean(|outcome| outcome.jain).map_or(NONE.into(), |jain| format!("{jain:.3}"));
        grid.written("Jain", "", groups.iter().map(cell).collect());
    }
    sojourns(&mut grid, groups);
    let goodput: Vec<_> = groups.iter().map(|group| group.number("goodput_bps", |outcome| Some(outcome.goodput_bps))).collect();
    grid.numbers("goodput", Kind::Rate, &goodput);
    let used: Vec<_> = groups.iter().map(|group| group.number("utilization", |outcome| Some(outcome.utilization))).collect();
    grid.numbers("utilization", Kind::Share, &used);
    if any(has_legs) {
        let retransmits = |group: &Group<'_>| group.mean(|outcome| has_legs(outcome).then(|| outcome.retransmits() as f64));
        grid.written("retransmits", "", groups.iter().map(|group| retransmits(group).map_or(NONE.into(), count)).collect());
    }
    if any(|outcome| outcome.proxy.is_some()) {
        proxy(&mut grid, groups);
    }
    grid.words("valid", groups.iter().map(valid).collect());
    grid
}

/// What "±" means, when it is there.
pub(crate) fn footnote(groups: &[Group<'_>]) -> Option<String> {
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

/// A row for each link of each group, every number a mean over the seeds but the lateness, of which the worst counts.
pub(crate) fn links(groups: &[Group<'_>]) -> Grid {
    let mut of: Vec<&Group<'_>> = Vec::new();
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
    let scale = |kind: Kind, columns: &[&[Option<f64>]]| kind.scale(columns.iter().flat_map(|column| column.iter().flatten().copied()));

    let mut grid = Grid::default();
    names(&mut grid, groups, &of);
    grid.written("link", "", link.iter().map(ToString::to_string).collect());
    let (asked, delivered) = (every(|link| Some(link.rate_bps)), every(|link| link.delivered_rate_bps));
    let unit = scale(Kind::Rate, &[&asked, &delivered]);
    grid.scaled("rate asked", unit, &asked);
    grid.scaled("delivered", unit, &delivered);
    let (asked, delivered) = (every(|link| Some(link.delay_s)), every(|link| link.delivered_delay_s));
    let unit = scale(Kind::Delay, &[&asked, &delivered]);
    grid.scaled("delay asked", unit, &asked);
    grid.scaled("delivered", unit, &delivered);
    let late = worst(|link| Some(link.late_p99_s));
    grid.scaled("late, p99", scale(Kind::Delay, &[&late]), &late);
    let (asked, seen) = (every(|link| link.loss_asked), every(loss_seen));
    if asked.iter().chain(&seen).flatten().any(|share| *share > 0.0) {
        let unit = scale(Kind::Share, &[&asked, &seen]);
        grid.scaled("loss asked", unit, &asked);
        grid.scaled("seen", unit, &seen);
    }
    let drops = every(|link| Some(link.queue_drops as f64));
    grid.written("queue drops", "", drops.into_iter().map(|drops| drops.map_or(NONE.into(), count)).collect());
    let queue = worst(|link| Some(link.queue_max_bytes as f64));
    grid.scaled("queue, max", scale(Kind::Bytes, &[&queue]), &queue);
    grid
}

fn find(outcome: &Outcome, number: usize) -> Option<&LinkOutcome> {
    outcome.links.iter().find(|link| link.link == number)
}

/// Share of the packets that came which the loss process dropped.
fn loss_seen(link: &LinkOutcome) -> Option<f64> {
    (link.packets > 0).then(|| link.losses as f64 / link.packets as f64)
}

fn has_legs(outcome: &Outcome) -> bool {
    outcome.flows.iter().any(|flow| !flow.legs.is_empty())
}

/// Scenario, case and engine of `rows`, as far as they tell `groups` apart.
fn names(grid: &mut Grid, groups: &[Group<'_>], rows: &[&Group<'_>]) {
    let cells = |of: fn(&Outcome) -> &str| rows.iter().map(|row| plain(of(row.outcomes[0]))).collect();
    if differs(groups, |outcome| &outcome.scenario) {
        grid.words("scenario", cells(|outcome| &outcome.scenario));
    }
    if groups.iter().any(|group| !group.outcomes[0].case.is_empty()) {
        grid.words("case", cells(|outcome| &outcome.case));
    }
    if differs(groups, |outcome| &outcome.engine) {
        grid.words("engine", cells(|outcome| &outcome.engine));
    }
}

fn done_in(grid: &mut Grid, groups: &[Group<'_>]) {
    let times: Vec<_> = groups.iter().map(Group::completion).collect();
    let scale = Kind::Time.scale(times.iter().flatten().map(|number| number.mean));
    let cells = groups.iter().zip(&times).map(|(group, time)| not_done(group).unwrap_or_else(|| written(*time, scale)));
    grid.written("done in", scale.unit, cells.collect());
}

/// What stands instead of a time when flows had not ended.
pub(crate) fn not_done(group: &Group<'_>) -> Option<String> {
    match group.unended() {
        (0, _) => None,
        (unended, all) => Some(format!("not done ({unended} of {all})")),
    }
}

/// Parallel networks: the mean time of a transfer of each class; the foreground's with its interval.
fn sojourns(grid: &mut Grid, groups: &[Group<'_>]) {
    let classes = groups.iter().flat_map(|group| &group.outcomes).map(|outcome| outcome.sojourn_s.len()).max().unwrap_or(0);
    if classes == 0 {
        return;
    }
    let time = |group: &Group<'_>, class: usize| group.number(SOJOURNS[class], |outcome| outcome.number(SOJOURNS[class]));
    let unit = Kind::Time.scale(groups.iter().flat_map(|group| (0..classes).filter_map(|class| Some(time(group, class)?.mean))));
    grid.written("foreground", unit.unit, groups.iter().map(|group| written(time(group, 0), unit)).collect());
    if classes > 1 {
        let cell = |group: &Group<'_>| -> String {
            let mean = |class| time(group, class).map_or(NONE.into(), |time| three(time.mean / unit.per));
            (1..classes).map(mean).collect::<Vec<String>>().join(" / ")
        };
        grid.written("background", unit.unit, groups.iter().map(cell).collect());
    }
    let over = |group: &Group<'_>| group.number(OVER_CAN[0], |outcome| outcome.number(OVER_CAN[0]));
    if groups.iter().any(|group| over(group).is_some()) {
        let ratio = |number: Number| match number.half {
            Some(half) if half.is_finite() => format!("{:.3} ± {half:.3}", number.mean),
            _ => format!("{:.3}", number.mean),
        };
        grid.written("over ideal", "ratio", groups.iter().map(|group| over(group).map_or(NONE.into(), ratio)).collect());
    }
}

fn proxy(grid: &mut Grid, groups: &[Group<'_>]) {
    let held: Vec<Option<(f64, f64)>> = groups
        .iter()
        .map(|group| {
            let mean = group.mean(|outcome| Some(outcome.proxy.as_ref()?.buffer_bytes.mean));
            mean.zip(group.max(|outcome| Some(outcome.proxy.as_ref()?.buffer_bytes.max)))
        })
        .collect();
    // The largest rules: a mean near nothing beside a large maximum is near nothing in the unit of the maximum, too.
    let scale = Kind::Bytes.scale(held.iter().flatten().map(|(_, max)| *max));
    let cell = |(mean, max): (f64, f64)| format!("{} / {}", three(mean / scale.per), three(max / scale.per));
    let cells = held.into_iter().map(|held| held.map_or(NONE.into(), cell)).collect();
    grid.written("proxy held", &format!("mean / max, {}", scale.unit), cells);

    let share = |group: &Group<'_>, of: fn(&ProxyOutcome) -> f64| {
        group.mean(|outcome| outcome.proxy.as_ref().map(of)).map(|share| format!("{:.0}", share * 100.0))
    };
    let phases = |group: &Group<'_>| -> Option<String> {
        let [free, starved, held_back] = [
            share(group, |proxy| proxy.phases.free)?,
            share(group, |proxy| proxy.phases.starvation)?,
            share(group, |proxy| proxy.phases.backpressure)?,
        ];
        Some(format!("{free} / {starved} / {held_back}"))
    };
    let cells = groups.iter().map(|group| phases(group).unwrap_or(NONE.into())).collect();
    grid.written("phases", "free/starv./backp., %", cells);
}

fn valid(group: &Group<'_>) -> String {
    match (group.valid(), group.outcomes.len()) {
        (valid, all) if valid == all => "✓".into(),
        (0, _) => "✗".into(),
        (valid, all) => format!("✗ {} of {all}", all - valid),
    }
}
