//! Statistics of a few rounds.

/// The median; of an even number of values the mean of the two middle ones.
///
/// # Panics
///
/// If there are no values.
pub(crate) fn median(figures: impl Iterator<Item = f64>) -> f64 {
    let mut sorted: Vec<f64> = figures.collect();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    if sorted.len() % 2 == 1 { sorted[middle] } else { (sorted[middle - 1] + sorted[middle]) / 2.0 }
}

/// `median (least … most)`, or a dash if there are no values.
pub(crate) fn spread(values: impl IntoIterator<Item = f64>, digits: usize) -> String {
    let values: Vec<f64> = values.into_iter().collect();
    if values.is_empty() {
        return "–".into();
    }
    let least = values.iter().copied().fold(f64::INFINITY, f64::min);
    let most = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    format!("{:.digits$} ({least:.digits$} … {most:.digits$})", median(values.into_iter()))
}
