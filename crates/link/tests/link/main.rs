//! Tests of a direction from outside: single behaviours, and properties of all directions.

mod behaviour;
mod naive;
mod properties;
