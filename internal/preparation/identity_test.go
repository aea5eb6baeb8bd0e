package preparation_test

import (
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"helmr.dev/helmr/client/api"
	"helmr.dev/helmr/internal/computer"
	"helmr.dev/helmr/internal/db"
	"helmr.dev/helmr/internal/preparation"
	workerpb "helmr.dev/helmr/internal/worker/proto"
)

const rawToken = `[{"secret":"TOKEN","env":{"name":"TOKEN","mode":"raw"}}]`

func (w *world) secret(name string) {
	w.t.Helper()
	_, err := w.secrets.Create(w.t.Context(), w.env, w.by, api.SecretCreateRequest{Name: name, Value: "value"})
	w.must(err)
}

func (w *world) rotate(name, key string) {
	w.t.Helper()
	_, err := w.secrets.Rotate(w.t.Context(), w.env, w.by, name, api.SecretRotateRequest{Value: "value " + key, IdempotencyKey: key})
	w.must(err)
}

func (w *world) revoke(name string) {
	w.t.Helper()
	_, err := w.secrets.Revoke(w.t.Context(), w.env, w.by, name, api.SecretRevokeRequest{IdempotencyKey: "revoke"})
	w.must(err)
}

// resolve asks for the values as a Worker does before it starts the callback.
func (h *host) resolve() []string {
	h.w.t.Helper()
	resp, err := h.w.resolver.Resolve(h.w.t.Context(), &workerpb.ResolveSecretsRequest{WorkerId: h.worker, ComputerId: h.computer, Epoch: h.epoch})
	h.w.must(err)
	var out []string
	for _, v := range resp.GetVariables() {
		out = append(out, v.GetName()+"="+string(v.GetValue()))
	}
	for _, f := range resp.GetFiles() {
		out = append(out, f.GetPath()+"="+string(f.GetContent()))
	}
	return out
}

// TestSpec_09_06: what is in the identity keeps images apart, what is not does not. The network policy: TestSpec_09_21.
func TestSpec_09_06_EqualPreparationsAreShared(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		w.secret("TOKEN")
		w.secret("OTHER")
		box := define{id: "box", callback: "box"}
		with := func(change func(*define)) define {
			other := box
			other.id = "other"
			change(&other)
			return other
		}
		w.deploy("p", box, with(func(*define) {}))
		w.want("box")
		w.prepare("m")
		shared, _ := w.want("other")
		w.settle()
		w.startsFrom(shared, "m")
		if a, b := w.preparation("box"), w.preparation("other"); a.ID != b.ID {
			t.Fatalf("%+v is not %+v", a, b)
		}
		// The same program in another Deployment shares too.
		w.deploy("p", box)
		again, _ := w.want("box")
		w.settle()
		w.startsFrom(again, "m")

		for name, other := range map[string]define{
			"callback": with(func(d *define) { d.callback = "other" }),
			"image":    with(func(d *define) { d.image = "another" }),
			"cpu":      with(func(d *define) { d.cpu = 2000 }),
			"memory":   with(func(d *define) { d.memory = 1024 }),
			"disk":     with(func(d *define) { d.disk = 1024 }),
			"secrets":  with(func(d *define) { d.secrets = rawToken }),
			"secret":   with(func(d *define) { d.secrets = strings.Replace(rawToken, `"TOKEN",`, `"OTHER",`, 1) }),
			"form":     with(func(d *define) { d.secrets = `[{"secret":"TOKEN","file":{"path":"/run/token"}}]` }),
		} {
			w.deploy("p", box, other)
			computerID, _ := w.want("other")
			w.settle()
			w.waits(computerID)
			w.prepare("m of " + name)
			w.startsFrom(computerID, "m of "+name)
		}
		w.deploy("q", box)
		computerID, _ := w.want("box")
		w.settle()
		w.waits(computerID)
	})
}

func TestSpec_09_21_ThePolicyOfThePhaseIsPartOfTheIdentity(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		w.deploy("p", define{id: "box", callback: "box"}, define{id: "other", callback: "box", network: `{"allowDomains":["a.example"]}`})
		w.want("box")
		w.prepare("m")
		other, _ := w.want("other")
		w.settle()
		w.waits(other)
		h := w.maker()
		if got := h.spec.GetNetwork(); got != `{"allowDomains":["a.example"]}` {
			t.Fatalf("it is prepared under %s", got)
		}
		h.exits(0)
		h.publish("n")
		w.startsFrom(other, "n")
		if got := w.host(other).call(workerpb.Phase_PHASE_ABSENT).GetSpec().GetNetwork(); got != `{"blockAll":false}` {
			t.Fatalf("it runs under %s", got)
		}
	})
}

// The default disk is the disk that says the same.
func TestSpec_09_06_TheDefaultDiskIsNamed(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		w.deploy("p", define{id: "box", callback: "box"}, define{id: "other", callback: "box", disk: computer.DefaultDiskMiB})
		w.want("box")
		w.prepare("m")
		other, _ := w.want("other")
		w.settle()
		w.startsFrom(other, "m")
	})
}

