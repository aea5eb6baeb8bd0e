package main

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"helmr.dev/helmr/internal/db"
)

// figure is one measured value. Ratio is value through floor; for a time 1.0 is as good as can be, for a rate it may be
// above 1 (commits are shared).
type figure struct {
	Name     string   `json:"name"`
	Value    float64  `json:"value"`
	Unit     string   `json:"unit"`
	Floor    *float64 `json:"floor"`
	Ratio    *float64 `json:"ratio"`
	Database db.Kind  `json:"database"`

	bound *bound
}

// bound is what a figure is promised to keep.
type bound struct {
	text string
	keep func(figure) bool
}

func atMostRatio(limit float64) *bound {
	return &bound{fmt.Sprintf("ratio <= %g", limit), func(f figure) bool { return f.Ratio != nil && *f.Ratio <= limit }}
}

func atLeastRatio(limit float64) *bound {
	return &bound{fmt.Sprintf("ratio >= %g", limit), func(f figure) bool { return f.Ratio != nil && *f.Ratio >= limit }}
}

func atMost(limit float64) *bound {
	return &bound{fmt.Sprintf("<= %g", limit), func(f figure) bool { return f.Value <= limit }}
}

func atLeast(limit float64) *bound {
	return &bound{fmt.Sprintf(">= %g", limit), func(f figure) bool { return f.Value >= limit }}
}

// report collects what was measured.
type report struct {
	Figures []figure `json:"figures"`
	Machine machine  `json:"machine"`
}

// machine is where and when it was measured.
type machine struct {
	CPU     string  `json:"cpu"`
	CPUs    int     `json:"cpus"`
	Kernel  string  `json:"kernel"`
	Load    string  `json:"load_before"`
	Began   string  `json:"began"`
	Seconds float64 `json:"seconds"`

	began time.Time
}

func (r *report) begin() {
	m := &r.Machine
	m.began = time.Now()
	m.Began = m.began.UTC().Format(time.RFC3339)
	m.CPUs = runtime.NumCPU()
	if out, err := exec.Command("uname", "-r").Output(); err == nil {
		m.Kernel = strings.TrimSpace(string(out))
	}
	if raw, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range strings.Lines(string(raw)) {
			if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
				m.CPU = strings.TrimSpace(value)
			}
		}
	}
	m.Load = load()
}

// load is the load of the machine in the last minute and the last five.
func load() string {
	raw, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return ""
	}
	return strings.Join(strings.Fields(string(raw))[:2], " ")
}

// add takes a figure; floor 0 means that it has none.
func (r *report) add(name string, kind db.Kind, value float64, unit string, floor float64, b *bound) {
	f := figure{Name: name, Value: round(value), Unit: unit, Database: kind, bound: b}
	if floor > 0 {
		shown, ratio := round(floor), round(value/floor)
		f.Floor, f.Ratio = &shown, &ratio
	}
	r.Figures = append(r.Figures, f)
	fmt.Printf("    %-34s %s %s\n", name, number(f.Value), unit)
}

// times adds p50 and p99 of times in ms.
func (r *report) times(name string, kind db.Kind, times []float64, floor float64, b50 *bound) {
	r.add(name+"_p50", kind, percentile(times, 50), "ms", floor, b50)
	r.add(name+"_p99", kind, percentile(times, 99), "ms", floor, nil)
}

func (r *report) missed() []string {
	var names []string
	for _, f := range r.Figures {
		if f.bound != nil && !f.bound.keep(f) {
			names = append(names, fmt.Sprintf("%s on %s (%s)", f.Name, f.Database, f.bound.text))
		}
	}
	return names
}

func (r *report) print(out io.Writer) {
	r.Machine.Seconds = round(time.Since(r.Machine.began).Seconds())
	m := r.Machine
	_, _ = fmt.Fprintf(out, "\n%d CPUs %s, Linux %s, load before %s and after %s, %.0f s\n\n", m.CPUs, m.CPU, m.Kernel, m.Load, load(), m.Seconds)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(w, "figure\tdatabase\tvalue\tunit\tfloor\tratio\tbound")
	for _, f := range r.Figures {
		floor, ratio, bound := f.besides()
		_, _ = fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", f.Name, f.Database, number(f.Value), f.Unit, floor, ratio, bound)
	}
	_ = w.Flush()
}

func (r *report) write(path string) error {
	raw, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(raw, '\n'), 0o644)
}

// The table of the latest figures stands between these lines of README.md.
const (
	tableBegins = "<!-- figures: written by make bench -->\n"
	tableEnds   = "<!-- end of figures -->\n"
)

// writeInto puts the figures into a document.
func (r *report) writeInto(path string) error {
	raw, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	before, rest, begins := strings.Cut(string(raw), tableBegins)
	_, after, ends := strings.Cut(rest, tableEnds)
	if !begins || !ends {
		return fmt.Errorf("%s has no place for the figures", path)
	}
	return os.WriteFile(path, []byte(before+tableBegins+r.markdown()+tableEnds+after), 0o644)
}

func (r *report) markdown() string {
	m := r.Machine
	var s strings.Builder
	fmt.Fprintf(&s, "\n%s, %d CPUs %s, Linux %s; load of the machine before: %s; %.0f s.\n\n", m.Began[:min(10, len(m.Began))], m.CPUs, m.CPU, m.Kernel, m.Load, m.Seconds)
	s.WriteString("| figure | database | value | floor | ratio | bound |\n|---|---|---|---|---|---|\n")
	for _, f := range r.Figures {
		floor, ratio, bound := f.besides()
		fmt.Fprintf(&s, "| `%s` | %s | %s %s | %s | %s | %s |\n", f.Name, f.Database, number(f.Value), f.Unit, floor, ratio, bound)
	}
	s.WriteString("\n")
	return s.String()
}

// besides gives what stands beside a value in a table.
func (f figure) besides() (floor, ratio, bound string) {
	if f.Floor != nil {
		floor, ratio = number(*f.Floor), number(*f.Ratio)
	}
	if f.bound != nil {
		bound = f.bound.text + ": holds"
		if !f.bound.keep(f) {
			bound = f.bound.text + ": MISSED"
		}
	}
	return floor, ratio, bound
}

// round keeps four digits that count.
func round(v float64) float64 {
	if v == 0 || math.IsNaN(v) || math.IsInf(v, 0) {
		return 0
	}
	scale := math.Pow(10, 3-math.Floor(math.Log10(math.Abs(v))))
	return math.Round(v*scale) / scale
}

func number(v float64) string {
	if math.Abs(v) >= 1000 {
		return fmt.Sprintf("%.0f", v)
	}
	return fmt.Sprintf("%.4g", v)
}

// percentile gives the value that p of a hundred do not exceed.
func percentile(values []float64, p int) float64 {
	if len(values) == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(values))
	return s[max(0, (len(s)*p+99)/100-1)]
}

func median(values []float64) float64 { return percentile(values, 50) }

// ms gives a duration in milliseconds.
func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// wall gives a time as the programs inside sandboxes give theirs: ms since 1970.
func wall(t time.Time) float64 { return float64(t.UnixNano()) / 1e6 }
