//! Fits the law to points by linear least squares of relative errors.

#[derive(Clone, Copy, Debug)]
pub struct Point {
    pub numjobs: f64,
    pub iops: f64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Law {
    pub lambda: f64,
    pub sigma: f64,
    pub kappa: f64,
}

/// 1/lambda, sigma/lambda and kappa/lambda.
type Coefficients = [f64; 3];

impl Law {
    pub fn at(self, n: f64) -> f64 {
        self.lambda * n / (1.0 + self.sigma * (n - 1.0) + self.kappa * n * (n - 1.0))
    }

    /// The maximum of the curve. None if it never falls.
    pub fn peak(self) -> Option<f64> {
        (self.kappa > 0.0).then(|| ((1.0 - self.sigma).max(0.0) / self.kappa).sqrt().max(1.0))
    }

    /// The law with the least sum of squares among those with sigma and kappa not below zero. The
    /// sum is convex: its minimum is the unconstrained one, or has sigma or kappa or both at zero.
    pub fn through(points: &[Point]) -> Self {
        let scale = points.iter().map(|point| point.iops).fold(f64::MIN_POSITIVE, f64::max);
        let rows: Vec<Coefficients> = points.iter().map(|point| row(point, scale)).collect();
        const ALLOWED: [[bool; 3]; 4] =
            [[true, true, true], [true, true, false], [true, false, true], [true, false, false]];
        let best = ALLOWED
            .into_iter()
            .filter_map(|allowed| solve(&rows, allowed))
            .filter(|[first, others @ ..]| *first > 0.0 && others.iter().all(|other| *other >= 0.0))
            .min_by(|one, other| squares(&rows, one).total_cmp(&squares(&rows, other)));
        // The last of them, a straight line, always has a solution with rates above zero.
        let [first, second, third] = best.unwrap_or([1.0, 0.0, 0.0]);
        Self { lambda: scale / first, sigma: second / first, kappa: third / first }
    }
}

/// A row of the linear system with right side 1: x/X(N) = x/N (a + b (N-1) + c N (N-1)).
fn row(point: &Point, scale: f64) -> Coefficients {
    let (n, x) = (point.numjobs, point.iops / scale);
    [x / n, x * (n - 1.0) / n, x * (n - 1.0)]
}

fn squares(rows: &[Coefficients], coefficients: &Coefficients) -> f64 {
    let off =
        |row: &Coefficients| row.iter().zip(coefficients).map(|(x, by)| x * by).sum::<f64>() - 1.0;
    rows.iter().map(|row| off(row).powi(2)).sum()
}

/// The normal equations, with excluded coefficients zero. None if they have no solution.
fn solve(rows: &[Coefficients], allowed: [bool; 3]) -> Option<Coefficients> {
    // Columns differ by powers of the number of threads. Scaling each to length one gives the best
    // conditioned equations.
    let length = |column: usize| {
        rows.iter().map(|row| row[column].powi(2)).sum::<f64>().sqrt().max(f64::MIN_POSITIVE)
    };
    let lengths = [length(0), length(1), length(2)];
    let mut matrix = [[0.0; 4]; 3];
    for (i, line) in matrix.iter_mut().enumerate() {
        if !allowed[i] {
            line[i] = 1.0;
            continue;
        }
        for j in (0..3).filter(|j| allowed[*j]) {
            line[j] = rows.iter().map(|row| row[i] / lengths[i] * row[j] / lengths[j]).sum();
        }
        line[3] = rows.iter().map(|row| row[i] / lengths[i]).sum();
    }
    let scaled = eliminate(matrix)?;
    Some([scaled[0] / lengths[0], scaled[1] / lengths[1], scaled[2] / lengths[2]])
}

/// Gaussian elimination with pivoting.
fn eliminate(mut matrix: [[f64; 4]; 3]) -> Option<[f64; 3]> {
    const PIVOT_MIN: f64 = 1e-12;
    for column in 0..3 {
        let pivot = (column..3).max_by(|one, other| {
            matrix[*one][column].abs().total_cmp(&matrix[*other][column].abs())
        })?;
        matrix.swap(column, pivot);
        let line = matrix[column];
        if line[column].abs() < PIVOT_MIN {
            return None;
        }
        for (other, below) in matrix.iter_mut().enumerate() {
            if other != column {
                let factor = below[column] / line[column];
                below.iter_mut().zip(line).for_each(|(entry, by)| *entry -= factor * by);
            }
        }
    }
    Some([0, 1, 2].map(|i| matrix[i][3] / matrix[i][i]))
}
