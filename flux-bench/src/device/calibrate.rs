//! What copies, signals and waits cost on this machine: numbers for a time model.

use super::link::{Link, Sink};
use super::{LIMIT, Timer};
use crate::error::Error;
use crate::rotation::{Contestant, Rounds, rotate};
use flux::{Peers, World};
use flux_runtime::{DeviceBuffer, Span, Stream};
use serde::{Deserialize, Serialize};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// Bytes of the copies whose times make the curve.
const CURVE: [u64; 5] = [MIB, 4 * MIB, 16 * MIB, 64 * MIB, 256 * MIB];

/// Copies in a stream whose cost beyond their bytes is looked for.
const MANY: u64 = 32;

/// Bytes of each of them.
const SMALL: u64 = 256 * KIB;

/// Costs of one link and of memory, measured with nothing else running.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Costs {
    /// Name of the device.
    pub device: String,
    /// Its multiprocessors.
    pub sms: u32,
    /// Bytes of its L2 cache.
    pub l2_bytes: u64,
    /// What the first copy of a stream costs beyond its bytes, microseconds.
    pub copy_start_us: f64,
    /// What each further one costs.
    pub copy_gap_us: f64,
    /// Bytes of one copy and the microseconds they take, without the start.
    pub copy_wire: Vec<(u64, f64)>,
    /// Time of copies in both directions by that of one.
    pub both_ways: f64,
    /// What a signal costs that is written between two copies of one stream.
    pub flag_us: f64,
    /// What a wait for a word that is there costs between two copies of one stream.
    pub stream_wait_us: f64,
    /// Rate of a copy within the device, 10⁹ bytes a second.
    pub local_copy_gbps: f64,
}

/// Measures the costs of a device whose peers' memory lies where `peers` says.
///
/// # Errors
/// No device; those of the driver.
pub fn calibrate(peers: Peers, rounds: Rounds) -> Result<Costs, Error> {
    let world = World::virtual_ranks(0, 1)?;
    let ranks = world.ranks();
    let [rank] = ranks.as_slice() else { return Err(Error::NoDevice) };
    let device = rank.device().ok_or(Error::NoDevice)?;
    let link = Link::new(rank.stream().ok_or(Error::NoDevice)?)?;
    let bytes = CURVE[CURVE.len() - 1];
    let own =
        [DeviceBuffer::alloc_zeroed(&device, bytes)?, DeviceBuffer::alloc_zeroed(&device, bytes)?];
    let bench = Bench {
        timer: Timer::new(link.main.clone())?,
        own: [own[0].span(), own[1].span()],
        peer: [Sink::new(&device, peers, bytes)?, Sink::new(&device, peers, bytes)?],
        word: DeviceBuffer::alloc_zeroed(&device, 256)?,
        rounds,
        link,
    };
    bench.link.main.synchronize(LIMIT)?;
    let properties = device.properties();
    bench.costs(properties.name.clone(), properties.sms, properties.l2_bytes)
}

struct Bench<'m> {
    timer: Timer,
    link: Link,
    own: [Span<'m>; 2],
    peer: [Sink; 2],
    word: DeviceBuffer,
    rounds: Rounds,
}

