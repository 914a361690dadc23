//! Checks of traffic beside flows: TCP cross traffic, web pages, request-response.

use crate::{
    check_values::{check_offer, check_size, check_window, need},
    flows::FlowDirection,
    model::Scenario,
    pages::{Exchange, LEAST_REQUEST, WebPage},
};
use toml_file::Fault;
use units::{Bytes, Span};

/// The most objects of a page.
const MOST_OBJECTS: u64 = 10_000;

impl Scenario {
    pub(crate) fn check_cross_flows(&self) -> Result<(), Fault> {
        for (index, cross) in self.cross_flows.iter().enumerate() {
            let key = |key: &str| format!("cross_flow[{index}].{key}");
            for (name, link) in [("enters", cross.enters), ("leaves", cross.leaves)] {
                let message = format!("is {link}, but the links are counted from 1 to {}", self.links.len());
                need((1..=self.links.len()).contains(&link), key(name), message)?;
            }
            let (enters, leaves) = (cross.enters, cross.leaves);
            let order =
                format!("is {leaves}, before enters, {enters}: swap them, and write direction = \"reverse\" for data against the links");
            need(enters <= leaves, key("leaves"), order)?;
            need(cross.count > 0, key("count"), "is 0: leave the [[cross_flow]] out instead".into())?;
            let endless = "is 0: leave it out for connections that send until the run ends";
            need(cross.bytes != Some(Bytes(0).into()), key("bytes"), endless.into())?;
            check_window(&key("window"), cross.window)?;
            check_control(&key("control"), cross.control.as_deref())?;
            check_offer(&format!("cross_flow[{index}]"), cross.offers)?;
        }
        Ok(())
    }

    pub(crate) fn check_web(&self) -> Result<(), Fault> {
        for (index, page) in self.pages.iter().enumerate() {
            check_page(&format!("page[{index}]"), page)?;
        }
        for (index, exchange) in self.exchanges.iter().enumerate() {
            check_exchange(&format!("exchange[{index}]"), exchange, self.duration.is_some())?;
        }
        Ok(())
    }
}

fn check_page(path: &str, page: &WebPage) -> Result<(), Fault> {
    let key = |key: &str| format!("{path}.{key}");
    need(page.count > 0, key("count"), "is 0: leave the [[page]] out instead".into())?;
    need(page.loads > 0, key("loads"), "is 0: leave the [[page]] out instead".into())?;
    need(page.connections > 0, key("connections"), "is 0: a browser opens at least one".into())?;
    let least = format!("is less than {LEAST_REQUEST}: the request would not hold what it asks for");
    need(page.request >= LEAST_REQUEST, key("request"), least)?;
    check_one_way(&key("direction"), page.direction)?;
    check_control(&key("control"), page.control.as_deref())?;
    need(!page.objects.is_empty(), key("object"), "is missing: a page has at least one [[page.object]]".into())?;
    for (index, object) in page.objects.iter().enumerate() {
        let key = |key: &str| format!("{path}.object[{index}].{key}");
        need(object.count > 0, key("count"), "is 0: leave the [[page.object]] out instead".into())?;
        check_size(&key("size"), object.size)?;
        let before = &page.objects[..index];
        let is_new = |name: &String| before.iter().all(|other| other.name.as_ref() != Some(name));
        let name = object.name.clone().unwrap_or_default();
        need(
            object.name.iter().all(is_new),
            key("name"),
            format!("is {name:?}, as that of an object before it: give each a name of its own"),
        )?;
        for (number, needed) in object.needs.iter().enumerate() {
            let message = format!("names {needed:?}, but no object before this one has that name");
            need(!is_new(needed), key("needs"), message)?;
            need(!object.needs[..number].contains(needed), key("needs"), format!("names {needed:?} twice: once is enough"))?;
        }
    }
    let objects: u64 = page.objects.iter().map(|object| u64::from(object.count)).sum();
    need(objects <= MOST_OBJECTS, key("object"), format!("are {objects} in all, but a page has at most {MOST_OBJECTS}"))
}

fn check_exchange(path: &str, exchange: &Exchange, has_duration: bool) -> Result<(), Fault> {
    let key = |key: &str| format!("{path}.{key}");
    need(exchange.count > 0, key("count"), "is 0: leave the [[exchange]] out instead".into())?;
    need(exchange.requests != Some(0), key("requests"), "is 0: leave the [[exchange]] out instead".into())?;
    let endless = "is absent, and so is the duration, so that requests would never end: give one of them";
    need(exchange.requests.is_some() || has_duration, key("requests"), endless.into())?;
    let least = format!("is less than {LEAST_REQUEST}: the request would not hold what it asks for");
    need(exchange.up.mean >= LEAST_REQUEST, key("up"), least)?;
    check_size(&key("down"), exchange.down)?;
    let all_at_once = "is 0: all requests would be sent at once";
    need(exchange.every != Some(Span::ZERO.into()), key("every"), all_at_once.into())?;
    let both = "stands beside every: in an open loop requests do not wait for responses; leave one of them out";
    need(exchange.every.is_none() || exchange.think == Span::ZERO.into(), key("think"), both.into())?;
    check_one_way(&key("direction"), exchange.direction)?;
    check_control(&key("control"), exchange.control.as_deref())
}

