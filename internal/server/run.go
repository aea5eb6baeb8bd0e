package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"
)

// drainPeriod bounds how long a stopping server waits for requests that are being answered, lateAfter how long for those
// of mounted handlers before their contexts end.
const (
	drainPeriod = 10 * time.Second
	lateAfter   = time.Second
)

// Serve answers on ln until ctx is done, then stops in order: streams and long-polls end at once, requests that are
// being answered get drainPeriod. HTTP/1.1 and HTTP/2 share the listener, encrypted if the configuration says so. It gives nil after an orderly stop.
func (s *Server) Serve(ctx context.Context, ln net.Listener) error {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(s.config.TLS != nil)
	protocols.SetUnencryptedHTTP2(s.config.TLS == nil)
	srv := &http.Server{
		Handler:           s.handler,
		Protocols:         protocols,
		TLSConfig:         s.config.TLS,
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
		ErrorLog:          slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
		// No ReadTimeout and WriteTimeout: uploads and streams last; each body and each answer has a deadline of its own.
	}
	var failure error // read after done
	done := make(chan struct{})
	go func() {
		defer close(done)
		if s.config.TLS != nil {
			failure = srv.ServeTLS(ln, "", "") // the certificate is in its configuration
			return
		}
		failure = srv.Serve(ln)
	}()
	select {
	case <-done:
		s.stop()
		s.stopLate()
		return fmt.Errorf("serve HTTP: %w", failure)
	case <-ctx.Done():
	}
	s.stop()
	late := time.AfterFunc(lateAfter, s.stopLate)
	defer late.Stop()
	limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainPeriod)
	defer cancel()
	if err := srv.Shutdown(limit); err != nil {
		_ = srv.Close()
		if !errors.Is(err, context.DeadlineExceeded) {
			return fmt.Errorf("stop HTTP: %w", err)
		}
		s.log.Warn("requests were still open when the server stopped", "waited", drainPeriod.String())
	}
	<-done // with http.ErrServerClosed
	return nil
}
