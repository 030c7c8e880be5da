//! Two devices that reach each other's memory.

use super::{LONG, content_of, function, launch};
use flux_runtime::{
    Device, DeviceBuffer, Error, Event, HeapMemory, Heaps, HostBuffer, Launch, Rows, Stream, Timing,
};
use libtest_mimic::Trial;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

type Pair = [Arc<Device>; 2];
type Case = fn(Pair);

/// Every case, ignored unless there are two devices that reach each other.
pub(crate) fn trials(no_device: bool) -> impl Iterator<Item = Trial> {
    let pair = found();
    if let (Err(reason), false) = (&pair, no_device) {
        println!("skipped: one CUDA device ({reason})");
    }
    let cases: [(&str, Case); 7] = [
        ("peers_are_enabled_once_or_often", enabled_often),
        ("rows_and_words_move_between_devices", rows_and_words),
        ("copies_to_a_peer_need_no_multiprocessor", beside_full_grids),
        ("heaps_of_two_devices_reach_each_other", heaps_of_two),
        ("copies_between_devices_are_timed", bandwidth),
        ("rows_between_devices_are_timed", rows_timed),
        ("signals_between_devices_are_timed", round_trip),
    ];
    cases.into_iter().map(move |(name, case)| {
        let pair = pair.clone();
        let missing = pair.is_err();
        let run = move || {
            let [near, far] = pair?;
            // No sooner: cases of one device run as if it were alone.
            near.enable_peer(&far)?;
            far.enable_peer(&near)?;
            case([near, far]);
            Ok(())
        };
        Trial::test(name, run).with_ignored_flag(missing)
    })
}

fn found() -> Result<Pair, Error> {
    let [near, far] = [Device::open(0)?, Device::open(1)?];
    near.require_peer(&far)?;
    far.require_peer(&near)?;
    Ok([near, far])
}

fn enabled_often([near, far]: Pair) {
    for _ in 0..2 {
        assert_eq!(near.enable_peer(&far), Ok(()));
        assert_eq!(near.enable_peer(&near), Ok(()));
        // The primary context is the same one, and stays as it is.
        assert_eq!(Device::open(0).unwrap().enable_peer(&far), Ok(()));
    }
    // Reached is not owned.
    let memory = DeviceBuffer::alloc(&near, 64).unwrap();
    // SAFETY: it is refused.
    let error = unsafe { DeviceBuffer::from_raw(&far, memory.address(), 64) }.unwrap_err();
    assert_eq!(error, Error::OtherDevice { what: "the memory", need: 1, found: 0 });
    let pinned = HostBuffer::alloc(&near, 64).unwrap();
    // SAFETY: the memory of the host lives longer.
    assert!(unsafe { DeviceBuffer::from_raw(&far, pinned.address(), 64) }.is_ok());
}

/// Dense rows, rows of other pitches on both sides, parts of rows, and the words behind them.
fn rows_and_words([near, far]: Pair) {
    let (rows, pitch) = (300u64, 1000u64);
    let data: Vec<u8> = (0..rows * pitch).map(|i| (i * 7 % 251) as u8).collect();
    let from = DeviceBuffer::alloc(&near, rows * pitch).unwrap();
    from.copy_from(0, &data).unwrap();
    // Enqueued on the source's device and on the target's.
    for stream in [Stream::new(&near).unwrap(), Stream::new(&far).unwrap()] {
        for (to_pitch, width) in [(1000, 1000), (1024, 1000), (1500, 333), (1000, 16)] {
            let to = DeviceBuffer::alloc_zeroed(&far, rows * to_pitch).unwrap();
            let words = DeviceBuffer::alloc_zeroed(&far, 16).unwrap();
            let of = |span, pitch_bytes| Rows { span, pitch_bytes };
            let source = from.span().part(40, rows * pitch - 40).unwrap();
            let high = if width == 1000 { rows - 1 } else { rows };
            stream.copy_2d(of(to.span(), to_pitch), of(source, pitch), width, high).unwrap();
            stream.write_u32(words.span(), 7).unwrap();
            let second = words.span().part(8, 4).unwrap();
            let third = words.span().part(12, 4).unwrap();
            stream.write_words(&[(second, 8), (third, 9)]).unwrap();
            stream.synchronize(LONG).unwrap();
            let mut back = vec![0u8; (rows * to_pitch) as usize];
            to.copy_to(0, &mut back).unwrap();
            for (row, found) in back.chunks(to_pitch as usize).enumerate() {
                let start = 40 + row * pitch as usize;
                let (head, gap) = found.split_at(width as usize);
                if (row as u64) < high {
                    assert_eq!(head, &data[start..start + width as usize], "row {row}");
                } else {
                    assert!(head.iter().all(|&byte| byte == 0));
                }
                assert!(gap.iter().all(|&byte| byte == 0), "row {row}: the gap was written");
            }
            let mut found = [0u32; 4];
            words.copy_to(0, &mut found).unwrap();
            assert_eq!(found, [7, 0, 8, 9]);
        }
    }
}

