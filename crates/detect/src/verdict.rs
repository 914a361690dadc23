//! All evidence about each connection, and what follows from it.

use crate::evidence::{Evidence, Method, Says, Strength};
use serde::Serialize;
use std::collections::BTreeSet;

/// Is it split?
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Verdict {
    /// One connection, from end to end.
    #[serde(rename = "end-to-end")]
    EndToEnd,
    /// Two, with data flowing on both at once.
    #[serde(rename = "split-tcp")]
    SplitTcp,
    /// Two, and what is in the middle holds data until they are complete, changes them, or has them already.
    #[serde(rename = "tcp-proxy")]
    TcpProxy,
    /// The evidence is too little, or contradicts itself.
    #[serde(rename = "cannot tell")]
    CannotTell,
}

impl std::fmt::Display for Verdict {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Verdict::EndToEnd => "end-to-end",
            Verdict::SplitTcp => "split-tcp",
            Verdict::TcpProxy => "tcp-proxy",
            Verdict::CannotTell => "cannot tell",
        })
    }
}

/// Sorts the evidence, the strongest first, and says what follows.
///
/// Strong evidence decides alone; two moderate pieces of different methods do if nothing strong contradicts them. Strong evidence on both sides decides
/// nothing.
pub fn weigh(evidence: &mut [Evidence]) -> (Verdict, String) {
    let decides = |piece: &Evidence| {
        // Which kind it is says nothing of whether it is, but for bytes that are other ones.
        match piece.says {
            Says::TcpProxy if matches!(piece.method, Method::Payload | Method::Cache) => Says::Split,
            says => says,
        }
    };
    evidence.sort_by_key(|piece| {
        let looked = matches!(piece.says, Says::Nothing);
        (looked, std::cmp::Reverse(piece.strength), piece.method)
    });
    let of = |says: Says, strength: Strength| -> Vec<&Evidence> {
        evidence.iter().filter(|piece| decides(piece) == says && piece.strength == strength).collect()
    };
    let methods = |pieces: &[&Evidence]| pieces.iter().map(|piece| piece.method).collect::<BTreeSet<Method>>().len();
    let (split, whole) = (of(Says::Split, Strength::Strong), of(Says::EndToEnd, Strength::Strong));
    let (perhaps_split, perhaps_whole) = (of(Says::Split, Strength::Moderate), of(Says::EndToEnd, Strength::Moderate));
    let because = |pieces: &[&Evidence]| pieces.first().map_or(String::new(), |piece| piece.text.clone());
    match (split.is_empty(), whole.is_empty()) {
        (false, false) => (Verdict::CannotTell, format!("the evidence contradicts itself: {}; but {}", because(&split), because(&whole))),
        (false, true) => kind_of(evidence, because(&split)),
        (true, false) => (Verdict::EndToEnd, because(&whole)),
        (true, true) if methods(&perhaps_split) >= 2 && perhaps_whole.is_empty() => {
            let both = format!("{}; and {}", because(&perhaps_split), perhaps_split.last().map_or("", |piece| &piece.text));
            kind_of(evidence, both)
        }
        // The same numbers at both ends, and nothing that a splitter would have changed.
        (true, true) if !perhaps_whole.is_empty() && perhaps_split.is_empty() => (Verdict::EndToEnd, because(&perhaps_whole)),
        (true, true) => {
            let looked: BTreeSet<Method> = evidence.iter().map(|piece| piece.method).collect();
            let why = match looked.len() {
                0 => "there was nothing to look at".to_string(),
                _ if !perhaps_split.is_empty() => format!("alone this is not enough: {}", because(&perhaps_split)),
                count => format!("none of {count} methods that had something to look at shows either"),
            };
            (Verdict::CannotTell, why)
        }
    }
}

/// Which kind of split.
fn kind_of(evidence: &[Evidence], because: String) -> (Verdict, String) {
    let best = |says: Says| evidence.iter().filter(|piece| piece.says == says).max_by_key(|piece| piece.strength);
    // A window that stays open is one of a large buffer, too.
    let proxy = best(Says::TcpProxy).filter(|piece| piece.strength >= Strength::Moderate);
    match (proxy, best(Says::SplitTcp)) {
        (Some(proxy), split) if split.is_none_or(|split| split.strength < proxy.strength) => {
            (Verdict::TcpProxy, if because == proxy.text { because } else { format!("{because}; {}", proxy.text) })
        }
        (_, Some(split)) => (Verdict::SplitTcp, format!("{because}; {}", split.text)),
        _ => (Verdict::SplitTcp, format!("{because}; nothing shows that data are held until they are complete")),
    }
}
