package scope

import (
	"errors"
	"os"
	"os/signal"
	"sync"
	"syscall"
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
}

// NewReaper makes a Reaper and starts its goroutine, which lives as long as the process.
func NewReaper() *Reaper {
	r := &Reaper{waiting: map[int]chan syscall.WaitStatus{}, early: map[int]syscall.WaitStatus{}}
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGCHLD)
	go func() {
		for range ended {
			r.collect()
		}
	}()
	return r
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
