package main

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"
)

// The settings with which a server speaks TLS itself, without a proxy in front of it.
const (
	tlsCert = "HELMR_TLS_CERT_FILE"
	tlsKey  = "HELMR_TLS_KEY_FILE"
)

// certificate is a certificate in files, read again when they were replaced.
type certificate struct {
	cert, key string
	log       *slog.Logger

	mu sync.Mutex
	// all below are guarded by mu
	have   *tls.Certificate
	stamps [2]time.Time
}

// checkCertificate wants both files or neither, and that they belong together.
func (s settings) checkCertificate() error {
	cert, key := s[tlsCert], s[tlsKey]
	switch {
	case cert == "" && key == "":
		return nil
	case cert == "":
		return errors.New(tlsCert + " is missing: " + tlsKey + " needs it")
	case key == "":
		return errors.New(tlsKey + " is missing: " + tlsCert + " needs it")
	}
	if _, err := tls.LoadX509KeyPair(cert, key); err != nil {
		return errors.New(tlsCert + " and " + tlsKey + " are malformed: they do not hold a certificate and its key in PEM")
	}
	return nil
}

// serverTLS gives how a server speaks TLS, nil if it does not.
func (s settings) serverTLS(log *slog.Logger) (*tls.Config, error) {
	if s[tlsCert] == "" {
		return nil, nil
	}
	c := &certificate{cert: s[tlsCert], key: s[tlsKey], log: log}
	if err := c.load(); err != nil {
		return nil, err
	}
	return &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: c.get}, nil
}

func (c *certificate) load() error {
	var stamps [2]time.Time
	for i, path := range []string{c.cert, c.key} {
		info, err := os.Stat(path)
		if err != nil {
			return fmt.Errorf("read certificate: %w", err)
		}
		stamps[i] = info.ModTime()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.have != nil && stamps == c.stamps {
		return nil
	}
	pair, err := tls.LoadX509KeyPair(c.cert, c.key)
	if err != nil {
		return fmt.Errorf("read certificate: %w", err)
	}
	if c.have != nil {
		c.log.Info("certificate replaced")
	}
	c.have, c.stamps = &pair, stamps
	return nil
}

// get gives the certificate for a new connection: what the files hold now, or if that is no good what they held before.
func (c *certificate) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	if err := c.load(); err != nil {
		c.log.Error("the certificate cannot be read; going on with the one before", "error", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.have, nil
}
