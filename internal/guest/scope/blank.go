package scope

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
)

// blank is a scope without a program: its first process has made /proc private and waits to be told what to run.
type blank struct {
	reaper *Reaper
	pid    int
	ended  <-chan syscall.WaitStatus
	// control carries what to run, and back what became of it; stops carries requests to stop it.
	control, stops *os.File
	lines          *bufio.Scanner // of control
	notes          []string       // that its start left
	// run counts the programs that it was given: a request to stop names one, so that it never meets another.
	run uint32
}

// errUnopened says that a blank has not read the whole message, so that it cannot have begun a program: it begins nothing
// before. The kernel is the witness: a socket whose other end goes with bytes that were not read is reset.
var errUnopened = errors.New("the scope did not take what to run")

// newBlank starts the first process of a scope and waits until it is ready.
func newBlank(r *Reaper) (*blank, error) {
	b := &blank{reaper: r}
	control, err := b.pair(&b.control)
	if err != nil {
		return nil, err
	}
	defer control.Close()
	stops, err := b.pair(&b.stops)
	if err != nil {
		b.close()
		return nil, err
	}
	defer stops.Close()
	null, err := os.OpenFile("/dev/null", os.O_RDWR, 0)
	if err != nil {
		b.close()
		return nil, fmt.Errorf("start a scope: %w", err)
	}
	defer null.Close()
	b.pid, b.ended, err = r.fork(self, []string{"helmr-guest", Role}, &syscall.ProcAttr{
		Dir: "/", Files: []uintptr{null.Fd(), null.Fd(), null.Fd(), control.Fd(), stops.Fd()},
		Sys: &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS},
	})
	if err != nil {
		b.close()
		return nil, fmt.Errorf("start a scope (needs CAP_SYS_ADMIN): %w", err)
	}
	_, _ = control.Close(), stops.Close() // theirs alone now: when it ends, the lines do
	b.lines = bufio.NewScanner(b.control)
	for b.lines.Scan() {
		note, ok := strings.CutPrefix(b.lines.Text(), "note ")
		if !ok {
			return b, nil // ready
		}
		b.notes = append(b.notes, note)
	}
	status := b.discard()
	return nil, fmt.Errorf("start a scope: its first process ended by itself (status %#x)", int(status))
}

// pair opens a channel: one end for mine, the other for the first process.
func (b *blank) pair(mine **os.File) (theirs *os.File, err error) {
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open the channel of a scope: %w", err)
	}
	if err := syscall.SetNonblock(fds[0], true); err != nil {
		_, _ = syscall.Close(fds[0]), syscall.Close(fds[1])
		return nil, fmt.Errorf("open the channel of a scope: %w", err)
	}
	*mine = os.NewFile(uintptr(fds[0]), "scope channel")
	return os.NewFile(uintptr(fds[1]), "scope channel"), nil
}

func (b *blank) close() {
	for _, f := range []*os.File{b.control, b.stops} {
		if f != nil {
			_ = f.Close()
		}
	}
}

// dead tells whether the first process has ended by itself, which it never should.
func (b *blank) dead() bool { return len(b.ended) > 0 }

// discard ends the first process and with it whatever lives in the scope.
func (b *blank) discard() syscall.WaitStatus {
	b.reaper.kill(b.pid)
	status := <-b.ended
	b.close()
	return status
}

// send tells the first process what to run. After errUnopened nothing runs.
func (b *blank) send(spec Spec) error {
	b.run++
	message := encode(b.run, spec)
	fds := make([]int, len(spec.Files))
	for i, f := range spec.Files {
		fds[i] = int(f.Fd())
	}
	raw, err := b.control.SyscallConn()
	if err != nil {
		return fmt.Errorf("%w: %w", errUnopened, err)
	}
	n, rights := 0, syscall.UnixRights(fds...)
	for n < len(message) { // never a write of nothing: it may fail after all was taken
		var wrote int
		var failed error
		err := raw.Write(func(fd uintptr) bool {
			wrote, failed = syscall.SendmsgN(int(fd), message[n:], rights, nil, syscall.MSG_NOSIGNAL)
			return !errors.Is(failed, syscall.EAGAIN) && !errors.Is(failed, syscall.EINTR)
		})
		if err = errors.Join(err, failed); err != nil {
			return fmt.Errorf("%w: %w", errUnopened, err)
		}
		n += wrote
		rights = nil // they came with the first bytes
	}
	return nil
}

// encode gives a length, then the number of the run and the strings of a Spec, each ended by NUL.
func encode(run uint32, spec Spec) []byte {
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
	message := binary.BigEndian.AppendUint32(nil, uint32(text.Len()))
	return append(binary.BigEndian.AppendUint32(message, run), text.String()...)
}

// headSize is the length of a message's head, maxFiles bounds the files of a Spec.
const (
	headSize = 8
	maxFiles = 16
)

// receive waits for what send writes. An end of the stream before its end is an error.
func receive(control *os.File) (run uint32, spec Spec, err error) {
	var head [headSize]byte
	rights := make([]byte, syscall.CmsgSpace(4*maxFiles))
	n, rn := 0, 0
	for n == 0 {
		n, rn, _, _, err = syscall.Recvmsg(int(control.Fd()), head[:], rights, syscall.MSG_CMSG_CLOEXEC)
		if err != nil && !errors.Is(err, syscall.EINTR) {
			return 0, spec, fmt.Errorf("receive what to run: %w", err)
		}
		if err == nil && n == 0 {
			return 0, spec, syscall.EPIPE
		}
	}
	messages, err := syscall.ParseSocketControlMessage(rights[:rn])
	if err != nil {
		return 0, spec, fmt.Errorf("receive files: %w", err)
	}
	for i := range messages {
		fds, err := syscall.ParseUnixRights(&messages[i])
		if err != nil {
			return 0, spec, fmt.Errorf("receive files: %w", err)
		}
		for _, fd := range fds {
			spec.Files = append(spec.Files, os.NewFile(uintptr(fd), "file"))
		}
	}
	if err := readFull(control, head[n:]); err != nil {
		return 0, spec, fmt.Errorf("receive what to run: %w", err)
	}
	text := make([]byte, binary.BigEndian.Uint32(head[:]))
	if err := readFull(control, text); err != nil {
		return 0, spec, fmt.Errorf("receive what to run: %w", err)
	}
	parts := strings.Split(string(text), "\x00")
	var argc int
	if len(parts) < 5 || len(spec.Files) < 3 {
		return 0, spec, fmt.Errorf("receive what to run: %w", syscall.EINVAL)
	}
	if _, err := fmt.Sscan(parts[2], &argc); err != nil || argc < 1 || 3+argc >= len(parts) {
		return 0, spec, fmt.Errorf("receive what to run: %w", syscall.EINVAL)
	}
	spec.User, spec.Dir = parts[0], parts[1]
	spec.Argv, spec.Env = parts[3:3+argc], parts[3+argc:len(parts)-1]
	return binary.BigEndian.Uint32(head[4:]), spec, nil
}

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
