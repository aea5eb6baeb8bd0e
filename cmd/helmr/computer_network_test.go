package main

import (
	"context"
	"strings"
	"testing"

	"helmr.dev/helmr/client/api"
)

// Who follows sees each attempt once, and again when it was repeated, in the order in which they came.
func TestFollowedAttemptsAreShownOnce(t *testing.T) {
	t.Parallel()
	at := func(name string, count, second int64) api.NetworkAttempt {
		return api.NetworkAttempt{Kind: "dns", Name: name, Outcome: "refused", Reason: "name_not_allowed", Count: count, LastAt: api.At(second * 1000)}
	}
	names := func(list []api.NetworkAttempt) string {
		var out []string
		for _, a := range list {
			out = append(out, a.Name)
		}
		return strings.Join(out, " ")
	}
	first := []api.NetworkAttempt{at("b", 1, 2), at("a", 1, 1)}
	for _, c := range []struct {
		seen, now []api.NetworkAttempt
		want      string
	}{
		{nil, first, "a b"},
		{first, first, ""},
		{first, []api.NetworkAttempt{at("a", 2, 4), at("c", 1, 3), at("b", 1, 2)}, "c a"},
	} {
		if got := names(freshAttempts(c.seen, c.now)); got != c.want {
			t.Errorf("shown: %q, want %q", got, c.want)
		}
	}
}

// The end of watching says how to look again.
func TestSpec_17_06_FollowingANetworkEndsWithTheWatcher(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.deploy(t, "reviewer")
	id := strings.TrimSpace(w.ok(t, "computer", "create", "box"))
	ctx, cancel := context.WithTimeout(t.Context(), networkEvery)
	defer cancel()
	if r := w.runIn(ctx, "", "computer", "network", id, "--follow"); r.status != exitFailed || !strings.Contains(r.stderr, "helmr computer network "+id+" --follow") {
		t.Errorf("%+v", r)
	}
}
