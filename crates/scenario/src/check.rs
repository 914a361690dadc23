//! What can be wrong with a scenario whose text parsed, each with the key it is about.

use crate::{
    model::{Buffer, Loss, Scenario},
    text::Fault,
    units::{Bytes, PKT, QueueLimit, Span},
};

impl Scenario {
    /// Everything that can be wrong with a scenario whose text parsed.
    pub(crate) fn check(&self) -> Result<(), Fault> {
        let need = |ok: bool, path: String, message: String| if ok { Ok(()) } else { Err(Fault::new(path, message)) };
        need(!self.links.is_empty(), "link".into(), "there is none: a scenario has at least one [[link]]".into())?;
        for (index, link) in self.links.iter().enumerate() {
            need(link.rate.0 > 0, format!("link[{index}].rate"), "is 0: nothing would ever cross this link".into())?;
            need(
                !matches!(link.queue.limit, QueueLimit::Packets(0)),
                format!("link[{index}].queue"),
                "holds no packet: give it at least \"1pkt\"".into(),
            )?;
            self.check_loss(index, link.loss)?;
            for (number, change) in link.changes.iter().enumerate() {
                let path = format!("link[{index}].changes[{number}]");
                need(change.rate.0 > 0, format!("{path}.rate"), "is 0: nothing would ever cross this link again".into())?;
                let before = number.checked_sub(1).map_or(Span::ZERO, |before| link.changes[before].at);
                need(change.at > before, format!("{path}.at"), format!("is {}, but changes come one after the other", change.at))?;
            }
        }
        let inner_links = self.links.len() - 1;
        for (index, split) in self.splits.iter().enumerate() {
            need(
                (1..=inner_links).contains(&split.after),
                format!("split[{index}].after"),
                format!(
                    "is {}, but a proxy stands between two links: with {} it can be {}",
                    split.after,
                    counted(self.links.len(), "link"),
                    match inner_links {
                        0 => "nowhere, so add a [[link]]".into(),
                        1 => "1 only".to_string(),
                        _ => format!("1 to {inner_links}"),
                    }
                ),
            )?;
            need(
                index == 0 || self.splits[index - 1].after < split.after,
                format!("split[{index}].after"),
                "splits are listed from the sender to the receiver, one place each".into(),
            )?;
            need(
                !matches!(split.buffer, Buffer::Bytes(bytes) if bytes < PKT),
                format!("split[{index}].buffer"),
                "is less than one packet: nothing could pass".into(),
            )?;
        }
        need(
            self.control.proxy.len() == 1 || self.control.proxy.len() == self.splits.len(),
            "control.proxy".into(),
            format!("lists {} controllers for {}", self.control.proxy.len(), counted(self.splits.len(), "split")),
        )?;
        self.tcp.check()?;
        need(!self.flows.is_empty(), "flow".into(), "there is none: a scenario has at least one [[flow]]".into())?;
        for (index, flow) in self.flows.iter().enumerate() {
            need(flow.count > 0, format!("flow[{index}].count"), "is 0: leave the [[flow]] out instead".into())?;
            need(
                flow.bytes.is_some() || self.duration.is_some(),
                format!("flow[{index}].bytes"),
                "is absent, and so is the duration: the flow would never end".into(),
            )?;
            need(
                flow.bytes != Some(Bytes(0)),
                format!("flow[{index}].bytes"),
                "is 0: leave it out for a flow that sends until the duration ends".into(),
            )?;
        }
        for (index, offer) in self.flows.iter().enumerate().filter_map(|(index, flow)| Some((index, flow.offers?))) {
            need(offer.bytes.0 > 0, format!("flow[{index}].offers.bytes"), "is 0: it would never send".into())?;
            need(offer.every.0 > 0, format!("flow[{index}].offers.every"), "is 0: leave the offer out instead".into())?;
        }
        for (index, cross) in self.cross.iter().enumerate() {
            need(
                (1..=self.links.len()).contains(&cross.link),
                format!("cross[{index}].link"),
                format!("is {}, but the links are counted from 1 to {}", cross.link, self.links.len()),
            )?;
            need(cross.rate.0 > 0, format!("cross[{index}].rate"), "is 0: leave the [[cross]] out instead".into())?;
            need(
                cross.on.is_some() == cross.off.is_some(),
                format!("cross[{index}].on"),
                "on and off go together: give both, or neither for traffic that never pauses".into(),
            )?;
            need(cross.on.is_none_or(|on| on.0 > 0), format!("cross[{index}].on"), "is 0: it would never send".into())?;
        }
        Ok(())
    }

    fn check_loss(&self, index: usize, loss: Option<Loss>) -> Result<(), Fault> {
        let probability = |name: &str, p: f64| {
            if (0.0..=1.0).contains(&p) {
                Ok(())
            } else {
                Err(Fault::new(format!("link[{index}].loss.{name}"), format!("is {p}, but a probability lies between 0 and 1")))
            }
        };
        match loss {
            None => Ok(()),
            Some(Loss::PerPacket(p)) => probability("per_packet", p),
            Some(Loss::PerSecond(rate)) if rate.is_finite() && rate >= 0.0 => Ok(()),
            Some(Loss::PerSecond(rate)) => Err(Fault::new(
                format!("link[{index}].loss.per_second"),
                format!("is {rate}, but a number of events a second is 0 or more"),
            )),
            Some(Loss::Gilbert(gilbert)) => {
                probability("gilbert.good_to_bad", gilbert.good_to_bad)?;
                probability("gilbert.bad_to_good", gilbert.bad_to_good)?;
                probability("gilbert.loss_good", gilbert.loss_good)?;
                probability("gilbert.loss_bad", gilbert.loss_bad)
            }
        }
    }
}

/// "1 link", "2 links".
fn counted(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}
