package server

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net/http"
	"path"
	"runtime/debug"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"helmr.dev/helmr/internal/access"
	"helmr.dev/helmr/internal/fault"
	"helmr.dev/helmr/internal/id"
)

// Config is what a server needs to know beyond the rooms.
type Config struct {
	Version string // shown in the OpenAPI document
	// Mounts are handlers of other protocols on the same listener (the Worker RPC), by path pattern of http.ServeMux.
	// They do their own authentication.
	Mounts map[string]http.Handler
	// TLS is how the server encrypts its connections; nil: it does not.
	TLS *tls.Config
	// Heartbeat is the period of comments on idle streams; 15 s by default.
	Heartbeat time.Duration
	// Registry collects the metrics shown at /metrics; New makes one with Go and process metrics if it is nil.
	Registry *prometheus.Registry
}

// Server answers the HTTP API. Its methods are safe for concurrent use.
type Server struct {
	config  Config
	deps    Deps
	log     *slog.Logger
	table   []route
	metrics *metrics
	handler http.Handler
	feeds   *feeds

	stopping context.Context // done: streams and long-polls end
	stop     context.CancelFunc
	late     context.Context // done a little later: what other protocols still hold open ends
	stopLate context.CancelFunc
}

// New makes a server over the rooms in deps.
func New(config Config, deps Deps) *Server {
	s := &Server{config: config, deps: deps, log: deps.Logger}
	if s.log == nil {
		s.log = slog.Default()
	}
	if s.config.Heartbeat == 0 {
		s.config.Heartbeat = 15 * time.Second
	}
	s.stopping, s.stop = context.WithCancel(context.Background())
	s.late, s.stopLate = context.WithCancel(context.Background())
	s.feeds = newFeeds(s.stopping, deps.DB.Hub(), deps.Session)
	s.metrics = newMetrics(config.Registry)
	s.table = s.routes()
	s.handler = s.newMux()
	return s
}

// Handler gives the whole HTTP surface.
func (s *Server) Handler() http.Handler { return s.handler }

// Registry gives the metrics registry, so that others can add theirs.
func (s *Server) Registry() *prometheus.Registry { return s.metrics.registry }

// Stopping is done when the server has begun to stop; mounted handlers that stream should end then.
func (s *Server) Stopping() <-chan struct{} { return s.stopping.Done() }

// newMux lays the route table and the fixed routes onto one mux.
func (s *Server) newMux() http.Handler {
	mux := http.NewServeMux()
	byPath := map[string]map[string]http.Handler{}
	add := func(method, path string, h http.Handler) {
		if byPath[path] == nil {
			byPath[path] = map[string]http.Handler{}
		}
		byPath[path][method] = h
	}
	for i := range s.table {
		rt := &s.table[i]
		add(rt.method, rt.prefix()+rt.path, s.endpoint(rt))
	}
	add(http.MethodGet, "/api/me", named("me", http.HandlerFunc(s.me)))
	add(http.MethodGet, "/openapi.json", named("openapi", s.serveDocument()))
	add(http.MethodGet, "/healthz", named("healthz", http.HandlerFunc(s.healthz)))
	add(http.MethodGet, "/readyz", named("readyz", http.HandlerFunc(s.readyz)))
	add(http.MethodGet, "/metrics", named("metrics", s.metrics.handler()))
	for path, methods := range byPath {
		mux.Handle(path, s.byMethod(methods))
	}
	for pattern, h := range s.config.Mounts {
		mux.Handle(pattern, named("mount "+pattern, s.untilLate(h)))
	}
	mux.Handle("/", named("none", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.fail(w.(*answer), r, notFound())
	})))
	return s.frame(mux)
}

func notFound() error { return fault.New(fault.NotFound, "There is nothing at this path.") }

// byMethod hands a request to the handler of its method, or refuses it with the methods there are.
func (s *Server) byMethod(methods map[string]http.Handler) http.Handler {
	var allowed []string
	for _, m := range []string{http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete} {
		if _, ok := methods[m]; ok || (m == http.MethodHead && methods[http.MethodGet] != nil) {
			allowed = append(allowed, m)
		}
	}
	allow := strings.Join(allowed, ", ")
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		method := r.Method
		if method == http.MethodHead {
			method = http.MethodGet
		}
		if h := methods[method]; h != nil {
			h.ServeHTTP(w, r)
			return
		}
		w.Header().Set("Allow", allow)
		s.fail(w.(*answer), r, fault.New(fault.MethodNotAllowed, "This path does not take %s, only %s.", r.Method, allow))
	})
}

// named records what answered, for the log and the metrics.
func named(name string, h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.(*answer).route = name
		h.ServeHTTP(w, r)
	})
}

// untilLate ends the requests of a mounted handler when the server has been stopping for lateAfter: calls that are being
// handled get that time, long-polls do not hold the stop up.
func (s *Server) untilLate(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithCancel(r.Context())
		defer cancel()
		defer context.AfterFunc(s.late, cancel)()
		h.ServeHTTP(w, r.WithContext(ctx))
	})
}

