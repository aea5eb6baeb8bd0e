// Package rpc is the server's side of the Worker calls: it hands them to the rooms. A Worker in the same process calls
// Service directly; other Workers reach it over Connect. It keeps no state but hints of which Computers need a look.
package rpc

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"time"

	"helmr.dev/helmr/client/api"
	"helmr.dev/helmr/internal/command"
	"helmr.dev/helmr/internal/computer"
	"helmr.dev/helmr/internal/db"
	"helmr.dev/helmr/internal/storage"
	"helmr.dev/helmr/internal/turn"
	workerpb "helmr.dev/helmr/internal/worker/proto"
)

// Longest wait of one Watch, and how long the hints of a Worker that asks no more are kept.
const (
	maxWatch  = 30 * time.Second
	keepHints = 2 * time.Minute
)

// Service answers Workers. It is safe for concurrent use.
type Service struct {
	hub       *db.Hub
	computers *computer.Service
	turns     *turn.Service
	commands  *command.Service
	secrets   *computer.Resolver

	mu sync.Mutex
	// watches is guarded by mu.
	watches map[string]*watch
}

// New makes the service.
func New(hub *db.Hub, computers *computer.Service, turns *turn.Service, commands *command.Service, secrets *computer.Resolver) *Service {
	return &Service{hub: hub, computers: computers, turns: turns, commands: commands, secrets: secrets, watches: map[string]*watch{}}
}

// watch collects which Computers of one Worker were signalled since it last asked.
type watch struct {
	sub *db.Subscription

	mu sync.Mutex
	// dirty is guarded by mu.
	dirty map[string]struct{}
	// askedAt is guarded by the Service's mu.
	askedAt time.Time
}

func (w *watch) take() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	ids := make([]string, 0, len(w.dirty))
	for id := range w.dirty {
		ids = append(ids, id)
	}
	clear(w.dirty)
	return ids
}

// Register makes the Worker of this process known, which needs no token.
func (s *Service) Register(ctx context.Context, r *workerpb.RegisterRequest) (*workerpb.RegisterResponse, error) {
	id, err := s.computers.RegisterWorker(ctx, r)
	if err != nil {
		return nil, err
	}
	return &workerpb.RegisterResponse{WorkerId: id}, nil
}

// Heartbeat keeps a Worker's leases and takes up what it offers.
func (s *Service) Heartbeat(ctx context.Context, r *workerpb.HeartbeatRequest) (*workerpb.HeartbeatResponse, error) {
	return s.computers.Beat(ctx, r)
}

// Control shows a Worker to its own machine, and drains or activates it.
func (s *Service) Control(ctx context.Context, r *workerpb.ControlRequest) (*workerpb.ControlResponse, error) {
	var w api.Worker
	var err error
	switch r.GetAction() {
	case workerpb.ControlRequest_ACTION_DRAIN:
		w, err = s.computers.Drain(ctx, r.GetWorkerId(), time.Duration(r.GetTimeoutMs())*time.Millisecond)
	case workerpb.ControlRequest_ACTION_ACTIVATE:
		w, err = s.computers.Activate(ctx, r.GetWorkerId())
	default:
		w, err = s.computers.GetWorker(ctx, r.GetWorkerId())
	}
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(w)
	return &workerpb.ControlResponse{Worker: text}, err
}

// Watch waits until a Computer of the Worker needs a look, or the time is over. The first call of a Worker, and the first
// after its hints were dropped, answers all.
func (s *Service) Watch(ctx context.Context, r *workerpb.WatchRequest) (*workerpb.WatchResponse, error) {
	w, fresh := s.watch(r.GetWorkerId())
	if fresh {
		return &workerpb.WatchResponse{All: true}, nil
	}
	timer := time.NewTimer(min(max(time.Duration(r.GetTimeoutMs())*time.Millisecond, 0), maxWatch))
	defer timer.Stop()
	for {
		if ids := w.take(); len(ids) > 0 {
			return &workerpb.WatchResponse{ComputerIds: ids}, nil
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-timer.C:
			return &workerpb.WatchResponse{}, nil
		case <-w.sub.C:
		}
	}
}

func (s *Service) watch(workerID string) (w *watch, fresh bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	for id, old := range s.watches {
		if now.Sub(old.askedAt) > keepHints {
			old.sub.Close()
			delete(s.watches, id)
		}
	}
	w = s.watches[workerID]
	if w == nil {
		fresh = true
		w = &watch{dirty: map[string]struct{}{}}
		topic := computer.WorkerTopic(workerID)
		w.sub = s.hub.SubscribeFunc(func(signalled string) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.dirty[strings.TrimPrefix(signalled, topic+"/")] = struct{}{}
		}, topic)
		s.watches[workerID] = w
	}
	w.askedAt = now
	return w, fresh
}

// Exchange brings what a Worker sees of one Computer and takes what is wanted of it.
func (s *Service) Exchange(ctx context.Context, r *workerpb.ExchangeRequest) (*workerpb.ExchangeResponse, error) {
	return s.turns.Exchange(ctx, r)
}

// PublishSave records that a Save is whole in blob storage.
func (s *Service) PublishSave(ctx context.Context, r *workerpb.PublishSaveRequest) (*workerpb.PublishSaveResponse, error) {
	err := s.turns.PublishSave(ctx, r)
	if refused, ok := errors.AsType[*storage.RefusedError](err); ok {
		return &workerpb.PublishSaveResponse{Retired: refused.Retired, Whole: refused.Whole}, nil
	}
	return &workerpb.PublishSaveResponse{}, err
}

// PublishCapture records that disk and memory of a hibernating Computer are in blob storage.
func (s *Service) PublishCapture(ctx context.Context, r *workerpb.PublishCaptureRequest) (*workerpb.PublishCaptureResponse, error) {
	resp, err := s.turns.PublishCapture(ctx, r)
	if refused, ok := errors.AsType[*storage.RefusedError](err); ok {
		return &workerpb.PublishCaptureResponse{Retired: refused.Retired}, nil
	}
	return resp, err
}

// StoreOutput keeps output of Commands.
func (s *Service) StoreOutput(ctx context.Context, r *workerpb.StoreOutputRequest) (*workerpb.StoreOutputResponse, error) {
	return s.commands.StoreOutput(ctx, r)
}

// ReportNetwork keeps what a Computer tried on its network.
func (s *Service) ReportNetwork(ctx context.Context, r *workerpb.ReportNetworkRequest) (*workerpb.ReportNetworkResponse, error) {
	return &workerpb.ReportNetworkResponse{}, s.computers.ReportNetwork(ctx, r)
}

// ResolveSecrets gives the values that a process of a Computer is started with.
func (s *Service) ResolveSecrets(ctx context.Context, r *workerpb.ResolveSecretsRequest) (*workerpb.ResolveSecretsResponse, error) {
	return s.secrets.Resolve(ctx, r)
}

// OpenProtection gives what the proxy of a Computer works with.
func (s *Service) OpenProtection(ctx context.Context, r *workerpb.OpenProtectionRequest) (*workerpb.OpenProtectionResponse, error) {
	return s.secrets.OpenProtection(ctx, r)
}

// ResolveProtected gives the values behind placeholders for one request.
func (s *Service) ResolveProtected(ctx context.Context, r *workerpb.ResolveProtectedRequest) (*workerpb.ResolveProtectedResponse, error) {
	return s.secrets.ResolveProtected(ctx, r)
}
