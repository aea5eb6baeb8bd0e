package gvisor

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"

	"helmr.dev/helmr/internal/sandbox"
)

const (
	mib = 1 << 20

	// rootFSSource is where runsc finds the root filesystem: the first extra file that it is started with. A path
	// would be compared on resume, and the same image has another path on another Worker.
	rootFSSource = "/proc/self/fd/3"

	// pidLimit bounds the host's processes and threads for one sandbox; each process inside has at least one.
	pidLimit = 16384

	// cpuPeriod is the kernel's default, in microseconds.
	cpuPeriod = 100_000

	// startMillis is the CPU that a sandbox may use until PID 1 runs, when it is more than the Computer's: starting
	// gVisor's kernel would take twice as long on one CPU. gVisor shows two CPUs or more inside, so that the number
	// seen there is the same as with the Computer's own bound.
	startMillis = 2000
)

// rootCapabilities is what root inside may do. All of it is checked and carried out by gVisor's own kernel: none of it
// is a capability on the host.
var rootCapabilities = []string{
	"CAP_CHOWN",            // package managers give files to other users
	"CAP_DAC_OVERRIDE",     // root reads and writes whatever the modes say
	"CAP_DAC_READ_SEARCH",  // and walks through closed folders
	"CAP_FOWNER",           // and changes modes and times of others' files
	"CAP_FSETID",           // and keeps set-id bits when it writes
	"CAP_KILL",             // helmr-guest ends processes of other users
	"CAP_SETGID",           // helmr-guest starts Commands as the image's user
	"CAP_SETUID",           // likewise
	"CAP_SETPCAP",          // helmr-guest takes capabilities from what it starts
	"CAP_SETFCAP",          // packages that carry file capabilities install
	"CAP_NET_BIND_SERVICE", // servers inside listen on low ports
	"CAP_SYS_CHROOT",       // build tools and sshd change their root
	"CAP_MKNOD",            // archives with device nodes unpack
	"CAP_SYS_PTRACE",       // debuggers; gVisor lets them see this sandbox only
	"CAP_SYS_ADMIN",        // PID namespaces, in which helmr-guest holds each Session's processes, and mounts inside
}

var validID = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)

// check refuses a Spec that runsc would misread or report badly.
func check(s sandbox.Spec) error {
	switch {
	case !validID.MatchString(s.ID):
		return fmt.Errorf("sandbox id %q: want 1 to 64 letters, digits, '.', '_' or '-'", s.ID)
	case len(s.Args) == 0:
		return fmt.Errorf("args: PID 1 is missing")
	case s.Cwd != "" && !filepath.IsAbs(s.Cwd):
		return fmt.Errorf("cwd %q: want an absolute path", s.Cwd)
	case s.CPUMillis < 10 || s.MemoryMiB < 1 || s.DiskMiB < 1:
		return fmt.Errorf("limits: %d CPU thousandths, %d MiB memory and %d MiB disk: want at least 10, 1 and 1",
			s.CPUMillis, s.MemoryMiB, s.DiskMiB)
	case !filepath.IsAbs(s.Dir):
		return fmt.Errorf("dir %q: want an absolute path", s.Dir)
	case len(s.Mounts) == 0:
		// Without a bind runsc starts no gofer, and then forgets to make the file of the writable layer.
		return fmt.Errorf("mounts: want at least one")
	case s.NetNS != "" && !filepath.IsAbs(s.NetNS):
		return fmt.Errorf("network namespace %q: want an absolute path", s.NetNS)
	case s.DiskFrom != "" && s.MemoryFrom != "":
		return fmt.Errorf("disk and memory to start from: a checkpoint holds both, give one")
	}
	var seen []string
	for _, m := range s.Mounts {
		if !filepath.IsAbs(m.Source) || !filepath.IsAbs(m.Destination) || filepath.Clean(m.Destination) != m.Destination {
			return fmt.Errorf("mount %q on %q: want clean absolute paths", m.Source, m.Destination)
		}
		if slices.Contains(seen, m.Destination) {
			return fmt.Errorf("mount on %q: given twice", m.Destination)
		}
		seen = append(seen, m.Destination)
		if _, err := os.Stat(m.Source); err != nil {
			return fmt.Errorf("mount on %q: %w", m.Destination, err)
		}
	}
	return nil
}

