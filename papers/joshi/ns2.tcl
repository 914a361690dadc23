# ns joshi.tcl KEY VALUE ...: Joshi et al.'s three nodes as ns-2 (2.35) has them out of the box: goodput, bit/s, of a flow that is split or not.
#   rate delay queue (packets) udp (bit/s) until (s) loss; tcp: an agent (Newreno, Vegas, Linux/cubic); split 0|1;
#   window, rto, and start: set where given, ns-2's defaults otherwise
array set the {rate 10Mb delay 50ms queue 50 udp 0 until 35 loss 0 tcp Newreno split 0 window {} rto {} start 0.1 seed 1}
array set the $argv
ns-random $the(seed)
set ns [new Simulator]
foreach n {1 2 3} { set n$n [$ns node] }
foreach {a b} [list $n1 $n2 $n2 $n3] {
    $ns duplex-link $a $b $the(rate) $the(delay) DropTail
    $ns queue-limit $a $b $the(queue)
    $ns queue-limit $b $a 100000
}
if {$the(loss) > 0} {
    set model [new ErrorModel]
    $model unit pkt
    $model set rate_ $the(loss)
    $model drop-target [new Agent/Null]
    $ns lossmodel $model $n2 $n3
}
proc sender {} {
    global the ns
    set agent [lindex [split $the(tcp) /] 0]
    set tcp [new Agent/TCP/$agent]
    if {$the(window) ne {}} { $tcp set window_ $the(window) }
    if {$the(rto) ne {}} { $tcp set rtxcur_init_ $the(rto) }
    if {$agent eq "Linux"} { $ns at 0 "$tcp select_ca [lindex [split $the(tcp) /] 1]" }
    return $tcp
}
# What has arrived at the proxy is what the next connection may send.
Class Relay -superclass Application
Relay instproc init {next size} { eval $self next; $self instvar next_ size_; set next_ $next; set size_ $size }
Relay instproc recv {bytes} { $self instvar next_ size_; set packets [expr {$bytes / $size_}]; if {$packets > 0} { $next_ advanceby $packets } }
proc leg {from to} {
    global ns
    set tcp [sender]
    set kind [expr {[string match *Linux* [$tcp info class]] ? "Agent/TCPSink/Sack1" : "Agent/TCPSink"}]
    set sink [new $kind]
    $ns attach-agent $from $tcp
    $ns attach-agent $to $sink
    $ns connect $tcp $sink
    return [list $tcp $sink]
}
if {$the(split)} {
    foreach {tcp near} [leg $n1 $n2] break
    foreach {far sink} [leg $n2 $n3] break
    set relay [new Relay $far [$tcp set packetSize_]]
    $relay attach-agent $near
    $relay start
} else {
    foreach {tcp sink} [leg $n1 $n3] break
}
if {$the(udp) > 0} {
    set udp [new Agent/UDP]
    set null [new Agent/Null]
    $ns attach-agent $n2 $udp
    $ns attach-agent $n3 $null
    $ns connect $udp $null
    set cbr [new Application/Traffic/CBR]
    $cbr set packetSize_ 1000
    $cbr set rate_ $the(udp)
    $cbr attach-agent $udp
    $ns at 0 "$cbr start"
}
set ftp [new Application/FTP]
$ftp attach-agent $tcp
$ns at $the(start) "$ftp start"
$ns at $the(until) { puts [expr {[$sink set bytes_] * 8.0 / ($the(until) - $the(start))}]; exit 0 }
$ns run
