package storage

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// holders are all columns that hold the name of a manifest in blob storage, and what keeps it from being collected. Whoever
// adds one here gives its room's Roots to the collector.
var holders = map[string]string{
	"saves.manifest_digest":        "computer.Manifests, if it is the recovery point; preparation.Manifests, if it is about to be an image",
	"computers.first_manifest":     "computer.Manifests",
	"captures.memory_manifest":     "computer.Manifests",
	"preparations.manifest_digest": "preparation.Manifests",
	"bundles.manifest":             "not one of these: the text itself",
}

func TestEveryHolderOfAManifestIsKnown(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("../db/migrations/*.sql")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	table := regexp.MustCompile(`^(?:CREATE|ALTER) TABLE (\w+)`)
	column := regexp.MustCompile(`^(?:\s+|ALTER TABLE \w+ ADD COLUMN )(\w*manifest\w*) `)
	found := map[string]bool{}
	for _, path := range files {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		now := ""
		for line := range strings.Lines(string(text)) {
			if m := table.FindStringSubmatch(line); m != nil {
				now = m[1]
			}
			if m := column.FindStringSubmatch(line); m != nil && now != "" {
				found[now+"."+m[1]] = true
			}
		}
	}
	for name := range found {
		if holders[name] == "" {
			t.Errorf("%s holds a manifest that the collector may not know", name)
		}
	}
	for name := range holders {
		if !found[name] {
			t.Errorf("%s does not exist any more", name)
		}
	}
}
