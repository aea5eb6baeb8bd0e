package arch

import (
	"strconv"
	"strings"
	"testing"
)

// rooms stand in one line; a room imports rooms to its left only. A reference the other way is an id.
var rooms = []string{"access", "secret", "deployment", "storage", "computer", "session", "turn", "command", "preparation", "trigger", "delegation", "slack"}

// allowed says which packages of this module a package may import, each with its reason. A folder stands for all
// packages below it unless one has an entry of its own. Rooms and the generated wire formats come from the code below.
var allowed = map[string]map[string]string{
	"client/api":     {},
	"client":         {"client/api": "the bodies that it sends and reads"},
	"internal/fault": {},
	"internal/id":    {},
	"internal/state": {},
	"internal/loop":  {"internal/db": "wakes on signals of committed transactions"},
	"internal/arch":  {"rooms": "draws their tables of states"},
	"internal/db":    {"internal/id": "names of instances", "internal/fault": "errors that callers may see"},
	"internal/db/dbtest": {
		"internal/db": "opens it", "internal/id": "names test databases",
	},
	"internal/blob": {"internal/fault": "errors that callers may see", "internal/blob": "chunks lie in a store"},
	"internal/server": {
		"client/api": "the bodies of the API", "client": "tests the client against itself", "internal/db": "readiness, and waiting for signals",
		"internal/fault": "codes and statuses", "internal/id": "request ids and path checks",
		"rooms": "the business actions behind the routes", "internal/worker/proto": "the wire format of the Worker calls",
		"internal/server": "its parts",
	},
	"internal/server/servertest": {
		"internal/server": "runs it", "rooms": "the real ones behind it", "internal/blob": "their object store", "internal/build/bundle": "makes bundles to deploy",
		"internal/db": "and a test database", "internal/id": "ids", "client": "deploys as a client does",
	},
	"internal/egress/policy":    {},
	"internal/egress/authority": {},
	"internal/egress": {
		"internal/egress": "its parts", "internal/sandbox": "tests networks from inside real sandboxes", "internal/id": "names Computers in its tests",
	},
	"internal/sandbox": {"internal/sandbox": "runtimes implement the interface and its suite tests them", "internal/id": "names sandboxes in the suite"},
	"internal/image":   {"internal/image": "its parts", "internal/fault": "errors that callers may see"},
	"internal/guest":   {"internal/guest": "both ends share the wire format"},
	"internal/worker": {
		"internal/worker": "its parts and the wire format", "internal/sandbox": "runs Computers", "internal/egress": "gives them networks", "internal/image": "root filesystems", "internal/guest": "talks to the guest",
		"internal/blob": "stores and restores Saves", "internal/build/bundle": "unpacks programs and reads image configuration",
		"internal/fault": "codes that the server sent", "internal/id": "ids of what it starts", "internal/loop": "background work",
	},
	"internal/build": {
		"internal/build": "its parts", "internal/egress/policy": "what a network policy is", "internal/image": "builds the images of Templates", "internal/fault": "a refused manifest", "internal/id": "declared ids",
		"client/api": "a Secret binding is written in a bundle as in a request", "internal/secret/binding": "the rules of Secret bindings",
		"sdk/typescript": "the SDK's sources, embedded, so that a project needs no copy to build against",
		"runtime/node":   "the host program's sources, embedded, so that the binary needs no npm",
	},
	"cmd/helmr-guest": {"internal/guest": "it is the guest's main function and nothing else"},
	"cmd/helmr":       {"*": "assembles every process"},
	"test/e2e":        {"*": "drives the real binary and looks at what it left"},
	"bench":           {"*": "measures every part"},
}

// roomBase is what every room may import beside the rooms to its left.
var roomBase = map[string]string{
	"internal/db": "transactions", "internal/blob": "objects", "internal/loop": "background work", "internal/fault": "errors", "internal/id": "ids",
	"internal/state": "tables of states",
	"client/api":     "the bodies that it fills",
}

