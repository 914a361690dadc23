//! The verdict about a connection, and how it follows from the evidence.

use crate::evidence::{Evidence, Indication, Method, Strength};
use serde::Serialize;
use std::collections::BTreeSet;

/// Whether a connection is split, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum SplitVerdict {
    /// A single connection from end to end.
    #[serde(rename = "end-to-end")]
    EndToEnd,
    /// Split-TCP: two connections, and the middlebox forwards data while they arrive.
    #[serde(rename = "split-tcp")]
    SplitTcp,
    /// TCP proxy: two connections, and the middlebox holds data until they are complete, changes
    /// them, or has them cached.
    #[serde(rename = "tcp-proxy")]
    TcpProxy,
    /// The evidence is insufficient or contradictory.
    #[serde(rename = "cannot tell")]
    CannotTell,
}

impl std::fmt::Display for SplitVerdict {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            SplitVerdict::EndToEnd => "end-to-end",
            SplitVerdict::SplitTcp => "split-tcp",
            SplitVerdict::TcpProxy => "tcp-proxy",
            SplitVerdict::CannotTell => "cannot tell",
        })
    }
}

/// Sorts the evidence, the strongest first, and derives the verdict with its reason.
///
/// One strong piece decides. Two moderate pieces of different methods decide unless strong evidence
/// contradicts them. Strong evidence on both sides decides nothing.
pub fn weigh(evidence: &mut [Evidence]) -> (SplitVerdict, String) {
    let decides = |piece: &Evidence| {
        // The kind of split does not show that there is one, unless the content was changed.
        match piece.says {
            Indication::TcpProxy if matches!(piece.method, Method::Payload | Method::Cache) => Indication::Split,
            says => says,
        }
    };
    evidence.sort_by_key(|piece| {
        let looked = matches!(piece.says, Indication::Nothing);
        (looked, std::cmp::Reverse(piece.strength), piece.method)
    });
    let of = |says: Indication, strength: Strength| -> Vec<&Evidence> {
        evidence.iter().filter(|piece| decides(piece) == says && piece.strength == strength).collect()
    };
    let methods = |pieces: &[&Evidence]| pieces.iter().map(|piece| piece.method).collect::<BTreeSet<Method>>().len();
    let (split, whole) = (of(Indication::Split, Strength::Strong), of(Indication::EndToEnd, Strength::Strong));
    let (perhaps_split, perhaps_whole) = (of(Indication::Split, Strength::Moderate), of(Indication::EndToEnd, Strength::Moderate));
    let because = |pieces: &[&Evidence]| pieces.first().map_or(String::new(), |piece| piece.text.clone());
    match (split.is_empty(), whole.is_empty()) {
        (false, false) => {
            (SplitVerdict::CannotTell, format!("the evidence contradicts itself: {}; but {}", because(&split), because(&whole)))
        }
        (false, true) => kind_of(evidence, because(&split)),
        (true, false) => (SplitVerdict::EndToEnd, because(&whole)),
        (true, true) if methods(&perhaps_split) >= 2 && perhaps_whole.is_empty() => {
            let both = format!("{}; and {}", because(&perhaps_split), perhaps_split.last().map_or("", |piece| &piece.text));
            kind_of(evidence, both)
        }
        // Equal sequence numbers at both ends, and nothing that a splitter would have changed.
        (true, true) if !perhaps_whole.is_empty() && perhaps_split.is_empty() => (SplitVerdict::EndToEnd, because(&perhaps_whole)),
        (true, true) => {
            let looked: BTreeSet<Method> = evidence.iter().map(|piece| piece.method).collect();
            let why = match looked.len() {
                0 => "there is nothing to compare".to_string(),
                _ if !perhaps_split.is_empty() => format!("this alone is not enough: {}", because(&perhaps_split)),
                count => format!("all {count} applicable methods are neutral"),
            };
            (SplitVerdict::CannotTell, why)
        }
    }
}

/// Chooses the kind of split.
fn kind_of(evidence: &[Evidence], because: String) -> (SplitVerdict, String) {
    let best = |says: Indication| evidence.iter().filter(|piece| piece.says == says).max_by_key(|piece| piece.strength);
    // A large buffer also keeps the window open, so weak evidence does not count.
    let proxy = best(Indication::TcpProxy).filter(|piece| piece.strength >= Strength::Moderate);
    match (proxy, best(Indication::SplitTcp)) {
        (Some(proxy), split) if split.is_none_or(|split| split.strength < proxy.strength) => {
            (SplitVerdict::TcpProxy, if because == proxy.text { because } else { format!("{because}; {}", proxy.text) })
        }
        (_, Some(split)) => (SplitVerdict::SplitTcp, format!("{because}; {}", split.text)),
        _ => (SplitVerdict::SplitTcp, format!("{because}; no evidence that data are held until they are complete")),
    }
}