// Many Computers at once, looked at by two servers: one preparation.
func TestSpec_09_06_OnePreparationForAll(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		w.deploy("p", define{id: "box", callback: "box"})
		var all []string
		for range 12 {
			computerID, _ := w.want("box")
			all = append(all, computerID)
		}
		other := computer.NewService(w.d, w.clock.now)
		other.Prepare(preparation.NewService(w.d, w.commands, w.clock.now))
		var wg sync.WaitGroup
		for _, s := range []*computer.Service{w.computers, other} {
			for _, p := range s.Loops() {
				if p.Name == "computer.dispatch" {
					wg.Go(func() {
						if _, err := p.Run(t.Context()); err != nil {
							t.Error(err)
						}
					})
				}
			}
		}
		wg.Wait()
		w.waits(all...)
		w.prepare("m")
		for _, computerID := range all {
			w.startsFrom(computerID, "m")
		}
		if n := w.count(preparationsOf, w.env); n != 1 {
			t.Fatalf("%d preparations", n)
		}
	})
}

func TestSpec_09_07_RefreshRenewsTheImage(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		w.deploy("p", define{id: "box", callback: "box", refresh: 12 * time.Hour}, define{id: "kept", callback: "kept"})
		refresh := func(after time.Duration) {
			w.clock.advance(after)
			w.run("preparation.refresh")
			w.settle()
		}
		refresh(24 * time.Hour) // nothing to renew
		if n := w.count(preparationsOf, w.env); n != 0 {
			t.Fatalf("%d preparations", n)
		}
		first, _ := w.want("box")
		w.prepare("m1")
		w.startsFrom(first, "m1")
		w.want("kept")
		w.prepare("k1")
		refresh(11 * time.Hour)
		w.is("box", "succeeded", "needed")
		refresh(2 * time.Hour)
		w.is("box", "running", "refresh")
		during, _ := w.want("box")
		w.settle()
		w.startsFrom(during, "m1") // the last good one until then
		h := w.maker()
		h.exits(0)
		h.publish("m2")
		h.gone()
		after, _ := w.want("box")
		w.settle()
		w.startsFrom(after, "m2")
		w.startsFrom(first, "m1") // existing ones keep theirs
		// A failed renewal keeps the last good image, and is tried again a period later.
		refresh(13 * time.Hour)
		w.maker().exits(1)
		w.is("box", "failed", "refresh")
		still, _ := w.want("box")
		w.settle()
		w.startsFrom(still, "m2")
		refresh(time.Hour)
		w.is("box", "failed", "refresh")
		refresh(12 * time.Hour)
		w.is("box", "running", "refresh")
		w.prepare("m3")
		// Only Templates of the current Deployment are renewed.
		w.deploy("q", define{id: "other", callback: "other"})
		before := w.count(preparationsOf, w.env)
		refresh(100 * time.Hour)
		if n := w.count(preparationsOf, w.env); n != before {
			t.Fatalf("%d preparations, before %d", n, before)
		}
		w.startsFrom(still, "m2")
	})
}

func TestSpec_09_08_ARevokedSecretStartsNoComputer(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		w.secret("TOKEN")
		w.deploy("p", define{id: "box", callback: "box", secrets: rawToken, refresh: time.Hour})
		first, _ := w.want("box")
		w.settle()
		h := w.maker()
		if !h.run.GetSecrets() {
			t.Fatal("the callback is to be given nothing")
		}
		if got := h.resolve(); !slices.Equal(got, []string{"TOKEN=value"}) {
			t.Fatalf("it is given %q", got)
		}
		h.exits(0)
		h.publish("m")
		w.startsFrom(first, "m")
		// TestSpec_07_09: its disk was prepared with the value.
		page, err := w.computers.List(t.Context(), w.env, computer.Filter{Secret: "TOKEN", Limit: 10})
		w.must(err)
		if len(page.Computers) != 1 || page.Computers[0].ID != first || page.Computers[0].SecretExposure != "image" {
			t.Fatalf("exposed are %+v", page.Computers)
		}
		w.revoke("TOKEN")
		second, _ := w.want("box")
		w.settle()
		w.settle()
		w.exhausted(second, `Secret "TOKEN" is revoked`)
		w.startsFrom(first, "m") // existing ones go on
		w.clock.advance(2 * time.Hour)
		w.run("preparation.refresh")
		if n := w.count(preparationsOf+` AND status IN ('queued', 'running')`, w.env); n != 0 {
			t.Fatal("a revoked Secret is renewed")
		}
	})
}

// A Secret that is revoked before the callback starts, or while it runs.
func TestSpec_09_08_RevokedDuringThePreparation(t *testing.T) {
	t.Parallel()
	for _, running := range []bool{false, true} {
		each(t, func(w *world) {
			w.secret("TOKEN")
			w.deploy("p", define{id: "box", callback: "box", secrets: rawToken})
			first, _ := w.want("box")
			w.settle()
			if running {
				h := w.maker()
				w.revoke("TOKEN")
				h.exits(0)
				h.publish("m")
			} else {
				w.revoke("TOKEN")
				w.makerHost().exchange()
			}
			w.settle()
			w.settle()
			w.exhausted(first, "revoked")
		})
	}
}

