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
	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/runtime/rpc"
)

// Header fields of the protocol.
const (
	sessionHeader = "Mcp-Session-Id"
	versionHeader = mcp.HeaderProtocolVersion
)

// statusHungUp stands for the status of a response that nobody waited for.
const statusHungUp = 499

// retrySeconds is when a client that is refused because the server ends calls again.
const retrySeconds = "1"

// exchange is a request and its response. One goroutine has it.
type exchange struct {
	*Server
	w   http.ResponseWriter
	r   *http.Request
	out *http.ResponseController
	who principal.Principal

	method   string
	isModern bool
	status   int
	// isStream says that the response has become a stream, isBroken that writing it
	// failed.
	isStream bool
	isBroken bool
}

func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	began := time.Now()
	x := &exchange{Server: s, w: w, r: r, out: http.NewResponseController(w), method: r.Method, status: http.StatusOK}
	x.answer()
	if s.o.Observe != nil {
		era := "legacy"
		if x.isModern {
			era = "modern"
		}
		s.o.Observe(Request{Principal: x.who.Name, Method: x.method, Era: era, Status: x.status, Duration: time.Since(began)})
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
		x.w.Header().Set("Retry-After", retrySeconds)
		x.w.Header().Set("Connection", "close")
		x.fail(http.StatusServiceUnavailable, nil, mcp.INTERNAL_ERROR, "the server is ending: send the request again")
		return
	}
	defer x.leave()
	x.isModern = mcp.IsModernProtocol(x.r.Header.Get(versionHeader))
	switch {
	case x.r.Method == http.MethodPost:
		x.post()
	case x.r.Method == http.MethodGet && !x.isModern:
		x.stream()
	case x.r.Method == http.MethodDelete && !x.isModern:
		if session := x.session(nil); session != nil {
			x.sessions.remove(session)
			x.status = http.StatusNoContent
			x.w.WriteHeader(x.status)
		}
	default:
		x.w.Header().Set("Allow", "POST")
		x.fail(http.StatusMethodNotAllowed, nil, mcp.INVALID_REQUEST, fmt.Sprintf("%.20s is not answered here: send a POST", x.r.Method))
	}
}

// challenge answers a request whose sender is not known, in the words of RFC 6750 and
// RFC 9728.
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
		if before, ok := x.refusals.line(time.Now()); ok {
			x.o.Log.Info("request refused", "from", x.r.RemoteAddr, "reason", err, "not_logged_before", before)
		}
	}
	if at := MetadataURL(x.o.Resource); at != "" {
		parameters = append(parameters, fmt.Sprintf("resource_metadata=%q", at))
	}
	x.w.Header().Set("WWW-Authenticate", strings.TrimSpace("Bearer "+strings.Join(parameters, ", ")))
	x.fail(status, nil, mcp.INVALID_REQUEST, text)
}

// MetadataURL is where clients read what authorizes them for a resource (RFC 9728,
// section 3.1); empty for no resource.
func MetadataURL(resource string) string {
	at, err := url.Parse(resource)
	if err != nil || resource == "" {
		return ""
	}
	at.Path = "/.well-known/oauth-protected-resource" + strings.TrimSuffix(at.Path, "/")
	return at.String()
}

func (x *exchange) post() {
	if kind, _, err := mime.ParseMediaType(x.r.Header.Get("Content-Type")); err != nil || kind != "application/json" {
		x.fail(http.StatusUnsupportedMediaType, nil, mcp.INVALID_REQUEST, fmt.Sprintf("Content-Type is %.80q: send application/json", x.r.Header.Get("Content-Type")))
		return
	}
	text, release, ok := x.readBody()
	if !ok {
		return
	}
	defer release()
	m, reply := rpc.Decode(bytes.TrimSpace(text))
	if reply != nil {
		x.write(http.StatusBadRequest, reply)
		return
	}
	x.method = m.Method
	x.isModern = x.isModern || mcp.IsModernProtocol(m.ProtocolVersion())
	if x.isModern {
		x.modern(m)
	} else {
		x.legacy(m)
	}
}

