package e2e

import (
	"net/url"
	"path/filepath"
	"testing"
)

// sdk drives helmr with the built TypeScript client under Node.
func sdk(t *testing.T, h *helmr) {
	index, err := filepath.Abs(filepath.Join("..", "..", "sdk", "typescript", "dist", "index.js"))
	if err != nil {
		t.Fatal(err)
	}
	node := program{path: "node", env: []string{"HELMR_API_URL=" + h.info.URL, "HELMR_API_KEY=" + h.info.APIKey, "SDK_URL=" + (&url.URL{Scheme: "file", Path: index}).String()}}
	const script = "testdata/client/main.mjs"
	if got := node.run(t, script, "everything").ok(t); got != "done\n" {
		t.Errorf("the client says %q", got)
	}
	outage := node.start(t, script, "outage")
	outage.says("running")
	h.kill()
	h.run()
	if got := outage.wait().ok(t); got != "running\ndone\n" {
		t.Errorf("the client says %q", got)
	}
}