func TestSpec_09_08_ARotationIsFollowedByOneSuccessor(t *testing.T) {
	t.Parallel()
	for _, fails := range []bool{false, true} {
		each(t, func(w *world) {
			w.secret("TOKEN")
			w.deploy("p", define{id: "box", callback: "box", secrets: rawToken})
			first, _ := w.want("box")
			w.settle()
			h := w.maker()
			h.resolve()
			w.rotate("TOKEN", "1")
			w.rotate("TOKEN", "2")
			if fails {
				h.exits(1)
			} else {
				h.exits(0)
				h.publish("old")
			}
			h.gone()
			w.is("box", "running", "rotation")
			w.waits(first)
			if n := w.count(preparationsOf, w.env); n != 2 {
				t.Fatalf("%d preparations", n)
			}
			next := w.maker()
			if got := next.resolve(); !slices.Equal(got, []string{"TOKEN=value 2"}) {
				t.Fatalf("it is given %q", got)
			}
			next.exits(0)
			next.publish("new")
			w.startsFrom(first, "new")
			// The rotation of a Secret that is at rest is met when an image is needed next.
			w.rotate("TOKEN", "3")
			w.settle()
			if n := w.count(preparationsOf, w.env); n != 2 {
				t.Fatalf("%d preparations", n)
			}
			second, _ := w.want("box")
			w.settle()
			w.waits(second)
			w.prepare("newest")
			w.startsFrom(second, "newest")
		})
	}
}

// Images that nothing starts with any more are let go of; a Computer keeps what it has started with.
func TestPreparedImagesExpire(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		w.deploy("p", define{id: "box", callback: "box", refresh: time.Hour})
		images := func() (out []string) {
			w.must(w.d.Read(t.Context(), func(tx *db.Tx) error {
				out = nil
				return tx.Query(func(sc func(...any) error) error {
					var m string
					err := sc(&m)
					out = append(out, m)
					return err
				}, `SELECT manifest_digest FROM preparations WHERE manifest_digest IS NOT NULL ORDER BY id`)
			}))
			return out
		}
		first, _ := w.want("box")
		w.prepare("m1")
		w.clock.advance(2 * time.Hour)
		w.run("preparation.refresh")
		w.prepare("m2")
		w.run("preparation.expire")
		if got := images(); !slices.Equal(got, []string{"m1", "m2"}) {
			t.Fatalf("%q", got)
		}
		w.clock.advance(2 * time.Hour)
		w.run("preparation.expire")
		if got := images(); !slices.Equal(got, []string{"m2"}) {
			t.Fatalf("%q", got)
		}
		w.clock.advance(40 * 24 * time.Hour)
		w.run("preparation.expire")
		if got := images(); !slices.Equal(got, []string{"m2"}) {
			t.Fatalf("the image of the current Deployment: %q", got)
		}
		w.deploy("q", define{id: "box", callback: "box"})
		w.run("preparation.expire")
		if got := images(); len(got) != 0 {
			t.Fatalf("%q", got)
		}
		w.startsFrom(first, "m1")
	})
}

// An image whose bytes are lost is made again, for the Computers that have no Save of their own.
func TestAnUnreadableImageIsReplaced(t *testing.T) {
	t.Parallel()
	each(t, func(w *world) {
		w.deploy("p", define{id: "box", callback: "box"})
		first, _ := w.want("box")
		w.prepare("m1")
		second, _ := w.want("box")
		w.settle()
		for _, computerID := range []string{first, second} {
			w.host(computerID).call(workerpb.Phase_PHASE_START_FAILED)
		}
		unreadable := func(computerID, code string) {
			w.must(w.d.Write(t.Context(), func(tx *db.Tx) error {
				_, err := tx.Exec(`UPDATE computers SET residency = 'unavailable', error_code = ?, error_message = 'gone', retry_at = ? WHERE id = ?`,
					code, w.clock.now().Add(time.Hour).UnixMilli(), computerID)
				return err
			}))
		}
		unreadable(first, "computer_start_failed")
		unreadable(second, "computer_start_failed")
		w.run("preparation.unreadable")
		w.settle()
		if n := w.count(preparationsOf, w.env); n != 1 || w.computer(first).Residency != "unavailable" {
			t.Fatalf("%d preparations, %+v", n, w.computer(first))
		}
		unreadable(first, "computer_recovery_required")
		unreadable(second, "computer_recovery_required")
		w.run("preparation.unreadable")
		w.prepare("m2")
		w.startsFrom(first, "m2")
		w.startsFrom(second, "m2")
		if n := w.count(preparationsOf, w.env); n != 2 {
			t.Fatalf("%d preparations", n)
		}
	})
}
