package server

import (
	"encoding/json"
	"strings"
	"testing"

	"helmr.dev/helmr/client/api"
	"helmr.dev/helmr/internal/fault"
)

// shape is a request with every kind of field.
type shape struct {
	Name  string          `json:"name" minLength:"2" maxLength:"4"`
	Kind  string          `json:"kind,omitempty" enum:"a,b"`
	Count int64           `json:"count,omitempty"`
	On    bool            `json:"on,omitempty"`
	Raw   json.RawMessage `json:"raw,omitempty"`
	List  []string        `json:"list,omitempty"`
	Inner *inner          `json:"inner,omitempty"`
	Days  *int64          `json:"days,omitempty"`
}

type inner struct {
	X string `json:"x"`
}

func TestSpec_16_02_BodiesAreStrict(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ body, field string }{
		"unknown field":           {`{"name":"abc","nme":1}`, "nme"},
		"unknown nested field":    {`{"name":"abc","inner":{"x":"1","y":2}}`, "inner.y"},
		"other case":              {`{"Name":"abc"}`, "Name"},
		"repeated field":          {`{"name":"abc","name":"abd"}`, "name"},
		"repeated, escaped":       {`{"name":"abc","n\u0061me":"abd"}`, "name"},
		"missing field":           {`{}`, "name"},
		"missing nested field":    {`{"name":"abc","inner":{}}`, "inner.x"},
		"trailing data":           {`{"name":"abc"} {}`, "body"},
		"trailing bracket":        {`{"name":"abc"}}`, "body"},
		"no JSON":                 {`name=abc`, "body"},
		"array":                   {`[]`, "body"},
		"null":                    {`null`, "body"},
		"invalid UTF-8":           {"{\"name\":\"a\xff\"}", "body"},
		"null for a string":       {`{"name":null}`, "name"},
		"number for a string":     {`{"name":12}`, "name"},
		"string for a number":     {`{"name":"abc","count":"1"}`, "count"},
		"fraction for a number":   {`{"name":"abc","count":1.5}`, "count"},
		"null for a number":       {`{"name":"abc","count":null}`, "count"},
		"number for a flag":       {`{"name":"abc","on":1}`, "on"},
		"string for an object":    {`{"name":"abc","inner":"x"}`, "inner"},
		"object for an array":     {`{"name":"abc","list":{}}`, "list"},
		"wrong element":           {`{"name":"abc","list":["a",1]}`, "list[1]"},
		"too short":               {`{"name":"a"}`, "name"},
		"empty":                   {`{"name":""}`, "name"},
		"too long":                {`{"name":"abcde"}`, "name"},
		"not in the enumeration":  {`{"name":"abc","kind":"c"}`, "kind"},
		"NUL":                     {`{"name":"a\u0000b"}`, "name"},
		"unknown after deep data": {`{"raw":{"a":[1,{"b":"}]\"\\"}]},"name":"abc" , "zz" : [] }`, "zz"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var dst shape
			err := decodeBody([]byte(test.body), &dst)
			if !fault.Is(err, fault.BadRequest) {
				t.Fatalf("decodeBody(%s) = %v, want bad_request", test.body, err)
			}
			if got := fault.From(err).Details["field"]; got != test.field {
				t.Errorf("details.field = %v, want %q (%v)", got, test.field, err)
			}
		})
	}
}

func TestDecodeBodyTakesWhatIsRight(t *testing.T) {
	t.Parallel()
	body := " {\n\"name\" : \"a\\u00e4\\\"b\" ,\t\"kind\":\"a\",\"count\":-9007199254740993,\"on\":true,\"raw\": [1, {\"x\":\"]}\\\\\"}, 1e400] ," +
		"\"list\":[\"a\",\"\"],\"inner\":{\"x\":\"\"},\"days\":null}\r\n"
	var got shape
	if err := decodeBody([]byte(body), &got); err != nil {
		t.Fatal(err)
	}
	if got.Name != "aä\"b" || got.Kind != "a" || got.Count != -9007199254740993 || !got.On || len(got.List) != 2 || got.Inner == nil || got.Days != nil {
		t.Errorf("decoded %+v", got)
	}
	if want := `[1, {"x":"]}\\"}, 1e400]`; string(got.Raw) != want {
		t.Errorf("raw = %s, want %s", got.Raw, want)
	}
}

// FuzzDecodeBody compares the splitter of objects with encoding/json: whatever one of them accepts as a flat object of
// raw values, the other reads in the same way.
func FuzzDecodeBody(f *testing.F) {
	for _, seed := range []string{`{}`, `{"a":1}`, `{"a":"\"}","b":[{}],"c":null,"d":-1.5e9}`, `[]`, `{"a":{"b":"]"}} `, `{"\u0061":tru}`} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		data := []byte(text)
		if !json.Valid(data) || !strings.HasPrefix(strings.TrimLeft(text, " \t\r\n"), "{") {
			var dst shape
			if decodeBody(data, &dst) == nil {
				t.Fatalf("%q was taken", text)
			}
			return
		}
		want := map[string]json.RawMessage{}
		if err := json.Unmarshal(data, &want); err != nil {
			t.Skip()
		}
		got := map[string]string{}
		err := eachMember([]byte(strings.Trim(text, " \t\r\n")), func(name string, value []byte) error {
			got[name] = string(value)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		for name, value := range want {
			if strings.ToValidUTF8(name, "") == name && strings.ToValidUTF8(text, "") == text && got[name] != string(value) {
				t.Errorf("%q: %q = %q, want %q", text, name, got[name], value)
			}
		}
	})
}

func BenchmarkDecodeSessionCreate(b *testing.B) {
	body := []byte(`{"agent":"reviewer","input":[{"type":"text","text":"Review APP-42"}],"idempotency_key":"k-1"}`)
	b.ReportAllocs()
	for b.Loop() {
		var in api.SessionCreateRequest
		if err := decodeBody(body, &in); err != nil {
			b.Fatal(err)
		}
	}
}
