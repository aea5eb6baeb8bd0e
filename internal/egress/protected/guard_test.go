package protected

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
)

func TestSpec_10_11_PlaceholdersInHeadersBecomeValues(t *testing.T) {
	t.Parallel()
	protocols(t, func(t *testing.T, h2 bool) {
		l := setup(t, nil)
		c := l.client(h2)
		p := l.placeholder
		r := newRequest(t, "POST", "https://"+apiName+"/v1/messages?key="+p+"&x=%7B;y", strings.NewReader("body "+p),
			"Authorization", "Bearer "+p, "X-Two", p+" and "+p, "X-List", "a", "X-List", p, "Cookie", "k="+p, "X-Other", l.other, "X-Plain", "plain")
		code, body := l.do(c, r)
		var got request
		if err := json.Unmarshal([]byte(body), &got); err != nil || code != 200 {
			t.Fatalf("%d %s", code, body)
		}
		want := http.Header{"Authorization": {"Bearer " + secret}, "X-Two": {secret + " and " + secret}, "X-List": {"a", secret}, "Cookie": {"k=" + secret},
			"X-Other": {l.other}, "X-Plain": {"plain"}}
		for name, values := range want {
			if fmt.Sprint(got.Header[name]) != fmt.Sprint(values) {
				t.Errorf("%s is %q, want %q", name, got.Header[name], values)
			}
		}
		if got.URI != "/v1/messages?key="+p+"&x=%7B;y" || got.Body != "body "+p || got.Method != "POST" || got.Host != apiName || got.Name != apiName {
			t.Errorf("the origin received %+v", got)
		}
		if got.Proto != "HTTP/2.0" {
			t.Errorf("upstream is %s", got.Proto)
		}
		for _, name := range []string{"X-Forwarded-For", "Via", "Forwarded"} {
			if v := got.Header[name]; v != nil {
				t.Errorf("%s was added: %v", name, v)
			}
		}
		// To another origin it stays what it is.
		if _, body := l.do(c, newRequest(t, "GET", "https://"+sideName+"/", nil, "Authorization", p)); !strings.Contains(body, p) || strings.Contains(body, secret) {
			t.Errorf("at another origin: %s", body)
		}
		// Without a placeholder nobody is asked.
		l.mu.Lock()
		asked := l.asked
		l.mu.Unlock()
		l.do(c, newRequest(t, "GET", "https://"+apiName+"/", nil))
		if l.asked != asked {
			t.Error("a request without a placeholder has one resolved")
		}
	})
}

func TestSpec_10_11_NoRedirectsAreFollowed(t *testing.T) {
	t.Parallel()
	protocols(t, func(t *testing.T, h2 bool) {
		l := setup(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Host == sideName {
				t.Errorf("the redirect was followed with %v", r.Header)
			}
			w.Header().Set("Alt-Svc", `h3=":443"`)
			http.Redirect(w, r, "https://"+sideName+"/steal", http.StatusTemporaryRedirect)
		}))
		resp, err := l.client(h2).Do(newRequest(t, "GET", "https://"+apiName+"/", nil, "Authorization", l.placeholder))
		l.must(err)
		defer resp.Body.Close()
		if resp.StatusCode != 307 || resp.Header.Get("Location") != "https://"+sideName+"/steal" || resp.Header.Get("Alt-Svc") != "" {
			t.Errorf("%d %v", resp.StatusCode, resp.Header)
		}
	})
}

