//! The border to C: the structs of `c/intf.h` and the table of `c/native.c`.
#![allow(unsafe_code)]

use crate::STATE_WORDS;
use std::{
    ffi::{CStr, c_char},
    ptr, slice,
};

/// One connection (`struct td_flow`). Windows are segments, rates payload bytes/s.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Flow {
    /// Payload of a full segment, bytes.
    pub mss: u32,
    /// Smoothed RTT, µs; 0: none was measured yet.
    pub srtt_us: u32,
    /// Least RTT as TCP remembers it, µs; 0: none was measured yet.
    pub min_rtt_us: u32,
    /// Segments sent that are neither acknowledged nor SACKed nor counted lost.
    pub in_flight: u32,
    /// Sequence number of the first byte that is not acknowledged.
    pub una: u32,
    /// Sequence number of the next byte that was never sent.
    pub nxt: u32,
    /// Bytes that wait in the socket to be sent for the first time.
    pub unsent: u32,
    /// Bytes that the receiver lets be in flight.
    pub snd_wnd: u32,
    /// cwnd before the last reduction.
    pub prior_cwnd: u32,
    /// Of its share; 0 counts as 1.
    pub weight: u32,
    /// Bytes of the IP and TCP headers of a segment.
    pub header: u32,
    /// Nothing.
    pub reserved: u32,
    /// Payload bytes sent so far, again or for the first time.
    pub sent: u64,
    /// What the controller decides: the window.
    pub cwnd: u32,
    /// What the controller decides: where slow start ends.
    pub ssthresh: u32,
    /// What the controller decides: payload bytes/s; 0: as TCP paces by itself.
    pub pacing_rate: u64,
}

/// What kind of thing happened (`enum td_kind`).
#[repr(u32)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Kind {
    /// The flow begins, or takes this controller in mid-flight.
    #[default]
    Init,
    /// An ACK delivered something or measured an RTT, whatever the state; before `Ack` of the same ACK.
    Sample,
    /// An ACK after which the window may grow; for controllers of the whole window: every ACK.
    Ack,
    /// A loss, or an echoed CE mark, begins a recovery.
    Loss,
    /// The retransmission timer fired; cwnd is TCP's to reset.
    Timeout,
    /// Recovery is over.
    Recovered,
    /// The reduction was needless.
    Undo,
    /// Data is sent when nothing was in flight.
    Restart,
    /// The flow ends, or takes another controller.
    Close,
}

/// What happened (`struct td_event`).
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Event {
    /// A clock that only goes forward, µs.
    pub now_us: u64,
    /// What kind of thing it is.
    pub kind: Kind,
    /// [`crate::LIMITED`], [`crate::ECHO`], [`crate::LAST`].
    pub flags: u32,
    /// Segments delivered by it, by acknowledgement or SACK.
    pub acked: u32,
    /// Of those: marked CE on their way, where the receiver tells.
    pub marked: u32,
    /// RTT that it measured, µs; 0: none.
    pub rtt_us: u32,
    /// Segments that it showed to be lost.
    pub lost: u32,
}

/// One egress link, shared by its flows (`struct td_link`). Wire bytes, unless a name says otherwise.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Link {
    /// Configured: wire bytes/s; 0: not known, and controllers that need it behave as NewReno.
    pub capacity: u64,
    /// Configured: wire bytes of a packet beside IP's.
    pub overhead: u32,
    /// Configured: 1: the queue before the bottleneck is this host's own.
    pub local: u32,
    /// The monitor's: wire bytes that have left.
    pub egress: u64,
    /// The monitor's: of those, not of flows under `share`.
    pub foreign: u64,
    /// The monitor's: persistent queue, the least backlog lately.
    pub queue: u64,
    /// The monitor's: bytes that wait now.
    pub backlog: u64,
    /// The monitor's: packets that found no room, where the queue is this host's own.
    pub drops: u64,
    /// The monitor's: when it last looked, µs.
    pub seen_us: u64,
    /// XCP's part.
    pub xcp: XcpPart,
    /// VCP's, MLCP's and MPCP's part.
    pub mpcp: MpcpPart,
    /// Share's part.
    pub share: SharePart,
}

/// What XCP keeps of a link: the running control interval, and what the last one handed out.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct XcpPart {
    /// When the running control interval began, µs; 0: none has.
    pub since_us: u64,
    egress0: u64,
    acked: u64,
    time: u64,
    weighed: u64,
    last_acked: u64,
    last_time: u64,
    /// F+: bytes that the last interval had to give.
    pub give: u64,
    /// F-: bytes that it had to take.
    pub take: u64,
    give_left: u64,
    take_left: u64,
    /// d, µs.
    pub interval_us: u32,
    /// Window-limited flows, thousandths.
    pub flows_milli: u32,
    begun: u64,
    owed: u64,
    left: u64,
    /// Flows that have something to send.
    pub flows: u32,
    reserved: u32,
}

