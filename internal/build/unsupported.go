package build

import (
	"fmt"
)

// unsupported lists what authors may write and this version of helmr does not do yet. It is refused here, so that it
// is never ignored later. A row goes when its feature comes.
var (
	unsupportedInConfig = []struct {
		field string
		used  func(*config) bool
		do    string
	}{
		{"build.builder", func(c *config) bool { return len(c.Build.Builder) > 0 }, "Leave it out; dependencies are installed with what this machine has"},
	}
	unsupportedInAgents = []struct {
		field string
		used  func(agentDefinition) bool
		do    string
	}{
		{"triggers", func(a agentDefinition) bool { return len(a.Triggers) > 0 }, "Leave it out; create Sessions with `helmr session create` or the API"},
	}
)

const notYet = "is not supported by this version of helmr yet"

func checkConfigSupported(c *config) error {
	for _, row := range unsupportedInConfig {
		if row.used(c) {
			return problem(configName, row.do, "%s %s", row.field, notYet)
		}
	}
	return nil
}

// checkSupported refuses the first definition that uses something from the tables above.
func checkSupported(d definition) error {
	where := func(kind, id string) string { return fmt.Sprintf("%s: %s %q", d.Module, kind, id) }
	if a := d.Agent; a != nil {
		for _, row := range unsupportedInAgents {
			if row.used(*a) {
				return problem(where("agent", a.ID), row.do, "%s %s", row.field, notYet)
			}
		}
	}
	return nil
}
