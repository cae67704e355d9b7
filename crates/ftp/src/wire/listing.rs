//! Directories: MLST and MLSD facts, and `ls -l` as servers write it.
//!
//! Properties kept: decoding undoes encoding; no name has a line break; a size is below 2^63.

mod entry;
mod ls;
mod mlsx;
#[cfg(test)]
mod tests;

pub use entry::{Entry, Facts, Kind};
pub use ls::{encode_ls, parse_list_line};
pub use mlsx::{encode_mlsx, parse_mlsx_line};
