package deployment_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"helmr.dev/helmr/client/api"
	"helmr.dev/helmr/internal/access"
	"helmr.dev/helmr/internal/blob"
	"helmr.dev/helmr/internal/build/bundle"
	"helmr.dev/helmr/internal/db"
	"helmr.dev/helmr/internal/db/dbtest"
	"helmr.dev/helmr/internal/deployment"
	"helmr.dev/helmr/internal/fault"
	"helmr.dev/helmr/internal/id"
)

type world struct {
	*deployment.Service
	db     *db.DB
	blobs  *blob.Store
	folder string
	env    string
	by     api.Actor
	now    time.Time
}

func setup(t *testing.T, d *db.DB) *world {
	t.Helper()
	folder := t.TempDir()
	blobs, err := blob.Open(t.Context(), "file:"+folder)
	if err != nil {
		t.Fatal(err)
	}
	b, err := access.NewService(d).Bootstrap(t.Context(), access.BootstrapOptions{})
	if err != nil {
		t.Fatal(err)
	}
	w := &world{
		Service: deployment.NewService(d, blobs), db: d, blobs: blobs, folder: folder, env: b.EnvironmentID,
		by: api.Actor{Kind: "user", ID: b.UserID}, now: time.UnixMilli(1_700_000_000_000),
	}
	w.Now = func() time.Time { return w.now }
	return w
}

// testBundle is a bundle with an Agent for each id, all on one Template "box", and the objects it needs.
type testBundle struct {
	manifest []byte
	digest   string
	objects  map[string][]byte
}

func ms(n int64) *int64 { return &n }

func makeBundle(t *testing.T, agents ...string) testBundle {
	t.Helper()
	slices.Sort(agents)
	program, image := []byte("program of "+strings.Join(agents, ",")), []byte("image")
	b := testBundle{objects: map[string][]byte{bundle.Digest(program): program, bundle.Digest(image): image}}
	m := bundle.Manifest{
		Contract: bundle.Contract, Platform: bundle.Platform{Arch: bundle.Arch, OS: bundle.OS},
		Runtime: bundle.Runtime{Protocol: bundle.ProtocolVersion, SDK: "0.1.0"},
		Program: bundle.Program{Digest: bundle.Digest(program), Entry: bundle.Entry},
		Plan: bundle.Plan{Contract: bundle.IndexContract, Agents: []bundle.Agent{}, Templates: []bundle.Template{{
			ID: "box", Module: "agents/box.ts", Export: "box", Resources: bundle.Resources{MilliCPU: 2000, MemoryMiB: 2048, DiskMiB: ms(1024)},
		}}},
		TemplateImages: []bundle.TemplateImage{{Template: "box", Digest: bundle.Digest(image),
			Config: bundle.ImageConfig{Env: []string{"PATH=/bin"}, Workdir: "/srv", User: "1000"}}},
		Objects: []bundle.Object{
			{Digest: bundle.Digest(program), SizeBytes: int64(len(program)), MediaType: bundle.ProgramMediaType},
			{Digest: bundle.Digest(image), SizeBytes: int64(len(image)), MediaType: bundle.ImageMediaType},
		},
	}
	for _, a := range agents {
		m.Plan.Agents = append(m.Plan.Agents, bundle.Agent{
			ID: a, Module: "agents/" + a + ".ts", Export: a, Template: "box", MaxTurnDurationMs: ms(1000), CloseAfterIdleMs: ms(5000),
		})
	}
	slices.SortFunc(m.Objects, func(x, y bundle.Object) int { return strings.Compare(x.Digest, y.Digest) })
	data, err := m.Encode()
	if err != nil {
		t.Fatal(err)
	}
	b.manifest, b.digest = data, bundle.Digest(data)
	return b
}

// upload plans and sends everything that is missing.
func (w *world) upload(t *testing.T, b testBundle) api.UploadPlan {
	t.Helper()
	plan, err := w.UploadPlan(t.Context(), w.env, b.manifest)
	if err != nil {
		t.Fatal(err)
	}
	for _, u := range plan.Uploads {
		if err := w.PutObject(t.Context(), w.env, u.Digest, u.SizeBytes, bytes.NewReader(b.objects[u.Digest])); err != nil {
			t.Fatal(err)
		}
	}
	return plan
}

