use flux::prelude::*;

#[schedule(host)]
fn helper() {}

fn main() {}
