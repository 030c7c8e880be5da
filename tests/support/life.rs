//! What happens to launches: they stall, ranks recover, groups go their own ways. The same on
//! threads of the host and on devices.

use crate::data::{Draw, product};
use flux::prelude::*;
use flux::{Error, Schedule, Transport};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

#[flux::module]
pub(crate) mod kernels {
    use flux::prelude::*;

    #[kernel]
    #[schedule(sm_90a, tile = (128, 128, 64), stages = 4, consumers = ping_pong, transport = put)]
    #[schedule(sm_90a, tile = (128, 128, 64), stages = 4, consumers = ping_pong, transport = tma)]
    #[schedule(sm_90a, tile = (128, 128, 64), stages = 4, consumers = ping_pong)]
    pub fn gathered(a: &Gathered<bf16>, b: &Global<bf16>, c: &mut Global<bf16>) {
        for tile in c.tiles() {
            let a = a.wait(tile.rows());
            c.store(tile, gemm(a, b.t(), tile));
        }
    }

    #[kernel]
    #[schedule(sm_90a, tile = (128, 128, 64), stages = 4, consumers = ping_pong)]
    pub fn scattered(a: &Global<bf16>, b: &Global<bf16>, c: &mut Scattered<bf16>) {
        for tile in c.tiles() {
            c.add(tile, gemm(a, b.t(), tile));
        }
    }
}

/// Every rank has rows, the last ones fewer; the last tiles are ragged.
pub(crate) const SHAPE: [usize; 3] = [150, 136, 40];

/// What may pass until everybody has given up, beyond the limit.
pub(crate) const SLACK: Duration = Duration::from_secs(1);

/// How a gather moves its shards.
pub(crate) fn gather_by(transport: Option<Transport>) -> Schedule {
    let schedules = (kernels::gathered::definition().schedules)();
    let found = schedules.into_iter().find(|schedule| schedule.transport == transport);
    found.expect("the kernel has such a schedule")
}

/// Both operators on a rank, and their tensors.
pub(crate) struct Operators<'r> {
    pub(crate) rank: &'r Rank,
    gather: kernels::gathered,
    scatter: kernels::scattered,
    pub(crate) shard: Tensor<bf16>,
    pub(crate) whole: Tensor<bf16>,
    pub(crate) b: Tensor<bf16>,
    pub(crate) c: Tensor<bf16>,
    pub(crate) sum: Tensor<bf16>,
}

impl<'r> Operators<'r> {
    pub(crate) fn load(rank: &'r Rank, gather: Option<&Schedule>) -> Result<Self, Error> {
        let [m, n, k] = SHAPE;
        let rows = rank.own_rows(m);
        Ok(Operators {
            rank,
            gather: match gather {
                Some(schedule) => kernels::gathered::load_with(rank, schedule)?,
                None => kernels::gathered::load(rank)?,
            },
            scatter: kernels::scattered::load(rank)?,
            shard: rank.zeros(rows, k)?,
            whole: rank.zeros(m, k)?,
            b: rank.tensor(n, k, &Draw::Integers.rows(99, 0..n, k))?,
            c: rank.zeros(m, n)?,
            sum: rank.zeros(rows, n)?,
        })
    }

    /// Other operands, and outputs that hold nothing.
    pub(crate) fn fill(&mut self, seed: u64) -> Result<(), Error> {
        let [m, n, k] = SHAPE;
        let own = self.rank.own_range(m);
        self.shard.write(&Draw::Integers.rows(seed, own.clone(), k))?;
        self.whole.write(&Draw::Integers.rows(seed, 0..m, k))?;
        self.c.write(&vec![bf16::NAN; m * n])?;
        self.sum.write(&vec![bf16::NAN; own.len() * n])
    }

    pub(crate) fn gather(&mut self) -> Result<(), Error> {
        self.gather.launch(&self.shard, &self.b, &mut self.c)
    }

    pub(crate) fn scatter(&mut self) -> Result<(), Error> {
        self.scatter.launch(&self.whole, &self.b, &mut self.sum)
    }

    /// Both outputs hold what the operands of `seed` give, to the last bit.
    pub(crate) fn check(&self, seed: u64) -> Result<(), Error> {
        let ([m, n, k], ranks) = (SHAPE, f64::from(self.rank.world_size()));
        let (a, b): (Vec<bf16>, Vec<bf16>) =
            (Draw::Integers.rows(seed, 0..m, k), Draw::Integers.rows(99, 0..n, k));
        let expected = product(&a, &b, k, &(0..m).collect::<Vec<_>>());
        let own = self.rank.own_range(m);
        let sums = expected[own.start * n..own.end * n].iter().map(|x| x * ranks);
        let what = |name: &str| format!("{name} of seed {seed} on rank {}", self.rank.index());
        same(&what("gather"), &self.c.to_vec()?, expected.iter().copied());
        same(&what("scatter"), &self.sum.to_vec()?, sums);
        Ok(())
    }

