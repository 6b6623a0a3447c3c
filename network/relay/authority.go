package relay

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"sync"
	"time"
)

// A sandbox lives for 30 days at most. Certificates are valid from a while ago
// on, because the sandbox's clock may be set back a little.
const (
	validFor   = 90 * 24 * time.Hour
	validSince = time.Hour
)

// issuer signs certificates for the hosts with TLS that ends here. Its key never leaves this
// process, and its own certificate is limited to these hosts.
type issuer struct {
	certificate []byte // PEM
	parent      *x509.Certificate
	key         *ecdsa.PrivateKey

	mu    sync.Mutex
	hosts map[string]*tls.Certificate
}

func newIssuer(hosts []string) (*issuer, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template, err := certificate("The network of one sandbox")
	if err != nil {
		return nil, err
	}
	template.IsCA = true
	template.BasicConstraintsValid = true
	template.MaxPathLenZero = true
	template.KeyUsage = x509.KeyUsageCertSign
	template.PermittedDNSDomainsCritical = true
	template.PermittedDNSDomains = hosts
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return nil, err
	}
	parent, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	return &issuer{
		certificate: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		parent:      parent, key: key, hosts: map[string]*tls.Certificate{},
	}, nil
}

// host returns the certificate of a host, which is made for the first connection.
func (a *issuer) host(name string) (*tls.Certificate, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if made, ok := a.hosts[name]; ok {
		return made, nil
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template, err := certificate(name)
	if err != nil {
		return nil, err
	}
	template.DNSNames = []string{name}
	template.KeyUsage = x509.KeyUsageDigitalSignature
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	der, err := x509.CreateCertificate(rand.Reader, template, a.parent, &key.PublicKey, a.key)
	if err != nil {
		return nil, err
	}
	made := &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
	a.hosts[name] = made
	return made, nil
}

// certificate returns the fields that all certificates share.
func certificate(name string) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, err
	}
	// A common name has at most 64 bytes (RFC 5280, appendix A).
	return &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: name[:min(len(name), 64)]},
		NotBefore:    time.Now().Add(-validSince),
		NotAfter:     time.Now().Add(validFor),
	}, nil
}
