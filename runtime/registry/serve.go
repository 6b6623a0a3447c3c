package registry

// Serve is how the operator configured the server for many clients.
type Serve struct {
	// Listen is an address, "unix:PATH", or "systemd" for a socket that systemd opened.
	Listen string `json:"listen"`
	// Hosts are the server's names, Origins the pages that may call it.
	Hosts   []string `json:"hosts"`
	Origins []string `json:"origins"`
	// TokenFile is "" if tokens are not used.
	TokenFile string `json:"token_file"`
	// Proxy and OAuth are nil if that way of authentication is not used.
	Proxy *ServeProxy `json:"proxy"`
	OAuth *ServeOAuth `json:"oauth"`
	// Quotas are the bounds of a principal by its class; "default" is that of those
	// without a class.
	Quotas map[string]Quota `json:"quotas"`
	// CallsAtOnce is how many calls run at once; 0 leaves it to the processors.
	CallsAtOnce int `json:"calls_at_once"`
	// AuditFile is the file of the audit log, or "".
	AuditFile string `json:"audit_file"`
	// MetricsListen is the address for metrics, or "".
	MetricsListen string `json:"metrics_listen"`
	// LameDuckSeconds is how long the server goes on before it drains, DrainSeconds how
	// long calls may then take.
	LameDuckSeconds int `json:"lame_duck_seconds"`
	DrainSeconds    int `json:"drain_seconds"`
}

// ServeProxy is a reverse proxy that says who calls.
type ServeProxy struct {
	Header string   `json:"header"`
	From   []string `json:"from"` // prefixes of addresses, or "unix"
}

// ServeOAuth is a trusted authorization server.
type ServeOAuth struct {
	Resource string `json:"resource"`
	Issuer   string `json:"issuer"`
	JWKS     string `json:"jwks"`
	Claim    string `json:"claim"`
	Scope    string `json:"scope"`
}

// DefaultClass is the class of principals without a class.
const DefaultClass = "default"

// Quota bounds the resources of one principal.
type Quota struct {
	Calls    int   `json:"calls"` // that run or wait
	Sessions int   `json:"sessions"`
	Streams  int   `json:"streams"`
	MemoryMB int64 `json:"memory_mb"` // the limits of all its sandboxes together
	// MemoryUsedMB and PIDs bound the real use of all its sandboxes together, which only control
	// groups enforce; 0 is no limit.
	MemoryUsedMB int64 `json:"memory_used_mb"`
	PIDs         int   `json:"pids"`
}
