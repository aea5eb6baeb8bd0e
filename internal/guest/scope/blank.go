package scope

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"
)

// blank is a scope without a program yet: its first process has started, made /proc private, and waits to be told.
type blank struct {
	reaper  *Reaper
	pid     int
	ended   <-chan syscall.WaitStatus
	control *os.File
}

// newBlank starts the first process of a scope.
func newBlank(r *Reaper) (*blank, error) {
	pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open the control channel of a scope: %w", err)
	}
	theirs := os.NewFile(uintptr(pair[1]), "scope control")
	defer theirs.Close()
	if err := syscall.SetNonblock(pair[0], true); err != nil {
		_ = syscall.Close(pair[0])
		return nil, fmt.Errorf("open the control channel of a scope: %w", err)
	}
	b := &blank{reaper: r, control: os.NewFile(uintptr(pair[0]), "scope control")}
	null, err := os.OpenFile("/dev/null", os.O_RDWR, 0)
	if err != nil {
		_ = b.control.Close()
		return nil, fmt.Errorf("start a scope: %w", err)
	}
	defer null.Close()
	b.pid, b.ended, err = r.fork(self, []string{"helmr-guest", Role}, &syscall.ProcAttr{
		Dir: "/", Files: []uintptr{null.Fd(), null.Fd(), null.Fd(), theirs.Fd()},
		Sys: &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS},
	})
	if err != nil {
		_ = b.control.Close()
		return nil, fmt.Errorf("start a scope (needs CAP_SYS_ADMIN): %w", err)
	}
	return b, nil
}

// dead tells whether the first process has ended by itself, which it never should.
func (b *blank) dead() bool {
	select {
	case <-b.ended:
		_ = b.control.Close()
		return true
	default:
		return false
	}
}

// discard ends a blank that is not needed.
func (b *blank) discard() {
	b.reaper.kill(b.pid)
	<-b.ended
	_ = b.control.Close()
}

// run tells the first process what to run.
func (b *blank) run(spec Spec, note func(string)) (*Scope, error) {
	s := &Scope{reaper: b.reaper, pid: b.pid, control: b.control, started: make(chan struct{}), done: make(chan struct{})}
	if err := sendSpec(b.control, spec); err != nil {
		b.discard()
		return nil, fmt.Errorf("start a scope: %w", err)
	}
	go s.watch(b.ended, note)
	return s, nil
}

// sendSpec writes a length and the strings of spec, each ended by NUL, together with its files.
func sendSpec(control *os.File, spec Spec) error {
	var text strings.Builder
	put := func(s string) {
		text.WriteString(s)
		text.WriteByte(0)
	}
	put(spec.User)
	put(spec.Dir)
	put(fmt.Sprint(len(spec.Argv)))
	for _, s := range append(spec.Argv[:len(spec.Argv):len(spec.Argv)], spec.Env...) {
		put(s)
	}
	message := append(binary.BigEndian.AppendUint32(nil, uint32(text.Len())), text.String()...)
	fds := make([]int, len(spec.Files))
	for i, f := range spec.Files {
		fds[i] = int(f.Fd())
	}
	raw, err := control.SyscallConn()
	if err != nil {
		return err
	}
	var n int
	var sent error
	err = raw.Write(func(fd uintptr) bool {
		n, sent = syscall.SendmsgN(int(fd), message, syscall.UnixRights(fds...), nil, syscall.MSG_NOSIGNAL)
		return !errors.Is(sent, syscall.EAGAIN) && !errors.Is(sent, syscall.EINTR)
	})
	if err = errors.Join(err, sent); err != nil {
		return err
	}
	_, err = control.Write(message[n:])
	return err
}

