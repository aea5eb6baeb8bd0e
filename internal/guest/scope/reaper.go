package scope

import (
	"errors"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// Reaper collects every child of this process, its own and the orphans that PID 1 inherits. While it runs nothing
// else in the process may wait for children: not os/exec, not os.Process.Wait.
type Reaper struct {
	mu sync.Mutex
	// waiting holds the children that somebody wants to hear of.
	waiting map[int]chan syscall.WaitStatus
	// forking counts forks whose pid is not known yet; early keeps ends seen meanwhile.
	forking int
	early   map[int]syscall.WaitStatus
	// forks counts the forks that are over; forked is signalled when it grows.
	forks  int
	forked *sync.Cond
}

// NewReaper makes a Reaper and starts its goroutine, which lives as long as the process.
func NewReaper() *Reaper {
	r := &Reaper{waiting: map[int]chan syscall.WaitStatus{}, early: map[int]syscall.WaitStatus{}}
	r.forked = sync.NewCond(&r.mu)
	go r.run()
	return r
}

// run waits for ends in a thread of its own, which is faster than to be told by signals. A process without children has
// none to wait for until it has forked.
func (r *Reaper) run() {
	for {
		r.mu.Lock()
		forks := r.forks
		r.mu.Unlock()
		err := unix.Waitid(unix.P_ALL, 0, nil, unix.WEXITED|unix.WNOWAIT, nil)
		switch {
		case err == nil:
			r.collect()
		case errors.Is(err, unix.ECHILD):
			r.mu.Lock()
			for forks == r.forks {
				r.forked.Wait()
			}
			r.mu.Unlock()
		}
	}
}

// collect takes every child that has ended. Holding mu over wait4 means that a pid in waiting is never one that was
// freed and given to another process.
func (r *Reaper) collect() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, syscall.WNOHANG, nil)
		if errors.Is(err, syscall.EINTR) {
			continue
		}
		if err != nil || pid <= 0 {
			return
		}
		if ended, ok := r.waiting[pid]; ok {
			delete(r.waiting, pid)
			ended <- status
		} else if r.forking > 0 {
			r.early[pid] = status
		}
	}
}

// fork starts a child; its end arrives on the channel, once.
func (r *Reaper) fork(path string, argv []string, attr *syscall.ProcAttr) (int, <-chan syscall.WaitStatus, error) {
	r.mu.Lock()
	r.forking++
	r.mu.Unlock()
	pid, err := syscall.ForkExec(path, argv, attr)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.forking--
	r.forks++
	r.forked.Signal()
	ended := make(chan syscall.WaitStatus, 1)
	if err == nil {
		if status, ok := r.early[pid]; ok {
			ended <- status
		} else {
			r.waiting[pid] = ended
		}
		delete(r.early, pid)
	}
	if r.forking == 0 {
		clear(r.early)
	}
	return pid, ended, err
}

// kill sends SIGKILL to a child that was not collected yet.
func (r *Reaper) kill(pid int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, ok := r.waiting[pid]; ok {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
}

// terminate sends SIGTERM to the process group of a child that was not collected yet.
func (r *Reaper) terminate(pid int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, ok := r.waiting[pid]; ok {
		_ = syscall.Kill(-pid, syscall.SIGTERM)
	}
}
