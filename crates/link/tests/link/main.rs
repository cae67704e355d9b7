//! A direction seen from outside: single behaviours, and what holds for all of them.

mod behaviour;
mod naive;
mod properties;
