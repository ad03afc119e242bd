//! The tidekv command line.
fn main() {}
