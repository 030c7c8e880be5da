//! Contestants measured in turn: A B C A B C …, so that whatever drifts (clocks, heat, a noisy
//! neighbor) drifts for all of them.

use crate::sample::Samples;
use crate::stage::stage;
use std::time::Duration;

/// No pause is longer.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// How many rounds are measured, and how many before them are not.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rounds {
    /// Rounds that warm up: modules load, clocks rise, caches fill as they will.
    pub warm_up: u32,
    /// Rounds that count.
    pub measured: u32,
    /// How long nothing runs before the next run, in times of the one before: without a pause the
    /// chip reaches its power cap, and who is measured pays for who was measured before.
    pub pause: f64,
}

impl Default for Rounds {
    /// 31 pairs after 3 that warm up, at work half of the time.
    fn default() -> Self {
        Rounds { warm_up: 3, measured: 31, pause: 1.0 }
    }
}

/// One thing that is measured against others.
pub struct Contestant<'a, E> {
    /// Its name in the results.
    pub name: String,
    /// Runs it once and gives its time in milliseconds. The argument counts its runs.
    pub run: Box<dyn FnMut(u32) -> Result<f64, E> + 'a>,
}

impl<'a, E> Contestant<'a, E> {
    /// A contestant of this name.
    pub fn new(
        name: impl Into<String>,
        run: impl FnMut(u32) -> Result<f64, E> + 'a,
    ) -> Contestant<'a, E> {
        Contestant { name: name.into(), run: Box::new(run) }
    }
}

impl<E> std::fmt::Debug for Contestant<'_, E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Contestant").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Runs all contestants in turn, round after round, and gives the samples of each, in their order.
///
/// # Errors
/// The first one of a contestant; nothing runs after it.
pub fn rotate<E>(rounds: Rounds, contestants: &mut [Contestant<'_, E>]) -> Result<Vec<Samples>, E> {
    let mut samples = vec![Samples::default(); contestants.len()];
    for round in 0..rounds.warm_up + rounds.measured {
        for (contestant, samples) in contestants.iter_mut().zip(&mut samples) {
            if round == 0 {
                stage(format_args!("first run of {}", contestant.name));
            }
            let ms = (contestant.run)(round)?;
            if round >= rounds.warm_up {
                samples.push(ms);
            }
            let pause = Duration::try_from_secs_f64(ms * rounds.pause / 1e3);
            std::thread::sleep(pause.unwrap_or_default().min(LONGEST_PAUSE));
        }
    }
    Ok(samples)
}

#[cfg(test)]
mod tests {
    use super::{Contestant, Rounds, rotate};
    use std::cell::RefCell;

    const ROUNDS: Rounds = Rounds { warm_up: 1, measured: 2, pause: 0.0 };

    #[test]
    fn contestants_take_turns_and_the_warm_up_does_not_count() {
        let log = RefCell::new(String::new());
        let run = |name: &'static str| {
            let log = &log;
            Contestant::<()>::new(name, move |round| {
                log.borrow_mut().push_str(name);
                Ok(f64::from(round))
            })
        };
        let samples = rotate(ROUNDS, &mut [run("a"), run("b")]).unwrap();
        assert_eq!(*log.borrow(), "ababab");
        assert_eq!(samples[0].values(), [1.0, 2.0]);
        assert_eq!(samples[1].values(), [1.0, 2.0]);
    }

    #[test]
    fn nothing_runs_for_as_long_as_the_run_before_took() {
        let rounds = Rounds { pause: 2.0, ..ROUNDS };
        let begin = std::time::Instant::now();
        rotate(rounds, &mut [Contestant::<()>::new("a", |_| Ok(5.0))]).unwrap();
        assert!(begin.elapsed() >= std::time::Duration::from_millis(30));
        // A time that is none is no pause, and no panic.
        rotate(rounds, &mut [Contestant::<()>::new("a", |_| Ok(f64::NAN))]).unwrap();
    }

    #[test]
    fn the_first_failure_ends_the_rotation() {
        let runs = RefCell::new(0);
        let mut contestants = [
            Contestant::new("good", |_| {
                *runs.borrow_mut() += 1;
                Ok(1.0)
            }),
            Contestant::new("bad", |round| if round == 1 { Err("lost") } else { Ok(1.0) }),
        ];
        assert_eq!(rotate(ROUNDS, &mut contestants), Err("lost"));
        assert_eq!(*runs.borrow(), 2);
    }

    #[test]
    fn the_default_has_thirty_pairs_at_least() {
        assert!(Rounds::default().measured >= 30 && Rounds::default().warm_up >= 1);
    }
}
