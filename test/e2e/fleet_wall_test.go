package e2e

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"

	"helmr.dev/helmr/client/api"
	"helmr.dev/helmr/internal/db"
)

// TestSpec_21_06_AnotherWorkerIsNotReached gives one Worker a public address while a Computer of the other talks to it: once
// the server has heard of it and told the other, the Computer does not reach it any more.
func TestSpec_21_06_AnotherWorkerIsNotReached(t *testing.T) {
	t.Parallel()
	f := newFleet(t, db.SQLite, fleetLost, "a", "b")
	r := f.create("counter", "hello")
	f.completed(r.SessionID, r.TurnID)
	computerID := f.computerOf(r.SessionID)
	here := f.hostOf(computerID)
	if here == nil {
		t.Fatal("no Worker has the Computer")
	}
	there := f.workers[0]
	if there == here {
		there = f.workers[1]
	}
	// Both public addresses are on the machine of the other Worker's neighbour at first: one moves to the Worker.
	const worker, other = "93.184.216.50", "93.184.216.51"
	outside := f.node("outside", 9)
	t.Cleanup(func() { ipCommand(t, "netns", "delete", outside.ns) })
	for _, a := range []string{worker, other} {
		ipCommand(t, "-n", outside.ns, "address", "add", a+"/32", "dev", "lo")
	}
	for _, n := range []*node{outside, there} {
		inNamespace(t, n.ns, func() error {
			ln, err := net.Listen("tcp4", ":80")
			if err != nil {
				return err
			}
			web := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, n.role+" answers") })}
			go func() { _ = web.Serve(ln) }()
			t.Cleanup(func() { _ = web.Close() })
			return nil
		})
	}
	ipCommand(t, "-n", here.ns, "route", "add", "default", "via", outside.ip)
	look := func(address string) string {
		t.Helper()
		script := fmt.Sprintf("fetch('http://%s/').then(async (r) => console.log(await r.text()), (e) => console.log('failed', e.cause?.code ?? e))", address)
		e := f.outcome(f.exec(computerID, api.CommandCreateRequest{Command: []string{"node", "-e", script}}))
		return strings.TrimSpace(e.stdout)
	}
	f.until("the outside is reached", func() bool { return look(other) == "outside answers" }) // the uplink follows the route
	if got := look(worker); got != "outside answers" {
		t.Fatalf("an address that is nobody's: %q", got)
	}
	ipCommand(t, "-n", there.ns, "address", "add", worker+"/32", "dev", "eth0")
	ipCommand(t, "-n", here.ns, "route", "add", worker+"/32", "via", there.ip)
	f.until("the Worker's address is denied", func() bool { return look(worker) == "failed ECONNREFUSED" })
	if got := look(other); got != "outside answers" {
		t.Errorf("the other address: %q", got)
	}
	f.until("the attempt is told", func() bool {
		n, err := f.GetComputerNetwork(context.Background(), computerID)
		return err == nil && strings.Contains(fmt.Sprintf("%+v", n), "Address:"+worker+" Port:80 Outcome:refused Reason:destination_denied")
	})
}