// TestSpec_10_12_EventsAndUploadsStream sends each piece only when the one before has arrived.
func TestSpec_10_12_EventsAndUploadsStream(t *testing.T) {
	t.Parallel()
	protocols(t, func(t *testing.T, h2 bool) {
		l := setup(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_ = http.NewResponseController(w).EnableFullDuplex()
			w.Header().Set("Content-Type", "text/event-stream")
			w.WriteHeader(200)
			_ = http.NewResponseController(w).Flush()
			buf := make([]byte, 64)
			for {
				n, err := r.Body.Read(buf)
				if n > 0 {
					fmt.Fprintf(w, "data: %s\n\n", buf[:n])
					_ = http.NewResponseController(w).Flush()
				}
				if err != nil {
					return
				}
			}
		}))
		pr, pw := io.Pipe()
		if !h2 {
			// Go's HTTP/1.1 client sends the head of a request with its first piece.
			go func() { _, _ = io.WriteString(pw, "hello") }()
		}
		resp, err := l.client(h2).Do(newRequest(t, "POST", "https://"+apiName+"/", pr, "Authorization", l.placeholder))
		l.must(err)
		defer resp.Body.Close()
		buf := make([]byte, 256)
		for i := range 5 {
			if h2 || i > 0 {
				if _, err := io.WriteString(pw, "hello"); err != nil {
					t.Fatal(err)
				}
			}
			n, err := io.ReadAtLeast(resp.Body, buf, len("data: hello\n\n"))
			if err != nil || string(buf[:n]) != "data: hello\n\n" {
				t.Fatalf("piece %d: %q %v", i, buf[:n], err)
			}
		}
		l.must(pw.Close())
		if rest, err := io.ReadAll(resp.Body); err != nil || len(rest) != 0 {
			t.Errorf("%q %v", rest, err)
		}
	})
}

func TestSpec_10_13_InvalidPlaceholdersAreNotForwarded(t *testing.T) {
	t.Parallel()
	protocols(t, func(t *testing.T, h2 bool) {
		l := setup(t, nil)
		c := l.client(h2)
		refuse := func(what, header, value string, code int, reason Reason) {
			t.Helper()
			resp, err := c.Do(newRequest(t, "GET", "https://"+apiName+"/", nil, header, value))
			l.must(err)
			defer resp.Body.Close()
			body, _ := io.ReadAll(resp.Body)
			if resp.StatusCode != code || resp.Header.Get("X-Helmr-Network") != string(reason) || strings.Contains(string(body), secret) {
				t.Errorf("%s: %d %s %s", what, resp.StatusCode, resp.Header.Get("X-Helmr-Network"), body)
			}
		}
		foreign := "hlmr_protected_" + strings.Repeat("0a", 20)
		refuse("another Computer's", "Authorization", "Bearer "+foreign, 403, ReasonPlaceholder)
		refuse("one beside a good one", "X-A", l.placeholder+" "+foreign, 403, ReasonPlaceholder)
		refuse("one that is cut short", "X-A", l.placeholder[:40], 403, ReasonPlaceholder)
		refuse("one within a placeholder", "X-A", "hlmr_protected_"+l.placeholder, 403, ReasonPlaceholder)
		refuse("one as a name", l.placeholder, "x", 403, ReasonPlaceholder)
		set := func(v Value) {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.value = v
		}
		set(Value{State: Revoked})
		refuse("a revoked one", "Authorization", l.placeholder, 403, ReasonRevoked)
		set(Value{State: Known, Text: []byte("a\r\nX-Injected: yes")})
		refuse("a value with a line break", "Authorization", l.placeholder, 502, ReasonValue)
		set(Value{State: Known, Text: []byte(strings.Repeat("v", maxHeader))})
		refuse("a long value", "Authorization", l.placeholder, 431, ReasonTooLarge)
		set(Value{State: Known, Text: []byte(strings.Repeat("v", 4000))})
		refuse("many of them", "Authorization", strings.Repeat(l.placeholder+",", 20), 431, ReasonTooLarge)
		refuse("very many of them", "Authorization", strings.Repeat(l.placeholder+",", 70), 431, ReasonTooLarge)
		if seen := l.arrived(); len(seen) != 0 {
			t.Errorf("forwarded: %+v", seen)
		}
		// The control: the same client is served.
		set(Value{State: Known, Text: []byte("second")})
		if code, body := l.do(c, newRequest(t, "GET", "https://"+apiName+"/", nil, "Authorization", l.placeholder)); code != 200 || !strings.Contains(body, `"second"`) {
			t.Errorf("%d %s", code, body)
		}
	})
}
