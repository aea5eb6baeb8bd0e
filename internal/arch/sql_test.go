package arch

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	statement = regexp.MustCompile(`(?s)^\s*(SELECT|INSERT INTO|UPDATE|DELETE FROM|WITH)\s.*(\sFROM\s|\sVALUES\s|\sSET\s|\sSELECT\s|\sWHERE\s|\()`)
	writes    = regexp.MustCompile(`(?i)\b(?:INSERT\s+INTO|UPDATE|DELETE\s+FROM)\s+([a-z_][a-z0-9_]*)`)
	create    = regexp.MustCompile(`(?i)^CREATE TABLE(?: IF NOT EXISTS)? ([a-z_][a-z0-9_]*)`)
)

// foreignWrites are writes to a table of somebody else, each with its reason. The list may only shrink.
var foreignWrites = map[string]string{
	"internal/server/sql.go schema_migrations":       "readiness proves that the database takes writes, with one that it takes back",
	"internal/server/servertest/sql.go environments": "tests need a second Environment, which nothing can create yet",
}

// SQL stands in internal/db and in files named sql.go, and nowhere else.
func TestSQLStandsInItsFiles(t *testing.T) {
	t.Parallel()
	for dir, files := range packages(t) {
		if dir == "internal/db" || strings.HasPrefix(dir, "internal/db/") {
			continue
		}
		for _, f := range sources(files) {
			if filepath.Base(f.path) == "sql.go" {
				continue
			}
			literals(f, func(text string, line int) {
				if statement.MatchString(text) {
					t.Errorf("%s line %d holds SQL: it belongs into sql.go of the room that owns the table", f.path, line)
				}
			})
		}
	}
}

// A room writes its own tables only. The migrations say who owns which: a comment that is only the name of a room
// stands above its tables.
func TestRoomsWriteTheirOwnTables(t *testing.T) {
	t.Parallel()
	owner := tableOwners(t)
	for dir, files := range packages(t) {
		for _, f := range sources(files) {
			if filepath.Base(f.path) != "sql.go" {
				continue
			}
			room := strings.Split(strings.TrimPrefix(dir, "internal/"), "/")[0]
			literals(f, func(text string, line int) {
				for _, m := range writes.FindAllStringSubmatch(text, -1) {
					table := strings.ToLower(m[1])
					if table == "set" { // ON CONFLICT ... DO UPDATE SET
						continue
					}
					if why := foreignWrites[f.path+" "+table]; why != "" {
						continue
					}
					owns, known := owner[table]
					if !known {
						t.Errorf("%s line %d writes %s, which no migration makes", f.path, line, table)
					} else if owns != room {
						t.Errorf("%s line %d writes %s, which belongs to %s", f.path, line, table, owns)
					}
				}
			})
		}
	}
}

func tableOwners(t *testing.T) map[string]string {
	t.Helper()
	owner := map[string]string{}
	names, err := filepath.Glob(filepath.Join(root(), "internal/db/migrations/*.sql"))
	if err != nil || len(names) == 0 {
		t.Fatalf("no migrations found: %v", err)
	}
	for _, name := range names {
		raw, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		room := ""
		for line := range strings.Lines(string(raw)) {
			line = strings.TrimSpace(line)
			if comment, ok := strings.CutPrefix(line, "-- "); ok && roomOf("internal/"+comment) >= 0 {
				room = comment
			}
			if m := create.FindStringSubmatch(line); m != nil {
				if room == "" {
					t.Errorf("%s: table %s has no owner: put a comment with the name of its room above it", filepath.Base(name), m[1])
				}
				owner[m[1]] = room
			}
		}
	}
	return owner
}