func (w *world) finalize(t *testing.T, b testBundle, key string) api.Deployment {
	t.Helper()
	w.upload(t, b)
	d, err := w.Finalize(t.Context(), w.env, w.by, api.FinalizeRequest{BundleDigest: b.digest, IdempotencyKey: key}, func(string) {})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func (w *world) promote(t *testing.T, deploymentID string) api.Promotion {
	t.Helper()
	p, err := w.Promote(t.Context(), w.env, w.by, deploymentID, api.PromoteRequest{})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// deleteAgent puts the deletion mark on an Agent, as deletion will.
func (w *world) deleteAgent(t *testing.T, agentID string) {
	t.Helper()
	err := w.db.Write(t.Context(), func(tx *db.Tx) error {
		n, err := tx.Exec(`UPDATE agents SET deleted_at = 1 WHERE environment_id = ? AND id = ?`, w.env, agentID)
		if n != 1 {
			t.Errorf("%d agents marked", n)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func kinds(t *testing.T, w *world, deploymentID string) string {
	t.Helper()
	page, err := w.Events(t.Context(), w.env, deploymentID, "", 0)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for i, e := range page.Events {
		if e.Sequence != int64(i+1) || e.Actor != w.by || e.CreatedAt.IsZero() {
			t.Errorf("event %+v", e)
		}
		out = append(out, strings.TrimPrefix(e.Kind, "deployment."))
	}
	return strings.Join(out, " ")
}

func TestSpec_13_08_UploadPlanNamesMissingObjectsOnly(t *testing.T) {
	t.Parallel()
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		w := setup(t, d)
		first, second := makeBundle(t, "a"), makeBundle(t, "b")
		plan := w.upload(t, first)
		if plan.BundleDigest != first.digest || len(plan.Uploads) != 2 {
			t.Fatalf("first plan %+v", plan)
		}
		for _, u := range plan.Uploads {
			if u.Method != "PUT" || u.URL != "" || u.SizeBytes != int64(len(first.objects[u.Digest])) {
				t.Errorf("upload %+v", u)
			}
		}
		if plan = w.upload(t, first); plan.Uploads == nil || len(plan.Uploads) != 0 {
			t.Fatalf("plan after upload %+v", plan)
		}
		if plan = w.upload(t, second); len(plan.Uploads) != 1 || second.objects[plan.Uploads[0].Digest] == nil {
			t.Fatalf("plan of a bundle that shares its image %+v", plan)
		}
	})
}

func TestSpec_13_06_BadManifestsAreNotKept(t *testing.T) {
	t.Parallel()
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		w := setup(t, d)
		good := makeBundle(t, "a")
		for name, manifest := range map[string][]byte{
			"empty": nil, "not JSON": []byte("x"), "unknown field": bytes.Replace(good.manifest, []byte(`{`), []byte(`{"aaa":1,`), 1),
			"not canonical": append(slices.Clone(good.manifest), '\n'), "too large": bytes.Repeat([]byte(" "), 16<<20+1),
		} {
			if _, err := w.UploadPlan(t.Context(), w.env, manifest); !fault.Is(err, fault.BadRequest) && !fault.Is(err, fault.RequestTooLarge) {
				t.Errorf("%s: %v", name, err)
			}
			req := api.FinalizeRequest{BundleDigest: bundle.Digest(manifest), IdempotencyKey: "k"}
			if _, err := w.Finalize(t.Context(), w.env, w.by, req, func(string) {}); !fault.Is(err, fault.NotFound) {
				t.Errorf("%s: finalize: %v", name, err)
			}
		}
	})
}

func TestPutObjectTakesOnlyWhatTheEnvironmentAnnounced(t *testing.T) {
	t.Parallel()
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		w := setup(t, d)
		b := makeBundle(t, "a")
		plan, err := w.UploadPlan(t.Context(), w.env, b.manifest)
		if err != nil {
			t.Fatal(err)
		}
		u := plan.Uploads[0]
		content := b.objects[u.Digest]
		put := func(env, digest string, size int64, body []byte) error {
			return w.PutObject(t.Context(), env, digest, size, bytes.NewReader(body))
		}
		for name, err := range map[string]error{
			"unknown digest":      put(w.env, bundle.Digest([]byte("x")), 1, []byte("x")),
			"another size":        put(w.env, u.Digest, u.SizeBytes+1, content),
			"another environment": put(id.New(), u.Digest, u.SizeBytes, content),
		} {
			if !fault.Is(err, fault.NotFound) {
				t.Errorf("%s: %v", name, err)
			}
		}
		changed := slices.Clone(content)
		changed[0] ^= 1
		for name, body := range map[string][]byte{"changed": changed, "short": content[1:], "long": append(changed, 1)} {
			if err := put(w.env, u.Digest, u.SizeBytes, body); !fault.Is(err, fault.BadRequest) {
				t.Errorf("%s: %v", name, err)
			}
		}
		if again, err := w.UploadPlan(t.Context(), w.env, b.manifest); err != nil || len(again.Uploads) != 2 {
			t.Fatalf("something was kept: %+v, %v", again, err)
		}
	})
}

