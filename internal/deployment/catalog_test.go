package deployment_test

import (
	"fmt"
	"slices"
	"testing"

	"helmr.dev/helmr/internal/db"
	"helmr.dev/helmr/internal/db/dbtest"
	"helmr.dev/helmr/internal/fault"
	"helmr.dev/helmr/internal/id"
)

// agents walks all pages of a list of Agents.
func (w *world) agents(t *testing.T, scope, deploymentID string, limit int) []string {
	t.Helper()
	out := []string{}
	for cursor := ""; ; {
		page, err := w.Agents(t.Context(), w.env, scope, deploymentID, cursor, limit)
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range page.Agents {
			s := a.ID
			if !a.InCurrentDeployment {
				s += " absent"
			}
			if a.DeletedAt != nil {
				s += " deleted"
			}
			out = append(out, s)
		}
		if cursor = page.NextCursor; cursor == "" {
			return out
		}
	}
}

func TestSpec_14_01_AgentCatalog(t *testing.T) {
	t.Parallel()
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		w := setup(t, d)
		one, two := w.finalize(t, makeBundle(t, "a", "b", "c"), "1"), w.finalize(t, makeBundle(t, "b", "d"), "2")
		check := func(name string, have []string, want ...string) {
			t.Helper()
			if !slices.Equal(have, want) {
				t.Errorf("%s: %v, want %v", name, have, want)
			}
		}
		check("current, none promoted", w.agents(t, "", "", 0), []string{}...)
		check("all, none promoted", w.agents(t, "all", "", 0), "a absent", "b absent", "c absent", "d absent")
		w.promote(t, two.ID)
		w.deleteAgent(t, "a")
		check("current", w.agents(t, "current", "", 1), "b", "d")
		check("all", w.agents(t, "all", "", 1), "a absent deleted", "b", "c absent", "d")
		check("named", w.agents(t, "current", one.ID, 2), "a absent deleted", "b", "c absent")
	})
}

func TestSpec_09_22_ACursorStaysOnItsDeployment(t *testing.T) {
	t.Parallel()
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		w := setup(t, d)
		one, two := w.finalize(t, makeBundle(t, "a", "b", "c"), "1"), w.finalize(t, makeBundle(t, "a", "z"), "2")
		w.promote(t, one.ID)
		page, err := w.Agents(t.Context(), w.env, "", "", "", 1)
		if err != nil {
			t.Fatal(err)
		}
		w.promote(t, two.ID)
		next, err := w.Agents(t.Context(), w.env, "", "", page.NextCursor, 10)
		if err != nil || len(next.Agents) != 2 || next.Agents[1].ID != "c" {
			t.Fatalf("next page %+v, %v", next, err)
		}
		for name, call := range map[string]func() error{
			"another deployment": func() error {
				_, err := w.Agents(t.Context(), w.env, "", two.ID, page.NextCursor, 10)
				return err
			},
			"another list": func() error {
				_, err := w.Templates(t.Context(), w.env, "", page.NextCursor, 10)
				return err
			},
			"another scope": func() error {
				_, err := w.Agents(t.Context(), w.env, "all", "", page.NextCursor, 10)
				return err
			},
			"another environment": func() error {
				_, err := w.Agents(t.Context(), id.New(), "", "", page.NextCursor, 10)
				return err
			},
			"rubbish": func() error {
				_, err := w.List(t.Context(), w.env, "rubbish", 10)
				return err
			},
			"events of another": func() error {
				events, err := w.Events(t.Context(), w.env, one.ID, "", 1)
				if err != nil || events.NextCursor == "" {
					return err
				}
				_, err = w.Events(t.Context(), w.env, two.ID, events.NextCursor, 1)
				return err
			},
		} {
			if err := call(); !fault.Is(err, fault.InvalidCursor) {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
}

func TestSpec_14_02_AgentDefinitionOfADeployment(t *testing.T) {
	t.Parallel()
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		w := setup(t, d)
		one, two := w.finalize(t, makeBundle(t, "a"), "1"), w.finalize(t, makeBundle(t, "b"), "2")
		a, err := w.Agent(t.Context(), w.env, "a", "")
		if err != nil || a.Definition != nil || a.InCurrentDeployment {
			t.Fatalf("none current: %+v, %v", a, err)
		}
		w.promote(t, one.ID)
		a, err = w.Agent(t.Context(), w.env, "a", "")
		if err != nil || a.Definition == nil || a.Definition.DeploymentID != one.ID || a.Definition.Template != "box" || *a.Definition.CloseAfterIdle != 5000 ||
			string(a.Definition.Triggers) != "[]" || !a.InCurrentDeployment {
			t.Fatalf("current: %+v, %v", a, err)
		}
		if a, err = w.Agent(t.Context(), w.env, "a", two.ID); err != nil || a.Definition != nil || !a.InCurrentDeployment {
			t.Fatalf("a deployment that lacks it: %+v, %v", a, err)
		}
		if _, err := w.Agent(t.Context(), w.env, "z", ""); !fault.Is(err, fault.NotFound) {
			t.Fatalf("unknown agent: %v", err)
		}
		if _, err := w.Agent(t.Context(), w.env, "a", id.New()); !fault.Is(err, fault.DeploymentNotFound) {
			t.Fatalf("unknown deployment: %v", err)
		}
		if _, err := w.Agent(t.Context(), id.New(), "a", ""); !fault.Is(err, fault.NotFound) {
			t.Fatalf("another environment: %v", err)
		}
	})
}