/// Checks that responses go one way only.
fn check_one_way(path: &str, direction: FlowDirection) -> Result<(), Fault> {
    let both = "cannot be both: responses go one way and requests the other; write a second table for clients at the other end";
    need(direction != FlowDirection::Both, path.into(), both.into())
}

fn check_control(path: &str, control: Option<&str>) -> Result<(), Fault> {
    control.map_or(Ok(()), |text| crate::control::check_text(path.into(), text))
}

#[cfg(test)]
mod tests {
    use crate::{Scenario, ScenarioFile};

    const LINKS: &str = "name = \"x\"\n[[link]]\nrate = \"9Mbit\"\ndelay = \"1ms\"\n[[link]]\nrate = \"9Mbit\"\ndelay = \"1ms\"\n";
    const PAGE: &str = "[[page]]\ncount = 2\nloads = 3\nthink = { law = \"exponential\", mean = \"1s\" }\nservice = \"5ms\"\n\
        [[page.object]]\nname = \"html\"\nsize = \"9kB\"\n[[page.object]]\nsize = { law = \"exponential\", mean = \"9kB\" }\ncount = 5\nneeds = [\"html\"]\n";
    const EXCHANGE: &str = "[[exchange]]\nrequests = 9\nup = \"100B\"\ndown = \"2kB\"\nevery = \"10ms\"\ndirection = \"reverse\"\n";
    const CROSS: &str = "[[cross_flow]]\nenters = 1\nleaves = 2\ncount = 3\nbytes = \"9kB\"\ndirection = \"both\"\ncontrol = \"reno\"\n";

    fn read(text: &str) -> Result<Scenario, String> {
        let file = ScenarioFile::parse(&format!("{LINKS}{text}"), "x").map_err(|error| error.to_string())?;
        Ok(file.variants(&[]).map_err(|error| error.to_string())?.remove(0).scenario)
    }

    #[test]
    fn what_is_printed_parses_back() {
        let scenario = read(&format!("{PAGE}{EXCHANGE}{CROSS}")).unwrap();
        let printed = toml::to_string(&scenario).unwrap();
        let again = ScenarioFile::parse(&printed, "x").unwrap().variants(&[]).unwrap().remove(0).scenario;
        assert_eq!(again, scenario, "{printed}");
    }

    #[test]
    fn connections_of_both_directions_are_numbered_in_pairs() {
        let scenario = read(&format!("[[flow]]\ncount = 2\nbytes = \"1MB\"\ndirection = \"both\"\n{CROSS}")).unwrap();
        let flows = scenario.flow_specs(1);
        assert_eq!(
            flows.iter().map(|flow| (flow.id, flow.path.is_reverse)).collect::<Vec<_>>(),
            [(0, false), (1, true), (2, false), (3, true)]
        );
        let cross = scenario.cross_flow_specs(1, 4);
        assert_eq!(cross.iter().map(|flow| flow.id).collect::<Vec<_>>(), (4..10).collect::<Vec<_>>());
        assert!(cross[1].path.is_reverse && cross[1].path.sender_host() == 2);
    }

    #[test]
    fn mistakes_are_told_with_their_cure() {
        let cases = [
            (CROSS, "leaves = 2", "leaves = 3", "cross_flow[1].leaves: is 3, but the links are counted from 1 to 2"),
            (CROSS, "enters = 1\nleaves = 2", "enters = 2\nleaves = 1", "cross_flow[1].leaves: is 1, before enters, 2: swap them"),
            (CROSS, "9kB", "0B", "cross_flow[1].bytes: is 0: leave it out for connections that send until the run ends"),
            (PAGE, "[\"html\"]", "[\"htm\"]", "page[1].object[2].needs: names \"htm\", but no object before this one has that name"),
            (PAGE, "count = 5", "name = \"html\"", "page[1].object[2].name: is \"html\", as that of an object before it"),
            (PAGE, "loads = 3", "direction = \"both\"", "page[1].direction: cannot be both: responses go one way and requests the other"),
            (PAGE, "loads = 3", "request = \"9B\"", "page[1].request: is less than 24B"),
            (PAGE, "needs =", "requires =", "page[1].object[2].requires: is not a key here: did you mean needs?"),
            (EXCHANGE, "requests = 9\n", "", "exchange[1].requests: is absent, and so is the duration"),
            (EXCHANGE, "requests = 9", "requests = 9\nthink = \"1s\"", "exchange[1].think: stands beside every"),
        ];
        for (table, from, to, expected) in cases {
            let more = if table == CROSS { "[[flow]]\nbytes = \"1MB\"\n" } else { "" };
            let error = read(&format!("{}{more}", table.replacen(from, to, 1))).unwrap_err();
            assert!(error.contains(expected), "{error}\nhas no: {expected}");
        }
        assert!(read(CROSS).unwrap_err().contains("a scenario has at least one [[flow]], [[page]] or [[exchange]]"));
    }
}
