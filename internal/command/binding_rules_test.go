package command_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"helmr.dev/helmr/client/api"
	"helmr.dev/helmr/internal/db"
	workerpb "helmr.dev/helmr/internal/worker/proto"
)

func TestSpec_09_20_BindingsWidenNoNetwork(t *testing.T) {
	t.Parallel()
	eachVault(t, func(v *vault) {
		for _, network := range []string{`{"blockAll":true}`, `{"allowDomains":["a.example.com"]}`} {
			v.must(v.d.Write(v.t.Context(), func(tx *db.Tx) error {
				_, err := tx.Exec(`UPDATE template_definitions SET definition = ? WHERE template_id IN ('t', 'brief')`,
					`{"image_config":{"env":["PATH=/bin"],"workdir":"/","user":""},"network":`+network+`,"secrets":[]}`)
				return err
			}))
			plain := v.newComputer("brief")
			bound, err := v.computers.Create(v.t.Context(), v.env, v.by, api.ComputerCreateRequest{Template: "t",
				Secrets: []api.SecretBinding{raw("A", "A"), {Secret: "B", File: &api.SecretFile{Path: "/run/b"}}}})
			v.must(err)
			for _, c := range []string{plain, bound.ComputerID} {
				v.exec(c, "x")
				h := v.place(c)
				h.phase = workerpb.Phase_PHASE_STARTING
				if got := h.exchange().GetSpec().GetNetwork(); got != network {
					v.t.Errorf("the network is %s, want %s", got, network)
				}
			}
		}
	})
}

// A guest says what its processes do, a Worker what runs: neither has a word for bindings, and a Computer has those it was
// made with for its life.
func TestSpec_10_09_BindingsAreFixedWhenAComputerIsMade(t *testing.T) {
	t.Parallel()
	eachVault(t, func(v *vault) {
		c := v.newComputer("t")
		r, err := v.turns.CreateSession(v.t.Context(), v.env, v.by, api.SessionCreateRequest{Agent: "echo", Input: text("x"), ComputerID: c}, nil)
		v.must(err)
		bindings := func() string {
			b, err := json.Marshal(v.computer(c).Secrets)
			v.must(err)
			return string(b)
		}
		before := bindings()
		h := v.place(c)
		h.exchange()
		var operations []*workerpb.Operation
		for i, kind := range []string{"init_done", "bind", "secret", "computer", "resolve_secrets", "secrets"} {
			operations = append(operations, &workerpb.Operation{Sequence: int64(i + 1), Payload: []byte(fmt.Sprintf(
				`{"seq":%d,"type":%q,"turnId":%q,"secret":"C","secrets":[{"secret":"C","env":{"name":"C","mode":"raw"}}],"env":{"name":"C","mode":"raw"},"allowedOrigins":["https://evil.example.com"]}`, i+1, kind, r.TurnID))})
		}
		resp, err := v.turns.Exchange(v.t.Context(), &workerpb.ExchangeRequest{WorkerId: v.worker, ComputerId: c, Epoch: h.epoch, Phase: workerpb.Phase_PHASE_RUNNING, GuestConnected: true,
			Processes:  []*workerpb.ObservedProcess{{SessionId: r.SessionID, Epoch: 1}},
			Operations: []*workerpb.ProcessOperations{{SessionId: r.SessionID, Epoch: 1, Operations: operations}}})
		v.must(err)
		for _, a := range resp.GetAcks()[0].GetAcks()[1:] {
			if !strings.Contains(string(a.GetLine()), `"error"`) {
				v.t.Errorf("operation %d is answered %s", a.GetSequence(), a.GetLine())
			}
		}
		// Nor does a Template that changes, a rotation or another Computer's creation.
		v.must(v.d.Write(v.t.Context(), func(tx *db.Tx) error {
			_, err := tx.Exec(`UPDATE template_definitions SET definition = ? WHERE template_id = 't'`,
				`{"image_config":{"env":[],"workdir":"/","user":""},"secrets":[{"secret":"C","env":{"name":"C","mode":"raw"}}]}`)
			return err
		}))
		v.rotate("A", "another")
		v.newComputer("t")
		if after := bindings(); after != before {
			v.t.Errorf("bindings are %s, were %s", after, before)
		}
		if got := v.delivered(h); got != "A=another, /run/b=value of B" {
			v.t.Errorf("a process is handed %s", got)
		}
		// What cannot be protected is refused; it is never handed out in readable form instead.
		protected, err := v.computers.Create(v.t.Context(), v.env, v.by, api.ComputerCreateRequest{Template: "brief",
			Secrets: []api.SecretBinding{{Secret: "C", Env: &api.SecretEnv{Name: "C", Mode: "protected", AllowedOrigins: []string{"https://a.example.com"}}}}})
		if err == nil {
			v.exec(protected.ComputerID, "x")
			if got := v.delivered(v.place(protected.ComputerID)); strings.Contains(got, "value of C") {
				v.t.Errorf("a process is handed %s", got)
			}
		}
	})
}

func TestSpec_07_09_SecretFindsTheComputersThatHoldItsValue(t *testing.T) {
	t.Parallel()
	eachVault(t, func(v *vault) {
		prepared, both, gone := v.newComputer("brief"), v.newComputer("t"), v.newComputer("t")
		v.newComputer("t") // bound, and never handed anything
		for _, c := range []string{both, gone} {
			v.exec(c, "x")
			v.delivered(v.place(c))
		}
		v.must(v.d.Write(v.t.Context(), func(tx *db.Tx) error {
			for _, c := range []string{prepared, both} { // what a preparation records of the disks that come of it
				if _, err := tx.Exec(`INSERT INTO secret_exposures (environment_id, secret, computer_id, version, kind, created_at) VALUES (?, 'A', ?, 1, 'image', 0)`, v.env, c); err != nil {
					return err
				}
			}
			_, err := tx.Exec(`UPDATE computers SET status = 'deleted' WHERE id = ?`, gone)
			return err
		}))
		want := fmt.Sprintf("%s received, %s image", both, prepared) // latest first; who received it may well know it
		if got := v.exposed("A"); got != want {
			v.t.Errorf("found %s, want %s", got, want)
		}
		v.rotate("A", "new") // the copies of the former value are what is looked for
		v.revoke("A")
		if got := v.exposed("A"); got != want {
			v.t.Errorf("after rotation and revocation %s, want %s", got, want)
		}
		if got := v.exposed("C"); got != "" {
			v.t.Errorf("of a Secret that nobody was handed: %s", got)
		}
	})
}
