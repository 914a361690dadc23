# One setting of the comparison, played by ns-2: `ns play.tcl SETTING`.
#
# SETTING is a file of Tcl lists, one a line, key first:
#
#   sender newreno|vegas|xcp   which agents
#   until SECONDS              simulated time
#   mss BYTES, header BYTES    payload of a full segment; headers of each segment and ACK
#   window PACKETS             initial window
#   delack 0|1, growth N       whether ACKs are delayed; segments by which the window grows per RTT
#   alpha N, beta N, gamma N   parameters of Vegas
#   leg RATE DELAY QUEUE LOSS  bit/s; one-way delay, s; packets; `none`, `packets {N …}` (indices
#                              from 1) or `times {T …}` (s)
#   flow START ACCESS          start, s; extra one-way delay, s; one line for each flow
#   look SECONDS               interval between samples of the first flow's windows; 0: none
#   lean 0|1                   whether packets have only the headers that are needed
#
# Several legs are several connections in series with an ideal relay between them: data that has
# arrived in order at the sink of one is passed to the sender of the next at once, and the relay's
# buffer is unbounded.
#
# Prints `flow` lines (payload bytes received, data packets that all senders of the flow sent),
# `cwnd` lines (time, window of each leg), and `done` at the end.

set file [open [lindex $argv 0]]
array set the {sender newreno mss 1448 header 52 window 10 delack 0 growth 1 alpha 2 beta 4 gamma 1 look 0 lean 0 legs {} flows {}}
while {[gets $file line] >= 0} {
    switch [lindex $line 0] {
        leg     { lappend the(legs) [lrange $line 1 end] }
        flow    { lappend the(flows) [lrange $line 1 end] }
        default { set the([lindex $line 0]) [lindex $line 1] }
    }
}
close $file
set full [expr {$the(mss) + $the(header)}]

# Rate (bit/s) of links that add no delay.
set wire 1e15
set plenty 1000000

# Losses at given times: each event drops the next packet, and expires after 0.1 s.
Class Events -superclass ErrorModel/MultiState
Events instproc init {times} {
    # Without states, `corrupt` is called for each packet.
    $self next {} {} {} pkt pkt 0 {}
    $self instvar times_ next_
    set times_ $times
    set next_ 0
}
Events instproc corrupt {} {
    $self instvar times_ next_
    set now [[Simulator instance] now]
    while {$next_ < [llength $times_] && [lindex $times_ $next_] < $now - 0.1} { incr next_ }
    if {$next_ < [llength $times_] && [lindex $times_ $next_] <= $now} {
        incr next_
        return 1
    }
    return 0
}

# The relay: it passes on as many full segments as have arrived.
Class Relay -superclass Application
Relay instproc init {next full} {
    eval $self next
    $self instvar next_ full_
    set next_ $next
    set full_ $full
}
# The first packet of a connection represents its SYN and is shorter than a segment.
Relay instproc recv {bytes} {
    $self instvar next_ full_
    set segments [expr {$bytes / $full_}]
    if {$segments > 0} { $next_ advanceby $segments }
}

if {$the(lean)} {
    remove-all-packet-headers
    add-packet-header IP TCP Flags XCP
}
set ns [new Simulator]

# Makes a leg that begins at `from`; returns its far end.
proc make_leg {ns from leg kind} {
    global wire plenty
    foreach {rate delay queue loss} $leg break
    set to [$ns node]
    # ns-2 drops a packet that would fill the queue, and does not count the packet being sent.
    $ns simplex-link $from $to $rate $delay $kind
    $ns queue-limit $from $to [expr {$queue + 1}]
    $ns simplex-link $to $from $rate $delay [expr {$kind == "XCP" ? "XCP" : "DropTail"}]
    $ns queue-limit $to $from $plenty
    if {$kind == "XCP"} {
        foreach link [list [$ns link $from $to] [$ns link $to $from]] { [$link queue] set-link-capacity [[$link link] set bandwidth_] }
    }
    if {[lindex $loss 0] == "none"} { return $to }
    # A lost packet uses the link, so losses happen behind it.
    set end [$ns node]
    $ns simplex-link $to $end $wire 0 DropTail
    $ns simplex-link $end $to $wire 0 DropTail
    $ns queue-limit $to $end $plenty
    $ns queue-limit $end $to $plenty
    if {[lindex $loss 0] == "times"} {
        set model [new Events [lindex $loss 1]]
    } else {
        set model [new ErrorModel/List]
        # It counts from 0.
        set list {}
        foreach number [lindex $loss 1] { lappend list [expr {$number - 1}] }
        $model unit pkt
        $model droplist $list
    }
    $model drop-target [new Agent/Null]
    $ns lossmodel $model $to $end
    return $end
}

