//! The papers' tables and figures. Each is a scenario file together with what the
//! paper printed and claimed; here is the index of them and what outcomes say to it ([`Row`], and the judgement of a claim). Who plays the scenarios is the caller's business. The data are under `papers/`, a folder a paper, and part
//! of the program.

mod claim;
mod findings;
mod index;
mod model;
mod part;

pub use claim::{ALIKE, Claim, Judgement, Pair, Ratio, Verdict};
pub use findings::{BOUNDED, Mean, Origin, Row};
pub use index::{Apart, Entry, Experiment, Paper, PaperError, Printed, Variation, papers};
pub use model::{Line, Model, Question, Sheet};
pub use part::{Part, Player};
