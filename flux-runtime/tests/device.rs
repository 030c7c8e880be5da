//! What needs a GPU. Without one, every case is counted as ignored and the reason is printed.
//! Without a second one, so are those that need two.

#[path = "support/baselines.rs"]
mod baselines;
#[path = "support/peers.rs"]
mod peers;
#[path = "support/queues.rs"]
mod queues;

use baselines::{
    numbers_are_drawn_compared_and_summed, the_baseline_multiplies_small_integers_exactly,
};
use flux_runtime::{
    Device, DeviceBuffer, ElementKind, Error, Event, Function, HeapMemory, Heaps, HostBuffer,
    Launch, Module, Residency, Rows, Span, Stream, Tensor2d, TensorMap, Timing,
};
use libtest_mimic::{Arguments, Failed, Trial};
use queues::kernels_of_new_streams_do_not_stand_behind_each_other;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Far beyond what any of these tests takes.
const LONG: Duration = Duration::from_secs(60);

const PTX: &str = include_str!("kernels.ptx");

/// A test and its name.
macro_rules! cases {
    ($($name:ident),* $(,)?) => {
        [$((stringify!($name), $name as fn(Arc<Device>))),*]
    };
}

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let device = Device::open(0);
    if let Err(reason) = &device {
        println!("skipped: no CUDA device ({reason})");
    }
    let cases = cases![
        kernels_of_new_streams_do_not_stand_behind_each_other,
        a_device_has_plausible_numbers,
        bytes_come_back_as_they_went,
        nothing_is_fine_and_too_much_is_an_error,
        memory_that_cuda_does_not_know_is_not_adopted,
        rows_move_between_pitches_and_leave_the_gaps_alone,
        dense_rows_move_at_once_and_words_fill,
        copies_beside_a_grid_that_fills_the_device,
        a_word_follows_the_bytes_of_another_stream,
        a_kernel_gets_its_words,
        a_kernel_gets_its_tensor_maps,
        a_wrong_launch_is_refused_before_it_runs,
        bad_ptx_comes_with_the_compilers_log,
        a_kernel_and_the_host_see_each_others_words,
        grids_that_do_not_fit_at_once_are_named,
        heaps_are_zero_and_their_tables_point_at_them,
        heaps_of_passive_ranks_are_pinned_host_memory,
        a_stream_waits_for_a_word_of_the_host,
        words_are_written_together,
        a_graph_replays_what_was_captured,
        events_keep_the_time_when_told_to,
        cudarcs_slices_and_streams_are_taken_as_they_are,
        the_baseline_multiplies_small_integers_exactly,
        numbers_are_drawn_compared_and_summed,
    ];
    let no_device = device.is_err();
    let trials = cases.into_iter().map(|(name, case)| {
        let device = device.clone();
        let missing = device.is_err();
        let run = move || device.map(case).map_err(Failed::from);
        Trial::test(name, run).with_ignored_flag(missing)
    });
    let trials = trials.chain(peers::trials(no_device)).collect();
    libtest_mimic::run(&arguments, trials).exit_code()
}

fn function(device: &Arc<Device>, name: &str, shared_bytes: u32) -> Function {
    Module::load(device, PTX).unwrap().function(name, shared_bytes).unwrap()
}

fn launch<'a>(function: &'a Function, ctas: u32, words: &'a [u64]) -> Launch<'a> {
    let residency = Residency::Independent;
    Launch { function, ctas, threads: 128, shared_bytes: 0, residency, maps: &[], words }
}

fn a_device_has_plausible_numbers(device: Arc<Device>) {
    let properties = device.properties();
    println!("{properties:?}");
    assert!(!properties.name.is_empty());
    assert!(properties.capability.major >= 5);
    assert!(properties.sms >= 1 && properties.shared_bytes >= 48 << 10);
    assert!(device.free_bytes().unwrap() <= properties.memory_bytes);
    assert_eq!(device.require_connections(1), Ok(()));
    assert!(device.require_connections(33).is_err());
}

