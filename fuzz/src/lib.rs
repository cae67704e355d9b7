//! The code that the fuzz targets run.

pub mod checks;
pub mod host;
pub mod http;
pub mod lab;
pub mod local;
