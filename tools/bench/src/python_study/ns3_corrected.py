# Two classes for ns-3 3.44 that count as Linux does, in front of ns3_study.py.
from ns import ns

ns.cppyy.cppdef("""
#include "ns3/tcp-linux-reno.h"
#include "ns3/tcp-prr-recovery.h"
namespace study {
using namespace ns3;
// With SACK, the bytes that a duplicate acknowledgement tells of are in `delivered` already. ns-3
// adds a segment to them (RFC 9937, section 6.2, is for connections without SACK).
struct Recovery : TcpPrrRecovery {
    static TypeId GetTypeId() {
        static TypeId id = TypeId("study::Recovery").SetParent<TcpPrrRecovery>().AddConstructor<Recovery>();
        return id;
    }
    TypeId GetInstanceTypeId() const override { return GetTypeId(); }
    void DoRecovery(Ptr<TcpSocketState> state, uint32_t delivered, bool) override {
        TcpPrrRecovery::DoRecovery(state, delivered, false);
    }
    Ptr<TcpRecoveryOps> Fork() override { return CopyObject<Recovery>(Ptr<Recovery>(this)); }
};
// The acknowledgement that ends a recovery acknowledges segments that were selectively acknowledged
// before. ns-3 counts them once more, so that the window grows by about a segment.
struct Reno : TcpLinuxReno {
    bool endsRecovery = false;
    static TypeId GetTypeId() {
        static TypeId id = TypeId("study::Reno").SetParent<TcpLinuxReno>().AddConstructor<Reno>();
        return id;
    }
    TypeId GetInstanceTypeId() const override { return GetTypeId(); }
    void CongestionStateSet(Ptr<TcpSocketState> state, const TcpSocketState::TcpCongState_t next) override {
        endsRecovery = next == TcpSocketState::CA_OPEN && state->m_congState == TcpSocketState::CA_RECOVERY;
        TcpLinuxReno::CongestionStateSet(state, next);
    }
    void IncreaseWindow(Ptr<TcpSocketState> state, uint32_t acked) override {
        TcpLinuxReno::IncreaseWindow(state, endsRecovery ? std::min(acked, 2u) : acked);
        endsRecovery = false;
    }
    Ptr<TcpCongestionOps> Fork() override { return CopyObject<Reno>(Ptr<Reno>(this)); }
};
TypeId Register() { return Recovery::GetTypeId(), Reno::GetTypeId(); }
}
""")
ns.cppyy.gbl.study.Register()
