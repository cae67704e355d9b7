//! Random loss, packet by packet.

use crate::config::Loss;
use crate::random::Random;

/// The state of a [`Loss`].
#[derive(Clone, Debug)]
pub(crate) struct LossProcess {
    loss: Loss,
    bad: bool,
    random: Random,
}

impl LossProcess {
    pub(crate) const fn new(loss: Loss, random: Random) -> Self {
        Self { loss, bad: false, random }
    }

    /// Draws whether the next packet is lost.
    pub(crate) fn strikes(&mut self) -> bool {
        match self.loss {
            Loss::None => false,
            Loss::Uniform { probability } => self.random.chance(probability),
            Loss::GilbertElliott { good_to_bad, bad_to_good, loss_good, loss_bad } => {
                let change = if self.bad { bad_to_good } else { good_to_bad };
                self.bad ^= self.random.chance(change);
                self.random.chance(if self.bad { loss_bad } else { loss_good })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PACKETS: u32 = 1_000_000;

    fn losses(loss: Loss) -> Vec<bool> {
        let [random] = Random::streams(11);
        let mut process = LossProcess::new(loss, random);
        (0..PACKETS).map(|_| process.strikes()).collect()
    }

    fn share(losses: &[bool]) -> f64 {
        losses.iter().filter(|&&lost| lost).count() as f64 / losses.len() as f64
    }

    #[test]
    fn uniform_loss_has_its_rate() {
        // 10^6 packets at 1%: the standard deviation of the share is 0.0001.
        let found = share(&losses(Loss::Uniform { probability: 0.01 }));
        assert!((found - 0.01).abs() < 0.000_5, "{found}");
        assert_eq!(share(&losses(Loss::Uniform { probability: 0.0 })), 0.0);
        assert_eq!(share(&losses(Loss::Uniform { probability: 1.0 })), 1.0);
        assert_eq!(share(&losses(Loss::None)), 0.0);
    }

    #[test]
    fn gilbert_elliott_has_its_long_run_rate_and_its_bursts() {
        let (good_to_bad, bad_to_good, loss_good, loss_bad) = (0.002, 0.1, 0.001, 0.6);
        let losses = losses(Loss::GilbertElliott { good_to_bad, bad_to_good, loss_good, loss_bad });
        let bad = good_to_bad / (good_to_bad + bad_to_good);
        let wanted = bad * loss_bad + (1.0 - bad) * loss_good;
        // About 2,000 visits to the bad state: 2% standard deviation each for their number and length.
        assert!((share(&losses) / wanted - 1.0).abs() < 0.12, "{} for {wanted}", share(&losses));
        // After a loss the next is far likelier than on average: P(bad | lost) * (stay bad) * loss_bad.
        let after: Vec<bool> = losses.windows(2).filter(|pair| pair[0]).map(|pair| pair[1]).collect();
        let posterior = bad * loss_bad / wanted;
        let wanted = posterior * ((1.0 - bad_to_good) * loss_bad + bad_to_good * loss_good);
        assert!((share(&after) / wanted - 1.0).abs() < 0.1, "{} for {wanted}", share(&after));
    }
}
