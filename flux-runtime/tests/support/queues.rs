//! Whether kernels that wait for each other start, whoever enqueues them.

use super::{function, launch};
use flux_runtime::{Device, HostBuffer, Launch, Stream};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Barrier};
use std::time::Duration;

const STREAMS: usize = 4;

/// Each thread enqueues so many behind each other.
const LAUNCHES: usize = 10;

/// A token goes round the streams: each kernel waits for that of the stream before, and what stands
/// behind a kernel that waits must not be what it waits for.
pub(crate) fn kernels_of_new_streams_do_not_stand_behind_each_other(device: Arc<Device>) {
    let limit = Duration::from_secs(2);
    let echo = function(&device, "echo", 0);
    for round in 0..20 {
        let streams: Vec<Stream> =
            (0..STREAMS).map(|_| Stream::new(&device).expect("a stream")).collect();
        let words = HostBuffer::alloc(&device, 4 * (STREAMS * LAUNCHES + 1) as u64).unwrap();
        words.words()[0].store(1, Ordering::Release);
        let together = Barrier::new(STREAMS);
        std::thread::scope(|scope| {
            for (place, stream) in streams.iter().enumerate() {
                let (together, echo, address) = (&together, &echo, words.address());
                scope.spawn(move || {
                    together.wait();
                    for number in 0..LAUNCHES {
                        let own = address + 4 * (number * STREAMS + place) as u64;
                        let words = [own, limit.as_nanos() as u64];
                        let spin = Launch { threads: 1, ..launch(echo, 1, &words) };
                        // SAFETY: the kernel uses two words at its address, both by atomic operations.
                        unsafe { spin.enqueue(stream) }.unwrap();
                    }
                });
            }
        });
        for stream in &streams {
            stream.synchronize(LAUNCHES as u32 * 2 * limit).unwrap();
        }
        let seen = words.words().iter().map(|word| word.load(Ordering::Relaxed));
        let expected = 1..=(STREAMS * LAUNCHES + 1) as u32;
        assert!(seen.clone().eq(expected), "round {round}: {:?}", seen.collect::<Vec<_>>());
    }
}
