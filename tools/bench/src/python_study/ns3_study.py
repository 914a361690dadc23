"""NewReno over losses and delays by ns-3: `STUDY FIRST LAST LOSSES DELAYS ATTRIBUTE=VALUE…`."""

import importlib.metadata
import json
import sys
import time

import numpy as np
from ns import ns

# A relay needs callbacks of sockets, which the bindings take from C++.
ns.cppyy.cppdef("""
namespace study {
using namespace ns3;
struct Relay {
    Ptr<Socket> listener, from, to;
    uint32_t held = 0;
    void Start(Ptr<Node> node, uint16_t port, const Address& client) {
        to = Socket::CreateSocket(node, TcpSocketFactory::GetTypeId());
        to->SetSendCallback(MakeCallback(&Relay::Write, this));
        to->Connect(client);
        listener = Socket::CreateSocket(node, TcpSocketFactory::GetTypeId());
        listener->Bind(InetSocketAddress(Ipv4Address::GetAny(), port));
        listener->Listen();
        listener->SetAcceptCallback(MakeNullCallback<bool, Ptr<Socket>, const Address&>(), MakeCallback(&Relay::Accept, this));
    }
    void Accept(Ptr<Socket> socket, const Address&) {
        from = socket;
        from->SetRecvCallback(MakeCallback(&Relay::Read, this));
    }
    void Read(Ptr<Socket>) {
        for (Ptr<Packet> packet = from->Recv(); packet && packet->GetSize() > 0; packet = from->Recv()) {
            held += packet->GetSize();
        }
        Write(to, 0);
    }
    void Write(Ptr<Socket>, uint32_t) {
        uint32_t size = std::min(held, to->GetTxAvailable());
        int sent = size > 0 ? to->Send(Create<Packet>(size)) : 0;
        held -= sent > 0 ? sent : 0;
    }
};
}
""")

SECONDS, PORT = 30, 5000
DEFAULTS = {
    # NewReno as Linux counts acknowledged segments; ns3::TcpNewReno counts acknowledgements.
    "ns3::TcpL4Protocol::SocketType": ns.StringValue("ns3::TcpLinuxReno"),
    "ns3::TcpSocket::SegmentSize": ns.UintegerValue(1448),
    "ns3::TcpSocket::InitialCwnd": ns.UintegerValue(10),
    # So large that no buffer limits a path.
    "ns3::TcpSocket::SndBufSize": ns.UintegerValue(8 << 20),
    "ns3::TcpSocket::RcvBufSize": ns.UintegerValue(8 << 20),
    "ns3::DropTailQueue<Packet>::MaxSize": ns.StringValue("250000B"),
    "ns3::RateErrorModel::ErrorUnit": ns.StringValue("ERROR_UNIT_PACKET"),
}
DEFAULTS |= {name: ns.StringValue(value) for name, value in (text.split("=") for text in sys.argv[5:])}
for name, value in DEFAULTS.items():
    ns.Config.SetDefault(name, value)


def play(split, loss, delay, seed):
    """The goodput of a run, bit/s."""
    ns.RngSeedManager.SetRun(seed)
    nodes = ns.NodeContainer()
    nodes.Create(3)
    ns.InternetStackHelper().Install(nodes)
    addresses = []
    for index, (rate, one_way) in enumerate([("20Mbps", 0.010), ("10Mbps", delay)]):
        link = ns.PointToPointHelper()
        link.SetDeviceAttribute("DataRate", ns.StringValue(rate))
        link.SetChannelAttribute("Delay", ns.StringValue(f"{one_way:.9f}s"))
        devices = link.Install(nodes.Get(index), nodes.Get(index + 1))
        subnet = ns.Ipv4AddressHelper(ns.Ipv4Address(f"10.0.{index}.0"), ns.Ipv4Mask("255.255.255.0"))
        addresses.append(subnet.Assign(devices).GetAddress(1))
        # The queue is that of the device.
        ns.TrafficControlHelper().Uninstall(devices)
    errors = ns.CreateObject[ns.RateErrorModel]()
    errors.SetRate(loss)
    devices.Get(1).SetAttribute("ReceiveErrorModel", ns.PointerValue(errors))
    ns.Ipv4GlobalRoutingHelper.PopulateRoutingTables()

    client = ns.InetSocketAddress(addresses[1], PORT).ConvertTo()
    sinks = ns.PacketSinkHelper("ns3::TcpSocketFactory", client).Install(nodes.Get(2))
    if split:
        relay = ns.cppyy.gbl.study.Relay()
        relay.Start(nodes.Get(1), PORT, client)
    target = ns.InetSocketAddress(addresses[0], PORT).ConvertTo() if split else client
    sender = ns.BulkSendHelper("ns3::TcpSocketFactory", target)
    sender.Install(nodes.Get(0)).Start(ns.Seconds(0))
    sinks.Start(ns.Seconds(0))
    ns.Simulator.Stop(ns.Seconds(SECONDS))
    ns.Simulator.Run()
    received = sinks.Get(0).GetObject[ns.PacketSink]().GetTotalRx()
    ns.Simulator.Destroy()
    return 8 * received / SECONDS


first, last, losses, delays = map(int, sys.argv[1:5])
started = time.process_time()
losses = np.geomspace(1e-4, 3e-2, losses)
delays = np.geomspace(0.005, 0.3, delays)
goodput = [
    [
        [np.mean([play(split, loss, delay, seed) for seed in range(first, last + 1)]) / 1e6 for delay in delays]
        for loss in losses
    ]
    for split in (False, True)
]

spent = time.process_time() - started
version = importlib.metadata.version("ns3")
print(json.dumps({"version": version, "startup_s": started, "seconds": spent, "goodput_mbps": goodput}))
