package image

import (
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// keptArchives is how many finished archives the cache holds.
const keptArchives = 12

// archiveCache keeps finished archives by the builder's id of the image, so that building what did not change costs
// no export. It is only a cache: whatever goes wrong with it is as if the archive were not there.
type archiveCache struct{ dir string }

// formVersion changes when equal builder images would get another archive.
const formVersion = "1"

func (c archiveCache) path(id, ext string) string {
	return filepath.Join(c.dir, formVersion+"-"+id+ext)
}

// get copies the archive to out, and checks it on the way.
func (c archiveCache) get(id, out string) (Built, bool) {
	if id == "" {
		return Built{}, false
	}
	b, ok := readBuilt(c.path(id, ".json"))
	if !ok {
		return Built{}, false
	}
	f, err := os.Open(c.path(id, ".tar"))
	if err != nil {
		return Built{}, false
	}
	defer drop(f)
	digest, size, err := writeOut(out, func(w io.Writer) error { _, err := io.Copy(w, f); return err })
	if err != nil || digest.String() != b.Digest || size != b.Size {
		return Built{}, false
	}
	now := time.Now()
	_ = os.Chtimes(c.path(id, ".tar"), now, now)
	b.ArchivePath = out
	return b, true
}

func (c archiveCache) put(id string, b Built) {
	if id == "" || os.MkdirAll(c.dir, 0o755) != nil {
		return
	}
	in, err := os.Open(b.ArchivePath)
	if err != nil {
		return
	}
	defer drop(in)
	text, err := json.Marshal(b)
	if err != nil {
		return
	}
	if _, _, err := writeOut(c.path(id, ".tar"), func(w io.Writer) error { _, err := io.Copy(w, in); return err }); err != nil {
		return
	}
	if writeFileAtomic(c.path(id, ".json"), text) == nil {
		c.prune()
	}
}

func (c archiveCache) prune() {
	tars, _ := filepath.Glob(filepath.Join(c.dir, "*.tar"))
	used := func(p string) time.Time {
		info, err := os.Stat(p)
		if err != nil {
			return time.Time{}
		}
		return info.ModTime()
	}
	slices.SortFunc(tars, func(a, b string) int { return used(b).Compare(used(a)) })
	for _, p := range tars[min(keptArchives, len(tars)):] {
		_ = os.Remove(p[:len(p)-len(".tar")] + ".json")
		_ = os.Remove(p)
	}
}
