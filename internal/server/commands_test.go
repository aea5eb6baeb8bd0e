package server_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"helmr.dev/helmr/client"
	"helmr.dev/helmr/client/api"
	"helmr.dev/helmr/internal/computer"
	"helmr.dev/helmr/internal/db"
	"helmr.dev/helmr/internal/db/dbtest"
	"helmr.dev/helmr/internal/server"
	"helmr.dev/helmr/internal/server/servertest"
	workerpb "helmr.dev/helmr/internal/worker/proto"
)

// commandWorld is a Computer whose Worker the test plays.
type commandWorld struct {
	*servertest.Server
	t          *testing.T
	c          *client.Client
	computerID string
	lease      *workerpb.ExchangeRequest
	next       int64 // number of the next chunk of stdout
}

func newCommandWorld(t *testing.T, d *db.DB, change func(*server.Config)) *commandWorld {
	t.Helper()
	w := &commandWorld{Server: servertest.Start(t, d, change), t: t, next: 1}
	w.c = w.Client(w.Key)
	servertest.Deploy(t, w.c, "a")
	receipt, err := w.c.CreateComputer(t.Context(), api.ComputerCreateRequest{Template: "box", Key: "k"})
	w.must(err)
	w.computerID = receipt.ComputerID
	return w
}

func (w *commandWorld) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *commandWorld) exec(argv ...string) string {
	w.t.Helper()
	r, err := w.c.CreateCommand(w.t.Context(), w.computerID, api.CommandCreateRequest{Command: argv})
	w.must(err)
	return r.CommandID
}

// place puts the Computer on a Worker and begins its Commands.
func (w *commandWorld) place() {
	w.t.Helper()
	computers := computer.NewService(w.DB, time.Now)
	workerID, err := computers.RegisterWorker(w.t.Context(), &workerpb.RegisterRequest{Name: "w", Secret: strings.Repeat("s", 32), CpuMillis: 64000, MemoryMib: 64 << 10, DiskMib: 4 << 20})
	w.must(err)
	for _, p := range computers.Loops() {
		if p.Name == "computer.dispatch" {
			_, err := p.Run(w.t.Context())
			w.must(err)
		}
	}
	leases, err := computers.Heartbeat(w.t.Context(), workerID, false)
	w.must(err)
	if len(leases) != 1 {
		w.t.Fatalf("leases: %v", leases)
	}
	w.lease = &workerpb.ExchangeRequest{WorkerId: workerID, ComputerId: w.computerID, Epoch: leases[0].GetEpoch(), Phase: workerpb.Phase_PHASE_RUNNING, GuestConnected: true}
	w.exchange()
}

func (w *commandWorld) exchange(commands ...*workerpb.ObservedCommand) *workerpb.ExchangeResponse {
	w.t.Helper()
	w.lease.Commands = commands
	resp, err := w.Turn.Exchange(context.Background(), w.lease)
	w.must(err)
	return resp
}

// write has a Command write to stdout.
func (w *commandWorld) write(commandID, text string) {
	w.t.Helper()
	_, err := w.Command.StoreOutput(context.Background(), &workerpb.StoreOutputRequest{WorkerId: w.lease.GetWorkerId(), ComputerId: w.computerID, Epoch: w.lease.GetEpoch(),
		Output: []*workerpb.Output{{CommandId: commandID, Stream: 1, First: w.next, Lengths: []int32{int32(len(text))}, Data: []byte(text)}}})
	w.must(err)
	w.next++
}

func (w *commandWorld) end(commandID string, code int32, drained bool) {
	w.t.Helper()
	w.exchange(&workerpb.ObservedCommand{CommandId: commandID, Started: true, Drained: drained, Exit: &workerpb.CommandExit{ExitCode: code}})
}

// record reads one event of a log stream, past heartbeats; cursor 0 is an event without one.
func record(t testing.TB, next func() (frame, error), cursor int, kind string) frame {
	t.Helper()
	f, err := next()
	for err == nil && f.event == "" {
		f, err = next() // a heartbeat
	}
	want := ""
	if cursor > 0 {
		want = fmt.Sprint(cursor)
	}
	if err != nil || f.event != kind || f.id != want {
		t.Fatalf("event %+v, %v, want %d %s", f, err, cursor, kind)
	}
	return f
}

