//! The names of cases as columns: a case of a file, and a value for each key that was swept.

use scenario::{case_parts, short_keys};

/// The heads of the columns that tell `cases` apart, and a row of cells for each. If all cases sweep
/// the same keys, each key has a column, named by its last word where that is unique; a column for
/// the case of the file comes first where there is one. Otherwise the name is a single column.
pub fn case_columns(cases: &[&str]) -> (Vec<String>, Vec<Vec<String>>) {
    let keys = |case: &str| case_parts(case).iter().map(|(key, _)| key.to_string()).collect::<Vec<_>>();
    let common = cases.first().map(|case| keys(case)).unwrap_or_default();
    let swept = common.iter().any(|key| !key.is_empty()) && cases.iter().all(|case| keys(case) == common);
    if !swept {
        return (vec!["case".to_owned()], cases.iter().map(|case| vec![(*case).to_owned()]).collect());
    }
    let common: Vec<&str> = common.iter().map(String::as_str).collect();
    let head = |key: &str| if key.is_empty() { "case".to_owned() } else { key.to_owned() };
    let row = |case: &&str| case_parts(case).iter().map(|(_, value)| value.to_string()).collect();
    (short_keys(&common).into_iter().map(head).collect(), cases.iter().map(row).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn swept_keys_have_columns_where_all_cases_have_them() {
        let (head, rows) = case_columns(&["PEP xcp, link.2.loss.per_packet=0.01", "PEP share, link.2.loss.per_packet=0"]);
        assert_eq!(head, ["case", "per_packet"]);
        assert_eq!(rows, [["PEP xcp", "0.01"], ["PEP share", "0"]]);
        let (head, rows) = case_columns(&["PEP xcp, a.b=1", "PEP share"]);
        assert_eq!((head.len(), rows[0][0].as_str()), (1, "PEP xcp, a.b=1"));
        assert_eq!(case_columns(&["alone"]), (vec!["case".into()], vec![vec!["alone".into()]]));
        assert_eq!(case_columns(&[]).1.len(), 0);
    }

    #[test]
    fn a_sweep_of_one_key_is_named_by_what_varies() {
        let (head, rows) = case_columns(&["split.1.buffer=5pkt", "split.1.buffer=20pkt"]);
        assert_eq!((head, rows), (vec!["buffer".to_owned()], vec![vec!["5pkt".to_owned()], vec!["20pkt".to_owned()]]));
        let (head, _) = case_columns(&["link.1.rate=1Mbit, link.2.rate=2Mbit"]);
        assert_eq!(head, ["link.1.rate", "link.2.rate"]);
    }
}