func TestSpec_13_09_FinalizeVerifiesEveryObjectFirst(t *testing.T) {
	t.Parallel()
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		w := setup(t, d)
		b := makeBundle(t, "a", "b")
		req := api.FinalizeRequest{BundleDigest: b.digest, IdempotencyKey: "k"}
		finalize := func() (verified []string, d api.Deployment, err error) {
			d, err = w.Finalize(t.Context(), w.env, w.by, req, func(digest string) { verified = append(verified, digest) })
			return verified, d, err
		}
		if _, _, err := finalize(); !fault.Is(err, fault.NotFound) {
			t.Fatalf("without a manifest: %v", err)
		}
		plan := w.upload(t, b)
		lost := plan.Uploads[1]
		path := filepath.Join(w.folder, "objects", lost.Digest)
		if err := os.Truncate(path, lost.SizeBytes-1); err != nil {
			t.Fatal(err)
		}
		if _, _, err := finalize(); !fault.Is(err, fault.BadRequest) || !strings.Contains(err.Error(), lost.Digest) {
			t.Fatalf("with a truncated object: %v", err)
		}
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		if _, _, err := finalize(); !fault.Is(err, fault.BadRequest) || !strings.Contains(err.Error(), lost.Digest) {
			t.Fatalf("with a missing object: %v", err)
		}
		if page, err := w.List(t.Context(), w.env, "", 0); err != nil || len(page.Deployments) != 0 {
			t.Fatalf("registered too early: %+v, %v", page, err)
		}
		if page, err := w.Agents(t.Context(), w.env, "all", "", "", 0); err != nil || len(page.Agents) != 0 {
			t.Fatalf("agents too early: %+v, %v", page, err)
		}
		if again := w.upload(t, b); len(again.Uploads) != 1 {
			t.Fatalf("plan %+v", again)
		}
		verified, made, err := finalize()
		if err != nil {
			t.Fatal(err)
		}
		want := []string{plan.Uploads[0].Digest, plan.Uploads[1].Digest}
		if slices.Sort(verified); !slices.Equal(verified, want) {
			t.Fatalf("verified %v, want %v", verified, want)
		}
		if made.Version != 1 || made.BundleDigest != b.digest || made.Current || made.PromotedAt != nil || len(made.Agents) != 2 || len(made.Templates) != 1 || !id.Valid(made.ID) {
			t.Fatalf("deployment %+v", made)
		}
		if have := kinds(t, w, made.ID); have != "finalized" {
			t.Fatalf("events %s", have)
		}
	})
}

func TestFinalizeIsIdempotentByKey(t *testing.T) {
	t.Parallel()
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		w := setup(t, d)
		b, other := makeBundle(t, "a"), makeBundle(t, "b")
		first := w.finalize(t, b, "k1")
		if err := os.RemoveAll(filepath.Join(w.folder, "objects")); err != nil {
			t.Fatal(err)
		}
		req := api.FinalizeRequest{BundleDigest: b.digest, IdempotencyKey: "k1"}
		again, err := w.Finalize(t.Context(), w.env, w.by, req, func(string) { t.Error("a replay verifies") })
		if err != nil || again.ID != first.ID || again.Version != 1 {
			t.Fatalf("replay %+v, %v", again, err)
		}
		req.BundleDigest = other.digest
		if _, err := w.Finalize(t.Context(), w.env, w.by, req, func(string) {}); !fault.Is(err, fault.IdempotencyConflict) {
			t.Fatalf("key used for another bundle: %v", err)
		}
		req.IdempotencyKey = ""
		if _, err := w.Finalize(t.Context(), w.env, w.by, req, func(string) {}); !fault.Is(err, fault.InvalidIdempotencyKey) {
			t.Fatalf("without a key: %v", err)
		}
	})
}

