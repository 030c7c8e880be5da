#[flux::kernel]
struct Kernel;

fn main() {}