fn bytes_come_back_as_they_went(device: Arc<Device>) {
    let data: Vec<u32> = (0..1000).map(|i| i * i).collect();
    let buffer = DeviceBuffer::alloc_zeroed(&device, 4000).unwrap();
    let mut back = vec![7u32; 1000];
    buffer.copy_to(0, &mut back).unwrap();
    assert_eq!(back, [0; 1000]);
    buffer.copy_from(0, &data).unwrap();
    buffer.copy_to(0, &mut back).unwrap();
    assert_eq!(back, data);
    let mut middle = [0u32; 3];
    buffer.copy_to(40, &mut middle).unwrap();
    assert_eq!(middle, [100, 121, 144]);
    buffer.fill(0xff).unwrap();
    buffer.copy_to(0, &mut back).unwrap();
    assert_eq!(back, [u32::MAX; 1000]);
    let beyond = buffer.copy_from(4, &data).unwrap_err();
    assert!(matches!(beyond, Error::OutOfBounds { offset: 4, length: 4000, bytes: 4000, .. }));
}

fn nothing_is_fine_and_too_much_is_an_error(device: Arc<Device>) {
    let empty = DeviceBuffer::alloc_zeroed(&device, 0).unwrap();
    empty.copy_from::<u8>(0, &[]).unwrap();
    empty.copy_to::<u8>(0, &mut []).unwrap();
    assert_eq!((empty.address(), empty.bytes()), (0, 0));
    assert_eq!(HostBuffer::alloc(&device, 0).unwrap().words().len(), 0);
    let huge = DeviceBuffer::alloc(&device, 1 << 46).unwrap_err();
    assert!(matches!(huge, Error::OutOfMemory { bytes, .. } if bytes == 1 << 46), "{huge}");
}

fn memory_that_cuda_does_not_know_is_not_adopted(device: Arc<Device>) {
    let ours = DeviceBuffer::alloc(&device, 64).unwrap();
    // SAFETY: `ours` lives longer.
    let adopted = unsafe { DeviceBuffer::from_raw(&device, ours.address(), 64) }.unwrap();
    adopted.copy_from(0, &[5u8; 64]).unwrap();
    drop(adopted);
    let mut back = [0u8; 64];
    ours.copy_to(0, &mut back).unwrap();
    assert_eq!(back, [5; 64]);
    // SAFETY: the address is never used, since it is refused.
    let null = unsafe { DeviceBuffer::from_raw(&device, 0, 64) }.unwrap_err();
    assert_eq!(null, Error::ForeignAddress { address: 0 });
}

fn rows_move_between_pitches_and_leave_the_gaps_alone(device: Arc<Device>) {
    let stream = Stream::new(&device).unwrap();
    let source: Vec<u8> = (0..7 * 40).map(|i| i as u8).collect();
    let from = DeviceBuffer::alloc(&device, 7 * 40).unwrap();
    from.copy_from(0, &source).unwrap();
    for pitch in [24u64, 32, 100] {
        let to = DeviceBuffer::alloc(&device, 7 * pitch).unwrap();
        to.fill(0xee).unwrap();
        let rows = |span, pitch_bytes| Rows { span, pitch_bytes };
        stream.copy_2d(rows(to.span(), pitch), rows(from.span(), 40), 24, 7).unwrap();
        stream.synchronize(LONG).unwrap();
        let mut back = vec![0u8; 7 * pitch as usize];
        to.copy_to(0, &mut back).unwrap();
        for (row, bytes) in back.chunks(pitch as usize).enumerate() {
            assert_eq!(bytes[..24], source[row * 40..row * 40 + 24]);
            assert!(bytes[24..].iter().all(|byte| *byte == 0xee));
        }
        let short = rows(to.span().part(0, 6 * pitch).unwrap(), pitch);
        assert!(stream.copy_2d(short, rows(from.span(), 40), 24, 7).is_err());
    }
}

