package gvisor

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const cgroupMount = "/sys/fs/cgroup"

// cgroups is how this host bounds CPU, memory and disk speed. runsc makes a sandbox's group and writes its limits; this type finds
// out whether it can, reads why a sandbox was killed, and removes groups, also those that a killed runsc left.
type cgroups struct {
	mount   string
	version int    // 1, 2, or 0 for none
	reason  string // why there is none
	noIO    string // why disk speed cannot be bounded; "" if it can
}

// detectCgroups tries what runsc will do, because a mounted hierarchy may still be read-only or not delegated.
func detectCgroups(mount string) cgroups {
	none := func(format string, args ...any) cgroups {
		reason := fmt.Sprintf(format, args...)
		return cgroups{mount: mount, reason: reason, noIO: reason}
	}
	var st unix.Statfs_t
	if err := unix.Statfs(mount, &st); err != nil {
		return none("%s: %v", mount, err)
	}
	if st.Type == unix.CGROUP2_SUPER_MAGIC {
		if err := delegateV2(mount); err != nil {
			return none("cgroup v2 at %s: %v", mount, err)
		}
		c := cgroups{mount: mount, version: 2}
		// Apart from the others, because without it all else still holds.
		if err := os.WriteFile(filepath.Join(mount, "cgroup.subtree_control"), []byte("+io"), 0); err != nil {
			c.noIO = fmt.Sprintf("cgroup v2 io controller: %v", err)
		}
		return c
	}
	for _, controller := range []string{"cpu", "memory"} {
		if _, err := os.Stat(filepath.Join(mount, controller, "cgroup.procs")); err != nil {
			return none("no %s controller of cgroup v1 in %s", controller, mount)
		}
		if err := tryGroup(filepath.Join(mount, controller), nil); err != nil {
			return none("cgroup v1 %s controller: %v", controller, err)
		}
	}
	c := cgroups{mount: mount, version: 1}
	if err := tryGroup(filepath.Join(mount, "blkio"), nil); err != nil {
		c.noIO = fmt.Sprintf("cgroup v1 blkio controller: %v", err)
	}
	return c
}

// delegateV2 hands the controllers down to groups below the root of the hierarchy that this process sees.
func delegateV2(mount string) error {
	b, err := os.ReadFile(filepath.Join(mount, "cgroup.controllers"))
	if err != nil {
		return err
	}
	have := strings.Fields(string(b))
	for _, c := range []string{"cpu", "memory", "pids"} {
		if !slices.Contains(have, c) {
			return fmt.Errorf("controller %s is missing", c)
		}
	}
	control := filepath.Join(mount, "cgroup.subtree_control")
	if err := os.WriteFile(control, []byte("+cpu +memory +pids"), 0); err != nil {
		if errors.Is(err, unix.EBUSY) {
			return errors.New("processes live in its root group, as in a container with a private cgroup namespace; " +
				"move them into a child group first")
		}
		return err
	}
	return tryGroup(mount, nil)
}

// tryGroup makes a group, does something with it, and removes it.
func tryGroup(parent string, with func(dir string) error) error {
	dir, err := os.MkdirTemp(parent, "helmr-try-")
	if err != nil {
		return err
	}
	if with != nil {
		err = with(dir)
	}
	return errors.Join(err, os.Remove(dir))
}

// dirs lists the existing folders of the group called name, one for each controller that has it.
func (c cgroups) dirs(name string) []string {
	if name == "" {
		return nil
	}
	pattern := filepath.Join(c.mount, "*", name) // v1: a hierarchy for each controller
	if c.version == 2 {
		pattern = filepath.Join(c.mount, name)
	}
	found, _ := filepath.Glob(pattern) // errs only for a bad pattern; names hold no meta characters
	return found
}

// oomKills counts the processes of the group that the kernel killed for want of memory.
func (c cgroups) oomKills(name string) int {
	file := filepath.Join(c.mount, "memory", name, "memory.oom_control")
	if c.version == 2 {
		file = filepath.Join(c.mount, name, "memory.events")
	}
	b, err := os.ReadFile(file)
	if err != nil {
		return 0
	}
	for s := bufio.NewScanner(bytes.NewReader(b)); s.Scan(); {
		if n, ok := strings.CutPrefix(s.Text(), "oom_kill "); ok {
			count, _ := strconv.Atoi(strings.TrimSpace(n))
			return count
		}
	}
	return 0
}

// setCPU bounds the CPU of a group, in thousandths of one.
func (c cgroups) setCPU(name string, millis int64) error {
	var err error
	switch c.version {
	case 1:
		file := filepath.Join(c.mount, "cpu", name, "cpu.cfs_quota_us")
		err = os.WriteFile(file, strconv.AppendInt(nil, cpuQuota(millis), 10), 0)
	case 2:
		file := filepath.Join(c.mount, name, "cpu.max")
		err = os.WriteFile(file, fmt.Appendf(nil, "%d %d", cpuQuota(millis), cpuPeriod), 0)
	}
	if err != nil {
		return fmt.Errorf("bound CPU: %w", err)
	}
	return nil
}

// remove kills what is left in the group and deletes it.
func (c cgroups) remove(ctx context.Context, name string) error {
	dirs := c.dirs(name)
	for _, dir := range dirs {
		for {
			pids, err := members(dir)
			if err != nil {
				return err
			}
			if len(pids) == 0 {
				break
			}
			for _, p := range pids {
				if err := p.kill(ctx); err != nil {
					return fmt.Errorf("empty cgroup %s: %w", dir, err)
				}
			}
		}
	}
	for _, dir := range dirs {
		if err := rmdir(ctx, dir); err != nil {
			return fmt.Errorf("remove cgroup: %w", err)
		}
	}
	return nil
}

// members lists the living processes of a group.
func members(dir string) ([]process, error) {
	b, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read cgroup: %w", err)
	}
	var found []process
	for _, line := range strings.Fields(string(b)) {
		pid, err := strconv.Atoi(line)
		if err != nil {
			return nil, fmt.Errorf("read cgroup: %w", err)
		}
		if p, err := lookUp(pid); err == nil {
			found = append(found, p)
		}
	}
	return found, nil
}

// rmdir deletes an empty group. The kernel lets go of it only some time after its last process is gone, and tells
// nobody when.
func rmdir(ctx context.Context, dir string) error {
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		err := unix.Rmdir(dir)
		if err == nil || errors.Is(err, unix.ENOENT) {
			return nil
		}
		if !errors.Is(err, unix.EBUSY) {
			return fmt.Errorf("%s: %w", dir, err)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s is still in use: %w", dir, ctx.Err())
		case <-time.After(pause):
		}
	}
}
