// Command probe is what the conformance suite runs inside a sandbox: as PID 1, and through Exec to look at and change
// things from there. It is static and the only file of the test's root filesystem. It is not part of any product.
package main

import (
	"bufio"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

func main() {
	if len(os.Args) < 2 {
		fail(errors.New("no command"))
	}
	commands := map[string]func(args []string) error{
		"init": initProcess, "make": makeTree, "change": changeTree, "describe": describe, "fill": fill, "eat": eat,
		"create": create, "device": device, "memory": memory, "pidns": pidNamespace, "interfaces": interfaces,
		"exit": exit, "echo": echo, "privileges": privileges,
		"connect": connect, "secure": secure, "lookup": lookUp, "raw": raw,
	}
	run := commands[os.Args[1]]
	if run == nil {
		fail(fmt.Errorf("no command %q", os.Args[1]))
	}
	if err := run(os.Args[2:]); err != nil {
		fail(err)
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// Hello is what PID 1 says on each connection to the host.
type Hello struct {
	Token string // random, kept in memory only: the same process says the same
	Count int    // connections so far
	Args  []string
	Env   []string
	Cwd   string
	PID   int
}

// initProcess is PID 1: it dials the host's socket for ever, says hello and waits for the host to hang up. Before, it
// connects to the second argument, if there is one, and keeps the connection.
func initProcess(args []string) error {
	fmt.Fprintln(os.Stderr, "probe: hello from PID 1")
	token := make([]byte, 16)
	rand.Read(token)
	cwd, _ := os.Getwd()
	if len(args) > 1 {
		hold(args[1])
	}
	for count := 0; ; {
		conn, err := net.Dial("unix", args[0])
		if err != nil {
			time.Sleep(10 * time.Millisecond) // the host has not made the socket yet
			continue
		}
		count++
		err = json.NewEncoder(conn).Encode(Hello{fmt.Sprintf("%x", token), count, os.Args, os.Environ(), cwd, os.Getpid()})
		if err == nil {
			line, _ := bufio.NewReader(conn).ReadString('\n')
			if line == "exit\n" {
				return nil
			}
		}
		conn.Close()
	}
}

// makeTree makes one of each kind of file in a folder, and changes the image's own.
func makeTree(args []string) error {
	dir := args[0]
	at := func(name string) string { return filepath.Join(dir, name) }
	old := time.Date(2001, 2, 3, 4, 5, 6, 0, time.UTC)
	big := make([]byte, 3<<20)
	rand.Read(big)
	sparse := func() error {
		f, err := os.Create(at("sparse"))
		if err != nil {
			return err
		}
		defer f.Close()
		_, err = f.WriteAt([]byte("end"), 8<<20)
		return err
	}
	steps := []error{
		os.MkdirAll(at("folder/deep"), 0o750),
		os.WriteFile(at("folder/deep/file"), []byte("content"), 0o640),
		os.Chown(at("folder/deep/file"), 12, 34),
		os.WriteFile(at("setuid"), []byte("#!"), 0o755),
		os.Chown(at("setuid"), 5, 6),
		os.Chmod(at("setuid"), 0o755|fs.ModeSetuid|fs.ModeSetgid),
		os.Mkdir(at("sticky"), 0o777),
		os.Chmod(at("sticky"), 0o777|fs.ModeSticky),
		os.WriteFile(at("first"), []byte("linked"), 0o600),
		os.Link(at("first"), at("second")),
		os.Symlink("no/where", at("symlink")),
		unix.Mkfifo(at("fifo"), 0o620),
		sparse(),
		os.WriteFile(at("big"), big, 0o644),
		os.WriteFile(at("empty"), nil, 0o644),
		os.WriteFile(at("name with spaces, ünïcode and a\nline"), []byte("x"), 0o644),
		os.WriteFile(at(strings.Repeat("long", 60)), []byte("x"), 0o644),
		os.WriteFile(at("xattr"), []byte("x"), 0o644),
		unix.Setxattr(at("xattr"), "user.helmr", []byte("value"), 0),
		os.Remove("/etc/image-deleted"),
		os.RemoveAll("/etc/image-folder"),
		os.WriteFile("/etc/image-changed", []byte("changed"), 0o600),
		os.Chmod("/etc/image-mode", 0o711),
		os.Rename("/etc/image-moved", at("moved")),
		os.Chtimes(at("folder/deep/file"), old, old),
		os.Chtimes(at("folder/deep"), old, old),
	}
	for i, err := range steps {
		if err != nil {
			return fmt.Errorf("step %d: %w", i, err)
		}
	}
	return nil
}

// changeTree changes what makeTree made, after a save.
func changeTree(args []string) error {
	return errors.Join(os.RemoveAll(filepath.Join(args[0], "folder")),
		os.WriteFile(filepath.Join(args[0], "later"), []byte("later"), 0o644))
}

// describe prints all that a save must keep of the trees below its arguments.
func describe(args []string) error {
	first := map[uint64]string{}
	for _, root := range args {
		err := filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			var st unix.Stat_t
			if err := unix.Lstat(path, &st); err != nil {
				return err
			}
			content := ""
			switch st.Mode & unix.S_IFMT {
			case unix.S_IFREG:
				b, err := os.ReadFile(path)
				if err != nil {
					return err
				}
				content = fmt.Sprintf("%d bytes %x", len(b), sha256.Sum256(b))
				if st.Nlink > 1 {
					if first[st.Ino] == "" {
						first[st.Ino] = path
					}
					content += " is " + first[st.Ino]
				}
			case unix.S_IFLNK:
				content, _ = os.Readlink(path)
			}
			xattr := make([]byte, 64)
			n, err := unix.Lgetxattr(path, "user.helmr", xattr)
			if err != nil {
				n = 0
			}
			// A save may round times to seconds.
			modified := (st.Mtim.Nano() + 5e8) / 1e9
			fmt.Printf("%q mode %o owner %d:%d links %d modified %d xattr %q %s\n",
				path, st.Mode, st.Uid, st.Gid, st.Nlink, modified, xattr[:n], content)
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// fill writes a file until that fails, and prints the error's name and the MiB written.
func fill(args []string) error {
	f, err := os.Create(args[0])
	if err != nil {
		return err
	}
	defer f.Close()
	block := make([]byte, 1<<20)
	rand.Read(block)
	for n := 0; ; n++ {
		if _, err := f.Write(block); err != nil {
			var no syscall.Errno
			errors.As(err, &no)
			fmt.Println(unix.ErrnoName(no), n)
			return nil
		}
	}
}

// eat takes memory until something stops it.
func eat([]string) error {
	var held [][]byte
	for {
		block := make([]byte, 4<<20)
		rand.Read(block)
		held = append(held, block)
		_ = held
	}
}

// create makes a file and prints "ok" or the error's name.
func create(args []string) error {
	err := os.WriteFile(args[0], []byte("x"), 0o600)
	var no syscall.Errno
	if errors.As(err, &no) {
		fmt.Println(unix.ErrnoName(no))
		return nil
	}
	fmt.Println("ok")
	return err
}

// device prints the device number that each path lies on.
func device(args []string) error {
	for _, path := range args {
		var st unix.Stat_t
		if err := unix.Stat(path, &st); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		fmt.Println(st.Dev)
	}
	return nil
}

// memory prints the machine's memory in MiB as programs see it.
func memory([]string) error {
	b, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return err
	}
	var kib int
	if _, err := fmt.Sscanf(string(b), "MemTotal: %d kB", &kib); err != nil {
		return err
	}
	fmt.Println(kib / 1024)
	return nil
}

// pidNamespace starts itself as PID 1 of a PID namespace inside.
func pidNamespace(args []string) error {
	if len(args) > 0 {
		fmt.Println(os.Getpid())
		return nil
	}
	cmd := exec.Command("/proc/self/exe", "pidns", "child")
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
	return cmd.Run()
}

// interfaces prints the network interfaces other than loopback.
func interfaces([]string) error {
	list, err := net.Interfaces()
	for _, i := range list {
		if i.Flags&net.FlagLoopback == 0 {
			fmt.Println(i.Name)
		}
	}
	return err
}

// privileges prints whether a set-id program could gain any.
func privileges([]string) error {
	n, err := unix.PrctlRetInt(unix.PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0)
	fmt.Println(n)
	return err
}

func echo(args []string) error {
	_, _ = fmt.Fprint(os.Stdout, args[0])
	fmt.Fprint(os.Stderr, args[1])
	return nil
}

func exit(args []string) error {
	var code int
	_, _ = fmt.Sscan(args[0], &code)
	os.Exit(code)
	return nil
}