impl Bench<'_> {
    fn costs(&self, device: String, sms: u32, l2_bytes: u64) -> Result<Costs, Error> {
        let one = |bytes: u64| move |bench: &Bench<'_>| bench.push(1, bytes);
        let between = |work: fn(&Bench<'_>, &Stream) -> Result<(), Error>| {
            move |bench: &Bench<'_>| {
                for _ in 0..MANY {
                    bench.push(1, SMALL)?;
                    work(bench, &bench.link.out)?;
                }
                Ok(())
            }
        };
        type Work<'w> = Box<dyn Fn(&Bench<'_>) -> Result<(), Error> + 'w>;
        let mut works: Vec<Work<'_>> = vec![Box::new(|_| Ok(()))];
        works.extend(CURVE.iter().map(|&bytes| Box::new(one(bytes)) as Work<'_>));
        works.extend([
            Box::new(one(SMALL)) as Work<'_>,
            Box::new(|bench: &Bench<'_>| bench.push(MANY, SMALL)),
            Box::new(between(|bench, stream| Ok(stream.write_u32(bench.word.span(), 1)?))),
            Box::new(between(|bench, stream| Ok(stream.wait_u32(bench.word.span(), 0)?))),
            Box::new(|bench: &Bench<'_>| {
                bench.push(1, CURVE[4])?;
                Ok(bench.link.inbound.copy(bench.own[1], bench.peer[1].span())?)
            }),
            Box::new(|bench: &Bench<'_>| Ok(bench.link.out.copy(bench.own[0], bench.own[1])?)),
        ]);
        let contestants = works.iter().enumerate().map(|(index, work)| {
            Contestant::new(format!("copies {index}"), move |_| {
                self.timer.time(|| {
                    self.link.fork()?;
                    work(self)?;
                    self.link.join()
                })
            })
        });
        let samples = rotate(self.rounds, &mut contestants.collect::<Vec<_>>())?;
        let us = samples
            .iter()
            .map(|samples| Ok(1e3 * samples.summary().ok_or(Error::NoSamples)?.median));
        let us: Vec<f64> = us.collect::<Result<_, Error>>()?;
        // What streams that fork and join take for nothing is no cost of a copy.
        let us: Vec<f64> = us[1..].iter().map(|with| (with - us[0]).max(0.0)).collect();
        Ok(from_times(device, sms, l2_bytes, &us))
    }

    /// Copies to the peer.
    fn push(&self, copies: u64, bytes: u64) -> Result<(), Error> {
        for copy in 0..copies {
            let offset = copy * bytes % CURVE[4];
            let to = self.peer[0].span().part(offset, bytes)?;
            self.link.out.copy(to, self.own[0].part(offset, bytes)?)?;
        }
        Ok(())
    }
}

/// Costs from the times of one copy of each size, of a small one, of many small ones, of those with
/// signals and with waits between them, of both directions, and within the device; microseconds.
fn from_times(device: String, sms: u32, l2_bytes: u64, us: &[f64]) -> Costs {
    let count = CURVE.len();
    let (curve, rest) = us.split_at(count);
    // The rate at the margin; what a copy takes beyond its bytes at that rate is its start.
    let rate = (CURVE[count - 1] - CURVE[count - 2]) as f64 / (curve[count - 1] - curve[count - 2]);
    let start = (rest[0] - SMALL as f64 / rate).max(0.0);
    let more = (MANY - 1) as f64;
    let gap = ((rest[1] - rest[0]) / more - SMALL as f64 / rate).max(0.0);
    let wire = CURVE.iter().zip(curve).map(|(&bytes, us)| (bytes, (us - start).max(0.0)));
    Costs {
        device,
        sms,
        l2_bytes,
        copy_start_us: start,
        copy_gap_us: gap,
        copy_wire: wire.collect(),
        both_ways: (rest[4] / curve[count - 1]).max(1.0),
        flag_us: ((rest[2] - rest[1]) / MANY as f64).max(0.0),
        stream_wait_us: ((rest[3] - rest[1]) / MANY as f64).max(0.0),
        local_copy_gbps: CURVE[count - 1] as f64 / rest[5] / 1e3,
    }
}

#[cfg(test)]
mod tests {
    use super::{CURVE, MANY, SMALL, from_times};

    #[test]
    fn costs_come_back_from_times_made_of_them() {
        // 50 GB/s, 5 us to start, 2.5 us between copies, 4 us a flag, 3 us a wait.
        let wire = |bytes: u64| bytes as f64 / 50e3;
        let many = 5.0 + MANY as f64 * wire(SMALL) + (MANY - 1) as f64 * 2.5;
        let mut us: Vec<f64> = CURVE.iter().map(|&bytes| 5.0 + wire(bytes)).collect();
        let both = 1.1 * us[4];
        us.extend([5.0 + wire(SMALL), many, many + MANY as f64 * 4.0]);
        us.extend([many + MANY as f64 * 3.0, both, CURVE[4] as f64 / 2e6]);
        let costs = from_times("a device".into(), 132, 60 << 20, &us);
        let close = |found: f64, expected: f64| {
            assert!((found - expected).abs() < 1e-6 * expected, "{found} is not {expected}");
        };
        close(costs.copy_start_us, 5.0);
        close(costs.copy_gap_us, 2.5);
        close(costs.flag_us, 4.0);
        close(costs.stream_wait_us, 3.0);
        close(costs.both_ways, 1.1);
        close(costs.local_copy_gbps, 2000.0);
        close(costs.copy_wire[2].1, wire(CURVE[2]));
    }
}