fn dense_rows_move_at_once_and_words_fill(device: Arc<Device>) {
    let stream = Stream::new(&device).unwrap();
    let from = DeviceBuffer::alloc(&device, 4096).unwrap();
    let to = HostBuffer::alloc(&device, 4096).unwrap();
    stream.fill_u32(from.span(), 0xabcd_1234).unwrap();
    stream.fill_u8(from.span().part(4, 4).unwrap(), 0x11).unwrap();
    let rows = |span| Rows { span, pitch_bytes: 64 };
    stream.copy_2d(rows(to.span()), rows(from.span()), 64, 64).unwrap();
    stream.synchronize(LONG).unwrap();
    let words: Vec<u32> = to.words().iter().map(|word| word.load(Ordering::Acquire)).collect();
    assert_eq!(words[..3], [0xabcd_1234, 0x1111_1111, 0xabcd_1234]);
    assert!(words[2..].iter().all(|word| *word == 0xabcd_1234));
    assert!(stream.fill_u32(from.span().part(2, 4).unwrap(), 0).is_err());
}

/// Copies whole and pitched rows while a kernel holds every thread of the device: whether they wait
/// for it is the driver's to choose and is printed, not what they bring.
fn copies_beside_a_grid_that_fills_the_device(device: Arc<Device>) {
    let (kernel, plain, beside) =
        (Stream::new(&device), Stream::new(&device), Stream::new(&device));
    let (kernel, plain, beside) = (kernel.unwrap(), plain.unwrap(), beside.unwrap());
    let rows = 512u64;
    let pitch = 48 << 10;
    let from = DeviceBuffer::alloc(&device, rows * pitch).unwrap();
    let to = DeviceBuffer::alloc(&device, rows * pitch).unwrap();
    plain.fill_u32(from.span(), 0x1234_5678).unwrap();
    plain.fill_u8(to.span(), 0).unwrap();
    plain.synchronize(LONG).unwrap();
    // The first of its kind may have to load something.
    let part = |span| Rows { span, pitch_bytes: pitch };
    beside.copy_2d_beside(part(to.span()), part(from.span()), pitch / 2, 2).unwrap();
    beside.synchronize(LONG).unwrap();
    let echo = function(&device, "echo", 0);
    let gate = HostBuffer::alloc(&device, 8).unwrap();
    let words = [gate.address(), 20_000_000_000];
    let ctas = 2 * device.properties().sms;
    let full = Launch { threads: 1024, ..launch(&echo, ctas, &words) };
    // SAFETY: the kernel uses two words at its address, both by atomic operations.
    unsafe { full.enqueue(&kernel) }.unwrap();
    let rows_of = |span, pitch_bytes| Rows { span, pitch_bytes };
    let (begin, end) = (Event::new(&device, Timing::On), Event::new(&device, Timing::On));
    let (begin, end) = (begin.unwrap(), end.unwrap());
    let mut held = false;
    for (name, width) in [("whole", pitch), ("pitched", pitch / 4)] {
        beside.record(&begin).unwrap();
        let (to, from) = (rows_of(to.span(), pitch), rows_of(from.span(), pitch));
        beside.copy_2d_beside(to, from, width, rows).unwrap();
        beside.record(&end).unwrap();
        held |= end.synchronize(Duration::from_secs(2)).is_err();
        if !held {
            let ms = end.ms_since(&begin).unwrap();
            let rate = (rows * width) as f32 / ms / 1e6;
            println!("{name} rows beside a full grid: {rate:.0} GB/s ({:.1} us)", ms * 1e3);
        }
    }
    let ordinary = rows_of(to.span(), pitch);
    plain.copy_2d(ordinary, rows_of(from.span(), pitch), pitch, rows).unwrap();
    let waits = plain.synchronize(Duration::from_millis(100)).is_err();
    println!("an ordinary copy waits for the grid: {waits}, one beside it: {held}");
    gate.words()[0].store(1, Ordering::Release);
    for stream in [&kernel, &plain, &beside] {
        stream.synchronize(LONG).unwrap();
    }
    let mut back = vec![0u8; (rows * pitch) as usize];
    to.copy_to(0, &mut back).unwrap();
    assert!(back.chunks(4).all(|word| word == 0x1234_5678u32.to_le_bytes()));
}

