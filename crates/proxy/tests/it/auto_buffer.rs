//! `buffer = "auto"`: B follows the flow, and no byte is lost where it changes.

use crate::common::{ForwardBench, listener, payload};
use proxy::{BufferSetting, ProxyConfig};
use relay::buffer_law::START;
use std::{
    io::{Read as _, Write as _},
    thread,
    time::Duration,
};
use units::Bytes;

fn auto(max: Option<Bytes>) -> ProxyConfig {
    let mut config = ProxyConfig::default();
    config.set_buffer(BufferSetting::Auto, max);
    config
}

/// A receiver that reads slowly, then fast, slowly and fast again. B shrinks below the size from
/// which bytes are spliced while a queue stands, and the relay changes to copying and back.
#[test]
fn a_standing_queue_lowers_b_and_every_byte_arrives() {
    let bench = ForwardBench::before(listener(), auto(None));
    let (client, mut server) = bench.connect();
    // With a buffer that the kernel tunes, its window would open in steps of more than B, which B has
    // to bridge.
    socket2::SockRef::from(&server).set_recv_buffer_size(64 * 1024).unwrap();
    let sent = payload(48 << 20);
    let mut is_low = false;
    thread::scope(|scope| {
        scope.spawn(|| (&client).write_all(&sent).unwrap());
        let (mut room, mut at, mut reads) = (vec![0; 16 * 1024], 0, 0);
        while at < sent.len() {
            // Slow until B is low, then as fast as possible.
            if !is_low {
                thread::sleep(Duration::from_millis(8));
            }
            let count = server.read(&mut room).unwrap();
            assert!(count > 0, "the stream ended at {at}");
            assert!(room[..count] == sent[at..at + count], "other bytes at {at}");
            at += count;
            reads += 1;
            if !is_low && reads % 32 == 0 {
                is_low = bench.proxy.flows().iter().any(|flow| flow.up.buffer.is_some_and(|buffer| buffer < START));
            }
        }
    });
    assert!(is_low, "B stayed high");
    // A lower bound may cost the sender a retransmission (docs/limitations.md).
    let sender = intercept::tcp_info(&client).unwrap();
    let flow = bench.proxy.flows().pop().expect("the connection is open");
    eprintln!("retransmitted {}, timeouts {:?}, drops {:?}", sender.total_retrans, sender.timeouts(), flow.drops);
}

#[test]
fn b_is_shown_once_a_flow_carries_bulk_data_and_stays_within_its_maximum() {
    let most = 128 * 1024;
    let bench = ForwardBench::before(listener(), auto(Some(Bytes(most))));
    let (mut client, mut server) = bench.connect();
    client.write_all(b"hello").unwrap();
    server.read_exact(&mut [0; 5]).unwrap();
    bench.wait_for_flow(|flow| flow.up.moved == 5 && flow.up.buffer.is_none());
    client.set_nonblocking(true).unwrap();
    let mut room = vec![0; 1 << 16];
    for _ in 0..2000 {
        let _ = client.write(&room);
        server.set_nonblocking(true).unwrap();
        let _ = server.read(&mut room);
    }
    bench.wait_for_flow(|flow| flow.up.buffer.is_some_and(|buffer| buffer <= most) && flow.down.buffer.is_none());
}
