package egress

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// namespaces is where namespaces have names; `ip netns` shows the same ones.
const namespaces = "/run/netns"

func namespacePath(name string) string { return filepath.Join(namespaces, name) }

// openNamespace opens a named namespace. fs.ErrNotExist says that there is none, also when a name was left without one.
func openNamespace(name string) (*os.File, error) {
	f, err := os.Open(namespacePath(name))
	if err != nil {
		return nil, fmt.Errorf("open network namespace: %w", err)
	}
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &st); err != nil || st.Type != unix.NSFS_MAGIC {
		_ = f.Close() // nothing was written
		return nil, fmt.Errorf("open network namespace %s: %w", name, fs.ErrNotExist)
	}
	return f, nil
}

// makeNamespace makes a namespace without IPv6 and opens it.
func makeNamespace(name string) (*os.File, error) {
	if err := os.MkdirAll(namespaces, 0o755); err != nil {
		return nil, fmt.Errorf("make network namespace: %w", err)
	}
	path := namespacePath(name)
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDONLY, 0o444)
	if err != nil {
		return nil, fmt.Errorf("make network namespace: %w", err)
	}
	_ = f.Close() // it is only a place to mount on
	err = onThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return err
		}
		// Set before there is any interface, so that none ever has an IPv6 address.
		for _, which := range []string{"all", "default"} {
			if err := setSysctl("net/ipv6/conf/"+which+"/disable_ipv6", "1"); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
		return unix.Mount("/proc/thread-self/ns/net", path, "none", unix.MS_BIND, "")
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("make network namespace %s: %w", name, err), deleteNamespace(name))
	}
	return openNamespace(name)
}

// deleteNamespace takes the name away; the namespace ends with the last process in it. A missing one is no error.
func deleteNamespace(name string) error {
	path := namespacePath(name)
	for {
		err := unix.Unmount(path, unix.MNT_DETACH)
		if err == nil {
			continue // mounted more than once
		}
		if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) {
			break
		}
		return fmt.Errorf("delete network namespace %s: %w", name, err)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("delete network namespace: %w", err)
	}
	return nil
}

// namespacesWith lists the names that begin with a prefix.
func namespacesWith(prefix string) ([]string, error) {
	entries, err := os.ReadDir(namespaces)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list network namespaces: %w", err)
	}
	var names []string
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), prefix) {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

// onThread runs do on a thread of its own that comes back to its network namespace. A thread that cannot come back is
// never used again.
func onThread(do func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		home, err := os.Open("/proc/thread-self/ns/net")
		if err != nil {
			done <- err
			return
		}
		defer home.Close()
		err = do()
		if unix.Setns(int(home.Fd()), unix.CLONE_NEWNET) == nil {
			runtime.UnlockOSThread()
		}
		done <- err
	}()
	return <-done
}

// inside runs do in a network namespace; nil is the process's own. Sockets made there stay there.
func inside(ns *os.File, do func() error) error {
	if ns == nil {
		return do()
	}
	return onThread(func() error {
		if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("enter network namespace: %w", err)
		}
		return do()
	})
}

// setSysctl sets a kernel setting of the namespace that the thread is in.
func setSysctl(name, value string) error {
	if err := os.WriteFile(filepath.Join("/proc/sys", name), []byte(value), 0o644); err != nil {
		return fmt.Errorf("set %s: %w", name, err)
	}
	return nil
}

func sysctl(name string) string {
	b, _ := os.ReadFile(filepath.Join("/proc/sys", name))
	return strings.TrimSpace(string(b))
}
