package image

import "testing"

func TestNormalize(t *testing.T) {
	t.Parallel()
	digest := "sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
	for in, want := range map[string]string{
		"node":                      "docker.io/library/node:latest",
		"node:24-bookworm-slim":     "docker.io/library/node:24-bookworm-slim",
		"docker.io/node:24":         "docker.io/library/node:24",
		"docker.io/library/node:24": "docker.io/library/node:24",
		"index.docker.io/me/x:1":    "docker.io/me/x:1",
		"me/x":                      "docker.io/me/x:latest",
		"ghcr.io/a/b/c:1":           "ghcr.io/a/b/c:1",
		"localhost:5000/x":          "localhost:5000/x:latest",
		"node@" + digest:            "docker.io/library/node@" + digest,
		"registry.example.com/team/tool@" + digest: "registry.example.com/team/tool@" + digest,
	} {
		got, err := Normalize(in)
		if err != nil || got != want {
			t.Errorf("Normalize(%q) = %q, %v; want %q", in, got, err, want)
		}
		if again, err := Normalize(got); err != nil || again != got {
			t.Errorf("Normalize(%q) = %q, %v", got, again, err)
		}
		if back, err := Normalize(Familiar(got)); err != nil || back != got {
			t.Errorf("Familiar(%q) = %q means %q, %v", got, Familiar(got), back, err)
		}
	}
	for _, bad := range []string{"", "A", "a b", "a:", "a@sha256:1", "http://a/b"} {
		if got, err := Normalize(bad); err == nil {
			t.Errorf("Normalize(%q) = %q", bad, got)
		}
	}
}

func TestSpec_13_02_BuilderName(t *testing.T) {
	t.Parallel()
	// printf 'default\nunix:///var/run/docker.sock' | sha256sum
	if got, want := builderName("default", "unix:///var/run/docker.sock"), "helmr-49ea2dd1425461a23c949642"; got != want {
		t.Errorf("builderName = %q, want %q", got, want)
	}
}
