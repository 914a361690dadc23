//! Checks of single values, for those of what they belong to.

use crate::{
    law::{SizeLaw, SpanLaw},
    sources::Offer,
};
use toml_file::Fault;
use units::{Bytes, PKT, Span};

/// A fault at `path`, unless `ok`.
pub(crate) fn need(ok: bool, path: String, message: String) -> Result<(), Fault> {
    if ok { Ok(()) } else { Err(Fault::new(path, message)) }
}

pub(crate) fn check_size(path: &str, size: SizeLaw) -> Result<(), Fault> {
    need(size.mean.0 > 0, path.into(), "is 0: a transfer has at least one byte".into())
}

pub(crate) fn check_window(path: &str, window: Option<Bytes>) -> Result<(), Fault> {
    let opens = window.is_none_or(|window| window >= PKT);
    need(opens, path.into(), "is less than one packet: nothing could be sent".into())
}

/// Spells and pauses go together, and a source that never sends is left out.
pub(crate) fn check_spells(path: &str, on: Option<SpanLaw>, off: Option<SpanLaw>) -> Result<(), Fault> {
    let wrong = |message: &str| Err(Fault::new(format!("{path}.on"), message));
    match on {
        _ if on.is_some() != off.is_some() => wrong("on and off go together: give both, or neither for a source that never pauses"),
        Some(on) if on == Span::ZERO.into() => wrong("is 0: it would never send"),
        _ => Ok(()),
    }
}

pub(crate) fn check_offer(path: &str, offer: Option<Offer>) -> Result<(), Fault> {
    let Some(offer) = offer else { return Ok(()) };
    need(offer.bytes != Bytes(0).into(), format!("{path}.offers.bytes"), "is 0: it would never send".into())?;
    need(offer.every != Span::ZERO.into(), format!("{path}.offers.every"), "is 0: leave the offer out instead".into())?;
    check_spells(&format!("{path}.offers"), offer.on, offer.off)
}
