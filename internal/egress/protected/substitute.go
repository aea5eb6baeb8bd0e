package protected

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"time"

	"golang.org/x/net/http/httpguts"

	"helmr.dev/helmr/internal/egress/authority"
)

// State is what is known of a placeholder at an origin.
type State int

// States of a placeholder.
const (
	Unknown   State = iota // no binding of the Computer has it
	Revoked                // its Secret is revoked
	Elsewhere              // its binding does not name the origin: it stays as it is
	Known                  // there is a value
)

// Value is what stands behind a placeholder. Text is overwritten after its use.
type Value struct {
	State State
	Text  []byte
}

// Resolve gives what stands behind placeholders of the Computer at an origin, in the order of the placeholders. It is called
// once for each request that has any, so that a rotation or a revocation is felt by the next one.
type Resolve func(ctx context.Context, origin string, placeholders []string) ([]Value, error)

// find lists the placeholders in headers, each once. One that is cut short is refused: what is half there may be a try to
// have it put together elsewhere.
func find(h http.Header) ([]string, *refusal) {
	var found []string
	for name, values := range h {
		if strings.Contains(strings.ToLower(name), authority.Prefix) {
			return nil, invalid()
		}
		for _, v := range values {
			if !strings.Contains(v, authority.Prefix) {
				continue
			}
			for _, p := range authority.Placeholders(v) {
				if len(p) != authority.PlaceholderLength {
					return nil, invalid()
				}
				if !slices.Contains(found, p) {
					found = append(found, p)
				}
				if len(found) > maxPlaceholders {
					return nil, &refusal{http.StatusBadRequest, ReasonPlaceholder, "the request has too many placeholders"}
				}
			}
		}
	}
	return found, nil
}

func invalid() *refusal {
	return &refusal{http.StatusForbidden, ReasonPlaceholder,
		"a header has a placeholder that is not one of this Computer's; take the value of the variable as it is"}
}

// substitute puts values in the place of placeholders in headers that are about to be sent. The headers are changed only
// when there is no refusal.
func (g *Guard) substitute(ctx context.Context, o Origin, h http.Header) *refusal {
	found, refused := find(h)
	if refused != nil || len(found) == 0 {
		return refused
	}
	values, refused := g.resolve(ctx, o, found)
	defer func() {
		for _, v := range values {
			clear(v.Text)
		}
	}()
	if refused != nil {
		return refused
	}
	var pairs []string
	for i, v := range values {
		switch {
		case v.State == Revoked:
			return &refusal{http.StatusForbidden, ReasonRevoked, "the Secret behind a placeholder in the headers is revoked"}
		case v.State == Elsewhere:
			continue
		case v.State != Known:
			return invalid()
		case len(v.Text) > maxHeader:
			return tooLarge()
		case !httpguts.ValidHeaderFieldValue(string(v.Text)):
			return &refusal{http.StatusBadGateway, ReasonValue,
				"the value of a Secret has line breaks or control characters, which no header may have; rotate it to one without"}
		}
		pairs = append(pairs, found[i], string(v.Text))
	}
	if len(pairs) == 0 {
		return nil
	}
	return replaceAll(h, strings.NewReplacer(pairs...))
}

func tooLarge() *refusal {
	return &refusal{http.StatusRequestHeaderFieldsTooLarge, ReasonTooLarge, "the headers are too large with the values in them"}
}

func replaceAll(h http.Header, with *strings.Replacer) *refusal {
	size := 0
	changed := map[string][]string{}
	for name, values := range h {
		out := values
		for i, v := range values {
			if strings.Contains(v, authority.Prefix) {
				if &out[0] == &values[0] {
					out = slices.Clone(values)
				}
				// Many placeholders of a long value would be very long: it is refused before it is made.
				if strings.Count(v, authority.Prefix) > maxPlaceholders {
					return tooLarge()
				}
				out[i] = with.Replace(v)
			}
			size += len(name) + len(out[i]) + 4
			if size > maxHeader {
				return tooLarge()
			}
		}
		if len(values) > 0 && &out[0] != &values[0] {
			changed[name] = out
		}
	}
	for name, values := range changed {
		h[name] = values
	}
	return nil
}

// resolve asks for values, as many questions at a time as the limit says.
func (g *Guard) resolve(ctx context.Context, o Origin, placeholders []string) ([]Value, *refusal) {
	ctx, cancel := context.WithTimeout(ctx, resolveTimeout)
	defer cancel()
	unresolved := &refusal{http.StatusServiceUnavailable, ReasonUnresolved, "the value of a Secret cannot be had at the moment; try again"}
	select {
	case g.resolutions <- struct{}{}:
		defer func() { <-g.resolutions }()
	case <-ctx.Done():
		return nil, unresolved
	}
	values, err := g.cfg.Resolve(ctx, o.String(), placeholders)
	if err != nil || len(values) != len(placeholders) {
		g.complain(err)
		return values, unresolved
	}
	return values, nil
}

// complain logs that values cannot be had, now and then: a Computer can make requests as fast as it likes.
func (g *Guard) complain(err error) {
	now := time.Now().UnixNano()
	if last := g.complained.Load(); now-last > int64(complainEvery) && g.complained.CompareAndSwap(last, now) {
		g.cfg.Log.Warn("values of protected Secrets could not be resolved", "computer", g.cfg.Computer, "error", err)
	}
}