func TestSpec_08_16_WaitAnswersAtTheOutcome(t *testing.T) {
	t.Parallel()
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		w := newCommandWorld(t, d, nil)
		k := w.exec("true")
		w.place()
		got := make(chan api.Command, 1)
		go func() {
			k, err := w.c.WaitCommand(context.Background(), k)
			if err != nil {
				t.Error(err)
			}
			got <- k
		}()
		w.WaitOpen(t, 1)
		w.end(k, 3, true)
		if k := <-got; k.Status != "exited" || *k.Outcome.ExitCode != 3 || !k.ProcessReconciled {
			t.Fatalf("%+v", k)
		}
		k = w.exec("sleep")
		r := ask(t, w.Key, http.MethodGet, w.URL+"/v1/commands/"+k+"?wait=1ms", "")
		if r.status != 200 || !strings.Contains(r.body, `"status":"pending"`) || strings.Contains(r.body, "outcome") {
			t.Fatalf("%d %s", r.status, r.body)
		}
		ask(t, w.Key, http.MethodGet, w.URL+"/v1/commands/"+k+"?wait=61s", "").want(t, 400, "bad_request")
		ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
		defer cancel()
		if _, err := w.c.WaitCommand(ctx, k); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
		if k, err := w.c.GetCommand(context.Background(), k); err != nil || k.Terminal() { // a wait that is over ends nothing
			t.Fatalf("%+v %v", k, err)
		}
	})
}

func TestSpec_08_20_LogStream(t *testing.T) {
	t.Parallel()
	dbtest.Each(t, func(t *testing.T, d *db.DB) {
		w := newCommandWorld(t, d, func(c *server.Config) { c.Heartbeat = 20 * time.Millisecond })
		k := w.exec("true")
		w.place()
		url := w.URL + "/v1/commands/" + k + "/logs/stream"
		next, _ := stream(t, w.Key, url)
		if f, err := next(); err != nil || f.comment != "heartbeat" {
			t.Fatalf("%+v %v", f, err)
		}
		for i := range 3 {
			w.write(k, fmt.Sprint("piece ", i))
			f := record(t, next, i+1, "output")
			if want := base64.StdEncoding.EncodeToString([]byte(fmt.Sprint("piece ", i))); !strings.Contains(f.data, want) || !strings.Contains(f.data, fmt.Sprintf(`"cursor":"%d"`, i+1)) {
				t.Fatalf("%s lacks %s", f.data, want)
			}
		}
		// From a cursor: the header counts before the query.
		late, _ := stream(t, w.Key, url+"?after=1", "Last-Event-ID", "2")
		record(t, late, 3, "output")
		w.end(k, 0, false)
		w.write(k, "the last")
		record(t, next, 4, "output")
		record(t, late, 4, "output")
		w.end(k, 0, true)
		record(t, next, 0, "end")
		record(t, late, 0, "end")
		if _, err := next(); err == nil {
			t.Fatal("the stream goes on after its end")
		}
		after, _ := stream(t, w.Key, url+"?after=3")
		record(t, after, 4, "output")
		record(t, after, 0, "end")
		ask(t, w.Key, http.MethodGet, url+"?after=9", "").want(t, 400, "invalid_cursor")
		ask(t, w.Key, http.MethodGet, w.URL+"/v1/commands/"+k+"/logs?cursor=x", "").want(t, 400, "invalid_cursor")
		ask(t, w.Key, http.MethodGet, w.URL+"/v1/commands/"+k+"/logs?limit=101", "").want(t, 400, "bad_request")
	})
}

