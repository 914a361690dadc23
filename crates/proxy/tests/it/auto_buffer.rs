//! `buffer = "auto"`: B follows the flow, and no byte is lost where it changes.

use crate::common::{ForwardBench, listener, payload, wait_until};
use proxy::{BufferSetting, FlowStats, ProxyConfig};
use relay::buffer_law::START;
use std::{
    io::{Read as _, Write as _},
    net::Shutdown,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
    time::Duration,
};
use units::Bytes;

fn auto(max: Option<Bytes>) -> ProxyConfig {
    let mut config = ProxyConfig::default();
    config.set_buffer(BufferSetting::Auto, max);
    config
}

/// Sets a flag when it is dropped, which ends the transfer also when a condition is never met.
struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// A receiver that reads slowly, then fast, slowly and fast again. B shrinks below the size from
/// which bytes are spliced while a queue stands, and the relay changes to copying and back.
#[test]
fn a_standing_queue_lowers_b_and_every_byte_arrives() {
    let bench = ForwardBench::before(listener(), auto(None));
    let (client, mut server) = bench.connect();
    // With a buffer that the kernel tunes, its window would open in steps of more than B, which B
    // has to bridge.
    socket2::SockRef::from(&server).set_recv_buffer_size(64 * 1024).unwrap();
    // The same bytes again and again, until B was low and some more have passed.
    let pattern = payload((1 << 20) + 7);
    let proxy = &bench.proxy;
    let (is_low, is_over) = (AtomicBool::new(false), AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Relaxed) {
                (&client).write_all(&pattern).unwrap();
            }
            client.shutdown(Shutdown::Write).unwrap();
        });
        scope.spawn(|| {
            let _end = SetOnDrop(&is_over);
            let has_low = |flow: &FlowStats| flow.up.buffer.is_some_and(|buffer| buffer < START);
            wait_until(|| proxy.flows().iter().any(has_low));
            is_low.store(true, Relaxed);
            let before = proxy.flows()[0].up.moved;
            wait_until(|| proxy.flows()[0].up.moved > before + (16 << 20));
        });
        let (mut room, mut at) = (vec![0; 16 * 1024], 0);
        loop {
            // So slow until B is low that the queue stands also where this machine is busy, then as
            // fast as possible.
            if !is_low.load(Relaxed) {
                thread::sleep(Duration::from_millis(30));
            }
            let count = server.read(&mut room).unwrap();
            if count == 0 {
                break;
            }
            let same = room[..count].iter().enumerate().all(|(offset, byte)| *byte == pattern[(at + offset) % pattern.len()]);
            assert!(same, "other bytes at {at}");
            at += count;
        }
        assert!(at > 16 << 20 && at % pattern.len() == 0, "the stream ended at {at}");
    });
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