    /// Some launches of both, exactly.
    pub(crate) fn exact(&mut self, seed: u64) -> Result<(), Error> {
        for seed in seed..seed + 3 {
            self.fill(seed)?;
            for _ in 0..=seed % 3 {
                self.gather()?;
                self.scatter()?;
            }
            self.check(seed)?;
        }
        Ok(())
    }
}

fn same(what: &str, found: &[bf16], expected: impl ExactSizeIterator<Item = f64>) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
        let expected = bf16::from_f64(expected);
        assert!(*found == expected, "{what}: element {index} is {found}, expected {expected}");
    }
}

/// Waits until `count` others have come here: by hand, so that a rank that fails blocks nobody.
pub(crate) fn until(counter: &AtomicU32, count: u32) {
    let start = Instant::now();
    while counter.load(Ordering::Acquire) < count && start.elapsed() < Duration::from_secs(30) {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A launch of one kind, and the wait for its end.
fn attempt(operators: &mut Operators<'_>, gathers: bool) -> Result<(), Error> {
    match gathers {
        true => operators.gather()?,
        false => operators.scatter()?,
    }
    operators.rank.synchronize()
}

/// One rank after the other never arrives: every other one says where it waited, in time, and
/// after a recovery all is as it was. Again and again.
pub(crate) fn stalls_are_recovered_from(world: &World, limit: Duration, by: Option<&Schedule>) {
    let given_up = AtomicU32::new(0);
    let ranks = world.size();
    let run = world.clone().with_limit(limit).run(|rank| {
        let mut operators = Operators::load(rank, by)?;
        operators.exact(1)?;
        for round in 0..2 * ranks {
            if round % ranks == rank.index() {
                until(&given_up, (round + 1) * (ranks - 1));
            } else {
                stalls(&mut operators, round >= ranks, limit);
                given_up.fetch_add(1, Ordering::AcqRel);
            }
            rank.recover()?;
            operators.exact(10 * u64::from(round))?;
        }
        Ok(())
    });
    run.expect("every round ends well");
}

/// This rank's launch stalls as a peer never launches.
fn stalls(operators: &mut Operators<'_>, gathers: bool, limit: Duration) {
    let start = Instant::now();
    let outcome = attempt(operators, gathers);
    let took = start.elapsed();
    assert!(took < limit + SLACK, "{took:?}");
    let Err(stall) = &outcome else { panic!("expected a stall, found {outcome:?}") };
    let Error::Stalled { rank, kernel, role, tile, file, line, signal, seen, wanted, .. } = stall
    else {
        panic!("expected a stall, found: {stall}")
    };
    // On the host the wait that gave up first is what all are told.
    let first = operators.rank.stream().is_none() && *rank < operators.rank.world_size();
    assert!(first || *rank == operators.rank.index(), "{stall}");
    assert_eq!(kernel, if gathers { "gathered" } else { "scattered" });
    assert!(file.ends_with("life.rs") && *line > 0, "{stall}");
    assert!(signal.contains(if gathers { "arrived" } else { "landed" }), "{stall}");
    assert!(seen < wanted && &**role == "gemm", "{stall}");
    let [rows, cols] = tile.as_deref().expect("the wait was for a tile");
    assert!(!rows.is_empty() && rows.end as usize <= SHAPE[0], "{stall}");
    assert!(!cols.is_empty() && cols.end as usize <= SHAPE[1], "{stall}");
    assert!(stall.to_string().contains("tile of rows"), "{stall}");
    let again = attempt(operators, gathers).expect_err("the kernel is lost");
    assert!(!matches!(again, Error::Stalled { .. }), "{again}");
}

/// While one rank recovers, nothing can be launched; alone it recovers nothing.
pub(crate) fn launches_beside_a_recovery_are_refused(world: &World, limit: Duration) {
    let [about_to, refused, alone] = [const { AtomicU32::new(0) }; 3];
    let last = world.size() - 1;
    let run = world.clone().with_limit(limit).run(|rank| {
        let mut operators = Operators::load(rank, None)?;
        operators.exact(1)?;
        if rank.index() == last {
            about_to.fetch_add(1, Ordering::AcqRel);
            let start = Instant::now();
            let says = rank.recover().expect_err("nobody else comes").to_string();
            assert!(start.elapsed() < limit + 2 * SLACK, "{:?}", start.elapsed());
            assert!(says.contains("did not come within"), "{says}");
            alone.store(1, Ordering::Release);
        } else {
            until(&about_to, 1);
            std::thread::sleep(limit / 4);
            let index = rank.index();
            let launch = operators.gather().expect_err("a rank recovers").to_string();
            let says =
                format!("rank {index}: `gathered` cannot be launched while rank {last} recovers");
            assert_eq!(launch, says);
            let load = kernels::scattered::load(rank).expect_err("a rank recovers").to_string();
            assert_eq!(
                load,
                format!("rank {last} recovers: every rank has to, before anything else")
            );
            refused.fetch_add(1, Ordering::AcqRel);
        }
        until(&refused, last);
        until(&alone, 1);
        rank.recover()?;
        operators.exact(4)
    });
    run.expect("all of them recover in the end");
}

/// A rank that panics, or returns, is missed by the others; the world serves another run.
pub(crate) fn a_world_outlives_a_failed_run(world: &World, limit: Duration) {
    let world = world.clone().with_limit(limit);
    for panics in [true, false] {
        let failed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            world.run(|rank| {
                let mut operators = Operators::load(rank, None)?;
                operators.exact(1)?;
                if rank.index() == 0 {
                    assert!(!panics, "a bug of the program");
                    return Ok(());
                }
                let start = Instant::now();
                let stalled = attempt(&mut operators, false);
                assert!(matches!(stalled, Err(Error::Stalled { .. })), "{stalled:?}");
                let alone = rank.recover().expect_err("rank 0 has left").to_string();
                assert_eq!(alone, "rank 0 has given up: its program has ended");
                assert!(start.elapsed() < limit + SLACK);
                Ok(())
            })
        }));
        assert_eq!(failed.is_err(), panics);
        world.run(|rank| Operators::load(rank, None)?.exact(7)).expect("ranks are made anew");
    }
}