// receiveSpec waits for what sendSpec writes. An end of the stream before is an error.
func receiveSpec(control *os.File) (Spec, error) {
	var length [4]byte
	rights := make([]byte, syscall.CmsgSpace(4*maxFiles))
	var n, rn int
	var err error
	for {
		n, rn, _, _, err = syscall.Recvmsg(int(control.Fd()), length[:], rights, syscall.MSG_CMSG_CLOEXEC)
		if !errors.Is(err, syscall.EINTR) {
			break
		}
	}
	if err != nil || n != len(length) {
		return Spec{}, fmt.Errorf("receive what to run (%d bytes): %w", n, errors.Join(err, syscall.EPIPE))
	}
	var spec Spec
	messages, err := syscall.ParseSocketControlMessage(rights[:rn])
	if err != nil {
		return Spec{}, fmt.Errorf("receive files: %w", err)
	}
	for i := range messages {
		fds, err := syscall.ParseUnixRights(&messages[i])
		if err != nil {
			return Spec{}, fmt.Errorf("receive files: %w", err)
		}
		for _, fd := range fds {
			spec.Files = append(spec.Files, os.NewFile(uintptr(fd), "file"))
		}
	}
	text := make([]byte, binary.BigEndian.Uint32(length[:]))
	if err := readFull(control, text); err != nil {
		return Spec{}, fmt.Errorf("receive what to run: %w", err)
	}
	parts := strings.Split(string(text), "\x00")
	var argc int
	if len(parts) < 4 || len(spec.Files) < 3 {
		return Spec{}, fmt.Errorf("receive what to run: %w", syscall.EINVAL)
	}
	if _, err := fmt.Sscan(parts[2], &argc); err != nil || argc < 1 || 3+argc >= len(parts) {
		return Spec{}, fmt.Errorf("receive what to run: %w", syscall.EINVAL)
	}
	spec.User, spec.Dir = parts[0], parts[1]
	spec.Argv, spec.Env = parts[3:3+argc], parts[3+argc:len(parts)-1]
	return spec, nil
}

// maxFiles bounds the files of a Spec.
const maxFiles = 16

func readFull(f *os.File, buf []byte) error {
	for len(buf) > 0 {
		n, err := f.Read(buf)
		if err != nil {
			return err
		}
		buf = buf[n:]
	}
	return nil
}

// Pool keeps blank scopes for programs that come in a row: the first process of a scope takes longer to start than many
// a program. It holds none until it was used, and lets go of them when it has not been used for a while.
type Pool struct {
	reaper *Reaper
	most   int
	idle   time.Duration

	mu sync.Mutex
	// Guarded by mu.
	blanks  []*blank
	filling bool
	used    time.Time
	timer   *time.Timer
}

// NewPool makes an empty pool that keeps up to most blanks, for as long as idle after its last use.
func NewPool(r *Reaper, most int, idle time.Duration) *Pool {
	return &Pool{reaper: r, most: most, idle: idle}
}

// Start is Start with a blank from the pool, if there is one.
func (p *Pool) Start(spec Spec, note func(string)) (*Scope, error) {
	var s *Scope
	var err error
	if b := p.take(); b != nil {
		s, err = b.run(spec, note)
	}
	if s == nil || err != nil { // a blank that has just died is no reason to give up
		if s, err = Start(p.reaper, spec, note); err != nil {
			return nil, err
		}
	}
	go func() {
		// Filled when the program does not need the processor any more, or runs longer anyway.
		select {
		case <-s.done:
		case <-time.After(fillAfter):
		}
		p.fill()
	}()
	return s, nil
}

// fillAfter is how long a program has the processor for itself before blanks are made.
const fillAfter = 200 * time.Millisecond

func (p *Pool) take() *blank {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.used = time.Now()
	for len(p.blanks) > 0 {
		b := p.blanks[0]
		p.blanks = p.blanks[1:]
		if !b.dead() {
			return b
		}
	}
	return nil
}

// fill makes the blanks that are missing, one after the other.
func (p *Pool) fill() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.filling {
		return
	}
	p.filling = true
	for len(p.blanks) < p.most {
		p.mu.Unlock()
		b, err := newBlank(p.reaper)
		p.mu.Lock()
		if err != nil {
			break // a program that needs one says so
		}
		p.blanks = append(p.blanks, b)
	}
	p.filling = false
	if p.timer == nil {
		p.timer = time.AfterFunc(p.idle, p.drop)
	}
}

// drop lets go of all blanks if the pool has not been used for a while.
func (p *Pool) drop() {
	p.mu.Lock()
	left := p.idle - time.Since(p.used)
	if left > 0 {
		p.timer.Reset(left)
		p.mu.Unlock()
		return
	}
	gone := p.blanks
	p.blanks, p.timer = nil, nil
	p.mu.Unlock()
	for _, b := range gone {
		b.discard()
	}
}
