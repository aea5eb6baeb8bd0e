package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"helmr.dev/helmr/internal/db"
)

func TestPercentile(t *testing.T) {
	t.Parallel()
	values := []float64{5, 1, 4, 2, 3}
	for p, want := range map[int]float64{0: 1, 20: 1, 50: 3, 80: 4, 99: 5, 100: 5} {
		if got := percentile(values, p); got != want {
			t.Errorf("percentile %d is %g, want %g", p, got, want)
		}
	}
	if percentile(nil, 50) != 0 || values[0] != 5 {
		t.Error("nothing has a percentile, or the values were sorted in place")
	}
}

func TestRound(t *testing.T) {
	t.Parallel()
	for in, want := range map[float64]float64{0: 0, 1.23456: 1.235, 12345.6: 12350, 0.000123456: 0.0001235, -2.00049: -2} {
		if got := round(in); got != want {
			t.Errorf("round(%g) is %g, want %g", in, got, want)
		}
	}
}

func TestInsert(t *testing.T) {
	t.Parallel()
	if got := insert(db.PostgreSQL, "t", []string{"a", "b"}, 2); got != "INSERT INTO t (a, b) VALUES ($1, $2), ($3, $4)" {
		t.Error(got)
	}
	if got := insert(db.SQLite, "t", []string{"a"}, 1); got != "INSERT INTO t (a) VALUES (?)" {
		t.Error(got)
	}
}

// Whoever reads results.json finds these six of each figure, null where there is none.
func TestFigureOnTheWire(t *testing.T) {
	t.Parallel()
	var r report
	r.add("with", db.SQLite, 3, "ms", 2, atMostRatio(1.4))
	r.add("without", db.PostgreSQL, 500, "1/s", 0, atLeast(500))
	path := filepath.Join(t.TempDir(), "results.json")
	if err := r.write(path); err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		Figures []map[string]any `json:"figures"`
	}
	if err := json.Unmarshal(raw, &got); err != nil {
		t.Fatal(err)
	}
	first := map[string]any{"name": "with", "value": 3.0, "unit": "ms", "floor": 2.0, "ratio": 1.5, "database": "sqlite"}
	for name, want := range first {
		if got.Figures[0][name] != want {
			t.Errorf("%s is %v, want %v", name, got.Figures[0][name], want)
		}
	}
	if second := got.Figures[1]; len(second) != 6 || second["floor"] != nil || second["ratio"] != nil {
		t.Errorf("without a floor: %v", second)
	}
	if missed := r.missed(); len(missed) != 1 || !strings.HasPrefix(missed[0], "with ") {
		t.Errorf("missed bounds: %v", missed)
	}
}

// README.md explains every figure and has a place for the latest ones.
func TestFiguresAreExplained(t *testing.T) {
	t.Parallel()
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile("results.json")
	if err != nil {
		t.Fatal(err)
	}
	var r report
	if err := json.Unmarshal(raw, &r); err != nil {
		t.Fatal(err)
	}
	before, rest, begins := strings.Cut(string(readme), tableBegins)
	_, after, ends := strings.Cut(rest, tableEnds)
	if !begins || !ends {
		t.Fatal("README.md has no place for the figures")
	}
	for _, f := range r.Figures {
		name := strings.TrimSuffix(strings.TrimSuffix(f.Name, "_p50"), "_p99")
		if !strings.Contains(before+after, "`"+name+"`") {
			t.Errorf("README.md does not explain %s", name)
		}
	}
}
