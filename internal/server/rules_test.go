package server_test

import (
	"net/http"
	"strings"
	"testing"

	"helmr.dev/helmr/client/api"
	"helmr.dev/helmr/internal/access"
	"helmr.dev/helmr/internal/db"
	"helmr.dev/helmr/internal/db/dbtest"
	"helmr.dev/helmr/internal/server/servertest"
)

func TestSpec_14_02_TheDefinitionIsNullWhereThereIsNone(t *testing.T) {
	t.Parallel()
	s := servertest.New(t, nil)
	c := s.Client(s.Key)
	first := servertest.Deploy(t, c, "one")
	second := servertest.Deploy(t, c, "two")
	for path, want := range map[string]string{
		"/agents/one":                            `"definition":null`,
		"/agents/one?deployment_id=" + first.ID:  `"definition":{"deployment_id":"` + first.ID + `"`,
		"/agents/two":                            `"definition":{"deployment_id":"` + second.ID + `"`,
		"/agents/two?deployment_id=" + first.ID:  `"definition":null`,
		"/agents/two?deployment_id=" + second.ID: `"definition":{`,
	} {
		r := ask(t, s.Key, http.MethodGet, s.URL+"/v1"+path, "")
		if r.want(t, http.StatusOK, ""); !strings.Contains(r.body, want) {
			t.Errorf("GET %s: %s, want %s", path, r.body, want)
		}
	}
	r := ask(t, s.Key, http.MethodGet, s.URL+"/v1/agents?scope=all", "")
	if r.want(t, http.StatusOK, ""); strings.Contains(r.body, "definition") || !strings.Contains(r.body, `"one"`) {
		t.Errorf("the list: %s", r.body)
	}
}

func TestSpec_01_15_WhoMayReadMayNotStartOrSteer(t *testing.T) {
	t.Parallel()
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		w := newWorld(t, d)
		var write []string
		for _, p := range access.Permissions {
			if !p.HumanOnly && !strings.HasSuffix(p.Name, ".read") {
				write = append(write, p.Scope())
			}
		}
		reader := w.KeyWithout(t, write...)
		before := ask(t, w.Key, http.MethodGet, w.URL+"/v1/sessions/"+w.mine["session_id"]+"/events", "").body
		refused := 0
		for _, rt := range w.Routes() {
			if rt.People { // no key may call these
				continue
			}
			url := w.URL + rt.Prefix + fill(rt.Path, w.mine) + query(rt)
			if rt.Method == http.MethodGet {
				if strings.HasSuffix(rt.Path, "/stream") {
					continue // the same permission, and it would not end
				}
				if r := ask(t, reader, rt.Method, url, ""); r.status == http.StatusForbidden {
					t.Errorf("GET %s is refused to who may read: %s", rt.Path, r.body)
				}
				continue
			}
			r := ask(t, reader, rt.Method, url, bodies[rt.Operation])
			r.want(t, http.StatusForbidden, "permission_required")
			refused++
		}
		if after := ask(t, w.Key, http.MethodGet, w.URL+"/v1/sessions/"+w.mine["session_id"]+"/events", "").body; after != before || refused < 15 {
			t.Errorf("%d refused; the Session changed from %s to %s", refused, before, after)
		}
		if s, err := w.Client(reader).GetSession(t.Context(), w.mine["session_id"]); err != nil || s.Status != "open" {
			t.Errorf("session %+v, %v", s, err)
		}
	})
}

func TestSpec_07_04_ARequestDoesNotSetUnusedRetention(t *testing.T) {
	t.Parallel()
	w := newWorld(t, dbtest.New(t, db.SQLite))
	for _, field := range []string{`"delete_after_unused":"1h"`, `"deleteAfterUnused":"1h"`, `"delete_after_unused_ms":1`} {
		r := ask(t, w.Key, http.MethodPost, w.URL+"/v1/computers", `{"template":"box",`+field+`}`)
		r.want(t, http.StatusBadRequest, "bad_request")
		if name, _, _ := strings.Cut(strings.Trim(field, `"`), `"`); r.Details["field"] != name {
			t.Errorf("details = %v, want field %s", r.Details, name)
		}
	}
	r := ask(t, w.Key, http.MethodPost, w.URL+"/v1/sessions", `{"agent":"mine","delete_after_unused":"1h","input":`+hello+`}`)
	r.want(t, http.StatusBadRequest, "bad_request")
}

func TestSpec_16_10_WaitIsAtMostAMinute(t *testing.T) {
	t.Parallel()
	w := newWorld(t, dbtest.New(t, db.SQLite))
	turn, command := "/sessions/"+w.mine["session_id"]+"/turns/"+w.mine["turn_id"], "/commands/"+w.mine["command_id"]
	if _, err := w.Client(w.Key).CancelSession(t.Context(), w.mine["session_id"], api.ControlRequest{}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Client(w.Key).CancelCommand(t.Context(), w.mine["command_id"], api.ControlRequest{}); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{turn, command} {
		for _, good := range []string{"60s", "1m", "60000ms", "1ms"} { // both are terminal, so that each answers at once
			ask(t, w.Key, http.MethodGet, w.URL+"/v1"+path+"?wait="+good, "").want(t, http.StatusOK, "")
		}
		for _, bad := range []string{"60001ms", "61s", "2m", "1h", "1d", "0s", "0", "30", "-1s", "1.5s", "s", "1s1s", "99999999999999999999s"} {
			r := ask(t, w.Key, http.MethodGet, w.URL+"/v1"+path+"?wait="+bad, "")
			r.want(t, http.StatusBadRequest, "bad_request")
			if r.Details["parameter"] != "wait" {
				t.Errorf("wait=%s: details = %v", bad, r.Details)
			}
		}
	}
	// Elsewhere there is nothing to wait for.
	for _, path := range []string{"/sessions", "/sessions/" + w.mine["session_id"], "/computers/" + w.mine["computer_id"]} {
		ask(t, w.Key, http.MethodGet, w.URL+"/v1"+path+"?wait=1s", "").want(t, http.StatusBadRequest, "bad_request")
	}
}
