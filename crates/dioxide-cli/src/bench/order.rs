//! The order of the routes within a round. Arithmetic only.

/// The order rotates by one each round, over a cycle of as many rounds as there are routes. Every
/// second cycle is backwards.
pub fn order(round: usize, routes: usize) -> impl Iterator<Item = usize> {
    let is_backwards = !(round / routes.max(1)).is_multiple_of(2);
    let forwards = (0..routes).map(move |turn| (turn + round) % routes);
    forwards.map(move |route| if is_backwards { routes - 1 - route } else { route })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_rotates_forwards_and_backwards() {
        let orders: Vec<Vec<usize>> = (0..7).map(|round| order(round, 3).collect()).collect();
        let forwards = [[0, 1, 2], [1, 2, 0], [2, 0, 1]];
        let backwards = [[2, 1, 0], [1, 0, 2], [0, 2, 1]];
        assert_eq!(orders, [&forwards[..], &backwards, &forwards[..1]].concat());
    }
}
