package gvisor

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"helmr.dev/helmr/internal/sandbox"
)

// What a sandbox is given is what it needs and nothing else. Whoever adds to it changes this test, and docs/security.md.
func TestSpecGivesNoMoreThanItMust(t *testing.T) {
	t.Parallel()
	given := sandbox.Spec{ID: "c", Args: []string{"/init"}, CPUMillis: 500, MemoryMiB: 64, DiskMiB: 128, NetNS: "/run/netns/x",
		Mounts: []sandbox.Mount{{Source: "/host/runtime", Destination: "/opt/helmr"}, {Source: "/host/sock", Destination: "/run/helmr"}}}
	for _, version := range []int{1, 2} {
		spec := ociSpec(given, cgroups{mount: t.TempDir(), version: version}, "helmr-c", blockIO([]disk{{8, 16}, {254, 0}}, DiskSpeed{MiB: 3, Operations: 70}))
		if !spec.Process.NoNewPrivileges {
			t.Error("programs may gain privileges")
		}
		for _, set := range [][]string{spec.Process.Capabilities.Ambient, spec.Process.Capabilities.Inheritable} {
			if len(set) > 0 {
				t.Errorf("capabilities go on to what is started: %v", set)
			}
		}
		for _, never := range []string{"CAP_NET_RAW", "CAP_NET_ADMIN", "CAP_SYS_MODULE", "CAP_SYS_RAWIO", "CAP_SYS_BOOT", "CAP_SYS_TIME", "CAP_BPF", "CAP_PERFMON", "CAP_SYSLOG", "CAP_AUDIT_CONTROL"} {
			if slices.Contains(spec.Process.Capabilities.Bounding, never) {
				t.Errorf("root inside has %s", never)
			}
		}
		var kinds []string
		for _, n := range spec.Linux.Namespaces {
			kinds = append(kinds, string(n.Type))
			if n.Path != "" && (n.Type != specs.NetworkNamespace || n.Path != given.NetNS) {
				t.Errorf("it shares the namespace %s", n.Path)
			}
		}
		slices.Sort(kinds)
		if got := strings.Join(kinds, " "); got != "ipc mount network pid uts" {
			t.Errorf("namespaces of its own: %s", got)
		}
		for _, m := range spec.Mounts {
			host := filepath.IsAbs(m.Source)
			if host && !slices.Contains(given.Mounts, sandbox.Mount{Source: m.Source, Destination: m.Destination}) {
				t.Errorf("a folder of the host that nobody asked for: %+v", m)
			}
			for _, must := range []string{"ro", "nosuid", "nodev"} {
				if host && !slices.Contains(m.Options, must) {
					t.Errorf("the host's folder at %s is not %s", m.Destination, must)
				}
			}
		}
		if r := spec.Linux.Resources; *r.Memory.Limit != 64*mib || *r.CPU.Quota <= 0 || r.Pids.Limit != pidLimit || len(r.Devices) > 0 || len(spec.Linux.Devices) > 0 {
			t.Errorf("its bounds: %+v", r)
		}
		io := spec.Linux.Resources.BlockIO
		for name, got := range map[string][]specs.LinuxThrottleDevice{"3145728": append(io.ThrottleReadBpsDevice, io.ThrottleWriteBpsDevice...), "70": append(io.ThrottleReadIOPSDevice, io.ThrottleWriteIOPSDevice...)} {
			var text []string
			for _, d := range got {
				text = append(text, fmt.Sprintf("%d:%d %d", d.Major, d.Minor, d.Rate))
			}
			if want := strings.ReplaceAll("8:16 R 254:0 R 8:16 R 254:0 R", "R", name); strings.Join(text, " ") != want {
				t.Errorf("its disks: %v, want %s", text, want)
			}
		}
		if spec.Hooks != nil || spec.Root.Path != "rootfs" || spec.Annotations["dev.gvisor.spec.rootfs.options"] != "size=128m" {
			t.Errorf("hooks %v, root %+v, %v", spec.Hooks, spec.Root, spec.Annotations)
		}
	}
}
