//! The names of cases as columns: a case of a file, and a value for each key that was swept.

/// The heads of the columns that tell `cases` apart, and a row of cells for each. Where all cases sweep the same keys, each key has a column,
/// by its last word; else the name stands whole.
pub fn case_columns(cases: &[&str]) -> (Vec<String>, Vec<Vec<String>>) {
    let keys = |case: &str| parts(case).map(|(key, _)| key.to_owned()).collect::<Vec<_>>();
    let alike = |first: Vec<String>| {
        let swept = first[0].is_empty() && first[1..].iter().all(|key| !key.is_empty());
        (swept && cases.iter().all(|case| keys(case) == first)).then(|| first[1..].to_vec())
    };
    let head = || "case".to_owned();
    match cases.first().map(|case| keys(case)).and_then(alike) {
        Some(swept) => {
            let row = |case: &&str| parts(case).map(|(_, value)| value.to_owned()).collect();
            (std::iter::once(head()).chain(swept).collect(), cases.iter().map(row).collect())
        }
        None => (vec![head()], cases.iter().map(|case| vec![(*case).to_owned()]).collect()),
    }
}

/// The parts of a case's name: the case of the file, without a key, and then each swept key by its last word, with its value.
fn parts(case: &str) -> impl Iterator<Item = (&str, &str)> {
    case.split(", ").map(|part| match part.split_once('=') {
        Some((key, value)) => (key.rsplit('.').next().unwrap_or(key), value),
        None => ("", part),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn swept_keys_have_columns_of_their_own_where_all_have_them() {
        let (head, rows) = case_columns(&["PEP xcp, link.2.loss.per_packet=0.01", "PEP share, link.2.loss.per_packet=0"]);
        assert_eq!(head, ["case", "per_packet"]);
        assert_eq!(rows, [["PEP xcp", "0.01"], ["PEP share", "0"]]);
        let (head, rows) = case_columns(&["PEP xcp, a.b=1", "PEP share"]);
        assert_eq!((head.len(), rows[0][0].as_str()), (1, "PEP xcp, a.b=1"));
        assert_eq!(case_columns(&["alone"]), (vec!["case".into()], vec![vec!["alone".into()]]));
        assert_eq!(case_columns(&[]).1.len(), 0);
    }
}