func TestOutputThatIsLostEndsTheStreamWithACode(t *testing.T) {
	t.Parallel()
	w := newCommandWorld(t, dbtest.New(t, db.SQLite), nil)
	k := w.exec("true")
	w.place()
	w.exchange(&workerpb.ObservedCommand{CommandId: k, Started: true})
	w.write(k, "half")
	w.lease.Phase = workerpb.Phase_PHASE_LOST
	w.exchange()
	var got []string
	var last error
	for r, err := range w.c.StreamCommandLogs(t.Context(), k, "") {
		if err != nil {
			last = err
			break
		}
		got = append(got, string(r.Content))
	}
	var e *client.Error
	if strings.Join(got, "") != "half" || !errors.As(last, &e) || e.Code != "command_output_unavailable" {
		t.Fatalf("%q, %v", got, last)
	}
	next, _ := stream(t, w.Key, w.URL+"/v1/commands/"+k+"/logs/stream")
	record(t, next, 1, "output")
	if f := record(t, next, 0, "error"); !strings.Contains(f.data, `"code":"command_output_unavailable"`) {
		t.Fatalf("%+v", f)
	}
}

// TestClientFollowsALargeOutput has many writers' worth of bytes arrive while a client follows; none is lost or doubled.
func TestClientFollowsALargeOutput(t *testing.T) {
	t.Parallel()
	w := newCommandWorld(t, dbtest.New(t, db.SQLite), nil)
	k := w.exec("true")
	w.place()
	var want bytes.Buffer
	var writer sync.WaitGroup
	writer.Go(func() {
		for i := range 100 {
			piece := bytes.Repeat([]byte{byte(i), 0xff, 0}, 20_000)
			want.Write(piece)
			w.write(k, string(piece))
		}
		w.end(k, 0, true)
	})
	var got bytes.Buffer
	for r, err := range w.c.StreamCommandLogs(t.Context(), k, "") {
		w.must(err)
		got.Write(r.Content)
	}
	writer.Wait()
	if !bytes.Equal(got.Bytes(), want.Bytes()) {
		t.Fatalf("%d bytes, want %d", got.Len(), want.Len())
	}
}

func TestCommandRequestsAreChecked(t *testing.T) {
	t.Parallel()
	w := newCommandWorld(t, dbtest.New(t, db.SQLite), nil)
	url := w.URL + "/v1/computers/" + w.computerID + "/commands"
	for body, want := range map[string]string{
		`{"command":[]}`:                              "invalid_computer_command",
		`{"command":["a\u0000b"]}`:                    "invalid_computer_command",
		`{"command":["x"],"cwd":"a"}`:                 "invalid_computer_command",
		`{"command":["x"],"env":{"HELMR_A":"1"}}`:     "invalid_computer_command",
		`{"command":["x"],"env":{"A":"1","A":"2"}}`:   "bad_request",
		`{"command":["x"],"env":{"A":1}}`:             "bad_request",
		`{"command":["x"],"env":[]}`:                  "bad_request",
		`{"command":"x"}`:                             "bad_request",
		`{"command":["x"],"shell":true}`:              "bad_request",
		`{}`:                                          "bad_request",
		`{"command":["x"],"timeout":"5 minutes"}`:     "invalid_computer_command",
		`{"command":["x"],"stdin_base64":"not this"}`: "invalid_computer_command",
	} {
		ask(t, w.Key, http.MethodPost, url, body).want(t, 400, want)
	}
	r := ask(t, w.Key, http.MethodPost, url, `{"command":["x"],"env":{"A":"1","B":""},"cwd":"/","timeout":"1d","stdin_base64":"AP8="}`)
	if r.want(t, http.StatusAccepted, ""); !strings.Contains(r.body, `"command_id"`) {
		t.Fatal(r.body)
	}
	big := func(n int) string { return `{"command":["x"],"stdin_base64":"` + strings.Repeat("A", n) + `"}` }
	ask(t, w.Key, http.MethodPost, url, big(4*((1<<20)/3+2))).want(t, http.StatusRequestEntityTooLarge, "computer_stdin_too_large")
	ask(t, w.Key, http.MethodPost, url, big(2<<20)).want(t, http.StatusRequestEntityTooLarge, "computer_command_request_too_large")
	r = ask(t, w.Key, http.MethodPost, w.URL+"/v1/computers", `{"template":"box"}`)
	r.want(t, http.StatusCreated, "")
	ask(t, w.Key, http.MethodPost, w.URL+"/v1/computers", `{"template":"box","key":"k"}`).want(t, http.StatusConflict, "computer_key_conflict")
	ask(t, w.Key, http.MethodPost, w.URL+"/v1/computers", `{"template":"none"}`).want(t, http.StatusNotFound, "not_found")
	ask(t, w.Key, http.MethodDelete, w.URL+"/v1/computers/"+w.computerID, "").want(t, http.StatusConflict, "computer_busy")
	ask(t, w.Key, http.MethodGet, w.URL+"/v1/computers?key=k&limit=1", "").want(t, http.StatusBadRequest, "bad_request")
}

