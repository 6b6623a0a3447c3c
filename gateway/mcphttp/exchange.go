package mcphttp

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/mark3labs/mcp-go/mcp"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/gateway/principal"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/account"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/guard"
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/rpc"
)

// Header fields of the protocol.
const (
	sessionHeader = "Mcp-Session-Id"
	versionHeader = mcp.HeaderProtocolVersion
)

// statusHungUp is reported if the client did not wait for the response.
const statusHungUp = 499

// retrySeconds is when a refused client should call again.
const retrySeconds = "1"

// exchange is a request and its response. Only one goroutine uses it.
type exchange struct {
	*Server
	w   http.ResponseWriter
	r   *http.Request
	out *http.ResponseController
	who string

	method      string
	isStateless bool
	status      int
	// isStream is set when the response has become a stream, and isBroken when a write failed.
	isStream bool
	isBroken bool
	// release and decoded end the charges for the request with the text of its message, and for
	// its decoded values.
	release, decoded func()
}

func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	x := &exchange{Server: s, w: w, r: r, out: http.NewResponseController(w), method: r.Method, status: http.StatusOK}
	x.answer()
	if s.o.Observe != nil {
		era := "legacy"
		if x.isStateless {
			era = "modern"
		}
		s.o.Observe(Request{Principal: x.who, Method: x.method, Era: era, Status: x.status})
	}
}

func (x *exchange) answer() {
	if problem := x.o.misdirected(x.r); problem != "" {
		x.fail(http.StatusForbidden, nil, mcp.INVALID_REQUEST, problem)
		return
	}
	allowPage(x.w, x.r)
	if x.r.Method == http.MethodOptions {
		preflight(x.w)
		return
	}
	var err error
	if x.who, err = x.o.Authenticator.Authenticate(x.r); err != nil {
		x.challenge(err)
		return
	}
	if !x.enter() {
		x.turnAway(http.StatusServiceUnavailable, "the server is ending: send the request again")
		return
	}
	defer x.leave()
	if x.release, err = x.o.Book.Bytes.Try(x.who, account.RequestBytes); err != nil {
		x.drop("the server is busy with other requests, or with others of yours: send the request again when some have been answered")
		return
	}
	defer func() { x.release() }()
	x.isStateless = mcp.IsModernProtocol(x.r.Header.Get(versionHeader))
	switch {
	case x.r.Method == http.MethodPost:
		x.post()
	case x.r.Method == http.MethodGet && !x.isStateless:
		x.stream()
	default: // also DELETE: no HTTP session has anything to remove
		allowed := "POST"
		if !x.isStateless {
			allowed = "GET, POST"
		}
		x.w.Header().Set("Allow", allowed)
		x.fail(http.StatusMethodNotAllowed, nil, mcp.INVALID_REQUEST, fmt.Sprintf("%.20s is not answered here: send a POST", x.r.Method))
	}
}

// turnAway refuses a request and closes its connection.
func (x *exchange) turnAway(status int, text string) {
	x.w.Header().Set("Retry-After", retrySeconds)
	x.hangUp()
	x.fail(status, nil, mcp.INTERNAL_ERROR, text)
}

// drop refuses a request that nothing may be held for, and closes its connection at once. net/http
// would keep it for a second or two, for clients that are still sending and do not read meanwhile.
func (x *exchange) drop(text string) {
	conn, _, err := x.out.Hijack()
	if err != nil {
		x.turnAway(http.StatusServiceUnavailable, text)
		return
	}
	defer conn.Close()
	x.status = http.StatusServiceUnavailable
	body := encode(rpc.Failure(nil, mcp.INTERNAL_ERROR, text))
	_ = conn.SetWriteDeadline(time.Now().Add(restTimeout))
	fmt.Fprintf(conn, "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nContent-Length: %d\r\nRetry-After: %s\r\nConnection: close\r\n\r\n%s", len(body), retrySeconds, body)
}

// hangUp has the connection closed after the response. net/http reads the rest of the request
// before it closes, so the time for that is bounded.
func (x *exchange) hangUp() {
	x.w.Header().Set("Connection", "close")
	_ = x.out.SetReadDeadline(time.Now().Add(restTimeout))
}