func TestSpec_09_23_TemplateInfo(t *testing.T) {
	t.Parallel()
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		w := setup(t, d)
		if _, err := w.Templates(t.Context(), w.env, "", "", 0); !fault.Is(err, fault.NoCurrentDeployment) {
			t.Fatalf("list, none current: %v", err)
		}
		if _, err := w.Template(t.Context(), w.env, "box", ""); !fault.Is(err, fault.NoCurrentDeployment) {
			t.Fatalf("get, none current: %v", err)
		}
		made := w.finalize(t, makeBundle(t, "a"), "1")
		w.promote(t, made.ID)
		page, err := w.Templates(t.Context(), w.env, "", "", 0)
		if err != nil || page.DeploymentID != made.ID || len(page.Templates) != 1 || page.Templates[0].DeploymentID != "" || page.NextCursor != "" {
			t.Fatalf("list %+v, %v", page, err)
		}
		info, err := w.Template(t.Context(), w.env, "box", made.ID)
		if err != nil || info.DeploymentID != made.ID || info.Resources.MilliCPU != 2000 || *info.Resources.DiskMiB != 1024 || string(info.Network) != `{"blockAll":false}` ||
			string(info.PrepareNetwork) != `{"blockAll":true}` || string(info.PrepareSecrets) != "[]" {
			t.Fatalf("get %+v, %v", info, err)
		}
		if _, err := w.Template(t.Context(), w.env, "crate", ""); !fault.Is(err, fault.NotFound) {
			t.Fatalf("unknown template: %v", err)
		}
	})
}

func TestSpec_16_09_ListsArePagedLatestFirst(t *testing.T) {
	t.Parallel()
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		w := setup(t, d)
		for i := range 5 {
			made := w.finalize(t, makeBundle(t, "a"), fmt.Sprint(i))
			w.promote(t, made.ID)
		}
		var versions []int64
		current := 0
		for cursor := ""; ; {
			page, err := w.List(t.Context(), w.env, cursor, 2)
			if err != nil {
				t.Fatal(err)
			}
			for _, one := range page.Deployments {
				versions = append(versions, one.Version)
				if one.Current {
					current++
				}
				if one.Agents != nil || one.PromotedAt == nil {
					t.Errorf("item %+v", one)
				}
			}
			if cursor = page.NextCursor; cursor == "" {
				break
			}
		}
		if !slices.Equal(versions, []int64{5, 4, 3, 2, 1}) || current != 1 {
			t.Fatalf("versions %v, %d current", versions, current)
		}
		for _, limit := range []int{-1, 101} {
			_, err := w.List(t.Context(), w.env, "", limit)
			_, err2 := w.Agents(t.Context(), w.env, "", "", "", limit)
			_, err3 := w.Templates(t.Context(), w.env, "", "", limit)
			_, err4 := w.Events(t.Context(), w.env, id.New(), "", limit)
			for _, err := range []error{err, err2, err3, err4} {
				if !fault.Is(err, fault.BadRequest) {
					t.Errorf("limit %d: %v", limit, err)
				}
			}
		}
		if page, err := w.List(t.Context(), id.New(), "", 100); err != nil || len(page.Deployments) != 0 {
			t.Fatalf("another environment: %+v, %v", page, err)
		}
		if _, err := w.Get(t.Context(), id.New(), id.New()); !fault.Is(err, fault.DeploymentNotFound) {
			t.Fatalf("unknown: %v", err)
		}
	})
}
