//! What the macro does for each shipped kernel and schedule: lower, check, compile to PTX.
//!
//! `cargo bench -p flux-cli --bench expansion`

use flux_ir::check::verify;
use flux_ir::lower::lower;
use std::error::Error;
use std::time::Instant;

const ROUNDS: usize = 5;

fn main() -> Result<(), Box<dyn Error>> {
    println!("kernel, schedule: ms to lower, to check, to compile (median of {ROUNDS})");
    for definition in flux::kernels::all() {
        let kernel = definition.kernel()?;
        for (index, schedule) in (definition.schedules)().iter().enumerate() {
            let mut times = [Vec::new(), Vec::new(), Vec::new()];
            for _ in 0..ROUNDS {
                let start = Instant::now();
                let program = lower(&kernel, schedule)?;
                let lowered = Instant::now();
                let verified = verify(program)?;
                let checked = Instant::now();
                flux_codegen::compile(&verified)?;
                let compiled = Instant::now();
                for (times, (from, to)) in times.iter_mut().zip([
                    (start, lowered),
                    (lowered, checked),
                    (checked, compiled),
                ]) {
                    times.push((to - from).as_secs_f64() * 1e3);
                }
            }
            let [lower, check, compile] = times.map(median);
            println!("{}, {index}: {lower:.2}, {check:.1}, {compile:.1}", definition.name);
        }
    }
    Ok(())
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}
