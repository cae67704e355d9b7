//! SOBAS on a fluid model of a path: it must find the path's rate and keep to it.

mod model;
mod paced;
mod published;

use model::Path;

/// A path with a queue of an eighth of the BDP.
const SHALLOW: Path = Path::new(100.0, 40.0, 5.0);
/// A path with a queue of nearly ten BDPs.
const DEEP: Path = Path::new(100.0, 50.0, 480.0);