func TestSpec_13_10_VersionsCountWithoutGaps(t *testing.T) {
	t.Parallel()
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		w := setup(t, d)
		b := makeBundle(t, "a")
		w.upload(t, b)
		var mu sync.Mutex
		var versions []int64
		var wg sync.WaitGroup
		for i := range 10 {
			wg.Go(func() {
				req := api.FinalizeRequest{BundleDigest: b.digest, IdempotencyKey: fmt.Sprint(i / 2)} // each key twice
				d, err := w.Finalize(t.Context(), w.env, w.by, req, func(string) {})
				if err != nil {
					t.Error(err)
				}
				mu.Lock()
				defer mu.Unlock()
				versions = append(versions, d.Version)
			})
		}
		wg.Wait()
		slices.Sort(versions)
		if want := []int64{1, 1, 2, 2, 3, 3, 4, 4, 5, 5}; !slices.Equal(versions, want) {
			t.Fatalf("versions %v, want %v", versions, want)
		}
	})
}

func TestSpec_13_11_PromoteMovesThePointerAndRestoresAgents(t *testing.T) {
	t.Parallel()
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		w := setup(t, d)
		if _, err := w.Current(t.Context(), w.env); !fault.Is(err, fault.NoCurrentDeployment) {
			t.Fatalf("current before any promotion: %v", err)
		}
		one, two := w.finalize(t, makeBundle(t, "a", "b"), "1"), w.finalize(t, makeBundle(t, "b"), "2")
		w.now = w.now.Add(time.Second)
		p := w.promote(t, one.ID)
		if p.DeploymentID != one.ID || !p.PromotedAt.Equal(w.now) || p.RestoredAgents == nil || len(p.RestoredAgents) != 0 {
			t.Fatalf("promotion %+v", p)
		}
		w.promote(t, two.ID)
		w.deleteAgent(t, "a")
		again := w.promote(t, two.ID)
		if !again.PromotedAt.Equal(w.now) || len(again.RestoredAgents) != 0 {
			t.Fatalf("promoting the current one %+v", again)
		}
		w.now = w.now.Add(time.Second)
		p, err := w.Promote(t.Context(), w.env, w.by, one.ID, api.PromoteRequest{Reason: "roll back"})
		if err != nil || !slices.Equal(p.RestoredAgents, []api.AgentRef{{ID: "a"}}) {
			t.Fatalf("promoting a former one: %+v, %v", p, err)
		}
		cur, err := w.Current(t.Context(), w.env)
		if err != nil || cur.ID != one.ID || !cur.Current || !cur.PromotedAt.Equal(w.now) || len(cur.Agents) != 2 {
			t.Fatalf("current %+v, %v", cur, err)
		}
		if have := kinds(t, w, one.ID); have != "finalized promoted superseded promoted" {
			t.Fatalf("events of the first: %s", have)
		}
		if have := kinds(t, w, two.ID); have != "finalized promoted superseded" {
			t.Fatalf("events of the second: %s", have)
		}
		page, err := w.Events(t.Context(), w.env, two.ID, "", 0)
		if err != nil || page.Events[2].Reason != "roll back" || page.Events[1].Reason != "" {
			t.Fatalf("reasons %+v, %v", page, err)
		}
	})
}

func TestPromoteIsIdempotentByKeyAndChecksItsTarget(t *testing.T) {
	t.Parallel()
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		w := setup(t, d)
		one, two := w.finalize(t, makeBundle(t, "a"), "1"), w.finalize(t, makeBundle(t, "b"), "2")
		req := api.PromoteRequest{IdempotencyKey: "k"}
		first, err := w.Promote(t.Context(), w.env, w.by, one.ID, req)
		if err != nil {
			t.Fatal(err)
		}
		w.now = w.now.Add(time.Minute)
		w.promote(t, two.ID)
		again, err := w.Promote(t.Context(), w.env, w.by, one.ID, req)
		if err != nil || !again.PromotedAt.Equal(first.PromotedAt.Time) {
			t.Fatalf("replay %+v, %v", again, err)
		}
		if cur, err := w.Current(t.Context(), w.env); err != nil || cur.ID != two.ID {
			t.Fatalf("a replay moved the pointer: %+v, %v", cur, err)
		}
		for _, env := range []string{w.env, id.New()} {
			target := id.New()
			if env != w.env {
				target = one.ID
			}
			_, err := w.Promote(t.Context(), env, w.by, target, api.PromoteRequest{})
			if !fault.Is(err, fault.DeploymentNotFound) && !fault.Is(err, fault.NotFound) {
				t.Errorf("unknown target: %v", err)
			}
		}
		for _, reason := range []string{strings.Repeat("x", 4097), "a\x00b", "\xff"} {
			if _, err := w.Promote(t.Context(), w.env, w.by, one.ID, api.PromoteRequest{Reason: reason}); !fault.Is(err, fault.BadRequest) {
				t.Errorf("reason of %d bytes: %v", len(reason), err)
			}
		}
	})
}