/// Eight ranks as four pairs and as two fours, each at its own pace.
pub(crate) fn groups_go_their_own_ways(world: &World) {
    let run = world.run(|rank| {
        let index = rank.index();
        let pair = rank.group(&[index & 6, index | 1])?;
        // The second four in another order.
        let four = if index < 4 { [0, 1, 2, 3] } else { [7, 5, 6, 4] };
        let four = rank.group(&four)?;
        assert_eq!((pair.world_size(), pair.index()), (2, index % 2));
        assert_eq!(
            (four.world_size(), four.index()),
            (4, [0, 1, 2, 3, 3, 1, 2, 0][index as usize])
        );
        let mut in_pair = Operators::load(&pair, None)?;
        let mut in_four = Operators::load(&four, None)?;
        in_pair.fill(index as u64 / 2)?;
        in_four.fill(100 + index as u64 / 4)?;
        for step in 0..12 {
            // Different operators of different groups are under way at once.
            for _ in 0..=(index / 2 + step) % 3 {
                in_pair.gather()?;
            }
            in_four.scatter()?;
            in_pair.scatter()?;
            if (index / 4 + step) % 2 == 0 {
                in_four.gather()?;
            }
        }
        in_four.gather()?;
        in_pair.check(index as u64 / 2)?;
        in_four.check(100 + index as u64 / 4)
    });
    run.expect("no group waits for another");
}

/// One group stalls and recovers alone, as the others go on: what they do ends while it stalls.
pub(crate) fn one_group_stalls_and_the_others_go_on(world: &World, limit: Duration) {
    let (begun, given_up) = (AtomicU32::new(0), AtomicU32::new(0));
    let run = world.clone().with_limit(limit).run(|rank| {
        let index = rank.index();
        let pair = rank.group(&[index & 6, index | 1])?;
        let mut operators = Operators::load(&pair, None)?;
        operators.exact(1)?;
        match index {
            0 => {
                begun.store(1, Ordering::Release);
                stalls(&mut operators, false, limit);
                given_up.store(1, Ordering::Release);
            }
            1 => until(&given_up, 1),
            _ => {
                until(&begun, 1);
                // First launches included.
                let mut operators = Operators::load(&pair, None)?;
                return operators.exact(u64::from(index / 2));
            }
        }
        pair.recover()?;
        operators.exact(5)
    });
    run.expect("only one pair stalls, and it recovers");
}
