//! The papers' tables and figures, and what follows for a path of one's own ([`advise`]). Each is a scenario file together with what the
//! paper printed and claimed; here is the index of them, what outcomes say to it ([`Row`], and the judgement of a claim), and the bound that
//! fair sharing sets ([`Bound`]). Who plays the scenarios is the caller's business. The data are under `papers/`, a folder a paper, and part
//! of the program.

pub mod advise;
mod bound;
mod claim;
mod findings;
mod index;
mod model;
mod part;

pub use bound::Bound;
pub use claim::{ALIKE, Claim, Judgement, Pair, Ratio, Verdict};
pub use findings::{BOUNDED, Mean, Origin, Row};
pub use index::{Apart, Entry, Experiment, Paper, PaperError, Printed, Variation, papers};
pub use model::{Line, Model, Question, Sheet};
pub use part::{Part, Player};
