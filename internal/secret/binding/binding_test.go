package binding_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"

	"helmr.dev/helmr/client/api"
	"helmr.dev/helmr/internal/egress/policy"
	"helmr.dev/helmr/internal/secret/binding"
)

// vectors are shared with the SDK.
type vectors struct {
	Bindings []struct {
		In  []api.SecretBinding `json:"in"`
		Out []api.SecretBinding `json:"out"`
	} `json:"bindings"`
	GoodNames []string                   `json:"goodNames"`
	BadNames  []string                   `json:"badNames"`
	GoodPaths []string                   `json:"goodPaths"`
	BadPaths  []string                   `json:"badPaths"`
	Origins   []struct{ In, Out string } `json:"origins"`
	BadOrigin []string                   `json:"badOrigins"`
	Policies  []struct {
		Policy json.RawMessage `json:"policy"`
		Origin string          `json:"origin"`
		OK     bool            `json:"ok"`
	} `json:"policies"`
}

func load(t *testing.T) vectors {
	t.Helper()
	raw, err := os.ReadFile("testdata/vectors.json")
	if err != nil {
		t.Fatal(err)
	}
	var v vectors
	if err := json.Unmarshal(raw, &v); err != nil {
		t.Fatal(err)
	}
	return v
}

func env(name string) []api.SecretBinding {
	return []api.SecretBinding{{Secret: "K", Env: &api.SecretEnv{Name: name, Mode: binding.Raw}}}
}

func file(path string) []api.SecretBinding {
	return []api.SecretBinding{{Secret: "K", File: &api.SecretFile{Path: path}}}
}

func protected(origins ...string) api.SecretBinding {
	return api.SecretBinding{Secret: "K", Env: &api.SecretEnv{Name: "K", Mode: binding.Protected, AllowedOrigins: origins}}
}

// refused checks that err is a rule's, and names a field below "secrets".
func refused(t *testing.T, what string, err error) {
	t.Helper()
	if e, ok := errors.AsType[*binding.Error](err); !ok || !strings.HasPrefix(e.Field, "secrets") || e.Problem == "" {
		t.Errorf("%s: %v", what, err)
	}
}

func TestSpec_10_03_ABindingHasOneForm(t *testing.T) {
	t.Parallel()
	for _, v := range load(t).Bindings {
		given := fmt.Sprintf("%+v", v.In)
		out, err := binding.Normalize("secrets", v.In)
		if v.Out == nil {
			refused(t, given, err)
			continue
		}
		if err != nil || !reflect.DeepEqual(out, v.Out) {
			t.Errorf("%s gives %+v, %v", given, out, err)
		}
	}
}

