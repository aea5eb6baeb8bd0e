package server

import (
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"net"
	"strings"
	"sync"
	"time"

	"helmr.dev/helmr/internal/guest/proto"
	"helmr.dev/helmr/internal/guest/scope"
)

// Config is what a Server needs. All but Socket has a default.
type Config struct {
	// Socket is the path of the Worker's Unix socket.
	Socket string
	Log    *slog.Logger
	// StopDeadline is how long a process told to stop may take; then its tree is killed. Default 10 s.
	StopDeadline time.Duration
}

// Bounds on what one process may make the guest hold.
const (
	// maxUnackedOps and maxUnackedBytes: beyond either, the guest stops reading the process's channel until the
	// Worker acknowledges. One more line (up to proto.MaxLine) may already be in hand.
	maxUnackedOps   = 1024
	maxUnackedBytes = 8 << 20
	// maxOutBytes bounds lines that the process does not read; beyond it the process is killed.
	maxOutBytes = 64 << 20
	// maxRemembered bounds each memory of ids that may not be acted on twice. Only ids of work that the Worker may
	// still repeat matter, which are at most a few at any time.
	maxRemembered = 4096
	// killGrace is how long a Command may go on after SIGTERM.
	killGrace = 10 * time.Second
	// spareScopes are kept for Commands that follow on others, for as long as spareFor after the last one.
	spareScopes = 4
	spareFor    = 30 * time.Second
)

// Redial waits. The socket is polled because a sandbox may not hear of a file that appears outside.
const (
	redialFirst = 20 * time.Millisecond
	redialMost  = 500 * time.Millisecond
	// After a release the guest is likely to be checkpointed; when it wakes somebody waits for it.
	redialReleased    = 2 * time.Millisecond
	redialReleasedFor = 10 * time.Second
)

// Server is the guest's side of the channel. Make it with New, run it with Run.
type Server struct {
	cfg    Config
	log    *slog.Logger
	reaper *scope.Reaper
	scopes *scope.Pool // of Commands
	bootID string

	mu sync.Mutex
	// room is signalled when unacknowledged things became fewer or a process was killed.
	room      *sync.Cond
	processes map[processKey]*process
	// epochs is the newest epoch started per Session, kept when its process is forgotten.
	epochs   *memory[int64]
	commands map[string]*command
	// heldOutput counts the unacknowledged output of all Commands in bytes.
	heldOutput int
	// finished holds the ids of forgotten Commands.
	finished *memory[struct{}]
	// conn is the present connection, nil without one.
	conn *conn
}

// New makes a Server. The process must not wait for children by other means from here on (see scope.Reaper).
func New(cfg Config) *Server {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.StopDeadline == 0 {
		cfg.StopDeadline = 10 * time.Second
	}
	s := &Server{
		cfg: cfg, log: cfg.Log, reaper: scope.NewReaper(), bootID: rand.Text(),
		processes: map[processKey]*process{}, epochs: newMemory[int64](maxRemembered),
		commands: map[string]*command{}, finished: newMemory[struct{}](maxRemembered),
	}
	s.room = sync.NewCond(&s.mu)
	s.scopes = scope.NewPool(s.reaper, spareScopes, spareFor)
	return s
}

// Run dials the Worker until ctx ends, again after each loss of the connection.
func (s *Server) Run(ctx context.Context) {
	var released time.Time
	for wait := redialFirst; ctx.Err() == nil; {
		link, err := (&net.Dialer{}).DialContext(ctx, "unix", s.cfg.Socket)
		if err == nil {
			began := time.Now()
			var let bool
			let, err = s.serve(ctx, link)
			s.log.Info("connection to the Worker ended", "released", let, "err", err)
			released = time.Time{}
			if let {
				released = time.Now()
			}
			if let || time.Since(began) > redialMost {
				wait = redialFirst
			}
		}
		if time.Since(released) < redialReleasedFor {
			wait = redialReleased
		}
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
		wait = min(wait*3/2, redialMost)
	}
}

// KillAll kills every tree; for the end of a guest that is not PID 1.
func (s *Server) KillAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.processes {
		p.killLocked(causeKilled)
	}
	for _, c := range s.commands {
		c.killLocked()
	}
}

var errNoKind = errors.New("a request has no kind")

// handle carries out one request. It does not block.
func (s *Server) handle(c *conn, r *proto.Request) error {
	var status proto.Status
	var detail string
	switch k := r.GetKind().(type) {
	case *proto.Request_StartProcess:
		status, detail = s.startProcess(k.StartProcess)
	case *proto.Request_DeliverTurn:
		status, detail = s.deliverTurn(k.DeliverTurn)
	case *proto.Request_Control:
		status, detail = s.control(k.Control)
	case *proto.Request_Kill:
		status, detail = s.kill(k.Kill)
	case *proto.Request_Acks:
		if err := s.ack(k.Acks); err != nil {
			return err
		}
		status = proto.Status_STATUS_OK
	case *proto.Request_Forget:
		status, detail = s.forget(k.Forget)
	case *proto.Request_Ping:
		status = proto.Status_STATUS_OK
	case *proto.Request_Release:
		return errReleased
	case *proto.Request_ExecCommand:
		status, detail = s.execCommand(k.ExecCommand)
	case *proto.Request_CancelCommand:
		status, detail = s.cancelCommand(k.CancelCommand)
	case *proto.Request_AckCommand:
		status, detail = s.ackCommand(k.AckCommand)
	case *proto.Request_ForgetCommand:
		status, detail = s.forgetCommand(k.ForgetCommand)
	case *proto.Request_PlaceFile:
		status, detail = s.placeFile(k.PlaceFile)
	case nil:
		return errNoKind
	default:
		// A newer Worker may know more; saying so lets it do without.
		status, detail = proto.Status_STATUS_INVALID, "this guest does not know the request"
	}
	if r.GetId() != 0 {
		s.reply(c, &proto.Reply{Id: r.GetId(), Status: status, Detail: short(detail)})
	}
	return nil
}

// short cuts a text to what a message may carry; what is no UTF-8 could not be encoded.
func short(detail string) string {
	return strings.ToValidUTF8(detail[:min(len(detail), proto.MaxDetail)], "?")
}

// memory is a bounded map that forgets its oldest keys.
type memory[V any] struct {
	most   int
	values map[string]V
	order  []string
}

func newMemory[V any](most int) *memory[V] {
	return &memory[V]{most: most, values: map[string]V{}}
}

func (m *memory[V]) get(key string) (V, bool) {
	v, ok := m.values[key]
	return v, ok
}

// put sets a key; a key that is new becomes the youngest.
func (m *memory[V]) put(key string, v V) {
	if _, ok := m.values[key]; !ok {
		if len(m.order) == m.most {
			delete(m.values, m.order[0])
			m.order = m.order[1:]
		}
		m.order = append(m.order, key)
	}
	m.values[key] = v
}

// youngest gives the last n keys, oldest first.
func (m *memory[V]) youngest(n int) []string {
	return append([]string(nil), m.order[max(0, len(m.order)-n):]...)
}