fn a_word_follows_the_bytes_of_another_stream(device: Arc<Device>) {
    let (copies, flags) = (Stream::new(&device).unwrap(), Stream::new(&device).unwrap());
    let event = Event::new(&device, Timing::Off).unwrap();
    let bytes = 64 << 20;
    let from = DeviceBuffer::alloc(&device, bytes).unwrap();
    let to = HostBuffer::alloc(&device, bytes).unwrap();
    let arrived = HostBuffer::alloc(&device, 8).unwrap();
    for epoch in 1..=3u32 {
        copies.fill_u32(from.span(), epoch).unwrap();
        copies.copy(to.span(), from.span()).unwrap();
        copies.record(&event).unwrap();
        flags.wait(&event).unwrap();
        flags.write_u32(arrived.span().part(4, 4).unwrap(), epoch).unwrap();
        assert_eq!(arrived.wait_at_least(1, epoch, LONG, || false), Ok(epoch));
        let last = to.words().last().unwrap().load(Ordering::Relaxed);
        assert_eq!((to.words()[0].load(Ordering::Relaxed), last), (epoch, epoch));
    }
    let limit = Duration::from_millis(5);
    let error = arrived.wait_at_least(1, 4, limit, || false).unwrap_err();
    assert_eq!(error, Error::WordTimeout { index: 1, wanted: 4, seen: 3, limit });
}

fn a_kernel_gets_its_words(device: Arc<Device>) {
    let stream = Stream::new(&device).unwrap();
    let add = function(&device, "add", 0);
    println!("{add:?}: {} registers", add.registers().unwrap());
    assert_eq!(add.local_bytes(), Ok(0));
    let n = 1000u32;
    let buffers: Vec<_> = (0..3).map(|_| DeviceBuffer::alloc(&device, 4000).unwrap()).collect();
    let (x, y): (Vec<u32>, Vec<u32>) = ((0..n).collect(), (0..n).map(|i| 3 * i).collect());
    buffers[0].copy_from(0, &x).unwrap();
    buffers[1].copy_from(0, &y).unwrap();
    let words = [buffers[0].address(), buffers[1].address(), buffers[2].address(), n.into()];
    // SAFETY: the kernel reads and writes `n` words at these addresses, which are synchronized.
    unsafe { launch(&add, 8, &words).enqueue(&stream) }.unwrap();
    stream.synchronize(LONG).unwrap();
    let mut sum = vec![0u32; n as usize];
    buffers[2].copy_to(0, &mut sum).unwrap();
    assert!(sum.iter().zip(0..).all(|(sum, i)| *sum == 4 * i));
    // SAFETY: no CTA runs.
    unsafe { launch(&add, 0, &words).enqueue(&stream) }.unwrap();
}

fn a_kernel_gets_its_tensor_maps(device: Arc<Device>) {
    if device.properties().capability.major < 9 {
        println!("skipped: tensor maps need compute capability 9.0");
        return;
    }
    let stream = Stream::new(&device).unwrap();
    let matrix = DeviceBuffer::alloc(&device, 200 * 144).unwrap();
    let maps: Vec<_> = [128, 64]
        .iter()
        .map(|&box_rows| {
            let (element, address) = (ElementKind::Bf16, matrix.address());
            let (rows, cols, pitch_bytes, box_cols) = (200, 72, 144, 64);
            let tensor = Tensor2d { element, address, rows, cols, pitch_bytes, box_rows, box_cols };
            TensorMap::encode_2d(&device, &tensor).unwrap()
        })
        .collect();
    assert_ne!(maps[0], maps[1]);
    let out = DeviceBuffer::alloc_zeroed(&device, 256).unwrap();
    let show = function(&device, "show_maps", 0);
    let words = [out.address()];
    let mut launch = launch(&show, 1, &words);
    launch.maps = &maps;
    launch.threads = 32;
    // SAFETY: the kernel writes 256 bytes to its address.
    unsafe { launch.enqueue(&stream) }.unwrap();
    stream.synchronize(LONG).unwrap();
    let mut seen = [0u64; 32];
    out.copy_to(0, &mut seen).unwrap();
    // A map's own Debug is its words.
    assert_eq!(format!("TensorMap({:?})", &seen[..16]), format!("{:?}", maps[0]));
    assert_eq!(format!("TensorMap({:?})", &seen[16..]), format!("{:?}", maps[1]));
}

