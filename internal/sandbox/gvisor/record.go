package gvisor

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"helmr.dev/helmr/internal/sandbox"
)

// record is what the runtime remembers of a sandbox across its own restarts. It is written before anything of the
// sandbox exists and deleted after everything of it is gone.
type record struct {
	ID     string   `json:"id"`
	Dir    string   `json:"dir"`
	Cgroup string   `json:"cgroup,omitempty"` // name below the mount of each controller
	Boot   string   `json:"boot"`             // the host's boot id: process numbers of another boot mean nothing
	Main   *process `json:"main,omitempty"`   // the sandbox process; nil until it started
	Frozen bool     `json:"frozen,omitempty"` // written before it is frozen, and after it is thawed
}

// records keeps one JSON file for each sandbox.
type records struct{ dir string }

func (s records) path(id string) string { return filepath.Join(s.dir, id+".json") }

func (s records) load(id string) (record, error) {
	b, err := os.ReadFile(s.path(id))
	if errors.Is(err, fs.ErrNotExist) {
		return record{}, fmt.Errorf("%w: %s", sandbox.ErrNotFound, id)
	}
	if err != nil {
		return record{}, fmt.Errorf("read sandbox record: %w", err)
	}
	var rec record
	if err := json.Unmarshal(b, &rec); err != nil {
		return record{}, fmt.Errorf("read sandbox record %s: %w", s.path(id), err)
	}
	return rec, nil
}

// save replaces the record in one step. It is not synced: no sandbox outlives the host.
func (s records) save(rec record) error {
	b, err := json.Marshal(rec)
	if err != nil {
		return fmt.Errorf("write sandbox record: %w", err)
	}
	tmp := s.path(rec.ID) + ".new"
	if err := os.WriteFile(tmp, b, 0o600); err != nil {
		return fmt.Errorf("write sandbox record: %w", err)
	}
	if err := os.Rename(tmp, s.path(rec.ID)); err != nil {
		return fmt.Errorf("write sandbox record: %w", err)
	}
	return nil
}

func (s records) delete(id string) error {
	for _, path := range []string{s.path(id) + ".new", s.path(id)} {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("delete sandbox record: %w", err)
		}
	}
	return nil
}

func (s records) ids() ([]string, error) {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return nil, fmt.Errorf("list sandbox records: %w", err)
	}
	var ids []string
	for _, e := range entries {
		if id, ok := strings.CutSuffix(e.Name(), ".json"); ok {
			ids = append(ids, id)
		}
	}
	return ids, nil
}

// running tells whether the sandbox process of the record lives.
func (rec record) running(boot string) bool {
	return rec.Main != nil && rec.Boot == boot && rec.Main.alive()
}

func bootID() (string, error) {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("read boot id: %w", err)
	}
	return strings.TrimSpace(string(b)), nil
}