/// While kernels hold every thread of both devices, rows travel and words follow them.
fn beside_full_grids([near, far]: Pair) {
    let (rows, pitch) = (512u64, 48u64 << 10);
    let from = DeviceBuffer::alloc(&near, rows * pitch).unwrap();
    from.fill(0x5a).unwrap();
    let to = DeviceBuffer::alloc_zeroed(&far, rows * pitch).unwrap();
    let gates = [&near, &far].map(|device| DeviceBuffer::alloc_zeroed(device, 8).unwrap());
    let openers = [&near, &far].map(|device| Stream::new(device).unwrap());
    let kernels = [&near, &far].map(|device| Stream::new(device).unwrap());
    let copies = Stream::new(&near).unwrap();
    let (begin, end) = (Event::new(&near, Timing::On), Event::new(&near, Timing::On));
    let (begin, end) = (begin.unwrap(), end.unwrap());
    let arrived = DeviceBuffer::alloc_zeroed(&far, 4).unwrap();
    let echo = [&near, &far].map(|device| function(device, "echo", 0));
    for ((echo, gate), kernel) in echo.iter().zip(&gates).zip(&kernels) {
        let words = [gate.address(), 20_000_000_000];
        let ctas = 2 * echo.device().properties().sms;
        let full = Launch { threads: 1024, ..launch(echo, ctas, &words) };
        // SAFETY: the kernel uses two words at its address, both by atomic operations.
        unsafe { full.enqueue(kernel) }.unwrap();
    }
    let mut held = false;
    for (name, width) in [("whole", pitch), ("pitched", pitch / 4)] {
        let of = |span| Rows { span, pitch_bytes: pitch };
        copies.record(&begin).unwrap();
        copies.copy_2d(of(to.span()), of(from.span()), width, rows).unwrap();
        copies.write_u32(arrived.span(), 1).unwrap();
        copies.record(&end).unwrap();
        held |= end.synchronize(Duration::from_secs(2)).is_err();
        if !held {
            let ms = end.ms_since(&begin).unwrap();
            let rate = (rows * width) as f32 / ms / 1e6;
            println!(
                "{name} rows to a peer beside full grids: {rate:.0} GB/s ({:.1} us)",
                ms * 1e3
            );
        }
    }
    for (gate, opener) in gates.iter().zip(&openers) {
        opener.write_u32(gate.span(), 1).unwrap();
    }
    for stream in kernels.iter().chain([&copies]) {
        stream.synchronize(LONG).unwrap();
    }
    let mut back = vec![0u8; (rows * pitch) as usize];
    to.copy_to(0, &mut back).unwrap();
    assert!(back.iter().all(|&byte| byte == 0x5a));
    assert!(!held, "a copy waited for the multiprocessors");
}

fn heaps_of_two([near, far]: Pair) {
    let ranks = [&near, &far, &near].map(|device| (device.clone(), HeapMemory::Device));
    let heaps = Heaps::of(&ranks, 1024, 512).unwrap();
    for (rank, (device, _)) in ranks.iter().enumerate() {
        let rank = rank as u32;
        let mut table = [0u8; 48];
        let address = heaps.device_table(rank).unwrap();
        // SAFETY: the table has 48 bytes and lives as long as the heaps.
        let buffer = unsafe { DeviceBuffer::from_raw(device, address, 48) }.unwrap();
        buffer.copy_to(0, &mut table).unwrap();
        let words = table.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap()));
        let expected = (0..3)
            .map(|rank| heaps.device(rank).unwrap().address())
            .chain((0..3).map(|rank| heaps.host(rank).unwrap().address()));
        assert!(words.eq(expected), "rank {rank}");
        assert_eq!([heaps.is_on(rank, &near), heaps.is_on(rank, &far)], [rank != 1, rank == 1]);
        let mut content = [1u8; 1024];
        content_of(device, heaps.device(rank).unwrap(), &mut content);
        assert_eq!(content, [0; 1024]);
    }
    // A kernel of each device adds up words of both, and stores the sums on the other one.
    for (own, other) in [(&near, 1), (&far, 0)] {
        let stream = Stream::new(own).unwrap();
        let of_pair = [0, 1].map(|rank| heaps.span(rank, 0, 256).unwrap());
        stream.fill_u32(of_pair[0], 3).unwrap();
        stream.fill_u32(of_pair[1], 4).unwrap();
        let add = function(own, "add", 0);
        let sum = heaps.span(other, 512, 256).unwrap().address();
        let words = [of_pair[0].address(), of_pair[1].address(), sum, 64];
        // SAFETY: three times 64 words of the heaps.
        unsafe { launch(&add, 1, &words).enqueue(&stream) }.unwrap();
        stream.synchronize(LONG).unwrap();
        let mut content = [0u8; 1024];
        content_of(&ranks[other as usize].0, heaps.device(other).unwrap(), &mut content);
        let sums = content[512..768].chunks_exact(4);
        assert!(sums.into_iter().all(|word| word == [7, 0, 0, 0]));
    }
}

