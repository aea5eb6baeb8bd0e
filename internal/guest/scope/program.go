package scope

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// begin starts the program in the scope of b. If it returns an error the program has not begun and never will.
func (b *blank) begin(spec Spec) (pid int, ended <-chan syscall.WaitStatus, err error) {
	err = b.visit(func() (err error) {
		pid, ended, err = startProgram(b.reaper, spec)
		return err
	})
	return pid, ended, err
}

// startProgram starts the program as a child of this process, in the scope that this thread is in.
func startProgram(r *Reaper, spec Spec) (int, <-chan syscall.WaitStatus, error) {
	var files []uintptr
	for _, f := range spec.Files {
		files = append(files, f.Fd())
	}
	account, err := lookUp(spec.User)
	if err != nil {
		return 0, nil, fmt.Errorf("user %q: %w", spec.User, err)
	}
	dir, argv, env := spec.Dir, spec.Argv, spec.Env
	if dir == "" {
		dir = "/"
	}
	if info, err := os.Stat(dir); err != nil || !info.IsDir() {
		return 0, nil, fmt.Errorf("working directory %s: %w", dir, syscall.ENOTDIR)
	}
	if valueOf(env, "HOME") == "" {
		env = append(env[:len(env):len(env)], "HOME="+account.home)
	}
	path, err := lookPath(argv[0], dir, valueOf(env, "PATH"))
	if err != nil {
		return 0, nil, fmt.Errorf("%s: %w", argv[0], err)
	}
	pid, ended, err := r.fork(path, argv, &syscall.ProcAttr{
		Dir: dir, Env: env, Files: files, Sys: &syscall.SysProcAttr{Setsid: true, Credential: account.credential},
	})
	if err != nil {
		return 0, nil, fmt.Errorf("%s: %w", argv[0], err)
	}
	return pid, ended, nil
}

// valueOf gives a variable of env, "" without one; of several the last counts.
func valueOf(env []string, name string) (value string) {
	for _, v := range env {
		if n, text, ok := strings.Cut(v, "="); ok && n == name {
			value = text
		}
	}
	return value
}

// lookPath finds a program as execvp does on a PATH, relative names seen from dir.
func lookPath(name, dir, path string) (string, error) {
	candidates := []string{name}
	if !strings.Contains(name, "/") {
		if path == "" {
			path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
		}
		candidates = candidates[:0]
		for _, folder := range filepath.SplitList(path) {
			candidates = append(candidates, filepath.Join(folder, name))
		}
	}
	found := syscall.ENOENT
	for _, c := range candidates {
		if !filepath.IsAbs(c) {
			c = filepath.Join(dir, c)
		}
		info, err := os.Stat(c)
		if err != nil {
			continue
		}
		if info.IsDir() || info.Mode()&0o111 == 0 {
			found = syscall.EACCES
			continue
		}
		return c, nil
	}
	return "", found
}
