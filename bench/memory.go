package main

import (
	"context"
	"fmt"
	"time"
)

// memory weighs a server and a Worker that have served, and what one more idle Session adds: its process in the Computer,
// and whatever server and Worker keep for it. The floors are a bare HTTP server in Go, and one more Node program that does
// nothing in a plain sandbox.
func (b *bench) memory(ctx context.Context, h *helmr) error {
	more := b.few(6, 3)
	settle := time.Duration(b.few(3, 1)) * time.Second // in which a process may give memory back before it is weighed
	first, err := h.newWarm(ctx, "noop", "", "")
	if err != nil {
		return err
	}
	all := []*session{first}
	weigh := func() (server, worker, computer float64, err error) {
		time.Sleep(settle)
		if server, err = rss(h.serverIs.pid()); err != nil {
			return
		}
		if worker, err = rss(h.workerIs.pid()); err != nil {
			return
		}
		computer, err = sandboxMemory(first.computer, h.dir)
		return
	}
	server, worker, computer, err := weigh()
	if err != nil {
		return err
	}
	for range more {
		s, err := h.newWarm(ctx, "noop", "", first.computer)
		if err != nil {
			return err
		}
		all = append(all, s)
	}
	server2, worker2, computer2, err := weigh()
	if err != nil {
		return err
	}
	plain, err := rss(b.floors.server.pid())
	if err != nil {
		return err
	}
	id := floorSandboxID
	empty, err := sandboxMemory(id, h.dir)
	if err != nil {
		return err
	}
	if err := b.floors.sandbox.spawn(more); err != nil {
		return fmt.Errorf("start Node in the plain sandbox: %w", err)
	}
	time.Sleep(settle)
	full, err := sandboxMemory(id, h.dir)
	if err != nil {
		return err
	}
	b.report.add("memory_server", h.kind, server, "MiB", plain, nil)
	b.report.add("memory_worker", h.kind, worker, "MiB", plain, nil)
	b.report.add("memory_computer", h.kind, computer, "MiB", empty, nil)
	b.report.add("memory_idle_session", h.kind, (computer2-computer)/float64(more), "MiB", (full-empty)/float64(more), nil)
	// Both move by more than a few Sessions add, so this is a bound and no exact figure.
	b.report.add("memory_idle_session_outside", h.kind, max(server2-server+worker2-worker, 0)/float64(more), "MiB", 0, nil)
	return leaveAll(ctx, all)
}