// challenge answers a request without a valid token, as RFC 6750 and RFC 9728 say.
func (x *exchange) challenge(err error) {
	status, text := http.StatusUnauthorized, "the request has no token that this server knows: send one in the field Authorization, as Bearer TOKEN"
	var parameters []string
	var refusal *principal.Refusal
	if errors.As(err, &refusal) {
		problem := "invalid_token"
		if refusal.Scope != "" {
			status, problem = http.StatusForbidden, "insufficient_scope"
			text = fmt.Sprintf("the token does not allow %q", refusal.Scope)
			parameters = append(parameters, fmt.Sprintf("scope=%q", refusal.Scope))
		}
		parameters = slices.Insert(parameters, 0, fmt.Sprintf("error=%q", problem))
	}
	if !errors.Is(err, principal.ErrNone) {
		if x.refusals.Allow() {
			x.o.Log.Info("request refused", "from", x.r.RemoteAddr, "reason", err, "not_logged_before", x.unlogged.Swap(0))
		} else {
			x.unlogged.Add(1)
		}
	}
	if at := MetadataURL(x.o.Resource); at != "" {
		parameters = append(parameters, fmt.Sprintf("resource_metadata=%q", at))
	}
	x.w.Header().Set("WWW-Authenticate", strings.TrimSpace("Bearer "+strings.Join(parameters, ", ")))
	_ = x.out.SetReadDeadline(time.Now().Add(restTimeout)) // for the body, which is not read
	x.fail(status, nil, mcp.INVALID_REQUEST, text)
}

// wellKnown begins the paths of a resource's metadata.
const wellKnown = "/.well-known/oauth-protected-resource"

// MetadataURL returns the URL of a resource's metadata (RFC 9728, section 3.1), or "" if the
// resource is empty.
func MetadataURL(resource string) string {
	at, err := url.Parse(resource)
	if err != nil || resource == "" {
		return ""
	}
	at.Path = wellKnown + strings.TrimSuffix(at.Path, "/")
	return at.String()
}

func (x *exchange) post() {
	if kind, _, err := mime.ParseMediaType(x.r.Header.Get("Content-Type")); err != nil || kind != "application/json" {
		x.fail(http.StatusUnsupportedMediaType, nil, mcp.INVALID_REQUEST, fmt.Sprintf("Content-Type is %.80q: send application/json", x.r.Header.Get("Content-Type")))
		return
	}
	if coding := x.r.Header.Get("Content-Encoding"); coding != "" && !strings.EqualFold(coding, "identity") {
		x.w.Header().Set("Accept-Encoding", "identity") // RFC 9110, section 12.5.3
		x.fail(http.StatusUnsupportedMediaType, nil, mcp.INVALID_REQUEST, fmt.Sprintf("Content-Encoding is %.80q: send the message as it is", coding))
		return
	}
	text := x.readBody()
	if text == nil {
		return
	}
	cost, err := rpc.Cost(text)
	if err != nil {
		x.fail(http.StatusBadRequest, nil, mcp.PARSE_ERROR, err.Error())
		return
	}
	if x.decoded = x.charge(cost); x.decoded == nil {
		return
	}
	defer x.decoded()
	m, reply := rpc.Decode(bytes.TrimSpace(text))
	if reply != nil {
		x.write(http.StatusBadRequest, reply)
		return
	}
	x.method = m.Method
	x.isStateless = x.isStateless || mcp.IsModernProtocol(m.ProtocolVersion())
	if x.isStateless {
		x.stateless(m)
	} else {
		x.legacy(m)
	}
}

// readBody reads the message, or answers the request and returns nil. It charges the principal for
// the text and for the strings that it will be decoded into: first for a piece, then for the whole.
// If the length is unknown, it assumes twice the length that has come.
func (x *exchange) readBody() []byte {
	// The connection's next request, and its end, may come at any time.
	defer func() { _ = x.out.SetReadDeadline(time.Time{}) }()
	size := x.r.ContentLength
	if size > maxBody {
		x.tooLong()
		return nil
	}
	body := http.MaxBytesReader(x.w, x.r.Body, maxBody)
	text, request, piece := []byte{}, x.release, func() {}
	x.release = func() {
		piece()
		request()
	}
	deadline := time.Now().Add(bodyTimeout)
	for {
		if len(text) == cap(text) {
			capacity := nextCapacity(int64(len(text)), size)
			began := time.Now()
			more := x.charge(2 * capacity)
			if more == nil {
				return nil
			}
			deadline = deadline.Add(time.Since(began))
			_ = x.out.SetReadDeadline(deadline)
			// One byte more tells the end of the message.
			text = append(make([]byte, 0, capacity+1), text...)
			piece()
			piece = more
		}
		n, err := body.Read(text[len(text):cap(text)])
		text = text[:len(text)+n]
		if err == io.EOF {
			return text
		}
		if err != nil {
			x.bodyFailed(err)
			return nil
		}
	}
}

// nextCapacity returns how large the buffer of a message should be after have bytes. size is
// negative if it is unknown.
func nextCapacity(have, size int64) int64 {
	switch {
	case have == 0 && size >= 0:
		return min(size, firstPiece)
	case have == 0:
		return firstPiece
	case size >= 0:
		return size
	}
	return min(2*have, maxBody)
}

