package server

import (
	"errors"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"helmr.dev/helmr/internal/fault"
	"helmr.dev/helmr/internal/id"
)

// Limits of pages and waiting.
const (
	defaultPage  = 50
	maxPage      = 100
	defaultBatch = 100
	maxBatch     = 1000
	maxWait      = 60 * time.Second
)

// param describes one query parameter of a route.
type param struct {
	name     string
	doc      string
	kind     string // string, integer
	enum     []string
	repeated bool
	check    func(value string) error // nil: any text
}

var (
	limitParam  = param{name: "limit", kind: "integer", doc: "Number of items, 1 to 100; 50 by default."}
	cursorParam = param{name: "cursor", kind: "string", doc: "next_cursor of the page before."}
	afterParam  = param{name: "after", kind: "integer", doc: "Sequence of the last event consumed; 0 by default."}
)

// paged gives params with those of a page.
func paged(params ...param) []param { return append(params, limitParam, cursorParam) }

// uuidParam is a filter by an identifier.
func uuidParam(name, doc string) param {
	return param{name: name, kind: "string", doc: doc, check: func(v string) error { return checkID(name, v) }}
}

func badParam(name, format string, args ...any) error {
	return fault.New(fault.BadRequest, format, args...).With("parameter", name)
}

// parseQuery reads the query strictly: only params, each once unless repeated, none empty.
func parseQuery(raw string, params []param) (url.Values, error) {
	if raw == "" {
		return nil, nil
	}
	query, err := url.ParseQuery(raw)
	if err != nil {
		return nil, fault.New(fault.BadRequest, "The query is malformed; percent-encode its values.").With("parameter", "query")
	}
	for name, values := range query {
		p := findParam(params, name)
		if p == nil {
			return nil, badParam(name, "%s is not a query parameter of this route.", strconv.Quote(name))
		}
		if len(values) > 1 && !p.repeated {
			return nil, badParam(name, "%s is given more than once.", name)
		}
		for _, v := range values {
			if err := p.accept(v); err != nil {
				return nil, err
			}
		}
	}
	return query, nil
}

func findParam(params []param, name string) *param {
	for i := range params {
		if params[i].name == name {
			return &params[i]
		}
	}
	return nil
}

func (p *param) accept(v string) error {
	switch {
	case v == "":
		return badParam(p.name, "%s must not be empty; leave it out instead.", p.name)
	case !utf8.ValidString(v) || strings.ContainsRune(v, 0):
		return badParam(p.name, "%s must be UTF-8 without NUL.", p.name)
	case p.enum != nil && !contains(p.enum, v):
		return badParam(p.name, "%s must be one of %s.", p.name, strings.Join(p.enum, ", "))
	case p.check != nil:
		return p.check(v)
	}
	return nil
}

// page reads limit and cursor.
func (c *call) page() (cursor string, limit int, err error) {
	limit, err = c.number("limit", defaultPage, 1, maxPage)
	return c.query.Get("cursor"), limit, err
}

// idCursor refuses a cursor of a list whose cursors are identifiers if it cannot have come from there.
func idCursor(cursor string) error {
	if cursor == "" || id.Valid(cursor) {
		return nil
	}
	return fault.New(fault.InvalidCursor, "cursor must be the next_cursor of the page before.").With("parameter", "cursor")
}

// number reads a whole number within bounds.
func (c *call) number(name string, otherwise, lowest, highest int) (int, error) {
	text := c.query.Get(name)
	if text == "" {
		return otherwise, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < lowest || n > highest {
		return 0, badParam(name, "%s must be a whole number from %d to %d.", name, lowest, highest)
	}
	return n, nil
}

// sequence reads an event sequence that a caller has consumed.
func sequence(name, text string) (int64, error) {
	if text == "" {
		return 0, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 {
		return 0, badParam(name, "%s must be the sequence of an event: a whole number from 0.", name)
	}
	return n, nil
}

var durationText = regexp.MustCompile(`^([0-9]{1,9})(ms|s|m)$`)

// wait reads the time a caller is ready to wait; zero means not at all.
func (c *call) wait() (time.Duration, error) {
	text := c.query.Get("wait")
	if text == "" {
		return 0, nil
	}
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 || !durationText.MatchString(text) {
		return 0, badParam("wait", `wait must be a duration like "30s".`)
	}
	if d > maxWait {
		return 0, badParam("wait", "wait must be at most 60s; ask again to wait longer.")
	}
	return d, nil
}

// pathChecks says what each variable part of a path must look like, before anything is looked up.
var pathChecks = map[string]func(name, value string) error{
	"session_id":     checkID,
	"turn_id":        checkID,
	"question_id":    checkID,
	"deployment_id":  checkID,
	"computer_id":    checkComputerID,
	"command_id":     checkCommandID,
	"preparation_id": checkID,
	"agent_id":       checkDeclared,
	"template_id":    checkDeclared,
	"secret_id":      checkDeclared,
	"worker_id":      checkID,
	"token_id":       checkID,
	"digest":         checkDigest,
}

func checkID(name, value string) error {
	if !id.Valid(value) {
		return badParam(name, "%s must be a canonical UUIDv7: lower case, with hyphens.", name)
	}
	return nil
}

func checkComputerID(name, value string) error {
	if !id.Valid(value) {
		return fault.New(fault.InvalidComputerReference, "%s must be a canonical UUIDv7: lower case, with hyphens.", name).With("parameter", name)
	}
	return nil
}

func checkCommandID(name, value string) error {
	if !id.Valid(value) {
		return fault.New(fault.InvalidCommandReference, "%s must be a canonical UUIDv7: lower case, with hyphens.", name).With("parameter", name)
	}
	return nil
}

func checkDeclared(name, value string) error {
	if !id.Declared(value) {
		return badParam(name, "%s must be 1 to 128 letters, digits, '.', '_' or '-', beginning with a letter or digit.", name)
	}
	return nil
}

var digestText = regexp.MustCompile(`^[0-9a-f]{64}$`)

func checkDigest(name, value string) error {
	if !digestText.MatchString(value) {
		return badParam(name, "%s must be a SHA-256 in 64 lower-case hex digits.", name)
	}
	return nil
}

// checkBody applies the check of a path part to a field of the body.
func checkBody(check func(name, value string) error, name, value string) error {
	err := check(name, value)
	if f, ok := errors.AsType[*fault.Error](err); ok {
		return fault.New(f.Code, "%s", f.Message).With("field", name)
	}
	return err
}
