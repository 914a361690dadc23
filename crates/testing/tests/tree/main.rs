//! What holds of the source tree itself. These tests read files and run nothing, so that they take
//! seconds.

mod documents;
mod imports;
mod rooms;
