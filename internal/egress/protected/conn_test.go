package protected

import (
	"bytes"
	"io"
	"math/rand/v2"
	"net"
	"testing"
	"time"
)

// pair gives both ends of a connection on this machine.
func pair(t *testing.T) (here *guarded, there net.Conn) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	there, err = net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	conn, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	here = &guarded{Conn: conn, done: func() {}}
	t.Cleanup(func() { _ = here.Close(); _ = there.Close() })
	_ = there.SetDeadline(time.Now().Add(time.Minute))
	return here, there
}

// Whatever is written arrives, once and in order, without anything written after it: a small piece at once, a full record
// because it is not held for long.
func TestNothingHeldWaitsForMore(t *testing.T) {
	here, there := pair(t)
	random := rand.New(rand.NewPCG(1, 2))
	for round := range 200 {
		var sent []byte
		for range 1 + random.IntN(12) {
			p := make([]byte, 1+random.IntN(300))
			if random.IntN(2) == 0 {
				p = make([]byte, fullRecord+random.IntN(256))
			}
			for i := range p {
				p[i] = byte(random.Uint32())
			}
			sent = append(sent, p...)
			if n, err := here.Write(p); n != len(p) || err != nil {
				t.Fatal(n, err)
			}
		}
		got := make([]byte, len(sent))
		if _, err := io.ReadFull(there, got); err != nil || !bytes.Equal(got, sent) {
			t.Fatalf("round %d: %d bytes came otherwise than they were sent (%v)", round, len(sent), err)
		}
	}
}

// What came before the connection was taken over, and what comes while more is read at once, is read in order.
func TestReadsAheadInOrder(t *testing.T) {
	here, there := pair(t)
	here.read = []byte("first ")
	random := rand.New(rand.NewPCG(3, 4))
	text := make([]byte, 4<<20)
	for i := range text {
		text[i] = byte(random.Uint32())
	}
	go func() {
		_, _ = there.Write(text)
		_ = there.Close()
	}()
	var got []byte
	for {
		p := make([]byte, 1+random.IntN(3*fullRecord))
		n, err := here.Read(p)
		got = append(got, p[:n]...)
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if want := append([]byte("first "), text...); !bytes.Equal(got, want) {
		t.Fatalf("read %d bytes, want %d, or others", len(got), len(want))
	}
}

// A peer that is gone is an error of the next write, also when what met it was held.
func TestHeldErrorsAreSaid(t *testing.T) {
	here, there := pair(t)
	_ = there.(*net.TCPConn).SetLinger(0)
	_ = there.Close()
	p := make([]byte, fullRecord)
	for range 1000 {
		if _, err := here.Write(p); err != nil {
			return
		}
	}
	t.Fatal("1000 records went to nobody")
}
