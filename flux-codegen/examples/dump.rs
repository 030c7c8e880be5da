//! Prints the PTX of a kernel in text form: `dump FILE m n k stages (cooperative|ping_pong)`.

use flux_ir::{Consumers, Kernel, Schedule};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    let number = |index: usize| arguments[index].parse::<u32>();
    let kernel: Kernel = std::fs::read_to_string(&arguments[1])?.parse()?;
    let consumers = match arguments[6].as_str() {
        "ping_pong" => Consumers::PingPong,
        _ => Consumers::Cooperative,
    };
    let schedule = Schedule::sm_90a()
        .tile(number(2)?, number(3)?, number(4)?)
        .stages(number(5)?)
        .consumers(consumers);
    let program = flux_ir::lower::lower(&kernel, &schedule)?;
    if std::env::var_os("SHOW").is_some() {
        eprintln!("{program}");
        eprintln!("{:#?}", flux_ir::abi::Abi::of(&program));
    }
    let verified = flux_ir::check::verify(program)?;
    let start = std::time::Instant::now();
    let image = flux_codegen::compile(&verified)?;
    eprintln!("{:?} {} bytes shared", start.elapsed(), image.shared_bytes);
    println!("{}", image.ptx);
    Ok(())
}
