// Command bench measures helmr on this machine: the real binaries, real sandboxes, real Node. It prints a table and
// writes bench/results.json; each floor is measured in the same run. It is a program to measure with and no test: it
// fails when something does not work, and with -check when a stated bound does not hold.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"helmr.dev/helmr/internal/db"
)

// bench is one run.
type bench struct {
	root   string // of the project
	work   string // folder of this run, gone at its end
	quick  bool
	admin  string // URL of the PostgreSQL that databases are made in; "" for SQLite only
	report report
	floors *floors
}

func main() {
	if len(os.Args) == 2 && os.Args[1] == floorServerArg {
		if err := serveFloor(); err != nil {
			fmt.Fprintln(os.Stderr, "bench:", err)
			os.Exit(1)
		}
		return
	}
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run() (err error) {
	b := &bench{admin: os.Getenv("HELMR_TEST_POSTGRES")}
	var only, out string
	var check bool
	flag.BoolVar(&b.quick, "quick", false, "fewer repetitions: below 90 seconds, less steady")
	flag.BoolVar(&check, "check", false, "end with 1 when a stated bound does not hold")
	flag.StringVar(&only, "only", "", "measure these groups only, separated by commas: "+strings.Join(groupNames(), ", "))
	flag.StringVar(&out, "out", "", "where the results go (default: bench/results.json; with -only nowhere)")
	flag.Parse()
	if b.root, err = filepath.Abs("."); err != nil {
		return err
	}
	if _, err := os.Stat(filepath.Join(b.root, "bench", "project")); err != nil {
		return errors.New("run it in the project's folder: make bench")
	}
	if os.Geteuid() != 0 {
		return errors.New("it starts sandboxes: run it as root")
	}
	if out == "" && only == "" {
		out = filepath.Join(b.root, "bench", "results.json")
	}
	if b.work, err = os.MkdirTemp("", "helmr-bench-"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(b.work)) }()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := b.measure(ctx, only); err != nil {
		return err
	}
	b.report.print(os.Stdout)
	if out != "" {
		if err := b.report.write(out); err != nil {
			return err
		}
		fmt.Printf("\nWritten to %s.\n", out)
	}
	if readme := filepath.Join(b.root, "bench", "README.md"); out == filepath.Join(b.root, "bench", "results.json") && !b.quick {
		if err := b.report.writeInto(readme); err != nil {
			return err
		}
		fmt.Println("The table in bench/README.md shows them too.")
	}
	if missed := b.report.missed(); check && len(missed) > 0 {
		return fmt.Errorf("bounds that do not hold: %s", strings.Join(missed, ", "))
	}
	return nil
}

// group is a set of figures that are measured on one running helmr.
type group struct {
	name string
	run  func(*bench, context.Context, *helmr) error
	// both says that -quick measures it on PostgreSQL too.
	both bool
}

// onDev are measured on a helmr dev of each database; onSplit on a server and a Worker of their own; inside on a helmr dev
// that has an internet of its own.
var (
	onDev = []group{
		{"cold", (*bench).cold, false}, {"prepared", (*bench).prepared, false}, {"warm", (*bench).warm, false}, {"live", (*bench).live, false}, {"piped", (*bench).piped, false},
		{"hibernate", (*bench).hibernate, false}, {"saves", (*bench).saves, false}, {"throughput", (*bench).throughput, true}, {"commands", (*bench).commands, true},
	}
	onSplit = []group{{"memory", (*bench).memory, false}, {"sse", (*bench).sse, false}, {"policies", (*bench).policies, false}, {"idle", (*bench).idle, false}}
	inside  = []group{{"network", (*bench).network, false}}
)

func groupNames() []string {
	var names []string
	for _, g := range slices.Concat(onDev, onSplit, inside) {
		names = append(names, g.name)
	}
	return names
}

func (b *bench) measure(ctx context.Context, only string) (err error) {
	for name := range strings.SplitSeq(only, ",") {
		if only != "" && !slices.Contains(groupNames(), name) {
			return fmt.Errorf("-only: no group is called %q; there are %s", name, strings.Join(groupNames(), ", "))
		}
	}
	b.report.begin()
	kinds := []db.Kind{db.SQLite}
	if b.admin != "" {
		kinds = append(kinds, db.PostgreSQL)
	} else {
		fmt.Println("HELMR_TEST_POSTGRES is not set: measuring on SQLite only.")
	}
	for _, kind := range kinds {
		wanted := func(groups []group) (out []group) {
			for _, g := range groups {
				named := strings.Contains(","+only+",", ","+g.name+",")
				if named || (only == "" && (kind == db.SQLite || !b.quick || g.both)) {
					out = append(out, g)
				}
			}
			return out
		}
		for _, on := range []struct {
			groups []group
			floors bool
			start  func(context.Context, *bench, db.Kind) (*helmr, error)
		}{{onDev, true, startDev}, {onSplit, true, startSplit}, {inside, false, startInside}} {
			groups := wanted(on.groups)
			if len(groups) > 0 && (on.floors || kind == db.SQLite) { // what needs no floors of a database is the same on each
				if err := b.on(ctx, groups, kind, on.floors, on.start); err != nil {
					return fmt.Errorf("%s: %w", kind, err)
				}
			}
		}
	}
	return nil
}

// on starts a helmr, measures the groups on it, before them the floors if they need those, and removes every trace of it.
func (b *bench) on(ctx context.Context, groups []group, kind db.Kind, floors bool, start func(context.Context, *bench, db.Kind) (*helmr, error)) (err error) {
	h, err := start(ctx, b, kind)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, h.close()) }()
	began := time.Now()
	step("%s: deploying", h.what)
	if err := h.deploy(ctx); err != nil {
		return err
	}
	if floors && b.floors == nil {
		step("%s: a first turn, so that everything is in place", h.what)
		if b.floors, err = measureFloors(ctx, b, h); err != nil {
			return fmt.Errorf("floors: %w", err)
		}
		defer func() {
			err = errors.Join(err, b.floors.close())
			b.floors = nil
		}()
	}
	for _, g := range groups {
		step("%s: %s (%.0f s so far)", h.what, g.name, time.Since(began).Seconds())
		if err := g.run(b, ctx, h); err != nil {
			return fmt.Errorf("%s: %w", g.name, errors.Join(err, h.lastWords()))
		}
	}
	return nil
}

// few gives the number of repetitions: the second with -quick.
func (b *bench) few(full, quick int) int {
	if b.quick {
		return quick
	}
	return full
}

func step(format string, args ...any) { fmt.Printf("... "+format+"\n", args...) }
