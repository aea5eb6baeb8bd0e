package server_test

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"helmr.dev/helmr/client/api"
	"helmr.dev/helmr/internal/access"
	"helmr.dev/helmr/internal/db"
	"helmr.dev/helmr/internal/db/dbtest"
	"helmr.dev/helmr/internal/id"
	"helmr.dev/helmr/internal/server"
	"helmr.dev/helmr/internal/server/servertest"
)

// reply is an answer read whole.
type reply struct {
	status int
	header http.Header
	body   string
	api.Problem
}

// ask sends one request. headers are pairs; a body without a Content-Type among them is JSON.
func ask(t testing.TB, key, method, url, body string, headers ...string) reply {
	t.Helper()
	req, err := http.NewRequest(method, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	if body != "" {
		req, _ = http.NewRequest(method, url, strings.NewReader(body))
		req.Header.Set("Content-Type", "application/json")
	}
	if key != "" {
		req.Header.Set("Authorization", "Bearer "+key)
	}
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatalf("%s %s: %v", method, url, err)
	}
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatalf("%s %s: %v", method, url, err)
	}
	r := reply{status: res.StatusCode, header: res.Header, body: string(text)}
	if strings.HasPrefix(res.Header.Get("Content-Type"), "application/problem+json") {
		if err := json.Unmarshal(text, &r.Problem); err != nil {
			t.Fatalf("problem document: %v: %s", err, text)
		}
	}
	return r
}

// want checks status and code of an answer and what every answer has.
func (r reply) want(t testing.TB, status int, code string) {
	t.Helper()
	if r.status != status || r.Code != code {
		t.Errorf("answer is %d %q, want %d %q: %s", r.status, r.Code, status, code, r.body)
	}
	if !id.Valid(r.header.Get("X-Request-Id")) {
		t.Errorf("X-Request-Id = %q", r.header.Get("X-Request-Id"))
	}
	if code == "" {
		return
	}
	p := r.Problem
	if p.Status != status || p.RequestID != r.header.Get("X-Request-Id") || p.Type == "" || p.Title == "" || p.Detail == "" {
		t.Errorf("problem document is incomplete: %s", r.body)
	}
}

// world is one thing of each kind in the first Environment, and one of each in the other.
type world struct {
	*servertest.Server
	mine, foreign map[string]string // by name of the path part
}

func newWorld(t *testing.T, d *db.DB) *world {
	t.Helper()
	w := &world{Server: servertest.Start(t, d, nil)}
	each := func(key, agent string) map[string]string {
		c, ctx := w.Client(key), context.Background()
		dep := servertest.Deploy(t, c, agent)
		receipt, err := c.CreateSession(ctx, api.SessionCreateRequest{Agent: agent, Input: json.RawMessage(hello)})
		if err != nil {
			t.Fatalf("create session: %v", err)
		}
		if _, err := c.CreateSecret(ctx, api.SecretCreateRequest{Name: agent, Value: "value"}); err != nil {
			t.Fatalf("create secret: %v", err)
		}
		s, err := c.GetSession(ctx, receipt.SessionID)
		if err != nil {
			t.Fatalf("get session: %v", err)
		}
		k, err := c.CreateCommand(ctx, s.ComputerID, api.CommandCreateRequest{Command: []string{"true"}})
		if err != nil {
			t.Fatalf("create command: %v", err)
		}
		return map[string]string{"session_id": s.ID, "turn_id": receipt.TurnID, "computer_id": s.ComputerID, "deployment_id": dep.ID, "command_id": k.CommandID,
			"question_id": id.New(), "preparation_id": id.New(), "agent_id": agent, "template_id": "box", "secret_id": agent, "digest": strings.Repeat("ab", 32),
			"worker_id": id.New(), "token_id": id.New()}
	}
	w.mine, w.foreign = each(w.Key, "mine"), each(w.OtherKey, "theirs")
	return w
}

const hello = `[{"type":"text","text":"hello"}]`

