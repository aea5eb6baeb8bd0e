package build

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"helmr.dev/helmr/internal/build/bundle"
)

// makePlan checks the definitions of a program against each other and puts them in order.
func makePlan(found []definition, modules []string, c config, r reporter) (bundle.Plan, []json.RawMessage, error) {
	plan := bundle.Plan{Contract: bundle.IndexContract, Agents: []bundle.Agent{}, Templates: []bundle.Template{}}
	if len(found) == 0 {
		return plan, nil, problem(strings.Join(c.Dirs, ", "), "Export a value made with agent() or template() from "+sdkName,
			"no module exports an Agent or a Template (looked into %s)", shortList(modules))
	}
	if len(found) > bundle.MaxDefinitions {
		return plan, nil, problem("", "Split the project", "there are %d definitions; at most %d are allowed", len(found), bundle.MaxDefinitions)
	}
	if err := checkUnique(found); err != nil {
		return plan, nil, err
	}
	slices.SortFunc(found, func(a, b definition) int { return cmp.Compare(a.id(), b.id()) })
	var images []json.RawMessage
	for _, d := range found {
		if err := checkSupported(d); err != nil {
			return plan, nil, err
		}
		if a := d.Agent; a != nil {
			plan.Agents = append(plan.Agents, bundle.Agent{
				ID: a.ID, Module: d.Module, Export: d.Export, Template: a.Template, HasInit: a.HasInit,
				MaxTurnDurationMs: a.MaxTurnDurationMs, CloseAfterIdleMs: a.CloseAfterIdleMs, HibernateAfterIdleMs: a.HibernateAfterIdleMs,
			})
			continue
		}
		t := d.Template
		plan.Templates = append(plan.Templates, bundle.Template{
			ID: t.ID, Module: d.Module, Export: d.Export, Resources: t.Resources,
			Network: t.Network, DeleteAfterUnusedMs: t.DeleteAfterUnusedMs, Secrets: t.Secrets,
			Prepare: t.Prepare, PrepareNetwork: t.PrepareNetwork, PrepareSecrets: t.PrepareSecrets, RefreshEveryMs: t.RefreshEveryMs,
		})
		images = append(images, t.Image)
	}
	if len(plan.Templates) > bundle.MaxImages {
		return plan, nil, problem("", "Let Agents share Templates, or split the project", "there are %d Templates; at most %d are allowed", len(plan.Templates), bundle.MaxImages)
	}
	return plan, images, nil
}

// checkUnique refuses two different definitions of one kind with the same ID.
func checkUnique(found []definition) error {
	first := make(map[string]definition, len(found))
	for _, d := range found {
		name := fmt.Sprintf("%s %q", d.Kind, d.id())
		if other, ok := first[name]; ok {
			return problem(d.Module, "Give each "+d.Kind+" its own ID, or export one definition from both places",
				"export %s defines %s, which export %s of %s defines already", d.Export, name, other.Export, other.Module)
		}
		first[name] = d
	}
	return nil
}

// shortList names the first few of many.
func shortList(names []string) string {
	if len(names) > 5 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:5], ", "), len(names)-5)
	}
	return strings.Join(names, ", ")
}