fn a_wrong_launch_is_refused_before_it_runs(device: Arc<Device>) {
    let stream = Stream::new(&device).unwrap();
    let add = function(&device, "add", 1024);
    let words = [0; 4];
    let few = launch(&add, 1, &words[..3]);
    if add.parameters().is_some() {
        // SAFETY: it is refused.
        let error = unsafe { few.enqueue(&stream) }.unwrap_err();
        assert!(matches!(error, Error::Parameters { .. }), "{error}");
    } else {
        println!("skipped: this driver does not tell a function's parameters");
    }
    for (threads, shared_bytes) in [(0, 0), (2048, 0), (128, 1025)] {
        let launch = Launch { threads, shared_bytes, ..launch(&add, 1, &words) };
        // SAFETY: it is refused.
        let error = unsafe { launch.enqueue(&stream) }.unwrap_err();
        assert!(matches!(error, Error::OutOfRange { .. }), "{error}");
    }
    let module = Module::load(&device, PTX).unwrap();
    let missing = module.function("subtract", 0).unwrap_err();
    assert_eq!(missing.to_string(), "the module has no function `subtract`");
    assert!(matches!(module.function("add", 1 << 20), Err(Error::OutOfRange { .. })));
}

fn bad_ptx_comes_with_the_compilers_log(device: Arc<Device>) {
    let bad = PTX.replace("add.u32", "no_such_instruction.u32");
    let error = Module::load(&device, &bad).unwrap_err();
    println!("{error}");
    let Error::Jit { name, log } = error else { panic!("{error}") };
    assert_eq!(name, "CUDA_ERROR_INVALID_PTX");
    assert!(log.contains("no_such_instruction"), "{log}");
    assert!(matches!(Module::load(&device, "a\0b"), Err(Error::Jit { .. })));
}

fn a_kernel_and_the_host_see_each_others_words(device: Arc<Device>) {
    let stream = Stream::new(&device).unwrap();
    let echo = function(&device, "echo", 0);
    let memory = HostBuffer::alloc(&device, 8).unwrap();
    let limit_ns = 20_000_000_000;
    let words = [memory.address(), limit_ns];
    let spin = Launch { threads: 1, ..launch(&echo, 1, &words) };
    // SAFETY: the kernel uses two words at its address, both by atomic operations.
    unsafe { spin.enqueue(&stream) }.unwrap();
    let limit = Duration::from_millis(20);
    assert!(matches!(stream.synchronize(limit), Err(Error::Timeout { .. })));
    assert_eq!(stream.is_idle(), Ok(false));
    memory.words()[0].store(41, Ordering::Release);
    assert_eq!(memory.wait_at_least(1, 42, LONG, || false), Ok(42));
    stream.synchronize(LONG).unwrap();
    assert_eq!(stream.is_idle(), Ok(true));
}

fn grids_that_do_not_fit_at_once_are_named(device: Arc<Device>) {
    let stream = Stream::new(&device).unwrap();
    let sms = device.properties().sms;
    // More than half of an SM's shared memory: one CTA on each.
    let shared_bytes = device.properties().shared_bytes / 2 + 4096;
    let add = function(&device, "add", shared_bytes);
    assert_eq!(add.ctas_per_sm(128, shared_bytes), Ok(1));
    assert_eq!(add.require_resident(1, sms, 128, shared_bytes), Ok(()));
    let error = add.require_resident(2, sms / 2 + 1, 128, shared_bytes).unwrap_err();
    println!("{error}");
    assert!(matches!(error, Error::NotResident { grids: 2, fit, .. } if fit == sms));
    let words = [0; 4];
    let mut launch = launch(&add, sms, &words);
    (launch.shared_bytes, launch.residency) = (shared_bytes, Residency::Cooperative);
    // SAFETY: the kernel is told of no elements.
    unsafe { launch.enqueue(&stream) }.unwrap();
    stream.synchronize(LONG).unwrap();
    launch.ctas = sms + 1;
    // SAFETY: it is refused.
    let error = unsafe { launch.enqueue(&stream) }.unwrap_err();
    assert!(error.to_string().contains("COOPERATIVE_LAUNCH_TOO_LARGE"), "{error}");
}