// bodies is a request that each route accepts.
var bodies = map[string]string{
	"createSession":      `{"agent":"mine","input":` + hello + `}`,
	"enqueueTurn":        `{"input":` + hello + `}`,
	"sendToSession":      `{"data":` + hello + `}`,
	"sendMessage":        `{"data":` + hello + `}`,
	"respondToQuestion":  `{"answer":"yes","response_id":"r"}`,
	"interruptSession":   `{}`,
	"resumeSession":      `{"hold_id":"` + id.New() + `"}`,
	"closeSession":       `{}`,
	"cancelSession":      `{}`,
	"createComputer":     `{"template":"box"}`,
	"deleteComputer":     `{}`,
	"createCommand":      `{"command":["true"]}`,
	"cancelCommand":      `{}`,
	"drainWorker":        `{}`,
	"activateWorker":     `{}`,
	"createWorkerToken":  `{"name":"n"}`,
	"revokeWorkerToken":  `{}`,
	"createSecret":       `{"name":"ANOTHER","value":"v"}`,
	"rotateSecret":       `{"value":"v","idempotency_key":"k"}`,
	"revokeSecret":       `{"idempotency_key":"k"}`,
	"promoteDeployment":  `{}`,
	"planBundleUpload":   `{}`,
	"uploadBundleObject": `xyz`,
	"finalizeBundle":     `{"bundle_digest":"` + strings.Repeat("ab", 32) + `","idempotency_key":"k"}`,
}

var pathPart = regexp.MustCompile(`\{([a-z_]+)\}`)

// fill puts ids into a path.
func fill(path string, ids map[string]string) string {
	return pathPart.ReplaceAllStringFunc(path, func(part string) string { return ids[strings.Trim(part, "{}")] })
}

func TestSpec_16_04_EveryRouteAsksForCredentialAndPermission(t *testing.T) {
	t.Parallel()
	w := newWorld(t, dbtest.New(t, db.SQLite))
	for _, rt := range w.Routes() {
		t.Run(rt.Operation, func(t *testing.T) {
			t.Parallel()
			url, body := w.URL+rt.Prefix+fill(rt.Path, w.mine)+query(rt), bodies[rt.Operation]
			if rt.Method != http.MethodGet && body == "" {
				t.Fatalf("bodies lacks a request for %s", rt.Operation)
			}
			for _, key := range []string{"", "x", "hlmr_sk_" + strings.Repeat("A", 43)} {
				r := ask(t, key, rt.Method, url, body)
				r.want(t, http.StatusUnauthorized, "authentication_required")
				if !strings.HasPrefix(r.header.Get("WWW-Authenticate"), "Bearer") {
					t.Errorf("WWW-Authenticate = %q", r.header.Get("WWW-Authenticate"))
				}
			}
			p, known := access.Find(rt.Permission)
			if rt.People {
				if !known || !p.HumanOnly {
					t.Fatalf("permission %q is not one of people", rt.Permission)
				}
				ask(t, w.Key, rt.Method, url, body).want(t, http.StatusForbidden, "human_required")
				return
			}
			if !known || p.HumanOnly {
				t.Fatalf("permission %q is not one of API keys", rt.Permission)
			}
			without := []string{p.Scope()}
			if rt.Also != "" {
				also, _ := access.Find(rt.Also)
				without = append(without, also.Scope())
			}
			r := ask(t, w.KeyWithout(t, without...), rt.Method, url, body)
			r.want(t, http.StatusForbidden, "permission_required")
			if r.Details["permission"] != rt.Permission {
				t.Errorf("details.permission = %v, want %s", r.Details["permission"], rt.Permission)
			}
		})
	}
}

// query gives the query that a route insists on.
func query(rt server.RouteInfo) string {
	if rt.Operation == "uploadBundleObject" {
		return "?size=3"
	}
	return ""
}

