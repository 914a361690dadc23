//! Asks the proxy's experiment what applied advice has changed, and puts the old configuration back
//! if it has made connections slower.

use super::{
    apply::Applied,
    path_advice::{PathAdvice, Recommendation},
};
use crate::{CommandError, flows::failed, output};
use monitor::{ExperimentEvidence, PathGroup};
use proxy::{ExperimentRow, Gain, control::Remote};
use std::thread;
use units::Span;

/// What the experiment says of connections under the new settings.
#[derive(Debug, Default, PartialEq)]
struct Judgement {
    sentences: Vec<String>,
    is_worse: bool,
}

/// Waits for this time, and then asks the experiment, which began anew with the settings. It is
/// asked once: a 95 % interval that is looked at again and again excludes 1 by chance.
///
/// # Errors
/// The proxy does not answer, or the advice was taken back.
pub(super) fn verify(remote: &Remote, applied: Applied, all: &[PathAdvice], (time, trusts): (Span, bool)) -> Result<(), CommandError> {
    outln!("The experiment is asked in {time} whether that helps.");
    thread::sleep(time.duration());
    let rows = remote.experiment().map_err(failed)?.map(|view| view.rows).unwrap_or_default();
    let Judgement { sentences, is_worse } = judge(all, &rows, trusts);
    outln!("{}", report::wrap(&sentences.join(" "), output::width()));
    if is_worse { applied.take_back(remote) } else { Ok(()) }
}

/// Compares with the experiment's earlier gain: for each prefix that the advice splits, and for all
/// connections together.
fn judge(all: &[PathAdvice], rows: &[ExperimentRow], trusts: bool) -> Judgement {
    let mut judgement = Judgement::default();
    let row_of = |prefix: Option<&str>| rows.iter().find(|row| row.size.is_none() && row.prefix.as_deref() == prefix);
    let split = all.iter().filter(|advice| matches!(advice.recommendation, Recommendation::Split(_)));
    let of_prefixes = split.filter_map(|advice| match &advice.path.group {
        PathGroup::Prefix(net) => Some((Some(net.to_string()), advice.experiment.as_ref())),
        PathGroup::Interface(_) => None,
    });
    for (prefix, before) in of_prefixes.chain([(None, None)]) {
        let evidence = ExperimentEvidence::of(row_of(prefix.as_deref()), trusts);
        let name = prefix.as_deref().unwrap_or("all connections");
        if evidence.sentences.is_empty() {
            judgement.sentences.push(format!("{name}: too few connections to compare."));
            continue;
        }
        judgement.sentences.push(format!("{name}: {}", evidence.sentences.join(" ")));
        let before = ExperimentEvidence::of(before, trusts).gain;
        judgement.is_worse |= evidence.gain.is_some_and(|now| is_worse(now, before));
    }
    judgement
}

/// Whether split connections are slower than unsplit ones, or gain less than they did before, and
/// not by chance.
fn is_worse(now: Gain, before: Option<Gain>) -> bool {
    now.high < before.map_or(1.0, |before| before.low.max(1.0))
}

#[cfg(test)]
mod tests {
    use super::{
        super::path_advice::{SplitSettings, example},
        *,
    };

    fn row(prefix: Option<&str>, [low, ratio, high]: [f64; 3]) -> ExperimentRow {
        ExperimentRow {
            prefix: prefix.map(str::to_owned),
            size: None,
            unsplit: 400,
            split: 400,
            compared_unsplit: 400,
            compared_split: 400,
            clients: 40,
            client_prefixes: 20,
            unlike_ends: false,
            unsplit_s: Some(1.0),
            split_s: Some(1.0 / ratio),
            gain: Some(Gain { ratio, low, high }),
        }
    }

    #[test]
    fn advice_that_makes_connections_slower_is_worse() {
        let settings = SplitSettings { leg: "near", control: "bbr".into(), capacity: None, link: None, shape: None };
        let mut advice = example("192.0.2.0/24", Recommendation::Split(settings));
        let judged = |advice: &PathAdvice, gain, trusts| {
            let rows = [row(Some("192.0.2.0/24"), gain), row(Some("198.51.100.0/24"), [0.1, 0.2, 0.3])];
            judge(std::slice::from_ref(advice), &rows, trusts)
        };
        let good = judged(&advice, [1.2, 1.3, 1.4], false);
        assert!(!good.is_worse && good.sentences[0].starts_with("192.0.2.0/24: In the experiment split"), "{good:?}");
        assert_eq!(good.sentences[1], "all connections: too few connections to compare.");
        assert!(judged(&advice, [0.7, 0.8, 0.9], false).is_worse);
        assert!(!judged(&advice, [0.7, 0.9, 1.1], false).is_worse, "it may be chance");
        // Other settings gained more.
        advice.experiment = Some(row(Some("192.0.2.0/24"), [1.9, 2.0, 2.1]));
        assert!(judged(&advice, [1.2, 1.3, 1.4], false).is_worse);
        assert!(!judged(&advice, [1.5, 1.8, 2.0], false).is_worse);
        // A bypass has nothing to be compared with; all connections together have.
        let bypass = example("192.0.2.0/24", Recommendation::Bypass);
        assert!(!judged(&bypass, [0.7, 0.8, 0.9], false).is_worse);
        assert!(judge(&[bypass], &[row(None, [0.7, 0.8, 0.9])], false).is_worse);
        // Few clients decide nothing, unless they are trusted.
        let few = ExperimentRow { clients: 2, client_prefixes: 1, ..row(None, [0.7, 0.8, 0.9]) };
        assert!(!judge(&[], std::slice::from_ref(&few), false).is_worse);
        assert!(judge(&[], &[few], true).is_worse);
    }
}
