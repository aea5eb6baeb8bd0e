package image

import (
	"os"
	"path/filepath"
	"testing"
)

// TestStepsSeeTheHostsCertificatesAndTheImageDoesNot builds on a machine that trusts more and on one that does not: the
// step reads the certificates on the first, and both images are the same to the byte.
func TestStepsSeeTheHostsCertificatesAndTheImageDoesNot(t *testing.T) {
	t.Parallel()
	onEachBuilder(t, func(t *testing.T, find func(cacheDir string) builder) {
		file := filepath.Join(t.TempDir(), "ca.pem")
		must(t, os.WriteFile(file, []byte("a certificate"), 0o600))
		digests := map[string]string{}
		for name, c := range map[string]struct {
			trust []trusted
			seen  string
		}{
			"more": {[]trusted{{"NODE_EXTRA_CA_CERTS", file}}, "a certificate"},
			"less": {[]trusted{}, "nothing"},
		} {
			cache := tiny(t, "24.1.0")
			d := from(
				Step{Op: OpUser, Name: "app"},
				Step{Op: OpRun, Argv: []string{"sh", "-c", `seen=nothing; [ -z "$NODE_EXTRA_CA_CERTS" ] || seen=$(cat "$NODE_EXTRA_CA_CERTS"); echo "seen: $seen"; [ "$seen" = "$0" ]`, c.seen}},
			)
			built, err := Build(t.Context(), Options{
				Definition: d, SourceRoot: t.TempDir(), Out: filepath.Join(t.TempDir(), "image.tar"), CacheDir: cache,
				Progress: func(l string) { t.Log(l) }, builder: find(cache), trust: c.trust,
			})
			must(t, err)
			digests[name] = built.Digest
		}
		if digests["more"] != digests["less"] {
			t.Errorf("the images differ: %v", digests)
		}
	})
}

func TestHostTrust(t *testing.T) {
	file := filepath.Join(t.TempDir(), "ca.pem")
	must(t, os.WriteFile(file, nil, 0o600))
	t.Setenv("NODE_EXTRA_CA_CERTS", filepath.Join(t.TempDir(), "missing"))
	t.Setenv("SSL_CERT_FILE", file)
	if got := hostTrust(); len(got) != 1 || got[0] != (trusted{"SSL_CERT_FILE", file}) {
		t.Errorf("host trust = %v", got)
	}
}
