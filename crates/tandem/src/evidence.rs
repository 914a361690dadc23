//! Text forms of a piece of evidence, for tables.

use detect::{Evidence, Indication, Strength};

/// What the evidence indicates.
pub(crate) fn says(says: Indication) -> &'static str {
    match says {
        Indication::EndToEnd => "end-to-end",
        Indication::Split => "split",
        Indication::SplitTcp => "split-tcp, if split",
        Indication::TcpProxy => "tcp-proxy, if split",
        Indication::Nothing => "nothing",
    }
}

/// The strength of the evidence; empty if it indicates nothing.
pub(crate) fn strength(piece: &Evidence) -> &'static str {
    match (piece.says, piece.strength) {
        (Indication::Nothing, _) => "",
        (_, Strength::Weak) => "weak",
        (_, Strength::Moderate) => "moderate",
        (_, Strength::Strong) => "strong",
    }
}

/// The name of the method, as in JSON.
pub(crate) fn method(piece: &Evidence) -> String {
    serde_json::to_value(piece.method).ok().and_then(|name| name.as_str().map(String::from)).unwrap_or_default()
}
