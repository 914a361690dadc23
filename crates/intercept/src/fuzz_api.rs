//! Access to private parts of this crate for the fuzz targets. Not an API.

use crate::{
    packet_log::packets,
    routes::{read_devices, read_route},
    rules::nfnetlink::{self, NEW_GENERATION, NEW_RULE, generation_of, read_dump},
};
use netlink_packet_core::{NetlinkHeader, NetlinkMessage, NetlinkPayload};
use netlink_packet_route::{
    RouteNetlinkMessage,
    link::{LinkAttribute, LinkLayerType, LinkMessage},
};
use std::time::Duration;

/// Removes the first `N` bytes from `rest`. Missing bytes are zeros.
pub fn take<const N: usize>(rest: &mut &[u8]) -> [u8; N] {
    let mut bytes = [0; N];
    let here = rest.len().min(N);
    bytes[..here].copy_from_slice(&rest[..here]);
    *rest = &rest[here..];
    bytes
}

/// Removes a name from `rest`: a length byte, then UTF-8. `None` if it is not valid or empty.
pub fn name(rest: &mut &[u8]) -> Option<String> {
    let [length] = take(rest);
    let (name, behind) = rest.split_at_checked(length.into())?;
    *rest = behind;
    std::str::from_utf8(name).ok().filter(|name| !name.is_empty() && !name.contains('\0')).map(Into::into)
}

/// Parses `data` as an answer of the kernel over netlink: routes, interfaces, nftables, logged
/// packets. Then builds answers from `data` and parses those.
///
/// # Panics
/// If a truncated answer yields more than the whole one, or an answer that was built does not yield
/// its contents.
pub fn netlink(data: &[u8]) {
    let _ = read_route(data);
    let (mut devices, (rules, _)) = (Vec::new(), count_rules(data));
    let _ = (read_devices(data, &mut devices), generation_of(data));
    assert!(devices.len() * 16 <= data.len() && rules * 16 <= data.len(), "more messages than bytes");
    assert!(packets(data, Duration::ZERO).count() * 16 <= data.len(), "more packets than bytes");
    let cut = &data[..data.len() / 2];
    let (mut fewer, (part, _)) = (Vec::new(), count_rules(cut));
    let _ = read_devices(cut, &mut fewer);
    assert!(devices.starts_with(&fewer) && part <= rules, "half of an answer yields more than all of it");
    written(data);
}

/// The number of rules in an answer, and whether it was the last.
fn count_rules(answer: &[u8]) -> (usize, std::io::Result<bool>) {
    let mut rules = 0;
    let last = read_dump(answer, NEW_RULE, &mut false, |_| rules += 1);
    (rules, last)
}

/// Builds answers by `choices`, and checks that parsing yields their contents.
fn written(mut choices: &[u8]) {
    let rest = &mut choices;
    let [count, generation] = take(rest).map(|byte: u8| byte % 8);
    let (mut links, mut rules, mut names) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..count {
        let Some(name) = name(rest) else { break };
        let mut link = LinkMessage::default();
        link.header.index = u32::from_be_bytes(take(rest));
        link.header.link_layer_type = LinkLayerType::Ether;
        let mtu = u32::from_be_bytes(take(rest));
        link.attributes = vec![LinkAttribute::IfName(name.clone()), LinkAttribute::Mtu(mtu)];
        names.push((name, link.header.index, mtu));
        let mut message = NetlinkMessage::new(NetlinkHeader::default(), NetlinkPayload::from(RouteNetlinkMessage::NewLink(link)));
        message.finalize();
        let at = links.len();
        links.resize(at + message.buffer_len().next_multiple_of(4), 0);
        message.serialize(&mut links[at..]);
        rules.extend(nfnetlink::message(NEW_RULE, 0, 1, &[(1, names[0].0.as_bytes()), (2, &[generation])]));
    }
    let (mut devices, (counted, last)) = (Vec::new(), count_rules(&rules));
    assert!(!read_devices(&links, &mut devices).expect("interfaces are told") && !last.expect("rules are told"));
    let told: Vec<_> = devices.into_iter().map(|device| (device.name, device.index, device.mtu)).collect();
    assert_eq!((&told, counted), (&names, names.len()));
    let number = u32::from(generation) << 24 | 7;
    let answer = nfnetlink::message(NEW_GENERATION, 0, 0, &[(3, &[0; 5]), (1, &number.to_be_bytes())]);
    assert_eq!(generation_of(&answer).ok(), Some(number));
}