// readBody reads the message, as far as there is memory for it. Where it is false, the
// request has been answered. Release gives the memory back.
func (x *exchange) readBody() (text []byte, release func(), ok bool) {
	_ = x.out.SetReadDeadline(time.Now().Add(bodyTimeout))
	// The connection's next request, and its end, may come at any time.
	defer func() { _ = x.out.SetReadDeadline(time.Time{}) }()
	release = func() {}
	size := x.r.ContentLength
	if size > maxBody {
		x.tooLong()
		return nil, release, false
	}
	body := http.MaxBytesReader(x.w, x.r.Body, maxBody)
	if 0 <= size && size <= smallBytes {
		text = make([]byte, size)
		_, err := io.ReadFull(body, text)
		return text, release, x.bodyCame(err)
	}
	text, err := io.ReadAll(io.LimitReader(body, smallBytes))
	if err != nil || len(text) < smallBytes {
		return text, release, x.bodyCame(err)
	}
	if size < 0 {
		size = maxBody
	}
	release = x.incoming.take(x.r.Context(), bodyWait, x.who.Name, size)
	if release == nil {
		x.w.Header().Set("Retry-After", retrySeconds)
		x.w.Header().Set("Connection", "close")
		x.fail(http.StatusServiceUnavailable, nil, mcp.INTERNAL_ERROR, fmt.Sprintf("the server is busy with other messages of more than %d bytes: send the message again later", smallBytes))
		return nil, nil, false
	}
	buffer := bytes.NewBuffer(make([]byte, 0, size+bytes.MinRead))
	buffer.Write(text)
	_, err = buffer.ReadFrom(body)
	if !x.bodyCame(err) {
		release()
		return nil, nil, false
	}
	return buffer.Bytes(), release, true
}

// bodyCame answers the request where its body did not come whole.
func (x *exchange) bodyCame(err error) bool {
	var long *http.MaxBytesError
	switch {
	case err == nil:
		return true
	case errors.As(err, &long):
		x.tooLong()
	default:
		x.w.Header().Set("Connection", "close")
		x.fail(http.StatusBadRequest, nil, mcp.PARSE_ERROR, "the message did not come whole")
	}
	return false
}

func (x *exchange) tooLong() {
	x.w.Header().Set("Connection", "close")
	x.fail(http.StatusRequestEntityTooLarge, nil, mcp.INVALID_REQUEST, fmt.Sprintf("the message is longer than %d bytes", maxBody))
}

