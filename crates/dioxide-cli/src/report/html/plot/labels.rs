//! Places labels above each other without overlap. Arithmetic only.

/// Moves `wanted` heights apart until neighbours have a distance of `gap`. Moves them as little as
/// possible, and within `low..=high` if there is room. Keeps their order in the input.
pub fn apart(wanted: &[f64], gap: f64, low: f64, high: f64) -> Vec<f64> {
    let mut order: Vec<usize> = (0..wanted.len()).collect();
    order.sort_by(|one, other| wanted[*one].total_cmp(&wanted[*other]));
    let mut heights = vec![0.0; wanted.len()];
    // Touching labels form a block around the mean of their wanted heights.
    let mut blocks: Vec<(f64, Vec<usize>)> = Vec::new();
    for label in order {
        let mut block = (wanted[label], vec![label]);
        while let Some(before) =
            blocks.pop_if(|before| bottom(before, gap, low, high) > top(&block, gap, low, high))
        {
            let labels = [before.1, block.1].concat();
            let middle =
                labels.iter().map(|label| wanted[*label]).sum::<f64>() / labels.len() as f64;
            block = (middle, labels);
        }
        blocks.push(block);
    }
    for block in &blocks {
        let first = top(block, gap, low, high) + gap / 2.0;
        for (nth, label) in block.1.iter().enumerate() {
            heights[*label] = first + nth as f64 * gap;
        }
    }
    heights
}

type Block = (f64, Vec<usize>);

/// The begin of a block, half a gap above its first label, within the range.
fn top((middle, labels): &Block, gap: f64, low: f64, high: f64) -> f64 {
    let height = labels.len() as f64 * gap;
    (middle - height / 2.0).min(high + gap / 2.0 - height).max(low - gap / 2.0)
}

fn bottom(block: &Block, gap: f64, low: f64, high: f64) -> f64 {
    top(block, gap, low, high) + block.1.len() as f64 * gap
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn far_apart_they_stay() {
        assert_eq!(apart(&[50.0, 10.0], 10.0, 0.0, 100.0), [50.0, 10.0]);
        assert_eq!(apart(&[], 10.0, 0.0, 100.0), Vec::<f64>::new());
    }

    #[test]
    fn near_ones_share_the_way() {
        assert_eq!(apart(&[50.0, 52.0], 10.0, 0.0, 100.0), [46.0, 56.0]);
        // The block of the first two meets the third.
        assert_eq!(apart(&[50.0, 50.0, 56.0], 10.0, 0.0, 100.0), [42.0, 52.0, 62.0]);
    }

    #[test]
    fn the_edges_hold() {
        assert_eq!(apart(&[0.0, 0.0, 100.0, 99.0], 10.0, 0.0, 100.0), [0.0, 10.0, 100.0, 90.0]);
    }
}