fn heaps_are_zero_and_their_tables_point_at_them(device: Arc<Device>) {
    let heaps = Heaps::allocate(&device, 3, 1024, 512).unwrap();
    // SAFETY: the tables are 48 bytes that live as long as the heaps.
    let tables =
        unsafe { DeviceBuffer::from_raw(&device, heaps.device_table(1).unwrap(), 48) }.unwrap();
    let mut addresses = [0u64; 6];
    tables.copy_to(0, &mut addresses).unwrap();
    assert_eq!(heaps.host_table(1).unwrap(), heaps.device_table(1).unwrap() + 24);
    assert!(heaps.device_table(3).is_err());
    for rank in 0..3 {
        assert_eq!(addresses[rank as usize], heaps.device(rank).unwrap().address());
        assert_eq!(addresses[3 + rank as usize], heaps.host(rank).unwrap().address());
        let mut content = [1u8; 1024];
        content_of(&device, heaps.device(rank).unwrap(), &mut content);
        assert_eq!(content, [0; 1024]);
        assert!(heaps.host(rank).unwrap().words().iter().all(|w| w.load(Ordering::Relaxed) == 0));
    }
    assert_eq!(heaps.span(1, 256, 768).unwrap().address(), addresses[1] + 256);
    assert!(heaps.span(1, 256, 769).is_err());
    assert_eq!(heaps.span(3, 0, 0).unwrap_err(), Error::NoSuchRank { rank: 3, world: 3 });
    assert!(matches!(Heaps::allocate(&device, 0, 0, 0), Err(Error::OutOfRange { .. })));
}

fn content_of(device: &Arc<Device>, span: Span<'_>, content: &mut [u8]) {
    // SAFETY: the span is borrowed from its owner for as long as this runs.
    let buffer = unsafe { DeviceBuffer::from_raw(device, span.address(), span.bytes()) }.unwrap();
    buffer.copy_to(0, content).unwrap();
}

