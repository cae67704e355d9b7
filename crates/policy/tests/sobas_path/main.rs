//! SOBAS against a path: does it find the path's rate, and keep to it?

mod model;
mod paced;
mod published;

use model::Path;

/// A queue of an eighth of the bandwidth-delay product.
const SHALLOW: Path = Path::new(100.0, 40.0, 5.0);
/// A queue of many.
const DEEP: Path = Path::new(100.0, 50.0, 480.0);
