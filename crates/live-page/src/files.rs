//! The files of the page, which are part of the program. Its style and the hover values of its
//! plots are those of the pages that `report` makes.

use web_server::PageAnswer;

/// The file at this path.
pub(crate) fn file(path: &str) -> Option<PageAnswer> {
    const SCRIPT: &str = "text/javascript; charset=utf-8";
    const STYLE: &str = "text/css; charset=utf-8";
    let (media_type, content) = match path {
        "/" => ("text/html; charset=utf-8", include_str!("../page/index.html")),
        "/report.css" => (STYLE, report::PAGE_STYLE),
        "/live.css" => (STYLE, include_str!("../page/live.css")),
        "/curves.js" => (SCRIPT, report::PAGE_SCRIPT),
        "/live.js" => (SCRIPT, include_str!("../page/live.js")),
        "/state.js" => (SCRIPT, include_str!("../page/state.js")),
        "/text.js" => (SCRIPT, include_str!("../page/text.js")),
        "/plot.js" => (SCRIPT, include_str!("../page/plot.js")),
        "/flows.js" => (SCRIPT, include_str!("../page/flows.js")),
        "/experiment.js" => (SCRIPT, include_str!("../page/experiment.js")),
        "/icon.svg" => ("image/svg+xml", include_str!("../page/icon.svg")),
        _ => return None,
    };
    Some(PageAnswer::File { media_type, content })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::LONGEST_FILTER;

    /// The content of a file.
    fn content(path: &str) -> &'static str {
        match file(path) {
            Some(PageAnswer::File { content, .. }) => content,
            other => panic!("{path}: {other:?}"),
        }
    }

    #[test]
    fn the_page_refers_only_to_its_own_files() {
        let page = content("/");
        let references = ["src=\"", "href=\""].into_iter().flat_map(|attribute| page.split(attribute).skip(1));
        let mut waiting: Vec<String> = references.map(|rest| rest.split('"').next().unwrap().to_owned()).collect();
        assert!(waiting.len() >= 5, "{waiting:?}");
        while let Some(path) = waiting.pop() {
            // Whatever a script imports is a file too.
            let imports = content(&path).split(" from './").skip(1);
            waiting.extend(imports.map(|rest| format!("/{}", rest.split('\'').next().unwrap())));
        }
        assert!(file("/../Cargo.toml").is_none());
    }

    #[test]
    fn the_page_has_the_limiters_in_the_order_of_the_shares() {
        let names = serde_json::to_string(&proxy::Limiter::ALL).unwrap().replace('"', "'").replace(',', ", ");
        assert!(content("/text.js").contains(&format!("LIMITERS = {names};")), "{names}");
    }

    #[test]
    fn the_page_names_every_cause_of_a_loss() {
        for cause in account::Cause::ALL {
            let (key, name) = (serde_json::to_value(cause).unwrap(), cause.name());
            let line =
                format!("{}: {},", key.as_str().unwrap(), if name.contains('\'') { format!("\"{name}\"") } else { format!("'{name}'") });
            assert!(content("/text.js").contains(&line), "{line}");
        }
    }

    #[test]
    fn headings_sort_by_orders_that_the_server_knows() {
        let orders: Vec<&str> = content("/flows.js").split("sort: '").skip(1).map(|rest| rest.split('\'').next().unwrap()).collect();
        assert!(orders.len() > 10 && orders.iter().all(|order| order.parse::<monitor::FlowOrder>().is_ok()), "{orders:?}");
    }

    #[test]
    fn the_page_limits_the_filter_as_the_server_does() {
        assert!(content("/").contains(&format!("maxlength=\"{LONGEST_FILTER}\"")));
    }

    #[test]
    fn data_never_become_markup() {
        for path in ["/curves.js", "/live.js", "/state.js", "/text.js", "/plot.js", "/flows.js", "/experiment.js"] {
            for way in ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function"] {
                assert!(!content(path).contains(way), "{path} uses {way}");
            }
        }
    }
}
