//! Interleaves compared operations within the same rounds, so that changes of the machine affect
//! all of them.

use crate::bench::order::order;
use crate::interrupt;
use anyhow::Result;

/// Enough rounds to make agreement of all of them significant.
pub const ROUNDS: u32 = 5;

/// Gives each one a turn in every round, in a rotating order.
pub fn in_turn<T>(
    all: &mut [T],
    rounds: u32,
    mut act: impl FnMut(&mut T) -> Result<()>,
) -> Result<()> {
    for round in 0..rounds as usize {
        for turn in order(round, all.len()) {
            interrupt::check()?;
            act(&mut all[turn])?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everyone_has_a_turn_in_every_round() {
        let mut turns = [0; 3];
        in_turn(&mut turns, 4, |count| {
            *count += 1;
            Ok(())
        })
        .unwrap();
        assert_eq!(turns, [4; 3]);
        in_turn::<u8>(&mut [], 4, |_| panic!("there is nobody")).unwrap();
    }
}
