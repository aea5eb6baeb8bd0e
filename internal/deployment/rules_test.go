package deployment_test

import (
	"encoding/json"
	"testing"
	"time"

	"helmr.dev/helmr/internal/build/bundle"
	"helmr.dev/helmr/internal/db"
	"helmr.dev/helmr/internal/db/dbtest"
	"helmr.dev/helmr/internal/fault"
)

// with changes the manifest of a bundle.
func (b testBundle) with(t *testing.T, change func(m *bundle.Manifest)) testBundle {
	t.Helper()
	m, err := bundle.Parse(b.manifest)
	if err != nil {
		t.Fatal(err)
	}
	change(m)
	data, err := m.Encode()
	if err != nil {
		t.Fatal(err)
	}
	b.manifest, b.digest = data, bundle.Digest(data)
	return b
}

func TestSpec_01_09_AnAgentExistsFromItsFirstFinalizedDeployment(t *testing.T) {
	t.Parallel()
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		w := setup(t, d)
		b := makeBundle(t, "a")
		w.upload(t, b) // known, and not finalized
		if _, err := w.Agent(t.Context(), w.env, "a", ""); !fault.Is(err, fault.NotFound) {
			t.Fatalf("before it is finalized: %v", err)
		}
		one := w.finalize(t, b, "1") // finalized, neither promoted nor ever run
		first, err := w.Agent(t.Context(), w.env, "a", one.ID)
		if err != nil || first.ID != "a" || first.InCurrentDeployment || first.Definition == nil || !first.CreatedAt.Equal(one.CreatedAt.Time) {
			t.Fatalf("once it is finalized: %+v, %v", first, err)
		}
		w.now = w.now.Add(time.Hour)
		two := w.finalize(t, makeBundle(t, "a", "b"), "2")
		w.promote(t, two.ID)
		again, err := w.Agent(t.Context(), w.env, "a", "")
		if err != nil || again.CreatedAt != first.CreatedAt || !again.InCurrentDeployment {
			t.Fatalf("in a second Deployment it is %+v, before %+v, %v", again, first, err)
		}
		w.promote(t, w.finalize(t, makeBundle(t, "c"), "3").ID)
		if gone, err := w.Agent(t.Context(), w.env, "a", ""); err != nil || gone.InCurrentDeployment || gone.DeletedAt != nil || gone.Definition != nil {
			t.Fatalf("without a declaration that is current: %+v, %v", gone, err)
		}
	})
}

func TestSpec_01_14_ADeploymentIsInspectedAsItWasMade(t *testing.T) {
	t.Parallel()
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		w := setup(t, d)
		one := w.finalize(t, makeBundle(t, "a", "b"), "1")
		look := func() string {
			t.Helper()
			dep, err := w.Get(t.Context(), w.env, one.ID)
			if err != nil {
				t.Fatal(err)
			}
			dep.Current, dep.PromotedAt = false, nil // these tell of the pointer
			agent, err := w.Agent(t.Context(), w.env, "b", one.ID)
			if err != nil {
				t.Fatal(err)
			}
			templates, err := w.Templates(t.Context(), w.env, one.ID, "", 0)
			if err != nil {
				t.Fatal(err)
			}
			box, err := w.Template(t.Context(), w.env, "box", one.ID)
			if err != nil {
				t.Fatal(err)
			}
			text, err := json.Marshal([]any{dep, agent.Definition, templates, box})
			if err != nil {
				t.Fatal(err)
			}
			return string(text)
		}
		before := look()
		w.promote(t, one.ID)
		changed := makeBundle(t, "a").with(t, func(m *bundle.Manifest) { // the same ids, other definitions; b is gone
			m.Plan.Agents[0].CloseAfterIdleMs, m.Plan.Templates[0].Resources.MilliCPU = ms(1), 4000
		})
		two := w.finalize(t, changed, "2")
		w.promote(t, two.ID)
		w.deleteAgent(t, "b")
		if after := look(); after != before {
			t.Fatalf("the first Deployment is\n%s\nwas\n%s", after, before)
		}
		a, err := w.Agent(t.Context(), w.env, "a", "")
		if err != nil || a.Definition.DeploymentID != two.ID || *a.Definition.CloseAfterIdle != 1 {
			t.Fatalf("the current one says %+v, %v", a.Definition, err)
		}
		if again := w.finalize(t, makeBundle(t, "a", "b"), "3"); again.ID == one.ID {
			t.Fatal("finalizing equal content again changed a Deployment that is there")
		}
		if after := look(); after != before {
			t.Fatalf("the first Deployment is\n%s\nwas\n%s", after, before)
		}
	})
}

func TestSpec_09_22_TemplatesAreThoseOfTheCurrentDeploymentUnlessNamed(t *testing.T) {
	t.Parallel()
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		w := setup(t, d)
		sized := func(cpu int64, extra ...string) testBundle {
			return makeBundle(t, "a").with(t, func(m *bundle.Manifest) {
				m.Plan.Templates[0].Resources.MilliCPU = cpu
				for _, id := range extra {
					more, image := m.Plan.Templates[0], m.TemplateImages[0]
					more.ID, image.Template = id, id
					m.Plan.Templates, m.TemplateImages = append(m.Plan.Templates, more), append(m.TemplateImages, image)
				}
			})
		}
		one, two := w.finalize(t, sized(1000, "crate", "drum"), "1"), w.finalize(t, sized(2000), "2")
		w.promote(t, one.ID)
		cpu := func(deploymentID string) int64 {
			t.Helper()
			info, err := w.Template(t.Context(), w.env, "box", deploymentID)
			if err != nil {
				t.Fatal(err)
			}
			page, err := w.Templates(t.Context(), w.env, deploymentID, "", 100)
			if err != nil || page.DeploymentID != info.DeploymentID || page.Templates[0].Resources.MilliCPU != info.Resources.MilliCPU {
				t.Fatalf("the list has %+v, get %+v, %v", page, info, err)
			}
			return info.Resources.MilliCPU
		}
		if cpu("") != 1000 || cpu(two.ID) != 2000 {
			t.Fatalf("current %d, named %d", cpu(""), cpu(two.ID))
		}
		page, err := w.Templates(t.Context(), w.env, "", "", 1)
		if err != nil || len(page.Templates) != 1 || page.NextCursor == "" {
			t.Fatalf("page %+v, %v", page, err)
		}
		w.promote(t, two.ID)
		if cpu("") != 2000 || cpu(one.ID) != 1000 {
			t.Fatalf("after the promotion: current %d, named %d", cpu(""), cpu(one.ID))
		}
		next, err := w.Templates(t.Context(), w.env, "", page.NextCursor, 100) // the cursor has stayed
		if err != nil || next.DeploymentID != one.ID || len(next.Templates) != 2 || next.Templates[0].Template != "crate" {
			t.Fatalf("next page %+v, %v", next, err)
		}
		if _, err := w.Template(t.Context(), w.env, "crate", ""); !fault.Is(err, fault.NotFound) {
			t.Fatalf("a Template that only the former one has: %v", err)
		}
	})
}
