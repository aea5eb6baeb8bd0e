package egress

import (
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// The parts that rules are put together from. Registers are overwritten by the next part that loads something.

const (
	icmpPortUnreachable = 3
	icmpAdminProhibited = 13 // "communication administratively prohibited"
	ctStatusDNAT        = 1 << 5
)

func ifname(name string) []byte {
	b := make([]byte, unix.IFNAMSIZ)
	copy(b, name)
	return b
}

func load(key expr.MetaKey, register uint32) []expr.Any {
	return []expr.Any{&expr.Meta{Key: key, Register: register}}
}

func in(s *nftables.Set, register uint32) []expr.Any {
	return []expr.Any{&expr.Lookup{SourceRegister: register, SetName: s.Name, SetID: s.ID}}
}

func equals(data []byte) []expr.Any {
	return []expr.Any{&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: data}}
}

func interfaceIs(key expr.MetaKey, name string) []expr.Any {
	return append(load(key, 1), equals(ifname(name))...)
}

func protocolIs(number byte) []expr.Any {
	return append(load(expr.MetaKeyL4PROTO, 1), equals([]byte{number})...)
}

// port loads the destination port of TCP and UDP.
func port(register uint32) []expr.Any {
	return []expr.Any{&expr.Payload{DestRegister: register, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2}}
}

// portIs matches the destination port of TCP and UDP.
func portIs(port uint16) []expr.Any {
	return append([]expr.Any{&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2}},
		equals(binaryutil.BigEndian.PutUint16(port))...)
}

func sourceAddress(register uint32) []expr.Any {
	return []expr.Any{&expr.Payload{DestRegister: register, Base: expr.PayloadBaseNetworkHeader, Offset: 12, Len: 4}}
}

func sourceIs(a netip.Addr, op expr.CmpOp) []expr.Any {
	return append(sourceAddress(1), &expr.Cmp{Op: op, Register: 1, Data: a.AsSlice()})
}

func destination(register uint32) []expr.Any {
	return []expr.Any{&expr.Payload{DestRegister: register, Base: expr.PayloadBaseNetworkHeader, Offset: 16, Len: 4}}
}

func destinationIs(a netip.Addr) []expr.Any { return append(destination(1), equals(a.AsSlice())...) }

func bits(key expr.CtKey, mask uint32) []expr.Any {
	return []expr.Any{
		&expr.Ct{Key: key, Register: 1},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: binaryutil.NativeEndian.PutUint32(mask), Xor: make([]byte, 4)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: make([]byte, 4)},
	}
}

func state(mask uint32) []expr.Any { return bits(expr.CtKeySTATE, mask) }

// redirected matches connections that were sent elsewhere by the rules themselves.
func redirected() []expr.Any { return bits(expr.CtKeySTATUS, ctStatusDNAT) }

// overCount matches a new connection of an interface that has more than n already.
func overCount(s *nftables.Set, n uint32) []expr.Any {
	return append(load(expr.MetaKeyIIFNAME, 1), &expr.Dynset{SrcRegKey: 1, SetName: s.Name, SetID: s.ID,
		Operation: unix.NFT_DYNSET_OP_ADD, Exprs: []expr.Any{&expr.Connlimit{Count: n, Flags: expr.NFT_CONNLIMIT_F_INV}}})
}

// note tells the gateway of the packets of an interface, up to a rate.
func note(s *nftables.Set, prefix string) []expr.Any {
	return append(load(expr.MetaKeyIIFNAME, 1), &expr.Dynset{SrcRegKey: 1, SetName: s.Name, SetID: s.ID, Operation: unix.NFT_DYNSET_OP_UPDATE,
		Exprs: []expr.Any{&expr.Limit{Type: expr.LimitTypePkts, Rate: notesPerSecond, Unit: expr.LimitTimeSecond, Burst: notesPerSecond}}},
		&expr.Log{Key: 1<<unix.NFTA_LOG_GROUP | 1<<unix.NFTA_LOG_PREFIX | 1<<unix.NFTA_LOG_SNAPLEN | 1<<unix.NFTA_LOG_QTHRESHOLD,
			Group: noteGroup, Data: []byte(prefix), Snaplen: noteBytes, QThreshold: 1})
}

func verdict(kind expr.VerdictKind) []expr.Any { return []expr.Any{&expr.Verdict{Kind: kind}} }

func jump(c *nftables.Chain) []expr.Any {
	return []expr.Any{&expr.Verdict{Kind: expr.VerdictJump, Chain: c.Name}}
}
