//! Keys that a change sets, but that another key of the scenario leaves without effect. A sweep
//! over such a key would give one answer as many times as it has values.

use crate::{Scenario, link::Link};
use toml_file::Fault;

impl Scenario {
    /// Checks that no other key overrides `key`, which a change has set: dotted, with tables of a
    /// list counted from 1 or named by `*`.
    ///
    /// # Errors
    /// The fault names both keys and the cure.
    pub(crate) fn check_override(&self, key: &str) -> Result<(), Fault> {
        let key = key.replace('[', ".").replace(']', "");
        let steps: Vec<&str> = key.split('.').collect();
        match steps[..] {
            ["link", number, quantity, ..] => check_links("link", number, quantity, &steps[3..], self.links.iter()),
            ["network", number, quantity, ..] => {
                check_links("network", number, quantity, &steps[3..], self.networks.iter().map(|network| &network.link))
            }
            ["control", "sender"] => self.check_sender(),
            _ => Ok(()),
        }
    }

    /// Checks that a sender uses `control.sender`.
    fn check_sender(&self) -> Result<(), Fault> {
        let own = |count: usize, all: bool, key: &'static str| (count > 0).then_some((all, key));
        let traffic = [
            own(self.flows.len(), self.flows.iter().all(|flow| flow.control.is_some()), "flow.*.control"),
            own(self.cross_flows.len(), self.cross_flows.iter().all(|flow| flow.control.is_some()), "cross_flow.*.control"),
            own(self.pages.len(), self.pages.iter().all(|page| page.control.is_some()), "page.*.control"),
            own(self.exchanges.len(), self.exchanges.iter().all(|exchange| exchange.control.is_some()), "exchange.*.control"),
        ];
        let there: Vec<(bool, &str)> = traffic.into_iter().flatten().collect();
        // Transfers of networks in parallel use it, and a proxy's leg back to the sender.
        let goes_back = !self.splits.is_empty() && self.reverse_key().is_some();
        let is_used = there.iter().any(|(all, _)| !all) || there.is_empty() || !self.networks.is_empty() || goes_back;
        if is_used {
            return Ok(());
        }
        let keys: Vec<&str> = there.iter().map(|(_, key)| *key).collect();
        let keys = keys.join(", ");
        Err(Fault::new("control.sender", format!("has no effect, because every sender has a controller of its own ({keys}): set that")))
    }
}

/// Checks links that `number` names. `inside` is the rest of the key below `quantity`.
fn check_links<'a>(list: &str, number: &str, quantity: &str, inside: &[&str], links: impl Iterator<Item = &'a Link>) -> Result<(), Fault> {
    for (index, link) in links.enumerate().filter(|(index, _)| number == "*" || number.parse() == Ok(index + 1)) {
        let Some(first) = link.changes.first().filter(|first| first.at.0 == 0) else { continue };
        let is_overridden = match quantity {
            "rate" => first.rate.is_some(),
            "delay" => first.delay.is_some(),
            // Changes are of the losses of data.
            "loss" => first.loss.is_some() && inside.first() != Some(&"reverse"),
            _ => false,
        };
        if !is_overridden {
            continue;
        }
        let path = format!("{list}.{}", index + 1);
        let (by, cure) = match &link.steps {
            Some(file) => (
                format!("{path}.steps: line {} of {}", file.lines.first().copied().unwrap_or(1), file.name),
                format!("set {path}.steps to other files, or have the file begin after time 0"),
            ),
            None => (format!("{path}.changes.1"), format!("set {path}.changes.1.{quantity}, or leave that out")),
        };
        let message = format!("has no effect, because {by} sets the {quantity} from time 0 on: {cure}");
        return Err(Fault::new(format!("{list}[{index}].{quantity}"), message));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::{Assignment, ScenarioFile};
    use std::{io, sync::Arc};
    use toml::Value;

    const STEPS: &str = "steps = \"s.csv\"";

    /// The error of a sweep over two values in a scenario whose second link has these keys.
    fn error(link: &str, flow: &str, key: &str, values: [&str; 2]) -> Option<String> {
        let text = format!(
            "name = \"x\"\nduration = \"60s\"\n[[link]]\nrate = \"100Mbit\"\ndelay = \"1ms\"\n[[link]]\nrate = \"20Mbit\"\n\
             delay = \"10ms\"\n{link}\n[[flow]]\n{flow}\n"
        );
        let open = |name: &str| -> io::Result<Box<dyn io::BufRead>> {
            match name {
                "s.csv" => Ok(Box::new("time,rate\n0s,20Mbit\n10s,5Mbit\n".as_bytes())),
                "later.csv" => Ok(Box::new("time,rate\n1s,20Mbit\n10s,5Mbit\n".as_bytes())),
                _ => Err(io::ErrorKind::NotFound.into()),
            }
        };
        let file = ScenarioFile::parse_with(&text, "x.toml", Arc::new(open)).unwrap();
        let set = Assignment::new(key, values.map(|value| Value::String(value.into())).to_vec());
        file.variants(&[set]).err().map(|error| error.to_string())
    }

    #[test]
    fn a_rate_that_steps_override_is_not_set() {
        let rates = ["10Mbit", "30Mbit"];
        let said = error(STEPS, "", "link.2.rate", rates).unwrap();
        assert_eq!(
            said,
            "--set link.2.rate=10Mbit: link[2].rate: has no effect, because link.2.steps: line 2 of s.csv sets the rate from time 0 on: \
             set link.2.steps to other files, or have the file begin after time 0"
        );
        assert!(error(STEPS, "", "link[2].rate", rates).is_some() && error(STEPS, "", "link.*.rate", rates).is_some());
        assert_eq!(error(STEPS, "", "link.1.rate", rates), None);
        assert_eq!(error("steps = \"later.csv\"", "", "link.2.rate", rates), None, "it applies until the first step");
        assert_eq!(error(STEPS, "", "link.2.delay", ["1ms", "2ms"]), None, "the steps set no delay");
        let files = error(STEPS, "", "link.2.steps", ["s.csv", "later.csv"]);
        assert_eq!(files, None);
    }

    #[test]
    fn changes_at_the_beginning_override_rate_delay_and_loss() {
        let changes = "changes = [{ at = \"0s\", rate = \"1Mbit\", delay = \"2ms\", loss = 0.1 }]";
        for (key, values) in [("rate", ["1Mbit", "2Mbit"]), ("delay", ["1ms", "2ms"]), ("loss.per_packet", ["1%", "2%"])] {
            let said = error(changes, "", &format!("link.2.{key}"), values).unwrap();
            let quantity = key.split('.').next().unwrap();
            assert!(said.contains(&format!("because link.2.changes.1 sets the {quantity} from time 0 on")), "{said}");
        }
        assert_eq!(error("changes = [{ at = \"1s\", delay = \"2ms\" }]", "", "link.2.delay", ["1ms", "2ms"]), None);
    }

    #[test]
    fn a_sender_with_a_controller_of_its_own_needs_no_other() {
        let said = error("", "control = \"reno\"", "control.sender", ["cubic", "bbr"]).unwrap();
        assert!(
            said.contains("control.sender: has no effect, because every sender has a controller of its own (flow.*.control)"),
            "{said}"
        );
        assert_eq!(error("", "", "control.sender", ["cubic", "bbr"]), None);
        assert_eq!(error("", "control = \"reno\"\n[[flow]]", "control.sender", ["cubic", "bbr"]), None);
    }
}