func TestClientOfComputersAndCommands(t *testing.T) {
	t.Parallel()
	w := newCommandWorld(t, dbtest.New(t, db.SQLite), nil)
	ctx := t.Context()
	k := w.exec("true")
	use, err := w.c.ListComputerCommands(ctx, w.computerID, "", 1)
	w.must(err)
	if len(use.Commands) != 1 || use.Commands[0].ID != k || use.Commands[0].UsageState != "admitted" {
		t.Fatalf("%+v", use)
	}
	sessions, err := w.c.ListComputerSessions(ctx, w.computerID, "", 0)
	w.must(err)
	if len(sessions.Sessions) != 0 {
		t.Fatalf("%+v", sessions)
	}
	receipt, err := w.c.CancelCommand(ctx, k, api.ControlRequest{})
	w.must(err)
	if receipt.TargetID != k {
		t.Fatalf("%+v", receipt)
	}
	page, err := w.c.ListCommandLogs(ctx, k, "", 0)
	w.must(err)
	if page.OutputState != "closed" || page.NextCursor != "" {
		t.Fatalf("%+v", page)
	}
	deleted, err := w.c.DeleteComputer(ctx, w.computerID, api.ControlRequest{IdempotencyKey: "d"})
	w.must(err)
	again, err := w.c.DeleteComputer(ctx, w.computerID, api.ControlRequest{IdempotencyKey: "d"})
	w.must(err)
	m, err := w.c.GetComputer(ctx, w.computerID)
	w.must(err)
	if deleted != again || deleted.ComputerID != w.computerID || m.Status != "deleted" {
		t.Fatalf("%+v %+v %s", deleted, again, m.Status)
	}
}

func TestSpec_07_08_AListTakesAKeyOrAPage(t *testing.T) {
	t.Parallel()
	s := servertest.New(t, nil)
	c := s.Client(s.Key)
	servertest.Deploy(t, c, "one")
	var ids []string
	for _, key := range []string{"a", "b", ""} {
		r, err := c.CreateComputer(t.Context(), api.ComputerCreateRequest{Template: "box", Key: key})
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, r.ComputerID)
	}
	for query, status := range map[string]int{
		"": 200, "?key=a": 200, "?limit=2": 200, "?limit=2&cursor=" + ids[2]: 200, "?secret=S": 404, "?secret=S&limit=1&cursor=" + ids[2]: 404,
		"?key=a&limit=2": 400, "?key=a&cursor=" + ids[2]: 400, "?key=a&secret=S": 400, "?key=a&template=t": 400, "?limit=0": 400, "?limit=101": 400,
	} {
		r := ask(t, s.Key, http.MethodGet, s.URL+"/v1/computers"+query, "")
		code := map[int]string{200: "", 400: "bad_request", 404: "not_found"}[status]
		if r.want(t, status, code); strings.Contains(r.body, `"secrets"`) {
			t.Errorf("items of %s have secrets: %s", query, r.body)
		}
		if query == "?key=a" && (!strings.Contains(r.body, ids[0]) || strings.Contains(r.body, ids[1]) || strings.Contains(r.body, "next_cursor")) {
			t.Errorf("the one with the key: %s", r.body)
		}
	}
	if r := ask(t, s.Key, http.MethodGet, s.URL+"/v1/computers/"+ids[0], ""); !strings.Contains(r.body, `"secrets":[]`) {
		t.Errorf("one alone: %s", r.body)
	}
}
