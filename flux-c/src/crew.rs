//! A thread for each rank of a process: one caller drives them all, and no rank waits for another one on
//! its thread.

use crate::status::Failure;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};

type Job = Box<dyn FnOnce() + Send>;

/// Threads that wait for work; they end with the crew.
#[derive(Debug)]
pub(crate) struct Crew {
    /// Locked while work is handed out, so that every thread gets it in the same order.
    threads: Mutex<Vec<Sender<Job>>>,
}

impl Crew {
    /// A crew for ranks numbered from `first`; none for a rank that is alone.
    pub(crate) fn start(first: u32, ranks: usize) -> Result<Crew, Failure> {
        let mut threads = Vec::new();
        for rank in (first..).take(if ranks > 1 { ranks } else { 0 }) {
            let (sender, jobs) = channel::<Job>();
            let thread = std::thread::Builder::new().name(format!("flux rank {rank}"));
            let started = thread.spawn(move || jobs.into_iter().for_each(|job| job()));
            started
                .map_err(|error| flux_dsl::Error::NoThread { rank, reason: error.to_string() })?;
            threads.push(sender);
        }
        Ok(Crew { threads: Mutex::new(threads) })
    }

    /// What `work` says for each of so many ranks, or the failure that came first. A rank that is alone
    /// works on the caller's thread.
    pub(crate) fn each<T: Send + 'static>(
        &self,
        ranks: usize,
        work: impl Fn(usize) -> Result<T, Failure> + Send + Sync + 'static,
    ) -> Result<Vec<T>, Failure> {
        if ranks == 1 {
            return work(0).map(|value| vec![value]);
        }
        let work = Arc::new(work);
        let (sender, outcomes) = channel();
        {
            let threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
            for (rank, thread) in threads.iter().enumerate() {
                let (work, sender) = (Arc::clone(&work), sender.clone());
                let job = move || {
                    let outcome = catch_unwind(AssertUnwindSafe(|| work(rank)));
                    // What it holds is let go before the caller goes on.
                    drop(work);
                    let outcome = outcome.unwrap_or_else(|payload| Err(Failure::panic(&*payload)));
                    // The caller waits for it.
                    let _ = sender.send((rank, outcome));
                };
                // The threads wait for work as long as there is a crew.
                let _ = thread.send(Box::new(job));
            }
        }
        drop((work, sender));
        let mut values: Vec<Option<T>> = (0..ranks).map(|_| None).collect();
        let mut first = None;
        for (rank, outcome) in outcomes {
            match outcome {
                Ok(value) => values[rank] = Some(value),
                Err(failure) => first = first.or(Some(failure)),
            }
        }
        match first {
            Some(failure) => Err(failure),
            None => Ok(values.into_iter().flatten().collect()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Crew;
    use crate::status::Failure;
    use std::sync::{Arc, Barrier};

    #[test]
    fn ranks_work_at_once_and_in_the_order_of_their_numbers() {
        let crew = Crew::start(0, 4).expect("four threads");
        let barrier = Arc::new(Barrier::new(4));
        for round in 0..3 {
            let barrier = Arc::clone(&barrier);
            let values = crew.each(4, move |rank| {
                barrier.wait();
                Ok(10 * round + rank)
            });
            assert_eq!(values.ok(), Some((0..4).map(|rank| 10 * round + rank).collect()));
        }
    }

    #[test]
    fn failures_and_panics_come_back_and_the_crew_goes_on() {
        let crew = Crew::start(0, 2).expect("two threads");
        let failed = crew.each(2, |rank| match rank {
            0 => Ok(()),
            _ => Err(Failure::invalid("rank 1 will not")),
        });
        assert!(format!("{:?}", failed.expect_err("a failure")).contains("rank 1 will not"));
        let panicked: Result<Vec<()>, _> = crew.each(2, |rank| panic!("at {rank}"));
        assert!(format!("{:?}", panicked.expect_err("a panic")).contains("a fault of flux: at"));
        assert_eq!(crew.each(2, Ok).ok(), Some(vec![0, 1]));
    }
}
