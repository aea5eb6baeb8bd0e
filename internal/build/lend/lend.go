// Package lend runs one program with secrets below /run/secrets that nothing else on the machine sees: the program has a
// mount namespace of its own with a file system in memory there, which ends with it. It is not a sandbox: the program
// runs with the rights of its user.
//
// The program that imports this package starts itself anew to set the namespace up, so its main calls Main first.
package lend

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// Dir is where the secrets are, each in a file with its name.
const Dir = "/run/secrets"

// role is the name under which this program starts itself anew; descriptor is where it finds the secrets.
const (
	role       = "helmr-lend"
	descriptor = 3
	maxSize    = "size=64m"
)

// Wrap changes a command that was not started: it will find files, by name, in Dir, as the given user if this process is
// root and as its own otherwise. Values go over memory only. release has to be called when the command has ended or was
// not started.
func Wrap(cmd *exec.Cmd, files map[string][]byte, uid int) (release func(), err error) {
	text, err := json.Marshal(files)
	if err != nil {
		return nil, fmt.Errorf("lend secrets: %w", err)
	}
	fd, err := unix.MemfdCreate(role, unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("lend secrets: %w", err)
	}
	memory := os.NewFile(uintptr(fd), role)
	release = func() { _ = memory.Close() } // memory that nobody else reads
	if _, err = memory.Write(text); err == nil {
		_, err = memory.Seek(0, io.SeekStart)
	}
	if err != nil {
		release()
		return nil, fmt.Errorf("lend secrets: %w", err)
	}
	attributes := &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
	if own := os.Geteuid(); own != 0 {
		// The kernel lets a user mount in a user namespace of their own. They stay who they are in it.
		uid = own
		attributes.Cloneflags |= syscall.CLONE_NEWUSER
		attributes.UidMappings = []syscall.SysProcIDMap{{ContainerID: own, HostID: own, Size: 1}}
		attributes.GidMappings = []syscall.SysProcIDMap{{ContainerID: os.Getegid(), HostID: os.Getegid(), Size: 1}}
		attributes.AmbientCaps = []uintptr{unix.CAP_SYS_ADMIN}
	}
	cmd.Args = append([]string{role, strconv.Itoa(uid), cmd.Path}, cmd.Args...)
	cmd.Path, cmd.SysProcAttr = "/proc/self/exe", attributes
	cmd.ExtraFiles = []*os.File{memory}
	return release, nil
}

// Main does nothing in a process that Wrap did not make. In one that it made, it sets up the namespace, becomes the
// program and does not return.
func Main() {
	if len(os.Args) < 4 || os.Args[0] != role {
		return
	}
	fmt.Fprintln(os.Stderr, "helmr: build.secrets:", become(os.Args[1], os.Args[2], os.Args[3:]))
	os.Exit(ExitStatus)
}

// ExitStatus is that of a program that could not be given its secrets; why stands in its error output.
const ExitStatus = 125

func become(user, path string, args []string) error {
	uid, err := strconv.Atoi(user)
	if err != nil {
		return err
	}
	memory := os.NewFile(descriptor, role)
	text, err := io.ReadAll(memory)
	if err != nil {
		return fmt.Errorf("read what is lent: %w", err)
	}
	var files map[string][]byte
	if err := json.Unmarshal(text, &files); err != nil {
		return fmt.Errorf("read what is lent: %w", err)
	}
	if err := mount(); err != nil {
		return fmt.Errorf("%w (as an ordinary user this needs user namespaces, as root the right to mount)", err)
	}
	for name, value := range files {
		path := filepath.Join(Dir, name)
		err := os.WriteFile(path, value, 0o400)
		if err == nil && os.Geteuid() == 0 {
			err = os.Chown(path, uid, uid)
		}
		if err != nil {
			return fmt.Errorf("write a secret: %w", err)
		}
	}
	if err := memory.Close(); err != nil {
		return err
	}
	if err := leaveRights(uid); err != nil {
		return err
	}
	return fmt.Errorf("start %s: %w", path, unix.Exec(path, args, os.Environ()))
}

// mount puts a file system in memory at Dir, for this process and what it starts.
func mount() error {
	if err := unix.Mount("", "/", "", unix.MS_PRIVATE|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("leave the mounts of the machine: %w", err)
	}
	err := os.Mkdir(Dir, 0o755) // it stays, empty
	if errors.Is(err, os.ErrPermission) {
		err = copyRun()
	}
	if err != nil && !errors.Is(err, os.ErrExist) {
		return fmt.Errorf("make %s: %w", Dir, err)
	}
	if err := unix.Mount("tmpfs", Dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=0755,"+maxSize); err != nil {
		return fmt.Errorf("mount %s: %w", Dir, err)
	}
	return nil
}

// copyRun replaces /run, where this user may make nothing, by a folder that has the same and Dir.
func copyRun() error {
	parent, stage := filepath.Dir(Dir), ""
	stage, err := os.MkdirTemp("", role+"-")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(stage) }() // what is mounted there has moved away
	if err := unix.Mount("tmpfs", stage, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0755"); err != nil {
		return err
	}
	entries, err := os.ReadDir(parent)
	if err != nil {
		return err
	}
	for _, e := range entries {
		from, to := filepath.Join(parent, e.Name()), filepath.Join(stage, e.Name())
		switch {
		case e.Type()&os.ModeSymlink != 0:
			var target string
			if target, err = os.Readlink(from); err == nil {
				err = os.Symlink(target, to)
			}
		case e.IsDir():
			if err = os.Mkdir(to, 0o755); err == nil {
				err = unix.Mount(from, to, "", unix.MS_BIND|unix.MS_REC, "")
			}
		default:
			if err = os.WriteFile(to, nil, 0o600); err == nil {
				err = unix.Mount(from, to, "", unix.MS_BIND, "")
			}
		}
		if err != nil {
			return fmt.Errorf("show %s: %w", from, err)
		}
	}
	if err := os.Mkdir(filepath.Join(stage, filepath.Base(Dir)), 0o755); err != nil {
		return err
	}
	return unix.Mount(stage, parent, "", unix.MS_MOVE, "")
}

// leaveRights makes this process an ordinary one of the user.
func leaveRights(uid int) error {
	if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); err != nil {
		return fmt.Errorf("drop rights: %w", err)
	}
	if os.Geteuid() != 0 {
		return nil // its capabilities end with the next exec
	}
	if err := errors.Join(syscall.Setgroups([]int{uid}), syscall.Setgid(uid), syscall.Setuid(uid)); err != nil {
		return fmt.Errorf("drop rights: %w", err)
	}
	return nil
}
