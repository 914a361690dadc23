//! The way of a connection over links in series: which links, which direction, where it is split.

/// The links between the two ends of a TCP connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LegLinks {
    /// Index of the first link, from 0.
    pub first: usize,
    /// One past the last link.
    pub end: usize,
}

/// The links that a flow's data crosses, and in which direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlowPath {
    /// The links, whichever direction.
    pub links: LegLinks,
    /// Whether the data goes from the last of these links to the first.
    pub is_reverse: bool,
}

impl FlowPath {
    /// The number of the host at which data enters: host k is behind link k, host 0 before the
    /// first.
    pub fn sender_host(self) -> usize {
        if self.is_reverse { self.links.end } else { self.links.first }
    }

    /// The number of the host at which data leaves.
    pub fn receiver_host(self) -> usize {
        if self.is_reverse { self.links.first } else { self.links.end }
    }
}

/// One leg of a flow: the links of one of its TCP connections, and the splits at its ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlowLeg {
    /// The links.
    pub links: LegLinks,
    /// Index of the split whose proxy sends on this leg; none on the leg of the flow's sender.
    pub split_before: Option<usize>,
    /// Index of the split whose proxy receives on this leg; none on the leg of the flow's receiver.
    pub split_behind: Option<usize>,
}

/// The legs of a connection over `path`, from its sender on. `splits` lists the links after which
/// there are proxies, in order. A connection is split by those between two of its links, not by one
/// at its end.
pub(crate) fn legs_over(path: FlowPath, splits: impl Iterator<Item = usize>) -> Vec<FlowLeg> {
    let LegLinks { first, end } = path.links;
    let mut legs = vec![FlowLeg { links: path.links, split_before: None, split_behind: None }];
    for (index, after) in splits.enumerate().filter(|(_, after)| (first + 1..end).contains(after)) {
        let last = legs.len() - 1;
        legs[last].links.end = after;
        legs[last].split_behind = Some(index);
        legs.push(FlowLeg { links: LegLinks { first: after, end }, split_before: Some(index), split_behind: None });
    }
    if path.is_reverse {
        legs.reverse();
        legs.iter_mut().for_each(|leg| std::mem::swap(&mut leg.split_before, &mut leg.split_behind));
    }
    legs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reverse_flow_has_the_same_legs_from_its_own_sender_on() {
        let path = |first, end, is_reverse| FlowPath { links: LegLinks { first, end }, is_reverse };
        let leg = |first, end, split_before, split_behind| FlowLeg { links: LegLinks { first, end }, split_before, split_behind };
        let legs = |path| legs_over(path, [1, 3].into_iter());
        assert_eq!(legs(path(0, 4, false)), [leg(0, 1, None, Some(0)), leg(1, 3, Some(0), Some(1)), leg(3, 4, Some(1), None)]);
        assert_eq!(legs(path(0, 4, true)), [leg(3, 4, None, Some(1)), leg(1, 3, Some(1), Some(0)), leg(0, 1, Some(0), None)]);
        assert_eq!((path(1, 4, true).sender_host(), path(1, 4, true).receiver_host()), (4, 1));
        // A proxy at the end of a path does not split it.
        assert_eq!(legs(path(1, 3, false)), [leg(1, 3, None, None)]);
        assert_eq!(legs(path(2, 4, false)), [leg(2, 3, None, Some(1)), leg(3, 4, Some(1), None)]);
    }
}