proc make_sender {} {
    global the full
    switch $the(sender) {
        newreno { set tcp [new Agent/TCP/Newreno] }
        vegas   { set tcp [new Agent/TCP/Vegas] }
        xcp     { set tcp [new Agent/TCP/Reno/XCP] }
    }
    # The careful and impatient variants of RFC 6582, no burst at the end of recovery, limited
    # transmit (RFC 3042), timestamps, timers of fine granularity. Windows are whole segments: half
    # of one is rounded down, and the window grows when a whole window has been acknowledged.
    foreach {key value} {
        window_ 1000000 timestamps_ true ts_option_size_ 12 tcpTick_ 0.0001 minrto_ 0.2 maxrto_ 120 rtxcur_init_ 1
        precisionReduce_ false singledup_ 1 windowInitOption_ 1 syn_ true delay_growth_ true
    } { $tcp set $key $value }
    $tcp set windowInit_ $the(window)
    $tcp set increase_num_ $the(growth)
    $tcp set windowOption_ [expr {$the(growth) != 1}]
    $tcp set packetSize_ $the(mss)
    $tcp set tcpip_base_hdr_size_ [expr {$the(header) - 12}]
    switch $the(sender) {
        newreno {
            $tcp set newreno_changes_ 0
            $tcp set newreno_changes1_ 1
            $tcp set partial_window_deflation_ 1
            $tcp set exit_recovery_fix_ 1
        }
        vegas {
            # The Vegas agent adds no headers.
            $tcp set packetSize_ $full
            foreach key {alpha beta gamma} { $tcp set v_${key}_ $the($key) }
        }
    }
    return $tcp
}

proc make_sink {} {
    global the
    if {$the(sender) == "xcp"} {
        set sink [new Agent/TCPSink/XCPSink]
    } elseif {$the(delack)} {
        set sink [new Agent/TCPSink/DelAck]
        $sink set interval_ 40ms
    } else {
        set sink [new Agent/TCPSink]
    }
    $sink set packetSize_ $the(header)
    # Echo timestamps as Linux does (RFC 7323 §4.3).
    $sink set ts_echo_rfc1323_ true
    return $sink
}

set kind [expr {$the(sender) == "xcp" ? "XCP" : "DropTail"}]
set first [$ns node]
set nodes [list $first]
foreach leg $the(legs) { lappend nodes [make_leg $ns [lindex $nodes end] $leg $kind] }

set flows {}
foreach flow $the(flows) {
    foreach {start access} $flow break
    set from $first
    if {$access > 0} {
        set from [$ns node]
        $ns duplex-link $from $first $wire $access DropTail
        $ns queue-limit $from $first $plenty
        $ns queue-limit $first $from $plenty
    }
    set tcps {}
    set sinks {}
    foreach to [lrange $nodes 1 end] {
        set tcp [make_sender]
        set sink [make_sink]
        $ns attach-agent $from $tcp
        $ns attach-agent $to $sink
        $ns connect $tcp $sink
        if {[llength $sinks] > 0} {
            set relay [new Relay $tcp $full]
            $relay attach-agent [lindex $sinks end]
            # ns-2 looks for `recv` when the application starts.
            $relay start
        }
        lappend tcps $tcp
        lappend sinks $sink
        set from $to
    }
    set ftp [new Application/FTP]
    $ftp attach-agent [lindex $tcps 0]
    $ns at $start "$ftp start"
    lappend flows [list $tcps [lindex $sinks end]]
}

proc look {} {
    global ns flows the
    set line [$ns now]
    foreach tcp [lindex $flows 0 0] { lappend line [$tcp set cwnd_] }
    puts "cwnd $line"
    $ns at [expr {[$ns now] + $the(look)}] look
}
if {$the(look) > 0} { $ns at 0 look }

# Sinks count bytes in 32 bits, which wrap during a long run.
proc count {} {
    global ns flows arrived
    foreach flow $flows {
        set sink [lindex $flow 1]
        foreach {sum last} $arrived($sink) break
        set bytes [$sink set bytes_]
        set arrived($sink) [list [expr {$sum + (($bytes - $last) & 0xffffffff)}] $bytes]
    }
}
proc count_on {} {
    global ns
    count
    $ns at [expr {[$ns now] + 10}] count_on
}
foreach flow $flows { set arrived([lindex $flow 1]) {0 0} }
$ns at 0 count_on

proc finish {} {
    global flows the full arrived
    count
    foreach flow $flows {
        foreach {tcps sink} $flow break
        set sent 0
        foreach tcp $tcps { incr sent [$tcp set ndatapack_] }
        puts "flow [expr {[lindex $arrived($sink) 0] / $full * $the(mss)}] $sent"
    }
    puts done
    exit 0
}
$ns at $the(until) finish
$ns run
