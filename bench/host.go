package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// ticksPerSecond is how the kernel counts CPU time for programs, on every Linux that Go runs on.
const ticksPerSecond = 100

// cpu gives the CPU time that the process has used.
func (p *process) cpu() time.Duration {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.pid()))
	if err != nil {
		return 0
	}
	fields := strings.Fields(string(raw[bytes.LastIndexByte(raw, ')')+1:]))
	if len(fields) < 13 {
		return 0
	}
	user, _ := strconv.ParseInt(fields[11], 10, 64)
	system, _ := strconv.ParseInt(fields[12], 10, 64)
	return time.Duration(user+system) * time.Second / ticksPerSecond
}

// cpu gives what server and Worker have used, their sandboxes not counted.
func (h *helmr) cpu() time.Duration {
	if h.workerIs == nil || h.workerIs == h.serverIs {
		return h.serverIs.cpu()
	}
	return h.serverIs.cpu() + h.workerIs.cpu()
}

// rss gives the MiB that a process has in memory.
func rss(pid int) (float64, error) {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(raw)) {
		if fields := strings.Fields(line); len(fields) > 1 && fields[0] == "VmRSS:" {
			kib, err := strconv.ParseFloat(fields[1], 64)
			return kib / 1024, err
		}
	}
	return 0, fmt.Errorf("process %d has no memory", pid)
}

// sandboxMemory gives the MiB that a sandbox holds: everything of its cgroup that is no file.
func sandboxMemory(id, dir string) (float64, error) {
	group, version, err := sandboxGroup(id, dir, "memory")
	if err != nil {
		return 0, err
	}
	if version == 1 {
		return statMiB(filepath.Join(group, "memory.stat"), "total_rss", "total_shmem")
	}
	return statMiB(filepath.Join(group, "memory.stat"), "anon", "shmem")
}

// sandboxCPU gives the CPU time that a sandbox has used, gVisor's kernel and the programs inside together.
func sandboxCPU(id, dir string) (time.Duration, error) {
	group, version, err := sandboxGroup(id, dir, "cpuacct")
	if err != nil {
		return 0, err
	}
	if version == 1 {
		raw, err := os.ReadFile(filepath.Join(group, "cpuacct.usage"))
		if err != nil {
			return 0, err
		}
		ns, err := strconv.ParseInt(strings.TrimSpace(string(raw)), 10, 64)
		return time.Duration(ns), err
	}
	raw, err := os.ReadFile(filepath.Join(group, "cpu.stat"))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(raw)) {
		if value, ok := strings.CutPrefix(line, "usage_usec "); ok {
			us, err := strconv.ParseInt(strings.TrimSpace(value), 10, 64)
			return time.Duration(us) * time.Microsecond, err
		}
	}
	return 0, errors.New("cpu.stat does not say what was used")
}

// sandboxGroup finds the cgroup of a sandbox for a controller, and the version of the hierarchy.
func sandboxGroup(id, dir, controller string) (path string, version int, err error) {
	pid, err := sandboxPID(id, dir)
	if err != nil {
		return "", 0, err
	}
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		return "", 0, err
	}
	for line := range strings.Lines(string(raw)) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) != 3 || !strings.Contains(parts[2], "helmr") {
			continue
		}
		if parts[1] == "" {
			path, version = filepath.Join("/sys/fs/cgroup", parts[2]), 2
		} else if slices.Contains(strings.Split(parts[1], ","), controller) {
			return filepath.Join("/sys/fs/cgroup", parts[1], parts[2]), 1, nil
		}
	}
	if version == 0 {
		err = fmt.Errorf("the sandbox has no cgroup: this machine cannot tell its %s", controller)
	}
	return path, version, err
}

func statMiB(path string, names ...string) (float64, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	total := 0.0
	for line := range strings.Lines(string(raw)) {
		for _, name := range names {
			if value, ok := strings.CutPrefix(line, name+" "); ok {
				bytes, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
				if err != nil {
					return 0, err
				}
				total += bytes / (1 << 20)
			}
		}
	}
	return total, nil
}

// sandboxPID finds the process of a sandbox whose files are below dir.
func sandboxPID(id, dir string) (int, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return 0, err
	}
	for _, e := range entries {
		line, err := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		if err == nil && bytes.HasPrefix(line, []byte("runsc-sandbox\x00")) && bytes.Contains(line, []byte(id)) && bytes.Contains(line, []byte(dir)) {
			return strconv.Atoi(e.Name())
		}
	}
	return 0, fmt.Errorf("sandbox %s does not run", id)
}
