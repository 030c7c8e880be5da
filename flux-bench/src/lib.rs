//! The instrument: kernels and communication measured beside live baselines, in one run.
//!
//! What a comparison needs to be believed is built in: contestants take turns (A B A B …), operands
//! rotate over more than twice the L2 cache, data are random and normal, every contestant's result
//! is verified in the run that times it, and medians come with their quartiles, clocks, power and
//! temperature. Nothing here picks the rows that it prints.
//!
//! | question | here |
//! |---|---|
//! | samples, medians, ratios of pairs | [`sample`] |
//! | taking turns | [`rotation`] |
//! | bound ratio, exposed communication, efficiency | [`overlap`] |
//! | sets of shapes, layers of models | [`shapes`], [`workload`] |
//! | tables, JSON | [`report`] |
//! | bars as SVG | [`chart`] |
//! | clocks, power, temperature | [`telemetry`] |
//! | measurements on a GPU | [`device`] |
//! | measurements on several | [`ranks`] |
//! | results alone, on the host | [`quick`] |

pub mod chart;
pub mod device;
mod error;
pub mod kernels;
pub mod overlap;
pub mod quick;
pub mod ranks;
pub mod report;
pub mod rotation;
pub mod sample;
pub mod shapes;
mod stage;
pub mod telemetry;
pub mod workload;

pub use error::Error;
pub use stage::tell_stages;
