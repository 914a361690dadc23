//! The equations against the papers' lemmas and tables, closed forms, and other ways to compute them.

mod buffer;
mod can;
mod constructions;
mod lemmas;
mod split;
