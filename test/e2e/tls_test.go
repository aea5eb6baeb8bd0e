package e2e

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"helmr.dev/helmr/client"
)

// issuer is a CA of this test.
type issuer struct {
	t    *testing.T
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T, dir string) *issuer {
	t.Helper()
	a := &issuer{t: t, dir: dir}
	a.cert, a.key = a.issue("ca", nil)
	return a
}

// issue writes a certificate and its key to files; without a name of a host it is the CA's own.
func (a *issuer) issue(file string, hosts []string) (*x509.Certificate, *ecdsa.PrivateKey) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	serial, _ := rand.Int(rand.Reader, big.NewInt(1<<62))
	c := &x509.Certificate{SerialNumber: serial, Subject: pkix.Name{CommonName: "helmr test " + file}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour)}
	parent, signer := a.cert, a.key
	if hosts == nil {
		c.IsCA, c.BasicConstraintsValid, c.KeyUsage = true, true, x509.KeyUsageCertSign
		parent, signer = c, key
	}
	for _, h := range hosts {
		if ip := net.ParseIP(h); ip != nil {
			c.IPAddresses = append(c.IPAddresses, ip)
		} else {
			c.DNSNames = append(c.DNSNames, h)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, signer)
	if err != nil {
		a.t.Fatal(err)
	}
	raw, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		a.t.Fatal(err)
	}
	writeFiles(a.t, a.dir, map[string]string{
		file + ".pem": string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})),
		file + ".key": string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: raw})),
	})
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		a.t.Fatal(err)
	}
	return cert, key
}

// TestSpec_21_04_TLS runs a server with a certificate, and a Worker and commands that trust its CA. Whoever does not is
// told so and sends nothing; a certificate that is replaced is used without a restart.
func TestSpec_21_04_TLS(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "helmr-e2e-")
	if err != nil {
		t.Fatal(err)
	}
	h := &helmr{t: t, dir: dir, config: filepath.Join(dir, "config")}
	c := &cluster{helmr: h, settings: serverSettings("sqlite:"+filepath.Join(dir, "helmr.db"), filepath.Join(dir, "blobs")), checkpointKey: rootKey(), first: freePort(t)}
	t.Cleanup(h.close)
	ca := newAuthority(t, dir)
	ca.issue("server", []string{"127.0.0.1"})
	trust := "SSL_CERT_FILE=" + filepath.Join(dir, "ca.pem")
	p := c.process("HELMR_ADDR="+c.first, "HELMR_TLS_CERT_FILE="+filepath.Join(dir, "server.pem"), "HELMR_TLS_KEY_FILE="+filepath.Join(dir, "server.key"))
	p.run(t, "migrate").ok(t)
	h.info.APIKey = strings.TrimSpace(p.run(t, "server", "bootstrap").ok(t))
	writeFiles(t, dir, map[string]string{"worker.token": p.run(t, "server", "worker-token").ok(t)})
	server := p.start(t, "server")
	server.says("server started")
	h.info.URL = "https://" + c.first
	roots := x509.NewCertPool()
	roots.AddCert(ca.cert)
	h.Client = client.New(h.info.URL, h.info.APIKey, client.WithHTTPClient(&http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, ForceAttemptHTTP2: true}}))

	worker := c.process(append(c.workerSettings(), "HELMR_SERVER_URL="+h.info.URL)...)
	stranger := worker.start(t, "worker")
	stranger.says("certificate signed by unknown authority")
	stranger.signal(syscall.SIGTERM)
	stranger.wait()
	trusting := program{env: append(worker.env, trust)}
	live := trusting.start(t, "worker")
	live.says("worker registered")
	user := program{env: []string{"HELMR_CONFIG_DIR=" + h.config, trust}}.login(h.info.URL, h.info.APIKey)
	user.run(t, "deploy", "testdata/project").ok(t)
	program{env: []string{"HELMR_CONFIG_DIR=" + h.config}}.login(h.info.URL, h.info.APIKey).run(t, "session", "list").refused(t, 1, "certificate", "SSL_CERT_FILE")
	r := h.create("counter", "hello")
	h.completed(r.SessionID, r.TurnID)

	serial := func() string {
		conn, err := tls.Dial("tcp", c.first, &tls.Config{RootCAs: roots})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		return conn.ConnectionState().PeerCertificates[0].SerialNumber.String()
	}
	before := serial()
	ca.issue("server", []string{"127.0.0.1"})
	if serial() == before {
		t.Error("a replaced certificate is not used")
	}
	writeFiles(t, dir, map[string]string{"server.pem": "broken"})
	if serial() == before {
		t.Error("the certificate of before the last one is used")
	}
	if _, err := h.GetSession(context.Background(), r.SessionID); err != nil {
		t.Errorf("a broken file ends the service: %v", err)
	}
	p.run(t, "server", "check-config").refused(t, 1, "HELMR_TLS_CERT_FILE and HELMR_TLS_KEY_FILE are malformed")
	d := trusting.run(t, "worker", "drain", "--timeout", "1s", "--json")
	if d.code != 0 || !strings.Contains(d.stdout, "termination_ready") {
		t.Errorf("drain: %d\n%s%s", d.code, d.stdout, d.stderr)
	}
}
