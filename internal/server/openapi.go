package server

import (
	"encoding/json"
	"fmt"
	"net/http"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"helmr.dev/helmr/client/api"
)

// serveDocument makes the OpenAPI 3.1 document of the route table once and serves it. huma turns Go types into schemas;
// requests do not pass through it, because the contract is stricter than it is: names are case-sensitive, nothing may
// follow a body, unknown query parameters are refused, and content stays as sent.
func (s *Server) serveDocument() http.Handler {
	text, err := json.Marshal(s.document())
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if err != nil {
			s.fail(rw.(*answer), r, fmt.Errorf("encode the OpenAPI document: %w", err))
			return
		}
		rw.(*answer).send(http.StatusOK, "application/json", text)
	})
}

// document describes the route table.
func (s *Server) document() *huma.OpenAPI {
	version := s.config.Version
	if version == "" {
		version = "0"
	}
	registry := huma.NewMapRegistry("#/components/schemas/", huma.DefaultSchemaNamer)
	registry.RegisterTypeAlias(reflect.TypeFor[api.Time](), reflect.TypeFor[time.Time]())
	doc := &huma.OpenAPI{
		OpenAPI: "3.1.0",
		Info:    &huma.Info{Title: "helmr", Version: version, Description: "Agents that answer Turns in durable Computers."},
		Components: &huma.Components{
			Schemas: registry,
			SecuritySchemes: map[string]*huma.SecurityScheme{"apiKey": {Type: "http", Scheme: "bearer", BearerFormat: "hlmr_sk_..."},
				"person": {Type: "http", Scheme: "bearer", BearerFormat: "hlmr_own_..."}},
		},
		Security: []map[string][]string{{"apiKey": {}}},
	}
	problem := registry.Schema(reflect.TypeFor[api.Problem](), true, "Problem")
	for i := range s.table {
		doc.AddOperation(operation(&s.table[i], registry, problem))
	}
	return doc
}

// operation describes one route.
func operation(rt *route, registry huma.Registry, problem *huma.Schema) *huma.Operation {
	op := &huma.Operation{
		Method: rt.method, Path: rt.prefix() + rt.path, OperationID: rt.operation, Summary: rt.summary, Tags: []string{rt.tag},
		Description: "Permission: `" + rt.permission + "` (API key scope `" + scopeText(rt.permission) + "`).",
		Responses:   map[string]*huma.Response{},
	}
	if rt.people {
		op.Description = "Permission: `" + rt.permission + "`, of people only."
		op.Security = []map[string][]string{{"person": {}}}
	}
	for _, part := range strings.Split(rt.path, "/") {
		if name, ok := strings.CutPrefix(part, "{"); ok {
			op.Parameters = append(op.Parameters, &huma.Param{Name: strings.TrimSuffix(name, "}"), In: "path", Required: true, Schema: &huma.Schema{Type: huma.TypeString}})
		}
	}
	for _, p := range rt.query {
		op.Parameters = append(op.Parameters, queryParam(p))
	}
	if rt.stream != "" && rt.method == http.MethodGet {
		op.Parameters = append(op.Parameters, &huma.Param{Name: "Last-Event-ID", In: "header", Schema: &huma.Schema{Type: huma.TypeInteger},
			Description: "Sequence of the last event received; counts before after."})
	}
	if rt.key != keyNone {
		op.Parameters = append(op.Parameters, &huma.Param{Name: "Idempotency-Key", In: "header", Schema: &huma.Schema{Type: huma.TypeString},
			Description: "The idempotency key, instead of idempotency_key in the body."})
	}
	op.RequestBody = requestBody(rt, registry)
	switch {
	case rt.stream != "":
		op.Responses["200"] = &huma.Response{Description: "An event stream.", Content: map[string]*huma.MediaType{rt.stream: {Schema: &huma.Schema{Type: huma.TypeString}}}}
	case rt.handler.out != nil:
		op.Responses[strconv.Itoa(rt.success())] = &huma.Response{Description: http.StatusText(rt.success()), Content: map[string]*huma.MediaType{"application/json": {Schema: registry.Schema(rt.handler.out, true, rt.operation)}}}
	default:
		op.Responses["204"] = &huma.Response{Description: "Done."}
	}
	op.Responses["default"] = &huma.Response{Description: "A problem (RFC 9457) with a stable code.",
		Content: map[string]*huma.MediaType{"application/problem+json": {Schema: problem}}}
	return op
}

func queryParam(p param) *huma.Param {
	schema := &huma.Schema{Type: p.kind}
	for _, v := range p.enum {
		schema.Enum = append(schema.Enum, v)
	}
	out := &huma.Param{Name: p.name, In: "query", Description: p.doc, Schema: schema}
	if p.repeated {
		explode := true
		out.Schema, out.Explode = &huma.Schema{Type: huma.TypeArray, Items: schema}, &explode
	}
	return out
}

func requestBody(rt *route, registry huma.Registry) *huma.RequestBody {
	switch {
	case rt.accepts != "":
		return &huma.RequestBody{Required: true, Content: map[string]*huma.MediaType{rt.accepts: {Schema: &huma.Schema{}}}}
	case rt.handler.in != nil:
		return &huma.RequestBody{Required: anyRequired(rt.handler.in), Content: map[string]*huma.MediaType{
			"application/json": {Schema: registry.Schema(rt.handler.in, true, rt.operation)}}}
	}
	return nil
}

func anyRequired(t reflect.Type) bool {
	for _, m := range shapeOf(t) {
		if m.required {
			return true
		}
	}
	return false
}
