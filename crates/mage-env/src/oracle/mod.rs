//! How well could one possibly do?

mod report;

pub use report::{Curve, NamedValue, OracleReport, SeatOracle};
