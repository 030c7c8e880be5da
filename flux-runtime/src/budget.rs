//! How the ranks on one device share its SMs.

use crate::error::Error;

/// SMs of one device, shared out so that all ranks run at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SmBudget {
    /// Ranks on the device.
    pub ranks: u32,
    /// CTAs each rank may have resident, at one to an SM.
    pub ctas: u32,
    /// SMs that no rank uses.
    pub spare: u32,
}

impl SmBudget {
    /// Shares `sms` SMs among `ranks` ranks, all alike, and keeps at least `reserve` back: a copy
    /// within a device may itself need an SM, and would wait for ever for kernels that wait for it.
    ///
    /// # Errors
    ///
    /// [`Error::NoRoom`] where a rank would get nothing; [`Error::OutOfRange`] without ranks.
    pub fn split(sms: u32, ranks: u32, reserve: u32) -> Result<SmBudget, Error> {
        if ranks == 0 {
            let (what, high) = ("ranks on a device", u32::MAX.into());
            return Err(Error::OutOfRange { what, low: 1, high, found: 0 });
        }
        match sms.saturating_sub(reserve) / ranks {
            0 => Err(Error::NoRoom { ranks, sms, reserve }),
            ctas => Ok(SmBudget { ranks, ctas, spare: sms - ctas * ranks }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::SmBudget;
    use crate::Error;

    #[test]
    fn every_split_fits_and_wastes_less_than_one_each() {
        for sms in 1..=148 {
            for ranks in 1..=16 {
                for reserve in [0, 4, 8] {
                    match SmBudget::split(sms, ranks, reserve) {
                        Ok(SmBudget { ctas, spare, .. }) => {
                            assert_eq!(ctas * ranks + spare, sms);
                            assert!(ctas >= 1 && spare >= reserve && spare < reserve + ranks);
                        }
                        Err(error) => {
                            assert_eq!(error, Error::NoRoom { ranks, sms, reserve });
                            assert!(sms < ranks + reserve);
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn two_ranks_on_132_sms_leave_four() {
        let budget = SmBudget { ranks: 2, ctas: 64, spare: 4 };
        assert_eq!(SmBudget::split(132, 2, 4), Ok(budget));
    }

    #[test]
    fn no_ranks_are_refused() {
        assert!(matches!(SmBudget::split(132, 0, 0), Err(Error::OutOfRange { .. })));
    }
}