// extra are single imports beside the rules, each with its reason. The list may only shrink.
var extra = map[string]string{
	"internal/computer -> internal/worker/proto":        "rooms fill the messages of the Worker calls, as they fill the bodies of the API",
	"internal/turn -> internal/worker/proto":            "as internal/computer",
	"internal/command -> internal/worker/proto":         "as internal/computer",
	"internal/secret/binding -> internal/egress/policy": "origins are names, and must fit the network policy",
	"internal/storage -> internal/blob/chunk":           "what is read of a manifest without a key, and what a reference is",
	"internal/computer -> internal/egress/policy":       "protected bindings must fit it when a Computer is made",
	"internal/computer -> internal/egress/authority":    "makes what a Computer is given in place of protected values",
	"internal/deployment -> internal/build/bundle":      "the bundle format is shared by whoever makes, stores or unpacks one",
}

func TestImports(t *testing.T) {
	t.Parallel()
	used := map[string]bool{}
	for dir, files := range packages(t) {
		for _, f := range sources(files) {
			for _, spec := range f.ast.Imports {
				path, err := strconv.Unquote(spec.Path.Value)
				if err != nil {
					t.Fatal(err)
				}
				target, ours := strings.CutPrefix(path, module+"/")
				if !ours || target == dir {
					continue
				}
				key := dir + " -> " + target
				if _, ok := extra[key]; ok {
					used[key] = true
					continue
				}
				if !mayImport(dir, target) {
					t.Errorf("%s imports %s, which %s may not: see the table in internal/arch", f.path, target, dir)
				}
			}
		}
	}
	for key := range extra {
		if !used[key] {
			t.Errorf("the extra import %q is not used any more: take it off the list", key)
		}
	}
}

func mayImport(dir, target string) bool {
	if room := roomOf(dir); room >= 0 {
		if _, ok := roomBase[target]; ok {
			return true
		}
		to := roomOf(target)
		return to >= 0 && to <= room
	}
	for d := dir; ; d = d[:strings.LastIndex(d, "/")] {
		if table, ok := allowed[d]; ok {
			for what := range table {
				if what == "*" || target == what || strings.HasPrefix(target, what+"/") || (what == "rooms" && roomOf(target) >= 0) {
					return true
				}
			}
			return false
		}
		if !strings.Contains(d, "/") {
			return false
		}
	}
}

// roomOf gives the place of a package's room in the line, -1 if it is in none.
func roomOf(dir string) int {
	name, ok := strings.CutPrefix(dir, "internal/")
	if !ok {
		return -1
	}
	name, _, _ = strings.Cut(name, "/")
	for i, room := range rooms {
		if room == name {
			return i
		}
	}
	return -1
}

// forbidden are imports from outside the module that a part must not have, with the reason.
var forbidden = []struct {
	where, what, why string
}{
	{"rooms", "net/http", "a room knows no protocol"},
	{"rooms", "github.com/danielgtaylor/huma", "a room knows no protocol"},
	{"internal/worker", "database/sql", "a Worker speaks the worker RPC, also in helmr dev"},
	{"internal/sandbox", "database/sql", "as the Worker"},
	{"internal/image", "database/sql", "as the Worker"},
	{"internal/guest", "database/sql", "as the Worker"},
	{"internal/guest", "net/http", "the guest has one Unix socket"},
	{"internal/fault", "database/sql", "a leaf"},
	{"client", "github.com/", "whoever imports the client gets no dependency with it"},
}

func TestForbiddenImports(t *testing.T) {
	t.Parallel()
	for dir, files := range packages(t) {
		for _, rule := range forbidden {
			if !(dir == rule.where || strings.HasPrefix(dir, rule.where+"/") || (rule.where == "rooms" && roomOf(dir) >= 0)) {
				continue
			}
			for _, f := range sources(files) {
				for _, spec := range f.ast.Imports {
					path, _ := strconv.Unquote(spec.Path.Value) // the parser has checked it
					if path == rule.what || strings.HasPrefix(path, strings.TrimSuffix(rule.what, "/")+"/") {
						t.Errorf("%s imports %s: %s", f.path, path, rule.why)
					}
				}
			}
		}
	}
}

// A reason is not optional.
func TestImportsHaveReasons(t *testing.T) {
	t.Parallel()
	for dir, table := range allowed {
		for what, why := range table {
			if why == "" {
				t.Errorf("%s -> %s has no reason", dir, what)
			}
		}
	}
}