// ociSpec translates a Spec into what runsc reads.
func ociSpec(s sandbox.Spec, cg cgroups, cgroupName string, io *specs.LinuxBlockIO) *specs.Spec {
	cwd := s.Cwd
	if cwd == "" {
		cwd = "/"
	}
	oomScore := 500 // when the whole host runs out of memory, sandboxes go before the Worker
	return &specs.Spec{
		Version:  "1.0.2",
		Hostname: "computer",
		Process: &specs.Process{
			Args: s.Args,
			Env:  s.Env,
			Cwd:  cwd,
			Capabilities: &specs.LinuxCapabilities{
				Bounding: rootCapabilities, Effective: rootCapabilities, Permitted: rootCapabilities,
			},
			Rlimits:         []specs.POSIXRlimit{{Type: "RLIMIT_NOFILE", Soft: 65536, Hard: 1 << 20}},
			NoNewPrivileges: true, // a set-id program inside gives nobody more than helmr-guest gave them
			OOMScoreAdj:     &oomScore,
		},
		Root:   &specs.Root{Path: "rootfs"}, // holds the file of the writable layer only
		Mounts: mounts(s),
		Annotations: map[string]string{
			"dev.gvisor.spec.rootfs.type":   "erofs",
			"dev.gvisor.spec.rootfs.source": rootFSSource,
			// "self" keeps the writable layer in one file in Root.Path, so that the host's memory does not hold it.
			"dev.gvisor.spec.rootfs.overlay": "self",
			"dev.gvisor.spec.rootfs.options": fmt.Sprintf("size=%dm", s.DiskMiB),
		},
		Linux: &specs.Linux{
			CgroupsPath: "/" + cgroupName,
			Resources:   resources(s, cg, io),
			Namespaces: []specs.LinuxNamespace{
				{Type: specs.PIDNamespace}, {Type: specs.MountNamespace}, {Type: specs.NetworkNamespace, Path: s.NetNS},
				{Type: specs.IPCNamespace}, {Type: specs.UTSNamespace},
			},
		},
	}
}

func mounts(s sandbox.Spec) []specs.Mount {
	shm := fmt.Sprintf("size=%dm", max(s.MemoryMiB/2, 1))
	list := []specs.Mount{
		{Destination: "/proc", Type: "proc"},
		{Destination: "/sys", Type: "sysfs", Options: []string{"ro", "nosuid", "noexec", "nodev"}},
		{Destination: "/dev", Type: "tmpfs"},
		// The two folders that are memory. Their bound is within the sandbox's own memory.
		{Destination: "/run", Type: "tmpfs", Options: []string{"nosuid", "nodev", "mode=0755", shm}},
		{Destination: "/dev/shm", Type: "tmpfs", Options: []string{"nosuid", "nodev", "mode=1777", shm}},
		// gVisor puts a tmpfs on an empty /tmp unless the spec mentions /tmp, and skips filesystem types that it does
		// not know. This entry therefore mounts nothing and leaves /tmp on the durable root filesystem.
		{Destination: "/tmp", Type: "helmr-no-mount"},
	}
	for _, m := range s.Mounts {
		list = append(list, specs.Mount{
			Destination: m.Destination, Source: m.Source, Type: "bind", Options: []string{"rbind", "ro", "nosuid", "nodev"},
		})
	}
	return list
}

func resources(s sandbox.Spec, cg cgroups, io *specs.LinuxBlockIO) *specs.LinuxResources {
	memory := s.MemoryMiB * mib
	quota := cpuQuota(max(s.CPUMillis, startMillis))
	period := uint64(cpuPeriod)
	shares := max(uint64(s.CPUMillis)*1024/1000, 2)
	res := &specs.LinuxResources{
		Memory: &specs.LinuxMemory{Limit: &memory, Swap: &memory}, // memory and swap together: no swap
		CPU:    &specs.LinuxCPU{Quota: &quota, Period: &period, Shares: &shares},
		Pids:   &specs.LinuxPids{Limit: pidLimit},
		// Unlike the rest it may change when a memory resumes elsewhere: other hosts have other disks.
		BlockIO: io,
	}
	switch cg.version {
	case 1:
		// A kernel without swap accounting lacks the file, and runsc would fail on it.
		if _, err := os.Stat(filepath.Join(cg.mount, "memory", "memory.memsw.limit_in_bytes")); err != nil {
			res.Memory.Swap = nil
		}
	case 2:
		// Half a sandbox is of no use: when one process of it goes, all go.
		res.Unified = map[string]string{"memory.oom.group": "1"}
	}
	return res
}

// cpuQuota is microseconds in each period.
func cpuQuota(millis int64) int64 { return millis * cpuPeriod / 1000 }

// writeBundle makes the folder that runsc starts the sandbox from.
func writeBundle(dir string, spec *specs.Spec) error {
	if err := os.MkdirAll(filepath.Join(dir, "rootfs"), 0o711); err != nil {
		return fmt.Errorf("make bundle: %w", err)
	}
	b, err := json.Marshal(spec)
	if err != nil {
		return fmt.Errorf("make bundle: %w", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "config.json"), b, 0o600); err != nil {
		return fmt.Errorf("make bundle: %w", err)
	}
	return nil
}

// openRootFS opens the image and makes sure that it is one: runsc's own words for a wrong file help nobody.
func openRootFS(path string) (*os.File, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open root filesystem: %w", err)
	}
	magic := make([]byte, 4)
	if _, err := f.ReadAt(magic, 1024); err != nil || string(magic) != "\xe2\xe1\xf5\xe0" {
		f.Close()
		return nil, fmt.Errorf("root filesystem %s is not an EROFS image: make it with mkfs.erofs -E noinline_data", path)
	}
	return f, nil
}