// charge charges the principal for bytes of a message. If that takes too long, it answers the
// request and returns nil.
func (x *exchange) charge(n int64) (release func()) {
	ctx, cancel := context.WithTimeout(x.r.Context(), bodyWait)
	defer cancel()
	release, err := x.o.Book.Bytes.Take(ctx, x.who, n)
	if err != nil {
		x.turnAway(http.StatusServiceUnavailable, fmt.Sprintf("the server is busy with other messages of more than %d bytes: send the message again later", firstPiece))
	}
	return release
}

// bodyFailed answers a request if its body could not be read.
func (x *exchange) bodyFailed(err error) {
	if errors.As(err, new(*http.MaxBytesError)) {
		x.tooLong()
		return
	}
	x.hangUp()
	x.fail(http.StatusBadRequest, nil, mcp.PARSE_ERROR, "the message did not come whole")
}

func (x *exchange) tooLong() {
	x.hangUp()
	x.fail(http.StatusRequestEntityTooLarge, nil, mcp.INVALID_REQUEST, fmt.Sprintf("the message is longer than %d bytes", maxBody))
}

// stateless answers a message of stateless MCP.
func (x *exchange) stateless(m rpc.Message) {
	header, version := x.r.Header.Get(versionHeader), m.ProtocolVersion()
	switch {
	case !m.IsRequest():
		// This revision has no notifications from clients: a client cancels by hanging up.
		x.accept()
	case version != "" && header != version:
		x.refuse(m, http.StatusBadRequest, mcp.HEADER_MISMATCH, fmt.Sprintf("%s is %.40q and the message's own version %.40q: both must be the same", versionHeader, header, version))
	case !mcp.IsValidProtocolVersion(header):
		x.handler.Refuse(x.who, m, fmt.Errorf("the protocol's version %.40q is unknown", header))
		failure := mcp.UnsupportedProtocolVersionError{Version: header, Supported: mcp.ValidProtocolVersions}.JSONRPCError()
		failure.ID = mcp.NewRequestId(m.ID)
		x.write(http.StatusBadRequest, failure)
	case version == "":
		x.refuse(m, http.StatusBadRequest, mcp.INVALID_PARAMS, "params._meta lacks "+mcp.MetaKeyProtocolVersion)
	default:
		if err := x.checkHeaders(m); err != nil {
			x.refuse(m, http.StatusBadRequest, mcp.HEADER_MISMATCH, err.Error())
			return
		}
		if m.Method == string(mcp.MethodSubscriptionsListen) {
			x.subscribe(m)
			return
		}
		if m.Method == string(mcp.MethodServerDiscover) {
			x.logClient(m)
		}
		x.request(m, nil)
	}
}

// refuse answers a message with an error, and tells observers if it is a call.
func (x *exchange) refuse(m rpc.Message, status, code int, text string) {
	x.handler.Refuse(x.who, m, errors.New(text))
	x.fail(status, m.ID, code, text)
}

func (x *exchange) checkHeaders(m rpc.Message) error {
	var params json.RawMessage
	if mcp.MethodRequiresNameHeader(mcp.MCPMethod(m.Method)) {
		// The message itself may be long, so only the compared fields are encoded.
		name, uri := m.Names()
		var err error
		if params, err = json.Marshal(map[string]string{"name": name, "uri": uri}); err != nil {
			return err
		}
	}
	return mcp.ValidateStandardHeaders(x.r.Header.Get, m.ProtocolVersion(), mcp.MCPMethod(m.Method), params)
}

// legacy answers a message of a revision with HTTP sessions.
func (x *exchange) legacy(m rpc.Message) {
	if version := x.r.Header.Get(versionHeader); version != "" && !mcp.IsValidProtocolVersion(version) {
		x.refuse(m, http.StatusBadRequest, mcp.INVALID_REQUEST, fmt.Sprintf("%s is %.40q, which this server does not speak: it speaks %s", versionHeader, version, strings.Join(mcp.ValidProtocolVersions, ", ")))
		return
	}
	if m.IsRequest() && m.Method == string(mcp.MethodInitialize) {
		reply := x.handler.Answer(m)
		if _, ok := reply.(mcp.JSONRPCResponse); ok {
			x.w.Header().Set(sessionHeader, x.sessions.open(x.who, m.Elicits()))
			x.logClient(m)
		}
		x.write(http.StatusOK, reply)
		return
	}
	session := x.session(m)
	if session == nil {
		return
	}
	switch {
	case m.Method == string(mcp.MethodNotificationCancelled):
		x.sessions.cancel(session.id + string(m.CancelledID))
		x.accept()
	case !m.IsRequest() || m.Method == "":
		x.handler.Reply(x.who, m)
		x.accept()
	default:
		x.request(m, session)
	}
}

