package main

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"sync"
	"syscall"
)

// floorServerArg makes this program the server that helmr's is compared with.
const floorServerArg = "floor-server"

// serveFloor runs a bare HTTP server until it is told to stop: it echoes bodies, and hands what is published to every
// open stream. It prints its address.
func serveFloor() error {
	var mu sync.Mutex
	streams := map[chan []byte]struct{}{}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /echo", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.Copy(w, r.Body)
	})
	mux.HandleFunc("GET /stream", func(w http.ResponseWriter, r *http.Request) {
		events := make(chan []byte, 64)
		mu.Lock()
		streams[events] = struct{}{}
		mu.Unlock()
		defer func() {
			mu.Lock()
			delete(streams, events)
			mu.Unlock()
		}()
		w.Header().Set("Content-Type", "text/event-stream")
		flusher := http.NewResponseController(w)
		_, _ = io.WriteString(w, ": begins\n\n")
		_ = flusher.Flush()
		for {
			select {
			case e := <-events:
				if _, err := w.Write(e); err != nil || flusher.Flush() != nil {
					return
				}
			case <-r.Context().Done():
				return
			}
		}
	})
	mux.HandleFunc("POST /publish", func(_ http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		mu.Lock()
		defer mu.Unlock()
		for s := range streams {
			s <- body
		}
	})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println(l.Addr())
	server := &http.Server{Handler: mux}
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, os.Interrupt, syscall.SIGTERM)
	go func() {
		<-stop
		_ = server.Close()
	}()
	if err := server.Serve(l); err != http.ErrServerClosed {
		return err
	}
	return nil
}