func TestSpec_10_04_Limits(t *testing.T) {
	t.Parallel()
	many := func(n int, make func(i int) api.SecretBinding) []api.SecretBinding {
		out := []api.SecretBinding{}
		for i := range n {
			out = append(out, make(i))
		}
		return out
	}
	raw := func(i int) api.SecretBinding { return env(fmt.Sprintf("K%d", i))[0] }
	origins := func(n int, prefix string) []string {
		var out []string
		for i := range n {
			out = append(out, fmt.Sprintf("https://%s%d.example.com", prefix, i), fmt.Sprintf("https://%s%d.example.com/", prefix, i))
		}
		return out
	}
	with := func(n int) func(i int) api.SecretBinding {
		return func(i int) api.SecretBinding {
			b := protected(origins(n, fmt.Sprintf("h%d-", i))...)
			b.Env.Name = fmt.Sprintf("K%d", i)
			return b
		}
	}
	for what, ok := range map[string][]api.SecretBinding{
		"64 bindings": many(64, raw), "16 origins in one, each twice": many(1, with(16)), "256 origins": many(16, with(16)), "64 with 4 each": many(64, with(4)),
	} {
		if _, err := binding.Normalize("secrets", ok); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	for what, bad := range map[string][]api.SecretBinding{
		"65 bindings": many(65, raw), "17 origins in one": many(1, with(17)), "257 origins": append(many(16, with(16)), with(1)(16)),
	} {
		_, err := binding.Normalize("secrets", bad)
		refused(t, what, err)
	}
}

func TestSpec_10_05_EnvNames(t *testing.T) {
	t.Parallel()
	v := load(t)
	for _, name := range v.GoodNames {
		if _, err := binding.Normalize("secrets", env(name)); err != nil {
			t.Errorf("%q: %v", name, err)
		}
	}
	for _, name := range v.BadNames {
		_, err := binding.Normalize("secrets", env(name))
		refused(t, name, err)
	}
	refused(t, "set by the image", binding.CheckImage("secrets", env("TOKEN"), []string{"PATH=/bin", "TOKEN="}))
	if err := binding.CheckImage("secrets", append(env("TOKEN"), file("/a")...), []string{"PATH=/bin", "TOKENS=x"}); err != nil {
		t.Error(err)
	}
}

func TestSpec_10_06_FilePaths(t *testing.T) {
	t.Parallel()
	v := load(t)
	long := "/" + strings.Repeat("a", binding.MaxPathBytes-1)
	for _, path := range append(v.GoodPaths, long) {
		if _, err := binding.Normalize("secrets", file(path)); err != nil {
			t.Errorf("%q: %v", path, err)
		}
	}
	for _, path := range append(v.BadPaths, long+"a", "/\xff") {
		_, err := binding.Normalize("secrets", file(path))
		refused(t, path, err)
	}
}

func TestSpec_10_07_Origins(t *testing.T) {
	t.Parallel()
	v := load(t)
	for _, o := range v.Origins {
		out, err := binding.Normalize("secrets", []api.SecretBinding{protected(o.In)})
		if err != nil || out[0].Env.AllowedOrigins[0] != o.Out {
			t.Errorf("%q gives %+v, %v", o.In, out, err)
		}
	}
	for _, o := range v.BadOrigin {
		_, err := binding.Normalize("secrets", []api.SecretBinding{protected(o)})
		refused(t, o, err)
	}
}

func TestSpec_09_19_ProtectedBindingsFitTheirPolicy(t *testing.T) {
	t.Parallel()
	for _, v := range load(t).Policies {
		p, err := policy.Parse(v.Policy)
		if err != nil {
			t.Fatal(err)
		}
		if err := binding.CheckPolicy("secrets", []api.SecretBinding{protected(v.Origin)}, p); (err == nil) != v.OK {
			t.Errorf("%s under %s: %v", v.Origin, v.Policy, err)
		}
		// TestSpec_09_20: the others fit every policy.
		if err := binding.CheckPolicy("secrets", append(env("A"), file("/a")...), p); err != nil {
			t.Errorf("raw and file under %s: %v", v.Policy, err)
		}
	}
}

func TestFits(t *testing.T) {
	t.Parallel()
	for size, want := range map[int64]bool{1: true, binding.MaxVariableBytes - 3: true, binding.MaxVariableBytes - 2: false} {
		if got := binding.Fits(env("A")[0], size); got != want {
			t.Errorf("%d bytes: %v", size, got)
		}
	}
	if !binding.Fits(file("/a")[0], 1<<20) {
		t.Error("a file takes any value")
	}
}

func FuzzNormalize(f *testing.F) {
	f.Add([]byte(`[{"secret":"K","env":{"name":"K","mode":"protected","allowedOrigins":["https://a.example.com:443/"]}},{"secret":"K","file":{"path":"/a"}}]`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		var in []api.SecretBinding
		if json.Unmarshal(raw, &in) != nil {
			return
		}
		out, err := binding.Normalize("secrets", in)
		if err != nil {
			return
		}
		again, err := binding.Normalize("secrets", out)
		if err != nil || !reflect.DeepEqual(again, out) {
			t.Fatalf("%+v becomes %+v, %v", out, again, err)
		}
	})
}