// logClient logs the name and version of a new client.
func (x *exchange) logClient(m rpc.Message) {
	name, version := m.Client()
	if version == "" {
		version = m.ProtocolVersion()
	}
	x.o.Log.Info("client", "principal", x.who, "client", name, "version", version)
}

// session returns the HTTP session of the request. If there is none, it answers the request, which
// has the message m or none, and returns nil.
func (x *exchange) session(m rpc.Message) *httpSession {
	name := x.r.Header.Get(sessionHeader)
	if name == "" {
		x.refuse(m, http.StatusBadRequest, mcp.INVALID_REQUEST, "the request has no "+sessionHeader+": begin with initialize")
		return nil
	}
	session := x.sessions.find(x.who, name)
	if session == nil {
		x.refuse(m, http.StatusNotFound, mcp.INVALID_REQUEST, "there is no such HTTP session: begin with initialize")
	}
	return session
}

// request answers a request. session is its HTTP session, or nil.
func (x *exchange) request(m rpc.Message, session *httpSession) {
	if !m.Waits() {
		reply := x.handler.Answer(m)
		x.write(x.statusOf(reply), reply)
		return
	}
	if m.Trace == "" {
		m.Trace = rpc.TraceID(x.r.Header.Get("Traceparent"))
	}
	admitted, refusal := x.handler.Admit(x.who, m)
	if admitted == nil {
		x.write(x.statusOf(refusal), refusal)
		return
	}
	// A call goes on if its client hangs up. It keeps only the code of its message, and the text's
	// charge covers that.
	x.decoded()
	admitted.Charge(x.release)
	x.release = func() {}
	id := m.ID
	ctx, cancel := context.WithCancel(x.ctx)
	forget := func() {}
	if session != nil {
		forget = x.sessions.remember(session.id+string(id), cancel, false)
	}
	asker := newClient(x.who)
	if session != nil && session.elicits && x.takesStream() {
		asker.requests = make(chan any, maxNotifications)
	}
	answers := make(chan encoded, 1)
	s := x.Server
	go func() {
		defer cancel()
		defer forget()
		var text []byte
		reply := rpc.Failure(id, mcp.INTERNAL_ERROR, guard.ErrPanic.Error())
		failed := guard.Run(func() {
			answer := admitted.Answer(ctx, asker.asCaller())
			text, reply = encode(answer), answer
		})
		if failed != nil {
			text = encode(reply)
		}
		admitted.Release()
		answers <- s.charged(asker.principal, id, reply, text)
		close(answers)
	}()
	if !x.follow(asker, answers) {
		x.status = statusHungUp
		// In stateless MCP, hanging up cancels. In earlier ones, a client
		// may lose its connection, and cancels by a notification.
		if session == nil {
			cancel()
		}
		go func() {
			if answer, ok := <-answers; ok { // otherwise follow has released it
				answer.release()
			}
			x.returnMemory()
		}()
	}
}

// takesStream reports whether the response may be a stream.
func (x *exchange) takesStream() bool {
	return strings.Contains(x.r.Header.Get("Accept"), "text/event-stream")
}

// follow writes the notifications and the answer of a call. It returns false if the client goes
// before the end.
func (x *exchange) follow(asker *client, answers <-chan encoded) bool {
	takesStream := x.takesStream()
	timer := time.NewTimer(firstComment)
	defer timer.Stop()
	for {
		select {
		case notification := <-asker.notifications:
			if takesStream {
				x.event(notification)
			}
		case request := <-asker.requests:
			x.event(request)
		case answer := <-answers:
			defer answer.release()
			for takesStream && len(asker.notifications) > 0 {
				x.event(<-asker.notifications)
			}
			if x.isStream {
				x.eventText(answer.text)
			} else {
				x.writeText(x.statusOf(answer.reply), answer.text)
			}
			return !x.isBroken
		case <-timer.C:
			if takesStream {
				x.comment()
			}
			timer.Reset(commentEvery)
		case <-x.r.Context().Done():
			return false
		}
		if x.isBroken {
			return false
		}
	}
}

func (x *exchange) statusOf(reply mcp.JSONRPCMessage) int {
	failure, isFailure := reply.(mcp.JSONRPCError)
	if !x.isStateless || !isFailure {
		return http.StatusOK
	}
	switch failure.Error.Code {
	case mcp.METHOD_NOT_FOUND:
		return http.StatusNotFound
	case mcp.INVALID_REQUEST, mcp.INVALID_PARAMS, mcp.PARSE_ERROR, mcp.HEADER_MISMATCH, mcp.UNSUPPORTED_PROTOCOL_VERSION, mcp.MISSING_REQUIRED_CLIENT_CAPABILITY:
		return http.StatusBadRequest
	}
	return http.StatusOK
}
