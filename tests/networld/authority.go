package networld

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

// authority is what all worlds of this process trust: it is made when it is first needed.
var authority = sync.OnceValues(func() (*signer, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "Authority of tests"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return nil, err
	}
	certificate, err := x509.ParseCertificate(der)
	return &signer{key: key, certificate: certificate, leaves: map[string]*tls.Certificate{}}, err
})

// signer makes a certificate for each name.
type signer struct {
	key         *ecdsa.PrivateKey
	certificate *x509.Certificate

	mu     sync.Mutex
	leaves map[string]*tls.Certificate
}

// Authority returns the certificate of the authority that the world's servers have theirs
// of, in PEM.
func Authority() ([]byte, error) {
	s, err := authority()
	if err != nil {
		return nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.certificate.Raw}), nil
}

// maxLeaves bounds the certificates that are kept.
const maxLeaves = 1000

func (s *signer) leaf(name string) (*tls.Certificate, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if leaf := s.leaves[name]; leaf != nil {
		return leaf, nil
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: name[:min(len(name), 64)]}, DNSNames: []string{name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, s.certificate, &s.key.PublicKey, s.key)
	if err != nil {
		return nil, err
	}
	if len(s.leaves) >= maxLeaves {
		clear(s.leaves)
	}
	leaf := &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: s.key}
	s.leaves[name] = leaf
	return leaf, nil
}

// tlsConfig has a certificate for every name, and speaks what is long out of use, too.
func (w *World) tlsConfig() (*tls.Config, error) {
	s, err := authority()
	if err != nil {
		return nil, err
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS10,
		GetCertificate: func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
			name := hello.ServerName
			if name == "" {
				name = "nameless.example"
			}
			return s.leaf(name)
		},
	}, nil
}