type requestIDKey struct{}

// RequestID gives the id of the request that ctx belongs to, "" outside of one.
func RequestID(ctx context.Context) string {
	s, _ := ctx.Value(requestIDKey{}).(string)
	return s
}

// frame is around every request: its id, its log line, its metrics, and the end of a panic.
func (s *Server) frame(next http.Handler) http.Handler {
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		start := time.Now()
		w := &answer{ResponseWriter: rw, requestID: id.New(), route: "none"}
		rw.Header().Set("X-Request-Id", w.requestID)
		rw.Header().Set("X-Content-Type-Options", "nosniff")
		// A deadline of an earlier request on this connection must not cut this one's answer.
		_ = http.NewResponseController(rw).SetWriteDeadline(time.Time{})
		r = r.WithContext(context.WithValue(r.Context(), requestIDKey{}, w.requestID))
		defer func() { s.account(w, r, time.Since(start)) }()
		defer func() {
			if p := recover(); p != nil {
				s.panicked(w, r, p)
			}
		}()
		if clean := path.Clean(r.URL.Path); clean != r.URL.Path && clean+"/" != r.URL.Path {
			s.fail(w, r, notFound()) // the mux would redirect
			return
		}
		next.ServeHTTP(w, r)
	})
}

// panicked answers a request whose handler panicked and logs where.
func (s *Server) panicked(w *answer, r *http.Request, p any) {
	if p == http.ErrAbortHandler {
		panic(p)
	}
	s.log.LogAttrs(r.Context(), slog.LevelError, "request panicked", slog.String("request_id", w.requestID),
		slog.String("route", w.route), slog.Any("panic", p), slog.String("stack", string(debug.Stack())))
	if w.status != 0 {
		panic(http.ErrAbortHandler) // the answer has begun: cut it, so that nobody takes it for whole
	}
	s.fail(w, r, fault.From(errPanicked))
}

// account logs a request and counts it.
func (s *Server) account(w *answer, r *http.Request, took time.Duration) {
	s.metrics.observe(w, r.Method, took)
	level := slog.LevelInfo
	switch w.route {
	case "healthz", "readyz", "metrics":
		level = slog.LevelDebug
	}
	s.log.LogAttrs(r.Context(), level, "request", slog.String("request_id", w.requestID), slog.String("method", r.Method),
		slog.String("route", w.route), slog.Int("status", w.status), slog.Float64("duration_ms", float64(took.Microseconds())/1000),
		slog.Int64("bytes", w.bytes))
}

// endpoint is one route with the checks before its handler.
func (s *Server) endpoint(rt *route) http.Handler {
	var names []string
	for _, part := range strings.Split(rt.path, "/") {
		if name, ok := strings.CutPrefix(part, "{"); ok {
			names = append(names, strings.TrimSuffix(name, "}"))
		}
	}
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		w := rw.(*answer)
		w.route = rt.operation
		c := &call{server: s, route: rt, w: w, r: r}
		if err := s.serve(c, names); err != nil {
			s.fail(w, r, err)
		}
	})
}

func (s *Server) serve(c *call, names []string) error {
	var err error
	if c.who, err = s.authenticate(c.r, c.route.people); err != nil {
		return err
	}
	if !c.who.Can(c.route.permission) && (c.route.also == "" || !c.who.Can(c.route.also)) {
		return lacks(c.route.permission)
	}
	for _, name := range names {
		if err := pathChecks[name](name, c.path(name)); err != nil {
			return err
		}
	}
	if c.query, err = parseQuery(c.r.URL.RawQuery, c.route.query); err != nil {
		return err
	}
	return c.route.handler.serve(c)
}

// lacks refuses a caller without a permission.
func lacks(permission string) error {
	return fault.New(fault.PermissionRequired, "The credential lacks the permission %s (API key scope %s).", permission, scopeText(permission)).
		With("permission", permission)
}

// authenticate finds out who calls, from the bearer credential: a person where only people may, otherwise an API key.
func (s *Server) authenticate(r *http.Request, people bool) (access.Principal, error) {
	bearer, err := bearerOf(r)
	if err != nil {
		return access.Principal{}, err
	}
	if people {
		return s.deps.Access.AuthenticatePerson(r.Context(), bearer)
	}
	return s.deps.Access.Authenticate(r.Context(), bearer)
}

func bearerOf(r *http.Request) (string, error) {
	headers := r.Header.Values("Authorization")
	if len(headers) != 1 {
		return "", fault.New(fault.AuthenticationRequired, "Send one header Authorization: Bearer <API key>.")
	}
	scheme, credential, ok := strings.Cut(headers[0], " ")
	if credential = strings.TrimSpace(credential); !ok || !strings.EqualFold(scheme, "Bearer") || credential == "" {
		return "", fault.New(fault.AuthenticationRequired, "The header must be Authorization: Bearer <API key>.")
	}
	return credential, nil
}