// modern answers a message of revision 2026-07-28, or of a later one.
func (x *exchange) modern(m rpc.Message) {
	header, version := x.r.Header.Get(versionHeader), m.ProtocolVersion()
	switch {
	case !m.IsRequest():
		// No notification of a client means anything in this revision: who hangs up
		// cancels.
		x.accept()
	case version != "" && header != version:
		x.fail(http.StatusBadRequest, m.ID, mcp.HEADER_MISMATCH, fmt.Sprintf("%s is %.40q and the message's own version %.40q: both must be the same", versionHeader, header, version))
	case !mcp.IsValidProtocolVersion(header):
		failure := mcp.UnsupportedProtocolVersionError{Version: header, Supported: mcp.ValidProtocolVersions}.JSONRPCError()
		failure.ID = mcp.NewRequestId(m.ID)
		x.write(http.StatusBadRequest, failure)
	case version == "":
		x.fail(http.StatusBadRequest, m.ID, mcp.INVALID_PARAMS, "params._meta lacks "+mcp.MetaKeyProtocolVersion)
	default:
		if err := x.checkHeaders(m); err != nil {
			x.fail(http.StatusBadRequest, m.ID, mcp.HEADER_MISMATCH, err.Error())
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

// checkHeaders compares what the head repeats of the message with the message.
func (x *exchange) checkHeaders(m rpc.Message) error {
	var params json.RawMessage
	if mcp.MethodRequiresNameHeader(mcp.MCPMethod(m.Method)) {
		// What is compared is in here; the message itself may be long.
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
		x.fail(http.StatusBadRequest, m.ID, mcp.INVALID_REQUEST, fmt.Sprintf("%s is %.40q, which this server does not speak: it speaks %s", versionHeader, version, strings.Join(mcp.ValidProtocolVersions, ", ")))
		return
	}
	if m.IsRequest() && m.Method == string(mcp.MethodInitialize) {
		reply := x.handler.Answer(x.handlerContext(), m)
		if _, ok := reply.(mcp.JSONRPCResponse); ok {
			x.w.Header().Set(sessionHeader, x.sessions.begin(x.who.Name).id)
			x.logClient(m)
		}
		x.write(http.StatusOK, reply)
		return
	}
	session := x.session(m.ID)
	if session == nil {
		return
	}
	switch {
	case m.Method == string(mcp.MethodNotificationCancelled):
		x.sessions.cancel(session, string(m.CancelledID))
		x.accept()
	case !m.IsRequest() || m.Method == "":
		// This server asks clients for nothing, so that a reply of theirs answers
		// nothing.
		x.accept()
	default:
		x.request(m, session)
	}
}

// logClient writes a line for a client that begins.
func (x *exchange) logClient(m rpc.Message) {
	name, version := m.Client()
	if version == "" {
		version = m.ProtocolVersion()
	}
	x.o.Log.Info("client", "principal", x.who.Name, "client", name, "version", version)
}

// session returns the HTTP session that the request names; nil where the request has
// been answered because there is none.
func (x *exchange) session(id json.RawMessage) *httpSession {
	name := x.r.Header.Get(sessionHeader)
	if name == "" {
		x.fail(http.StatusBadRequest, id, mcp.INVALID_REQUEST, "the request has no "+sessionHeader+": begin with initialize")
		return nil
	}
	session := x.sessions.find(x.who.Name, name)
	if session == nil {
		x.fail(http.StatusNotFound, id, mcp.INVALID_REQUEST, "there is no such HTTP session: begin with initialize")
	}
	return session
}

// handlerContext is what mcp-go is called with: it outlives a client that hangs up.
func (x *exchange) handlerContext() context.Context {
	return x.handler.MCP().WithContext(x.ctx, x.newClient(x.who.Name))
}

// request answers a request; session is its HTTP session, nil where it has none.
func (x *exchange) request(m rpc.Message, session *httpSession) {
	if !m.Waits() {
		reply := x.handler.Answer(x.handlerContext(), m)
		x.write(x.statusOf(reply), reply)
		return
	}
	if m.Trace == "" {
		m.Trace = rpc.TraceID(x.r.Header.Get("Traceparent"))
	}
	call, refusal := x.handler.Admit(x.who.Name, m)
	if call == nil {
		x.write(x.statusOf(refusal), refusal)
		return
	}
	ctx, cancel := context.WithCancel(x.ctx)
	forget := func() {}
	if session != nil {
		forget = x.sessions.remember(session, string(m.ID), cancel)
	}
	asker := x.newClient(x.who.Name)
	answers := make(chan encoded, 1)
	s := x.Server
	go func() {
		defer cancel()
		defer forget()
		reply := call.Answer(s.handler.MCP().WithContext(ctx, asker), asker.notify)
		answer := s.encode(asker.principal, m.ID, reply)
		// From here on the answer is all that is in memory.
		call.Release()
		answers <- answer
	}()
	if !x.follow(asker, answers) {
		x.status = statusHungUp
		// In the revision without a handshake, who hangs up cancels. In those before,
		// clients may lose connections, and have a notification to cancel.
		if session == nil {
			cancel()
		}
		go func() { (<-answers).release() }()
	}
}

// follow writes what comes of a call until its answer. It is false when the client has
// gone before.
func (x *exchange) follow(asker *client, answers <-chan encoded) bool {
	takesStream := strings.Contains(x.r.Header.Get("Accept"), "text/event-stream")
	timer := time.NewTimer(firstComment)
	defer timer.Stop()
	for {
		select {
		case notification := <-asker.notifications:
			if takesStream {
				x.event(notification)
			}
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

// statusOf is the status of the response with a reply.
func (x *exchange) statusOf(reply mcp.JSONRPCMessage) int {
	failure, isFailure := reply.(mcp.JSONRPCError)
	if !x.isModern || !isFailure {
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
