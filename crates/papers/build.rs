//! Embeds new files below `papers/`: without this, only changes of embedded files are noticed.

fn main() {
    println!("cargo::rerun-if-changed=../../papers");
}
