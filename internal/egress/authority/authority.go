// Package authority is what a Computer is given in place of protected values: placeholders, and a certificate authority of
// its own. That one is made once, is trusted inside that Computer alone, and signs certificates for the names of its
// protected origins, with which the gateway's proxy answers. The package keeps no key anywhere; whoever opens one holds it
// in memory.
package authority

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"slices"
	"sync"
	"time"
)

// How long certificates are valid. The clock of a Computer may be behind by as much as early.
const (
	validYears  = 10
	early       = 24 * time.Hour
	leafValid   = 14 * 24 * time.Hour
	leafRenewed = 7 * 24 * time.Hour // before its end
)

// Make makes an authority that can sign for the given DNS names (and names below them) and for nothing else. It gives its
// certificate in DER and its private key in PKCS #8.
func Make(names []string, now time.Time) (certificate, key []byte, err error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("make authority: %w", err)
	}
	serial, err := serialNumber()
	if err != nil {
		return nil, nil, fmt.Errorf("make authority: %w", err)
	}
	everywhere := []*net.IPNet{{IP: net.IPv4zero.To4(), Mask: net.CIDRMask(0, 32)}, {IP: net.IPv6zero, Mask: net.CIDRMask(0, 128)}}
	template := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{Organization: []string{"helmr"}, CommonName: "helmr protected secrets of one computer"},
		NotBefore: now.Add(-early), NotAfter: now.AddDate(validYears, 0, 0),
		IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
		PermittedDNSDomainsCritical: true, PermittedDNSDomains: names, ExcludedIPRanges: everywhere,
	}
	if certificate, err = x509.CreateCertificate(rand.Reader, template, template, private.Public(), private); err != nil {
		return nil, nil, fmt.Errorf("make authority: %w", err)
	}
	if key, err = x509.MarshalPKCS8PrivateKey(private); err != nil {
		return nil, nil, fmt.Errorf("make authority: %w", err)
	}
	return certificate, key, nil
}

func serialNumber() (*big.Int, error) {
	return rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
}

// Authority is an opened one. It may be used concurrently.
type Authority struct {
	certificate *x509.Certificate
	key         crypto.Signer
	leafKey     *ecdsa.PrivateKey // one for all leaves: it never leaves this process, and they are all for one Computer
	now         func() time.Time

	mu sync.Mutex
	// leaves are guarded by mu. Names come from the bindings, so there are only as many.
	leaves map[string]*tls.Certificate
}

// Open takes what Make gave. now is the clock; nil is the system's.
func Open(certificate, key []byte, now func() time.Time) (*Authority, error) {
	cert, err := x509.ParseCertificate(certificate)
	if err != nil {
		return nil, fmt.Errorf("open authority: %w", err)
	}
	private, err := x509.ParsePKCS8PrivateKey(key)
	if err != nil {
		return nil, errors.New("open authority: its key is damaged")
	}
	signer, ok := private.(*ecdsa.PrivateKey)
	if !ok || !signer.PublicKey.Equal(cert.PublicKey) {
		return nil, errors.New("open authority: the key is not that of the certificate")
	}
	leaf, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("open authority: %w", err)
	}
	if now == nil {
		now = time.Now
	}
	return &Authority{certificate: cert, key: signer, leafKey: leaf, now: now, leaves: map[string]*tls.Certificate{}}, nil
}

// PEM gives the certificate as programs read it from a file. It holds nothing secret.
func (a *Authority) PEM() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.certificate.Raw})
}

// Leaf gives a certificate for a name, made anew when the last one has little time left. A name that the authority is not
// for is refused, as a Computer would refuse the certificate.
func (a *Authority) Leaf(name string) (*tls.Certificate, error) {
	if !slices.Contains(a.certificate.PermittedDNSDomains, name) {
		return nil, fmt.Errorf("certificate for %s: the authority is not for this name", name)
	}
	now := a.now()
	a.mu.Lock()
	defer a.mu.Unlock()
	if c := a.leaves[name]; c != nil && now.Before(c.Leaf.NotAfter.Add(-leafRenewed)) && !now.Before(c.Leaf.NotBefore) {
		return c, nil
	}
	serial, err := serialNumber()
	if err != nil {
		return nil, fmt.Errorf("certificate for %s: %w", name, err)
	}
	template := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{Organization: []string{"helmr"}}, DNSNames: []string{name},
		NotBefore: now.Add(-early), NotAfter: now.Add(leafValid),
		BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.certificate, a.leafKey.Public(), a.key)
	if err != nil {
		return nil, fmt.Errorf("certificate for %s: %w", name, err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("certificate for %s: %w", name, err)
	}
	c := &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: a.leafKey, Leaf: leaf}
	a.leaves[name] = c
	return c, nil
}
