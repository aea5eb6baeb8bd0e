package server_test

import (
	"net/http"
	"strings"
	"testing"

	"helmr.dev/helmr/internal/db"
	"helmr.dev/helmr/internal/db/dbtest"
	"helmr.dev/helmr/internal/server/servertest"
)

func TestSpec_10_02_SecretRoutes(t *testing.T) {
	t.Parallel()
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		s := servertest.Start(t, d, nil)
		post := func(path, body string, headers ...string) reply {
			return ask(t, s.Key, http.MethodPost, s.URL+"/v1"+path, body, append([]string{"Content-Type", "application/json"}, headers...)...)
		}
		post("/secrets", `{"name":"TOKEN","value":"the-value-1"}`).want(t, http.StatusOK, "")
		post("/secrets", `{"name":"TOKEN","value":"the-value-2"}`).want(t, http.StatusConflict, "secret_exists")
		post("/secrets/TOKEN/rotate", `{"value":"the-value-3"}`).want(t, http.StatusBadRequest, "bad_request")
		post("/secrets/TOKEN/rotate", `{"value":"the-value-3"}`, "Idempotency-Key", "k").want(t, http.StatusOK, "")
		post("/secrets/TOKEN/rotate", `{"value":"the-value-4","idempotency_key":"k"}`).want(t, http.StatusConflict, "idempotency_conflict")
		post("/secrets/OTHER/rotate", `{"value":"the-value-3","idempotency_key":"k"}`).want(t, http.StatusNotFound, "not_found")
		post("/secrets/TOKEN/revoke", ``).want(t, http.StatusBadRequest, "bad_request")
		post("/secrets/TOKEN/revoke", `{"idempotency_key":"k"}`).want(t, http.StatusOK, "")
		post("/secrets/TOKEN/rotate", `{"value":"the-value-5","idempotency_key":"k5"}`).want(t, http.StatusConflict, "secret_unavailable")
		for query, code := range map[string]string{"?name=TOKEN": "", "?limit=1": "", "?name=TOKEN&limit=1": "bad_request", "?name=-": "bad_request", "?cursor=-": "invalid_cursor", "?value=x": "bad_request"} {
			status := http.StatusOK
			if code != "" {
				status = http.StatusBadRequest
			}
			ask(t, s.Key, http.MethodGet, s.URL+"/v1/secrets"+query, "").want(t, status, code)
		}
		ask(t, s.Key, http.MethodGet, s.URL+"/v1/computers?secret=TOKEN", "").want(t, http.StatusOK, "")
		ask(t, s.Key, http.MethodGet, s.URL+"/v1/computers?secret=OTHER", "").want(t, http.StatusNotFound, "not_found")
		ask(t, s.Key, http.MethodGet, s.URL+"/v1/computers?secret=TOKEN&key=k", "").want(t, http.StatusBadRequest, "bad_request")
		ask(t, s.OtherKey, http.MethodGet, s.URL+"/v1/secrets/TOKEN", "").want(t, http.StatusNotFound, "not_found")
		if strings.Contains(s.Log.String(), "the-value") {
			t.Error("the log shows a value")
		}
	})
}

func TestSpec_10_01_AnswersNeverShowAValue(t *testing.T) {
	t.Parallel()
	s := servertest.New(t, nil)
	const value = "hunter2hunter2"
	for _, body := range []string{
		`{"name":"N","value":"` + value + `"}`, `{"name":"N","value":"` + value + `"`, `{"name":"N","value":"` + value + `","value":"` + value + `"}`,
		`{"name":"N","value":["` + value + `"]}`, `{"name":"N","value":{"` + value + `":1}}`, `{"name":"N","value":"` + value + `\u0000"}`,
		`{"name":"-","value":"` + value + `"}`, `{"value":"` + value + `"}`, `{"name":"N","value":"` + value + `","other":1}`, `["` + value + `"]`, `"` + value + `"`,
		`{"name":"N","value":"` + value + strings.Repeat("x", 1<<20) + `"}`, value, `{"name":"N","value":"` + value + "\xff" + `"}`,
	} {
		for _, path := range []string{"/v1/secrets", "/v1/secrets/N/rotate", "/v1/secrets/N/revoke"} {
			r := ask(t, s.Key, http.MethodPost, s.URL+path, body, "Content-Type", "application/json", "Idempotency-Key", "k")
			if strings.Contains(r.body, value) {
				t.Errorf("%.60s to %s answers %s", body, path, r.body)
			}
		}
	}
	if strings.Contains(s.Log.String(), value) {
		t.Error("the log shows the value")
	}
}

func TestSpec_16_03_SecretBodies(t *testing.T) {
	t.Parallel()
	s := servertest.New(t, nil)
	body := func(size int) string {
		rest := `{"name":"N","value":""}`
		return rest[:len(rest)-2] + strings.Repeat("x", size-len(rest)) + `"}`
	}
	ask(t, s.Key, http.MethodPost, s.URL+"/v1/secrets", body(1<<20+1), "Content-Type", "application/json").want(t, http.StatusRequestEntityTooLarge, "request_too_large")
	ask(t, s.Key, http.MethodPost, s.URL+"/v1/secrets", body(1<<20), "Content-Type", "application/json").want(t, http.StatusOK, "")
	if strings.Contains(s.Log.String(), "xxxx") {
		t.Error("the log shows the value")
	}
}
