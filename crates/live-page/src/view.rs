//! Which flows a browser shows: it says so in the query of its stream of events.

use monitor::{FlowFilter, FlowOrder};

/// Flows that a browser shows at once.
pub(crate) const ROWS: usize = 50;
/// The longest filter, characters, as in the page's input: every flow is compared with each word.
pub(crate) const LONGEST_FILTER: usize = 200;

/// What a browser shows.
#[derive(Debug, Default)]
pub(crate) struct View {
    /// By what flows are sorted.
    pub(crate) order: FlowOrder,
    /// Whether the order is reversed.
    pub(crate) reversed: bool,
    /// Which flows are shown.
    pub(crate) filter: FlowFilter,
    /// Why the browser's filter cannot be read; all flows are shown then.
    pub(crate) filter_error: Option<String>,
    /// Which part of the sorted flows is shown, from 0.
    pub(crate) page: usize,
    /// Serial number of the flow whose curves are drawn.
    pub(crate) open: Option<u64>,
    /// Whether the browser needs the history.
    pub(crate) wants_history: bool,
}

impl View {
    /// Reads a query. Unknown keys are ignored, and values that cannot be read are the defaults.
    pub(crate) fn of_query(query: &str) -> Self {
        let mut view = View::default();
        for (key, value) in form_urlencoded::parse(query.as_bytes()) {
            match &*key {
                "sort" => view.order = value.parse().unwrap_or_default(),
                "reversed" => view.reversed = value == "1",
                "filter" if value.chars().count() > LONGEST_FILTER => {
                    view.filter_error = Some(format!("cannot read the filter: it has more than {LONGEST_FILTER} characters"));
                }
                "filter" => match value.parse::<FlowFilter>() {
                    Ok(filter) => view.filter = filter,
                    Err(error) => view.filter_error = Some(error.to_string()),
                },
                "page" => view.page = value.parse().unwrap_or_default(),
                "flow" => view.open = value.parse().ok(),
                "history" => view.wants_history = value == "1",
                _ => {}
            }
        }
        view
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_says_what_is_shown() {
        let view = View::of_query("sort=held&reversed=1&filter=192.0.2.0%2F24+%3A443&page=3&flow=17&history=1&other=x");
        assert_eq!((view.order, view.reversed, view.page, view.open, view.wants_history), (FlowOrder::Held, true, 3, Some(17), true));
        assert_eq!(view.filter, "192.0.2.0/24 :443".parse().unwrap());
        let view = View::of_query("sort=colour&page=-1&flow=x");
        assert_eq!((view.order, view.reversed, view.page, view.open, view.wants_history), (FlowOrder::Rate, false, 0, None, false));
        let long = View::of_query(&format!("filter={}", "x+".repeat(LONGEST_FILTER)));
        assert!(long.filter.is_empty() && long.filter_error.unwrap().contains("200 characters"));
        assert!(View::of_query("filter=phase%3Dfull").filter_error.unwrap().contains("free, starvation, backpressure"));
    }
}
