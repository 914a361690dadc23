//! Tests of the source tree itself. They read files and run nothing, and take seconds.

mod documents;
mod imports;
mod rooms;