func TestSpec_01_07_ForeignIsLikeUnknown(t *testing.T) {
	t.Parallel()
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		w := newWorld(t, d)
		unknown := map[string]string{"session_id": id.New(), "turn_id": id.New(), "computer_id": id.New(), "deployment_id": id.New(), "command_id": id.New(),
			"question_id": id.New(), "preparation_id": id.New(), "agent_id": "nobody", "template_id": "nothing", "secret_id": "nothing", "digest": strings.Repeat("cd", 32)}
		for _, rt := range w.Routes() {
			names := pathPart.FindAllStringSubmatch(rt.Path, -1)
			if len(names) == 0 || rt.People { // nothing of these is an Environment's
				continue
			}
			t.Run(rt.Operation, func(t *testing.T) {
				// Each variable part in turn is foreign, then unknown; the others are the caller's own.
				for _, name := range names {
					var got [2]reply
					for i, ids := range []map[string]string{w.foreign, unknown} {
						if name[1] == "template_id" && i == 0 {
							continue // "box" exists in both Environments
						}
						parts := map[string]string{}
						for k, v := range w.mine {
							parts[k] = v
						}
						parts[name[1]] = ids[name[1]]
						got[i] = ask(t, w.Key, rt.Method, w.URL+rt.Prefix+fill(rt.Path, parts)+query(rt), bodies[rt.Operation])
						if got[i].status != http.StatusNotFound {
							t.Errorf("%s of kind %d: %d %s", name[1], i, got[i].status, got[i].body)
						}
					}
					if got[0].status != 0 && got[0].Code != got[1].Code {
						t.Errorf("%s: foreign answers %q, unknown %q", name[1], got[0].Code, got[1].Code)
					}
				}
			})
		}
		// Nothing of the other Environment shows in lists, or through a Deployment named in the query.
		for _, path := range []string{"/sessions", "/computers", "/agents?scope=all", "/deployments", "/templates", "/secrets"} {
			r := ask(t, w.Key, http.MethodGet, w.URL+"/v1"+path, "")
			r.want(t, http.StatusOK, "")
			for name, foreign := range w.foreign {
				if name != "template_id" && strings.Contains(r.body, foreign) {
					t.Errorf("GET %s shows the other Environment's %s: %s", path, name, r.body)
				}
			}
		}
		for _, path := range []string{"/agents", "/templates", "/agents/mine", "/templates/box"} {
			r := ask(t, w.Key, http.MethodGet, w.URL+"/v1"+path+"?deployment_id="+w.foreign["deployment_id"], "")
			if r.status != http.StatusNotFound {
				t.Errorf("GET %s of a foreign Deployment: %d %s", path, r.status, r.body)
			}
		}
	})
}

func TestSpec_01_01_MalformedIDsAreRefusedBeforeLookup(t *testing.T) {
	t.Parallel()
	w := newWorld(t, dbtest.New(t, db.SQLite))
	codes := map[string]string{"computer_id": "invalid_computer_reference", "command_id": "invalid_command_reference"}
	for _, rt := range w.Routes() {
		for _, name := range pathPart.FindAllStringSubmatch(rt.Path, -1) {
			for _, bad := range []string{"x%20y", "%ff", "a%2fb", "-", strings.ToUpper(w.mine["session_id"]) + "%00"} {
				parts := map[string]string{}
				for k, v := range w.mine {
					parts[k] = v
				}
				parts[name[1]] = bad
				want := codes[name[1]]
				if want == "" {
					want = "bad_request"
				}
				key := w.Key
				if rt.People {
					key = w.OwnerToken
				}
				r := ask(t, key, rt.Method, w.URL+rt.Prefix+fill(rt.Path, parts)+query(rt), bodies[rt.Operation])
				r.want(t, http.StatusBadRequest, want)
				if r.Details["parameter"] != name[1] {
					t.Errorf("%s with %q: details = %v", rt.Path, bad, r.Details)
				}
			}
		}
	}
}

func TestDocumentShowsEveryRoute(t *testing.T) {
	t.Parallel()
	s := servertest.New(t, nil)
	r := ask(t, "", http.MethodGet, s.URL+"/openapi.json", "")
	r.want(t, http.StatusOK, "")
	var doc struct {
		OpenAPI    string                                `json:"openapi"`
		Paths      map[string]map[string]json.RawMessage `json:"paths"`
		Components struct {
			Schemas map[string]json.RawMessage `json:"schemas"`
		} `json:"components"`
	}
	if err := json.Unmarshal([]byte(r.body), &doc); err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(doc.OpenAPI, "3.1") {
		t.Errorf("openapi = %q", doc.OpenAPI)
	}
	for _, rt := range s.Routes() {
		op := string(doc.Paths[rt.Prefix+rt.Path][strings.ToLower(rt.Method)])
		if !strings.Contains(op, `"operationId":"`+rt.Operation+`"`) || !strings.Contains(op, rt.Permission) {
			t.Errorf("%s %s is not in the document: %s", rt.Method, rt.Path, op)
		}
	}
	for _, ref := range regexp.MustCompile(`"\$ref":"#/components/schemas/([^"]+)"`).FindAllStringSubmatch(r.body, -1) {
		if doc.Components.Schemas[ref[1]] == nil {
			t.Errorf("schema %s is missing", ref[1])
		}
	}
	if created := string(doc.Components.Schemas["Session"]); !strings.Contains(created, `"format":"date-time"`) {
		t.Errorf("times are not described as such: %s", created)
	}
}