fn heaps_of_passive_ranks_are_pinned_host_memory(device: Arc<Device>) {
    let stream = Stream::new(&device).unwrap();
    let ranks = [HeapMemory::Device, HeapMemory::Host, HeapMemory::Host];
    let heaps = Heaps::of(&ranks.map(|memory| (device.clone(), memory)), 4096, 4).unwrap();
    // Words that went to a peer on the host and back.
    stream.fill_u32(heaps.span(0, 0, 4096).unwrap(), 7).unwrap();
    stream.copy(heaps.span(1, 0, 4096).unwrap(), heaps.device(0).unwrap()).unwrap();
    stream.copy(heaps.span(0, 2048, 2048).unwrap(), heaps.device(2).unwrap()).unwrap();
    stream.copy(heaps.span(0, 2048, 4).unwrap(), heaps.span(1, 2048, 4).unwrap()).unwrap();
    stream.synchronize(LONG).unwrap();
    let mut content = [1u8; 4096];
    content_of(&device, heaps.device(0).unwrap(), &mut content);
    let words: Vec<u32> = content
        .chunks_exact(4)
        .map(|bytes| u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
        .collect();
    assert!(words[..513].iter().all(|&word| word == 7));
    assert!(words[513..].iter().all(|&word| word == 0));
}

fn a_stream_waits_for_a_word_of_the_host(device: Arc<Device>) {
    let stream = Stream::new(&device).unwrap();
    let gate = HostBuffer::alloc(&device, 4).unwrap();
    let after = HostBuffer::alloc(&device, 4).unwrap();
    // Of counters that wrap, 5 comes after the greatest number: the second wait is over at once.
    for (wanted, word) in [(5, 1), (u32::MAX, 2)] {
        stream.wait_u32(gate.span(), wanted).unwrap();
        stream.write_u32(after.span(), word).unwrap();
        if wanted == 5 {
            std::thread::sleep(Duration::from_millis(20));
            assert_eq!(after.words()[0].load(Ordering::Acquire), 0, "nobody opened the gate");
            gate.words()[0].store(wanted, Ordering::Release);
        }
        stream.synchronize(LONG).unwrap();
        assert_eq!(after.words()[0].load(Ordering::Acquire), word);
    }
}

fn words_are_written_together(device: Arc<Device>) {
    let stream = Stream::new(&device).unwrap();
    let (near, far) = (DeviceBuffer::alloc_zeroed(&device, 4 * 300), HostBuffer::alloc(&device, 8));
    let (near, far) = (near.unwrap(), far.unwrap());
    let words = (0..300).map(|word| (near.span().part(4 * word, 4).unwrap(), 7 + word as u32));
    let words: Vec<_> = words.chain([(far.span().part(4, 4).unwrap(), 5)]).collect();
    stream.write_words(&words).unwrap();
    stream.write_words(&[]).unwrap();
    stream.synchronize(LONG).unwrap();
    let mut back = vec![0u32; 300];
    near.copy_to(0, &mut back).unwrap();
    assert!((7..307).eq(back));
    assert_eq!(far.words()[1].load(Ordering::Acquire), 5);
    assert!(stream.write_words(&[(near.span().part(2, 4).unwrap(), 0)]).is_err());
}

fn a_graph_replays_what_was_captured(device: Arc<Device>) {
    let stream = Stream::new(&device).unwrap();
    let buffer = DeviceBuffer::alloc_zeroed(&device, 16).unwrap();
    let [from, to] = [0, 4].map(|offset| buffer.span().part(offset, 4).unwrap());
    let words = || {
        let mut words = [0u32; 2];
        buffer.copy_to(0, &mut words).unwrap();
        words
    };
    assert_eq!(stream.is_capturing(), Ok(false));
    stream.begin_capture().unwrap();
    assert_eq!(stream.is_capturing(), Ok(true));
    assert!(stream.begin_capture().is_err(), "it is captured already");
    stream.copy(to, from).unwrap();
    let graph = stream.end_capture().unwrap();
    assert_eq!((stream.is_capturing(), stream.is_idle()), (Ok(false), Ok(true)));
    assert!(stream.end_capture().is_err(), "nothing is captured");
    for value in 1..5u32 {
        buffer.copy_from(0, &[value]).unwrap();
        assert_eq!(words(), [value, value - 1], "a capture runs nothing");
        // SAFETY: the buffer outlives the launch.
        unsafe { graph.launch(&stream) }.unwrap();
        stream.synchronize(LONG).unwrap();
        assert_eq!(words(), [value, value]);
    }
    // What no graph can hold ends the capture with an error, and the stream is usable again.
    stream.begin_capture().unwrap();
    assert!(stream.is_idle().is_err());
    assert!(stream.end_capture().is_err());
    stream.fill_u32(to, 9).unwrap();
    stream.synchronize(LONG).unwrap();
    assert_eq!(words(), [4, 9]);
}

fn events_keep_the_time_when_told_to(device: Arc<Device>) {
    let stream = Stream::new(&device).unwrap();
    let buffer = DeviceBuffer::alloc(&device, 256 << 20).unwrap();
    let event = |timing| Event::new(&device, timing).unwrap();
    let (start, end, untimed) = (event(Timing::On), event(Timing::On), event(Timing::Off));
    stream.record(&start).unwrap();
    stream.fill_u8(buffer.span(), 1).unwrap();
    stream.record(&end).unwrap();
    stream.record(&untimed).unwrap();
    end.synchronize(LONG).unwrap();
    let ms = end.ms_since(&start).unwrap();
    assert!(ms > 0.0 && ms < 1000.0, "{ms}");
    assert_eq!(untimed.ms_since(&start), Err(Error::Untimed));
}

fn cudarcs_slices_and_streams_are_taken_as_they_are(device: Arc<Device>) {
    let context = cudarc::driver::CudaContext::new(0).unwrap();
    let theirs = context.new_stream().unwrap();
    let data: Vec<u32> = (0..100).collect();
    let slice = theirs.clone_htod(&data).unwrap();
    let stream = Stream::from_cudarc(&device, theirs).unwrap();
    let ours = DeviceBuffer::alloc_zeroed(&device, 400).unwrap();
    let span = Span::from_cudarc(&slice);
    assert_eq!(span.bytes(), 400);
    stream.copy(ours.span(), span).unwrap();
    stream.synchronize(LONG).unwrap();
    let mut back = vec![0u32; 100];
    ours.copy_to(0, &mut back).unwrap();
    assert_eq!(back, data);
}