func TestConcurrentPromotionsLeaveOneCurrentAndAWholeHistory(t *testing.T) {
	t.Parallel()
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		w := setup(t, d)
		var ids []string
		for i := range 4 {
			ids = append(ids, w.finalize(t, makeBundle(t, "a"), fmt.Sprint(i)).ID)
		}
		var wg sync.WaitGroup
		for i := range 20 {
			wg.Go(func() {
				if _, err := w.Promote(t.Context(), w.env, w.by, ids[i%4], api.PromoteRequest{}); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		cur, err := w.Current(t.Context(), w.env)
		if err != nil {
			t.Fatal(err)
		}
		for _, deploymentID := range ids {
			steps := strings.Fields(kinds(t, w, deploymentID))
			for i, step := range steps[1:] {
				if want := []string{"promoted", "superseded"}[i%2]; step != want {
					t.Fatalf("events %v", steps)
				}
			}
			if isCurrent := len(steps)%2 == 0; isCurrent != (deploymentID == cur.ID) {
				t.Fatalf("%s: events %v, current is %s", deploymentID, steps, cur.ID)
			}
		}
	})
}

func TestDefinitionsAsOtherRoomsReadThem(t *testing.T) {
	t.Parallel()
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		w := setup(t, d)
		b := makeBundle(t, "a")
		made := w.finalize(t, b, "1")
		err := d.Read(t.Context(), func(tx *db.Tx) error {
			if _, err := deployment.Current(tx, w.env); !fault.Is(err, fault.NoCurrentDeployment) {
				t.Errorf("current: %v", err)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		w.promote(t, made.ID)
		err = d.Read(t.Context(), func(tx *db.Tx) error {
			current, err := deployment.Current(tx, w.env)
			if err != nil || current != made.ID {
				t.Errorf("current %s, %v", current, err)
			}
			a, err := deployment.FindAgent(tx, made.ID, "a")
			if err != nil || a == nil || a.AgentID != "a" || a.TemplateID != "box" || *a.MaxTurnDurationMs != 1000 || *a.CloseAfterIdleMs != 5000 || a.HibernateAfterIdleMs != nil {
				t.Errorf("agent %+v, %v", a, err)
			}
			tpl, err := deployment.FindTemplate(tx, made.ID, "box")
			if err != nil || tpl == nil || tpl.TemplateID != "box" || tpl.MilliCPU != 2000 || tpl.MemoryMiB != 2048 || *tpl.DiskMiB != 1024 || tpl.DeleteAfterUnusedMs != nil ||
				tpl.ImageDigest != bundle.Digest([]byte("image")) {
				t.Errorf("template %+v, %v", tpl, err)
			}
			var config bundle.ImageConfig
			if err := json.Unmarshal(tpl.ImageConfig, &config); err != nil || config.Workdir != "/srv" || config.User != "1000" || !slices.Equal(config.Env, []string{"PATH=/bin"}) {
				t.Errorf("image config %s, %v", tpl.ImageConfig, err)
			}
			digest, entry, err := deployment.Program(tx, made.ID)
			if err != nil || entry != "index.mjs" || b.objects[digest] == nil {
				t.Errorf("program %s %s, %v", digest, entry, err)
			}
			if a, err := deployment.FindAgent(tx, made.ID, "z"); a != nil || err != nil {
				t.Errorf("unknown agent %+v, %v", a, err)
			}
			if tpl, err := deployment.FindTemplate(tx, id.New(), "box"); tpl != nil || err != nil {
				t.Errorf("unknown template %+v, %v", tpl, err)
			}
			if _, _, err := deployment.Program(tx, id.New()); err == nil {
				t.Error("program of an unknown deployment")
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		for _, deleted := range []bool{false, true} {
			if deleted {
				w.deleteAgent(t, "a")
			}
			err := d.Read(t.Context(), func(tx *db.Tx) error {
				have, err := deployment.AgentDeleted(tx, w.env, "a")
				unknown, err2 := deployment.AgentDeleted(tx, w.env, "z")
				if have != deleted || unknown {
					t.Errorf("deleted %v, want %v; unknown %v", have, deleted, unknown)
				}
				return errors.Join(err, err2)
			})
			if err != nil {
				t.Fatal(err)
			}
		}
	})
}
