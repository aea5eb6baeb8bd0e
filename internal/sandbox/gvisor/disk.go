package gvisor

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// DiskSpeed bounds what one sandbox reads from and writes to a disk of the host in a second, each way.
type DiskSpeed struct {
	MiB        int64 // amount
	Operations int64 // requests to the disk
}

// DefaultDiskSpeed is what a plain SATA SSD does: a Computer alone on its Worker hardly meets it, and on a faster disk
// leaves room for its neighbours.
var DefaultDiskSpeed = DiskSpeed{MiB: 512, Operations: 50_000}

// disk is a whole block device: the kernel takes no rules for partitions.
type disk struct{ major, minor int64 }

// diskOf finds the disk that holds a path.
func diskOf(path string) (disk, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return disk{}, fmt.Errorf("find the disk of %s: %w", path, err)
	}
	dev := st.Dev
	if unix.Major(dev) == 0 { // btrfs, for one, shows a number of its own
		mounts, err := os.ReadFile("/proc/self/mountinfo")
		if err != nil {
			return disk{}, fmt.Errorf("find the disk of %s: %w", path, err)
		}
		source := sourceOf(mounts, path)
		if err := unix.Stat(source, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFBLK {
			return disk{}, fmt.Errorf("%s is on %q, which is no disk", path, source)
		}
		dev = st.Rdev
	}
	return wholeDisk("/sys/dev/block", disk{int64(unix.Major(dev)), int64(unix.Minor(dev))})
}

// sourceOf finds in a mountinfo file what is mounted where path is; "" if nothing fits.
func sourceOf(mountinfo []byte, path string) string {
	if real, err := filepath.EvalSymlinks(path); err == nil {
		path = real
	}
	var at, source string
	for s := bufio.NewScanner(bytes.NewReader(mountinfo)); s.Scan(); {
		mount, behind, _ := strings.Cut(s.Text(), " - ")
		fields, of := strings.Fields(mount), strings.Fields(behind)
		if len(fields) < 5 || len(of) < 2 {
			continue
		}
		inside := path == fields[4] || strings.HasPrefix(path, strings.TrimSuffix(fields[4], "/")+"/")
		if inside && len(fields[4]) >= len(at) { // a later mount covers an earlier one
			at, source = fields[4], of[1]
		}
	}
	return source
}

// wholeDisk gives the disk that a partition is of, and any other device as it is.
func wholeDisk(sys string, d disk) (disk, error) {
	dir, err := filepath.EvalSymlinks(filepath.Join(sys, fmt.Sprintf("%d:%d", d.major, d.minor)))
	if err != nil {
		return disk{}, fmt.Errorf("find the disk: %w", err)
	}
	if _, err := os.Stat(filepath.Join(dir, "partition")); err != nil {
		return d, nil
	}
	b, err := os.ReadFile(filepath.Join(filepath.Dir(dir), "dev"))
	if err != nil {
		return disk{}, fmt.Errorf("find the disk of a partition: %w", err)
	}
	major, minor, _ := strings.Cut(strings.TrimSpace(string(b)), ":")
	var errs [2]error
	d.major, errs[0] = strconv.ParseInt(major, 10, 64)
	d.minor, errs[1] = strconv.ParseInt(minor, 10, 64)
	if err := errors.Join(errs[:]...); err != nil {
		return disk{}, fmt.Errorf("find the disk of a partition: %w", err)
	}
	return d, nil
}

// disksOf lists the disks of paths whose speed can be bounded here. The error names the others; it stops nothing.
func (c cgroups) disksOf(paths ...string) (found []disk, err error) {
	if c.noIO != "" {
		return nil, errors.New(c.noIO)
	}
	for _, p := range paths {
		d, e := diskOf(p)
		if e == nil && !slices.Contains(found, d) {
			if e = c.tryDisk(d); e == nil {
				found = append(found, d)
			}
		}
		err = errors.Join(err, e)
	}
	slices.SortFunc(found, func(a, b disk) int { return cmp.Or(cmp.Compare(a.major, b.major), cmp.Compare(a.minor, b.minor)) })
	return found, err
}

// tryDisk finds out whether the kernel takes a rule for a disk: not every driver has them.
func (c cgroups) tryDisk(d disk) error {
	parent, file, rule := c.mount, "io.max", "%d:%d rbps=1073741824"
	if c.version == 1 {
		parent, file, rule = filepath.Join(c.mount, "blkio"), "blkio.throttle.read_bps_device", "%d:%d 1073741824"
	}
	return tryGroup(parent, func(group string) error {
		if err := os.WriteFile(filepath.Join(group, file), fmt.Appendf(nil, rule, d.major, d.minor), 0); err != nil {
			return fmt.Errorf("disk %d:%d: %w", d.major, d.minor, err)
		}
		return nil
	})
}

// blockIO is the bound as runsc wants it; nil without a disk.
func blockIO(disks []disk, speed DiskSpeed) *specs.LinuxBlockIO {
	if len(disks) == 0 {
		return nil
	}
	each := func(rate int64) (list []specs.LinuxThrottleDevice) {
		for _, d := range disks {
			t := specs.LinuxThrottleDevice{Rate: uint64(rate)}
			t.Major, t.Minor = d.major, d.minor
			list = append(list, t)
		}
		return list
	}
	return &specs.LinuxBlockIO{
		ThrottleReadBpsDevice: each(speed.MiB * mib), ThrottleWriteBpsDevice: each(speed.MiB * mib),
		ThrottleReadIOPSDevice: each(speed.Operations), ThrottleWriteIOPSDevice: each(speed.Operations),
	}
}