/// What the load-factor controllers keep of a link.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MpcpPart {
    since_us: u64,
    egress0: u64,
    /// sigma, thousandths.
    pub load_milli: u32,
    reserved: u32,
}

/// What `share` keeps of a link.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SharePart {
    /// Sum of the weights of the flows that take what they get.
    pub weight: u64,
    /// Sum of what the others want, payload bytes/s.
    pub demand: u64,
    /// Rate of a greedy flow of weight 1, payload bytes/s.
    pub level: u64,
    /// What the flows send together, payload bytes/s.
    pub committed: u64,
    /// What was sent beyond what is there, payload bytes.
    pub excess: u64,
    settled_us: u64,
    /// Traffic that is not these flows', wire bytes/s.
    pub other: u64,
    since_us: u64,
    looked_us: u64,
    foreign0: u64,
    delivered: u64,
    lost: u64,
    least_delay_us: u32,
    most_rtt_us: u32,
    /// Flows that have something to send.
    pub flows: u32,
    /// What is there over what was configured, 2⁻¹⁶.
    pub scale: u32,
    /// What of that is used, so that a queue goes away, 2⁻¹⁶.
    pub drain: u32,
    /// And what more or less keeps a trace of a queue, 2⁻¹⁶.
    pub trim: u32,
    /// What is being done about a wrong capacity.
    pub phase: u32,
    epochs: u32,
    calm: u32,
    patience: u32,
    hope: u32,
    loss: u32,
    step: u32,
    reserved: u32,
}

type Step = unsafe extern "C" fn(*mut Flow, *mut u64, *mut Link, *const Event, *const u32);

/// `struct td_native`: an entry of the table of controllers.
#[repr(C)]
pub(crate) struct Native {
    name: *const c_char,
    text: *const c_char,
    step: Step,
    tunables: *const RawTunable,
    tunable_count: u32,
    whole: u32,
    wants: u32,
}

/// `struct td_tunable`.
#[repr(C)]
pub(crate) struct RawTunable {
    name: *const c_char,
    pub(crate) value: u32,
    text: *const c_char,
}

// SAFETY: the tables are constant.
unsafe impl Sync for Native {}

unsafe extern "C" {
    static td_natives: [Native; 0];
    static td_native_count: u32;
    #[cfg(test)]
    static td_layout: [u32; 0];
    #[cfg(test)]
    static td_layout_count: u32;
}

pub(crate) fn natives() -> &'static [Native] {
    // SAFETY: the table is constant and has that many entries.
    unsafe { slice::from_raw_parts((&raw const td_natives).cast(), td_native_count as usize) }
}

impl Native {
    pub(crate) fn name(&self) -> &'static str {
        text(self.name)
    }

    pub(crate) fn text(&self) -> &'static str {
        text(self.text)
    }

    pub(crate) fn whole(&self) -> bool {
        self.whole != 0
    }

    pub(crate) fn wants(&self) -> u32 {
        self.wants
    }

    pub(crate) fn tunables(&self) -> &'static [RawTunable] {
        // SAFETY: the table is constant and has that many entries.
        unsafe { slice::from_raw_parts(self.tunables, self.tunable_count as usize) }
    }

    /// Calls the controller; there must be a value for each tunable.
    #[inline]
    pub(crate) fn step(&self, flow: &mut Flow, words: &mut [u64; STATE_WORDS], link: Option<&mut Link>, event: &Event, tunables: &[u32]) {
        assert_eq!(tunables.len(), self.tunable_count as usize, "tunables of {}", self.name());
        let link = link.map_or(ptr::null_mut(), ptr::from_mut);
        // SAFETY: the structs are laid out as in C (the test below), the state is as large as any, the tunables are as many.
        unsafe { (self.step)(flow, words.as_mut_ptr(), link, event, tunables.as_ptr()) }
    }
}

impl RawTunable {
    pub(crate) fn name(&self) -> &'static str {
        text(self.name)
    }

    pub(crate) fn text(&self) -> &'static str {
        text(self.text)
    }
}

fn text(text: *const c_char) -> &'static str {
    // SAFETY: the tables' strings are literals.
    unsafe { CStr::from_ptr(text) }.to_str().expect("the tables are ASCII")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::{offset_of, size_of};

    #[test]
    fn the_structs_are_laid_out_as_in_c() {
        // SAFETY: the table is constant and has that many entries.
        let c: &[u32] = unsafe { slice::from_raw_parts((&raw const td_layout).cast(), td_layout_count as usize) };
        let rust = [
            size_of::<Flow>(),
            offset_of!(Flow, sent),
            offset_of!(Flow, cwnd),
            offset_of!(Flow, pacing_rate),
            size_of::<Event>(),
            offset_of!(Event, kind),
            offset_of!(Event, lost),
            size_of::<Link>(),
            offset_of!(Link, overhead),
            offset_of!(Link, egress),
            offset_of!(Link, seen_us),
            offset_of!(Link, xcp),
            offset_of!(Link, mpcp),
            offset_of!(Link, share),
        ];
        assert_eq!(c, rust.map(|n| n as u32));
    }
}
