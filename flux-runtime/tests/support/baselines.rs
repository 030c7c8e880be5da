//! What benches compare with, and how they draw and compare numbers.

use super::LONG;
use flux_runtime::blas::{Blas, GemmShape};
use flux_runtime::numbers::{Bound, Difference, Numbers};
use flux_runtime::{Device, DeviceBuffer, ElementKind, Error, Stream};
use half::bf16;
use std::sync::Arc;

pub(crate) fn the_baseline_multiplies_small_integers_exactly(device: Arc<Device>) {
    let blas = match Blas::new(&device) {
        Ok(blas) => blas,
        Err(error) => {
            println!("skipped: no cuBLASLt ({error})");
            return;
        }
    };
    let stream = Stream::new(&device).unwrap();
    let (m, n, k) = (40usize, 24usize, 72usize);
    let operand = |rows: usize, seed: usize| -> Vec<i32> {
        (0..rows * k).map(|i| ((i * 7 + i / k * 3 + seed) % 5) as i32 - 2).collect()
    };
    let (a, b) = (operand(m, 0), operand(n, 1));
    let upload = |values: &[i32]| {
        let bits: Vec<u16> = values.iter().map(|v| bf16::from_f32(*v as f32).to_bits()).collect();
        let buffer = DeviceBuffer::alloc(&device, 2 * bits.len() as u64).unwrap();
        buffer.copy_from(0, &bits).unwrap();
        buffer
    };
    let (left, right) = (upload(&a), upload(&b));
    let out = DeviceBuffer::alloc(&device, (2 * m * n) as u64).unwrap();
    let shape = GemmShape {
        m: m as u64,
        n: n as u64,
        k: k as u64,
        element: ElementKind::Bf16,
        alignment: 256,
    };
    let mut gemm = blas.gemm(shape).unwrap();
    let spans = (left.span(), right.span(), out.span());
    let check = || {
        let mut bits = vec![0u16; m * n];
        out.copy_to(0, &mut bits).unwrap();
        for (row, col) in (0..m).flat_map(|row| (0..n).map(move |col| (row, col))) {
            let terms = a[row * k..].iter().zip(&b[col * k..]).take(k);
            let sum: i32 = terms.map(|(a, b)| a * b).sum();
            assert_eq!(bits[row * n + col], bf16::from_f32(sum as f32).to_bits(), "{row} {col}");
        }
    };
    out.fill(0xff).unwrap();
    gemm.run(&stream, spans.0, spans.1, spans.2).unwrap();
    stream.synchronize(LONG).unwrap();
    check();
    out.fill(0xff).unwrap();
    let times = gemm.tune(&stream, spans.0, spans.1, spans.2, 3, LONG).unwrap();
    println!("ms of each algorithm: {times:?}");
    gemm.run(&stream, spans.0, spans.1, spans.2).unwrap();
    stream.synchronize(LONG).unwrap();
    check();
    let short = out.span().part(0, 16).unwrap();
    assert!(matches!(gemm.run(&stream, spans.0, spans.1, short), Err(Error::OutOfBounds { .. })));
}

pub(crate) fn numbers_are_drawn_compared_and_summed(device: Arc<Device>) {
    let stream = Stream::new(&device).unwrap();
    let numbers = Numbers::load(&device, ElementKind::Bf16).unwrap();
    let (many, odd) = (1usize << 20, (1u64 << 20) - 1);
    let buffer = || DeviceBuffer::alloc(&device, 2 << 20).unwrap();
    let read = |buffer: &DeviceBuffer| {
        stream.synchronize(LONG).unwrap();
        let mut values = vec![bf16::ZERO; many];
        buffer.copy_to(0, &mut values).unwrap();
        values.iter().map(|value| f64::from(value.to_f32())).collect::<Vec<_>>()
    };
    let (x, y) = (buffer(), buffer());
    // An odd number of elements leaves the one behind them alone.
    x.fill(0xff).unwrap();
    numbers.normal(&stream, x.span().part(0, 2 * odd).unwrap(), 5, 2.0).unwrap();
    let drawn = read(&x);
    assert!(drawn[many - 1].is_nan());
    let drawn = &drawn[..many - 1];
    let mean = drawn.iter().sum::<f64>() / drawn.len() as f64;
    let variance = drawn.iter().map(|value| value * value).sum::<f64>() / drawn.len() as f64;
    assert!(mean.abs() < 0.01 && (variance - 4.0).abs() < 0.05, "{mean} {variance}");
    assert!(drawn.iter().any(|value| value.abs() > 8.0), "no tails");
    // The same seed draws the same, another one does not.
    numbers.normal(&stream, x.span(), 5, 1.0).unwrap();
    numbers.normal(&stream, y.span(), 5, 1.0).unwrap();
    let compare = |bound| numbers.compare(&stream, x.span(), y.span(), bound, LONG).unwrap();
    assert_eq!(compare(Bound::EXACT), Difference { wrong: 0, largest: 0.0 });
    numbers.normal(&stream, y.span(), 6, 1.0).unwrap();
    assert!(compare(Bound::EXACT).wrong as usize > many / 2);
    // One element off, one that is no number.
    stream.copy(y.span(), x.span()).unwrap();
    stream.synchronize(LONG).unwrap();
    y.copy_from(2 * 12345, &[bf16::from_f32(100.0)]).unwrap();
    assert_eq!(compare(Bound { relative: 0.0, absolute: 8.0 }).wrong, 1);
    y.copy_from(2 * 7, &[bf16::NAN]).unwrap();
    let found = compare(Bound { relative: 0.0, absolute: 1000.0 });
    assert!(found.wrong == 1 && found.largest.is_nan(), "{found:?}");
    // Small integers add up exactly, and half of them are zero where that was asked for.
    numbers.integers(&stream, x.span(), 1, 0.5).unwrap();
    let own = read(&x);
    let zeros = own.iter().filter(|&&value| value == 0.0).count();
    assert!((zeros as f64 / many as f64 - 0.5).abs() < 0.01);
    assert!((own.iter().sum::<f64>() / many as f64).abs() < 0.01, "as many of either sign");
    let planes = DeviceBuffer::alloc(&device, 4 << 20).unwrap();
    numbers.integers(&stream, planes.span(), 2, 1.0).unwrap();
    numbers.sum(&stream, y.span(), x.span(), (planes.span(), 2 << 20), 2).unwrap();
    let total = read(&y);
    let mut values = vec![bf16::ZERO; 2 * many];
    planes.copy_to(0, &mut values).unwrap();
    for (index, total) in total.iter().enumerate() {
        let peers = [values[index], values[many + index]].map(|value| f64::from(value.to_f32()));
        assert_eq!(*total, own[index] + peers[0] + peers[1], "element {index}");
    }
    assert!(numbers.sum(&stream, y.span(), x.span(), (planes.span(), 2 << 20), 3).is_err());
    assert!(Numbers::load(&device, ElementKind::F32).is_err());
}
