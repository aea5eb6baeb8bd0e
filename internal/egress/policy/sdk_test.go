package policy

import (
	"bytes"
	"encoding/json"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/evanw/esbuild/pkg/api"
)

// randomPolicy gives JSON that is nearly a policy: good parts and all kinds of bad ones, mixed.
func randomPolicy(r *rand.Rand) []byte {
	pick := func(list ...any) any { return list[r.IntN(len(list))] }
	label := func() string {
		b := make([]byte, 1+r.IntN(4))
		for i := range b {
			b[i] = "abz019-"[r.IntN(7)]
		}
		return string(b)
	}
	name := func() string {
		s := pick("", "", "*.", "*", "a.*.").(string)
		for range r.IntN(4) {
			s += label() + "."
		}
		s += pick("example", "EXAMPLE", "example.", "com", "localhost", "1", "b\u00fc", "a_b", "", "localdomain").(string)
		if r.IntN(12) == 0 && len(s) > 0 {
			i := r.IntN(len(s))
			s = s[:i] + string(rune(r.IntN(0x180))) + s[i:]
		}
		return s
	}
	cidr := func() any {
		return pick("10.0.0.0/8", "10.20.0.0/16", "0.0.0.0/0", "10.0.0.1/32", "10.0.0.1/31", "10.0.0.0/33", "10.0.0/8", "010.0.0.0/8", "::/0", "1.2.3.4", "", nil, 5, "10.0.0.0/08", "255.255.255.255/32", "256.0.0.0/8", "10.0.0.0/8 ")
	}
	entry := func() any {
		if r.IntN(3) > 0 {
			return name()
		}
		if r.IntN(8) == 0 {
			return pick(nil, 1, true, []any{"a.example"}, map[string]any{})
		}
		e := map[string]any{"domain": name()}
		var ranges []any
		for range r.IntN(4) {
			ranges = append(ranges, cidr())
		}
		e["ipRanges"] = ranges
		if r.IntN(10) == 0 {
			e["port"] = 443
		}
		return e
	}
	entries := []any{}
	for range r.IntN(3) + 1 {
		entries = append(entries, entry())
	}
	p := map[string]any{"allowDomains": entries}
	if r.IntN(20) == 0 {
		p[pick("blockAll", "deny").(string)] = pick(true, false, nil)
	}
	text, err := json.Marshal(p)
	if err != nil {
		panic(err)
	}
	return text
}

// What the SDK accepts in template() is what the server and the enforcement accept, with the same normal form.
func TestSpec_09_12_SDKAndEnforcementAgree(t *testing.T) {
	t.Parallel()
	bundled := api.Build(api.BuildOptions{EntryPoints: []string{filepath.Join("..", "..", "..", "sdk", "typescript", "src", "network.ts")}, Bundle: true, Format: api.FormatESModule, Platform: api.PlatformNode})
	if len(bundled.Errors) > 0 {
		t.Fatalf("%+v", bundled.Errors)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "network.mjs"), bundled.OutputFiles[0].Contents, 0o600); err != nil {
		t.Fatal(err)
	}
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 2))
	var given []json.RawMessage
	for range 20000 {
		given = append(given, randomPolicy(r))
	}
	input, err := json.Marshal(given)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "node", "--input-type=module", "-e", `
import { readFileSync } from "node:fs"
import { normalizeNetwork } from "./network.mjs"
const out = JSON.parse(readFileSync(0, "utf8")).map((policy) => { try { return normalizeNetwork("network", policy) } catch (e) { if (!(e instanceof TypeError)) throw e; return e.message } })
console.log(JSON.stringify(out))`)
	cmd.Dir, cmd.Stdin = dir, bytes.NewReader(input)
	raw, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	var got []json.RawMessage
	if err := json.Unmarshal(raw, &got); err != nil || len(got) != len(given) {
		t.Fatalf("%d answers, %v", len(got), err)
	}
	accepted := 0
	for i, in := range given {
		p, err := Parse(in)
		sdkRefuses := got[i][0] == '"'
		if (err != nil) != sdkRefuses {
			t.Fatalf("seed %d: %s: here %v, the SDK says %s", seed, in, err, got[i])
		}
		if err != nil {
			continue
		}
		accepted++
		out, err := json.Marshal(p)
		if err != nil || !sameJSON(out, got[i]) {
			t.Fatalf("seed %d: %s: here %s (%v), the SDK says %s", seed, in, out, err, got[i])
		}
	}
	if accepted < 200 {
		t.Errorf("only %d of %d were accepted: the test looks away", accepted, len(given))
	}
	t.Logf("%d of %d accepted", accepted, len(given))
}