/// Microseconds of `times` copies of `bytes` bytes in a stream of each of `sides`, the longest.
fn copies_us(pair: &Pair, sides: &[usize], bytes: u64, times: u32) -> f32 {
    let setup = |&side: &usize| {
        let (own, other) = (&pair[side], &pair[1 - side]);
        let event = || Event::new(own, Timing::On).unwrap();
        let (from, to) =
            (DeviceBuffer::alloc_zeroed(own, bytes), DeviceBuffer::alloc(other, bytes));
        (Stream::new(own).unwrap(), from.unwrap(), to.unwrap(), event(), event())
    };
    let lanes: Vec<_> = sides.iter().map(setup).collect();
    for _ in 0..2 {
        for (stream, from, to, begin, end) in &lanes {
            stream.record(begin).unwrap();
            for _ in 0..times {
                stream.copy(to.span(), from.span()).unwrap();
            }
            stream.record(end).unwrap();
        }
        for (stream, ..) in &lanes {
            stream.synchronize(LONG).unwrap();
        }
    }
    let taken = lanes.iter().map(|(.., begin, end)| end.ms_since(begin).unwrap() * 1e3);
    taken.fold(0.0, f32::max)
}

/// Printed, not judged.
fn bandwidth(pair: Pair) {
    for bytes in [4 << 10, 1 << 20, 16 << 20, 256 << 20u64] {
        let times = if bytes < 16 << 20 { 50 } else { 10 };
        for (name, sides) in [("one way", &[0][..]), ("other way", &[1]), ("both ways", &[0, 1])] {
            let one = copies_us(&pair, sides, bytes, 1);
            let many = copies_us(&pair, sides, bytes, times) / times as f32;
            let rate = bytes as f32 / many / 1e3;
            println!(
                "copies of {:8.3} MiB {name:9}: {rate:6.1} GB/s a direction, {many:7.2} us each, {one:7.2} us alone",
                bytes as f32 / (1 << 20) as f32
            );
        }
    }
}

/// Rows of a pitch to rows of the same: printed, not judged.
fn rows_timed([near, far]: Pair) {
    let (rows, pitch) = (1024u64, 16u64 << 10);
    let from = DeviceBuffer::alloc_zeroed(&near, rows * pitch).unwrap();
    let to = DeviceBuffer::alloc(&far, rows * pitch).unwrap();
    let stream = Stream::new(&near).unwrap();
    let event = || Event::new(&near, Timing::On).unwrap();
    let (begin, end) = (event(), event());
    for width in [768, 1536, 3072, 6144, 12288] {
        let of = |span| Rows { span, pitch_bytes: pitch };
        for _ in 0..2 {
            stream.record(&begin).unwrap();
            for _ in 0..10 {
                stream.copy_2d(of(to.span()), of(from.span()), width, rows).unwrap();
            }
            stream.record(&end).unwrap();
            stream.synchronize(LONG).unwrap();
        }
        let us = end.ms_since(&begin).unwrap() * 100.0;
        let rate = (rows * width) as f32 / us / 1e3;
        println!("{rows} rows of {width:5} bytes to a peer: {rate:6.1} GB/s, {us:7.2} us");
    }
}

/// A word to and fro between two kernels: printed, not judged.
fn round_trip(pair: Pair) {
    const ROUNDS: u64 = 2000;
    for (name, homes) in [("two devices", [0, 1]), ("one device", [0, 0])] {
        let devices = homes.map(|home: usize| &pair[home]);
        let words = devices.map(|device| DeviceBuffer::alloc_zeroed(device, 4).unwrap());
        let kernels = devices.map(|device| function(device, "ping_pong", 0));
        let streams = devices.map(|device| Stream::new(device).unwrap());
        let ended = devices.map(|device| HostBuffer::alloc(device, 8).unwrap());
        for side in [0, 1] {
            let (own, other) = (words[side].address(), words[1 - side].address());
            let given = [own, other, ROUNDS, side as u64, 5_000_000_000, ended[side].address()];
            let alone = Launch { threads: 1, ..launch(&kernels[side], 1, &given) };
            // SAFETY: the kernel uses the words at three addresses, by atomic operations.
            unsafe { alone.enqueue(&streams[side]) }.unwrap();
        }
        for stream in &streams {
            stream.synchronize(LONG).unwrap();
        }
        let ns = ended[0].words()[0].load(Ordering::Acquire);
        assert_ne!(ns, 0, "{name}: a word did not come");
        println!("a signal to and fro, {name}: {:.2} us", f64::from(ns) / 1e3 / ROUNDS as f64);
    }
}
