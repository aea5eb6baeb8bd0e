package content

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"helmr.dev/helmr/internal/fault"
)

func codeOf(err error) fault.Code {
	if err == nil {
		return ""
	}
	return fault.From(err).Code
}

// parts gives an array of n text parts that has size bytes.
func parts(n, size int) string {
	one := `{"type":"text","text":""}`
	s := "[" + strings.TrimSuffix(strings.Repeat(one+",", n), ",") + "]"
	return strings.Replace(s, `"text":""`, `"text":"`+strings.Repeat("x", size-len(s))+`"`, 1)
}

func TestSpec_02_09_TheFirstCheckThatFailsGivesTheCode(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", MaxBytes)
	for _, c := range []struct {
		raw         string
		input, both fault.Code // of CheckInput and of Check
	}{
		{`[]`, "", ""},
		{` [ { "type" : "text" , "text" : "a\u00e9\ud83d\ude00" } ] `, "", ""},
		{`[{"type":"json","value":null}]`, fault.ContentKindUnsupported, ""},
		{``, fault.BadRequest, fault.BadRequest},
		{`[`, fault.InvalidArguments, fault.InvalidArguments},
		{"[\"\xff\"]", fault.InvalidArguments, fault.InvalidArguments},
		{`[{"type":"text","text":"\ud800"}]`, fault.InvalidArguments, fault.InvalidArguments},
		{`[{"type":"text","text":"\ude00"}]`, fault.InvalidArguments, fault.InvalidArguments},
		{`[{"type":"text","text":"\ud83dx\ude00"}]`, fault.InvalidArguments, fault.InvalidArguments},
		{`[{"type":"text","text":"\ud83d\ud83d\ude00"}]`, fault.InvalidArguments, fault.InvalidArguments},
		{`[{"type":"text","text":"\\ud800 is no escape"}]`, "", ""},
		{`"` + long + `"`, fault.ContentLimitExceeded, fault.ContentLimitExceeded},
		{`"text"`, fault.InvalidArguments, fault.InvalidArguments},
		{`null`, fault.InvalidArguments, fault.InvalidArguments},
		{`{"type":"text","text":"x"}`, fault.InvalidArguments, fault.InvalidArguments},
		{`[` + strings.TrimSuffix(strings.Repeat(`1,`, 65), ",") + `]`, fault.ContentLimitExceeded, fault.ContentLimitExceeded},
		{`[{"type":"image"},1]`, fault.InvalidArguments, fault.InvalidArguments},
		{`[{"type":"text"},{"type":"image"}]`, fault.ContentKindUnsupported, fault.ContentKindUnsupported},
		{`[{"type":"text","text":"x","more":1}]`, fault.InvalidArguments, fault.InvalidArguments},
		{`[{"type":"text","text":1}]`, fault.InvalidArguments, fault.InvalidArguments},
		{`[{"type":"text","text":null}]`, fault.InvalidArguments, fault.InvalidArguments},
		{`[{"type":"json"}]`, fault.ContentKindUnsupported, fault.InvalidArguments},
		{`[{"type":"json","text":"x"}]`, fault.ContentKindUnsupported, fault.InvalidArguments},
		{`[{"TYPE":"text","text":"x"}]`, fault.ContentKindUnsupported, fault.ContentKindUnsupported},
		{parts(64, MaxBytes), "", ""},
		{parts(64, MaxBytes+1), fault.ContentLimitExceeded, fault.ContentLimitExceeded},
		{parts(65, 4000), fault.ContentLimitExceeded, fault.ContentLimitExceeded},
	} {
		_, err := CheckInput("input", json.RawMessage(c.raw))
		if got := codeOf(err); got != c.input {
			t.Errorf("input %.60s: %q, want %q", c.raw, got, c.input)
		}
		_, err = Check("content", json.RawMessage(c.raw))
		if got := codeOf(err); got != c.both {
			t.Errorf("content %.60s: %q, want %q", c.raw, got, c.both)
		}
	}
}

// choice makes a Question of n options, whose values have size bytes.
func choice(n, size int, flags string) string {
	var options []string
	for i := range n {
		options = append(options, fmt.Sprintf(`{"id":"%d","label":"l","value":"%s"}`, i, strings.Repeat("v", max(size-2, 0))))
	}
	return fmt.Sprintf(`{"prompt":[],"answer":{"type":"choice","options":[%s]%s}}`, strings.Join(options, ","), flags)
}

func oneOption(fields string) string {
	return `{"prompt":[],"answer":{"type":"choice","options":[{` + fields + `}]}}`
}

func TestSpec_06_02_WhatAQuestionMayBe(t *testing.T) {
	t.Parallel()
	x := strings.Repeat
	bad, much := fault.InvalidArguments, fault.ContentLimitExceeded
	for _, c := range []struct {
		raw  string
		want fault.Code
	}{
		{`{"prompt":[],"answer":{"type":"text"}}`, ""},
		{`{"prompt":[{"type":"json","value":{"a":1}}],"answer":{"type":"text"}}`, ""},
		{``, bad}, {`null`, bad}, {`[]`, bad}, {`{}`, bad}, {`{"prompt":[]}`, bad}, {`{"answer":{"type":"text"}}`, bad},
		{`{"prompt":[],"answer":{"type":"text"},"more":1}`, bad},
		{`{"prompt":"text","answer":{"type":"text"}}`, bad},
		{`{"prompt":[{"type":"image"}],"answer":{"type":"text"}}`, fault.ContentKindUnsupported},
		{`{"prompt":` + parts(64, 4000) + `,"answer":{"type":"text"}}`, ""},
		{`{"prompt":` + parts(65, 4000) + `,"answer":{"type":"text"}}`, much},
		{`{"prompt":` + parts(1, MaxBytes-len(`{"prompt":,"answer":{"type":"text"}}`)) + `,"answer":{"type":"text"}}`, ""},
		{`{"prompt":` + parts(1, MaxBytes-len(`{"prompt":,"answer":{"type":"text"}}`)+1) + `,"answer":{"type":"text"}}`, much},
		{`{"prompt":[],"answer":"text"}`, bad}, {`{"prompt":[],"answer":{}}`, bad}, {`{"prompt":[],"answer":{"type":1}}`, bad},
		{`{"prompt":[],"answer":{"type":"slider"}}`, bad},
		{`{"prompt":[],"answer":{"type":"text","multiple":true}}`, bad},
		{`{"prompt":[],"answer":{"type":"choice"}}`, bad},
		{`{"prompt":[],"answer":{"type":"choice","options":{}}}`, bad},
		{`{"prompt":[],"answer":{"type":"choice","options":[]}}`, bad},
		{`{"prompt":[],"answer":{"type":"choice","options":[1]}}`, bad},
		{choice(1, 2, `,"more":1`), bad}, {choice(1, 2, `,"multiple":null`), bad}, {choice(1, 2, `,"allowText":"yes"`), bad},
		{choice(1, 2, `,"multiple":false,"allowText":false`), ""},
		{choice(100, 2, ``), ""}, {choice(101, 2, ``), much},
		{oneOption(`"id":"` + x("i", 128) + `","label":"","value":null`), ""}, {oneOption(`"id":"` + x("i", 129) + `","label":"","value":null`), much},
		{oneOption(`"id":"","label":"l","value":1`), bad}, {oneOption(`"id":1,"label":"l","value":1`), bad},
		{oneOption(`"id":"i","label":"` + x("é", 128) + `","value":1`), ""}, {oneOption(`"id":"i","label":"` + x("é", 128) + `x","value":1`), much},
		{oneOption(`"id":"i","label":"l","value":1,"description":"` + x("d", 2048) + `"`), ""},
		{oneOption(`"id":"i","label":"l","value":1,"description":"` + x("d", 2049) + `"`), much},
		{oneOption(`"id":"i","label":"l","value":1,"description":null`), bad},
		{oneOption(`"id":"i","label":"l"`), bad}, {oneOption(`"id":"i","value":1`), bad}, {oneOption(`"label":"l","value":1`), bad},
		{oneOption(`"id":"i","label":"l","value":1,"more":1`), bad}, {oneOption(`"id":"i","label":"l","value":1e999`), bad},
		{`{"prompt":[],"answer":{"type":"choice","options":[{"id":"a","label":"","value":1},{"id":"\u0061","label":"","value":2}]}}`, bad},
	} {
		q, err := CheckQuestion(json.RawMessage(c.raw))
		if got := codeOf(err); got != c.want {
			t.Errorf("%.90s: %q (%v), want %q", c.raw, got, err, c.want)
		}
		if err == nil && (len(q.Prompt) == 0 || len(q.Control) == 0) {
			t.Errorf("%.90s: %+v", c.raw, q)
		}
	}
}

func TestSpec_06_04_AChoiceMustBeAnswerable(t *testing.T) {
	t.Parallel()
	one := len(`{"selected":[{"id":"0","value":}]}`)
	two := len(`{"selected":[{"id":"0","value":},{"id":"1","value":}]}`)
	text := len(`,"text":""`) + MaxAnswerText
	for _, c := range []struct {
		raw string
		ok  bool
	}{
		{choice(1, MaxAnswer-one, ``), true}, {choice(1, MaxAnswer-one+1, ``), false},
		{choice(2, MaxAnswer-one, ``), true}, // one of the two
		{choice(2, (MaxAnswer-two)/2, `,"multiple":true`), true}, {choice(2, (MaxAnswer-two)/2+1, `,"multiple":true`), false},
		{choice(1, MaxAnswer-one-text, `,"allowText":true`), true}, {choice(1, MaxAnswer-one-text+1, `,"allowText":true`), false},
	} {
		q, err := CheckQuestion(json.RawMessage(c.raw))
		if (err == nil) != c.ok || (err != nil && codeOf(err) != fault.ContentLimitExceeded) {
			t.Errorf("%.60s...: %v, want %v", c.raw, err, c.ok)
			continue
		}
		if err != nil {
			continue
		}
		// The largest answer that it allows is accepted.
		var control struct {
			Options []struct {
				ID    string `json:"id"`
				Value string `json:"value"`
			}
			Multiple, AllowText bool
		}
		_ = json.Unmarshal(q.Control, &control)
		n := 1
		if control.Multiple {
			n = len(control.Options)
		}
		var selected []string
		for _, o := range control.Options[:n] {
			selected = append(selected, fmt.Sprintf(`{"id":"%s","value":"%s"}`, o.ID, o.Value))
		}
		answer := `{"selected":[` + strings.Join(selected, ",") + `]`
		if control.AllowText {
			answer += `,"text":"` + strings.Repeat("t", MaxAnswerText) + `"`
		}
		if _, err := CheckAnswer(q.Control, json.RawMessage(answer+"}")); err != nil {
			t.Errorf("%.60s... allows an answer that is refused: %v", c.raw, err)
		}
	}
}

func TestSpec_06_03_WhatAnAnswerMayBe(t *testing.T) {
	t.Parallel()
	options := `"options":[{"id":"a","label":"A","value":1},{"id":"b","label":"B","value":{"x":[1.5,null],"y":-0}},{"id":"c","label":"C","value":"\u00e9"}]`
	controls := map[string]string{"text": `{"type":"text"}`, "one": `{"type":"choice",` + options + `}`, "many": `{"type":"choice",` + options + `,"multiple":true}`,
		"free": `{"type":"choice",` + options + `,"allowText":true}`}
	for _, c := range []struct {
		control, answer string
		ok              bool
	}{
		{"text", `"yes"`, true}, {"text", `""`, true}, {"text", ` "yes" `, true}, {"text", `1`, false}, {"text", `null`, false}, {"text", `{"selected":[]}`, false},
		{"text", ``, false}, {"text", `"`, false}, {"text", `"\ud800"`, false},
		{"text", `"` + strings.Repeat("x", MaxAnswer-2) + `"`, true}, {"text", `"` + strings.Repeat("x", MaxAnswer-1) + `"`, false},
		{"one", `{"selected":[{"id":"a","value":1}]}`, true}, {"one", `{"selected":[{"value":1.0e0,"id":"\u0061"}]}`, true},
		{"one", `{"selected":[{"id":"b","value":{"y":0,"x":[15e-1,null]}}]}`, true}, {"one", `{"selected":[{"id":"c","value":"é"}]}`, true},
		{"one", `{"selected":[{"id":"a","value":2}]}`, false}, {"one", `{"selected":[{"id":"a","value":"1"}]}`, false}, {"one", `{"selected":[{"id":"a"}]}`, false},
		{"one", `{"selected":[{"id":"z","value":1}]}`, false}, {"one", `{"selected":[{"id":"a","value":1,"label":"A"}]}`, false}, {"one", `{"selected":["a"]}`, false},
		{"one", `{"selected":[{"id":1,"value":1}]}`, false}, {"one", `{"selected":[{"id":"a","value":1e999}]}`, false},
		{"one", `{"selected":[]}`, false}, {"one", `{}`, false}, {"one", `{"selected":null}`, false}, {"one", `"a"`, false}, {"one", `[]`, false}, {"one", `null`, false},
		{"one", `{"selected":[{"id":"a","value":1}],"text":""}`, false}, {"one", `{"selected":[{"id":"a","value":1}],"more":1}`, false},
		{"one", `{"selected":[{"id":"a","value":1},{"id":"c","value":"é"}]}`, false},
		{"many", `{"selected":[{"id":"a","value":1},{"id":"c","value":"é"}]}`, true}, {"many", `{"selected":[{"id":"c","value":"é"},{"id":"a","value":1}]}`, false},
		{"many", `{"selected":[{"id":"a","value":1},{"id":"a","value":1}]}`, false}, {"many", `{"selected":[]}`, false},
		{"free", `{"selected":[],"text":"else"}`, true}, {"free", `{"selected":[{"id":"a","value":1}],"text":"and"}`, true}, {"free", `{"selected":[{"id":"a","value":1}],"text":""}`, true},
		{"free", `{"selected":[],"text":""}`, false}, {"free", `{"selected":[]}`, false}, {"free", `{"text":"x"}`, false}, {"free", `{"selected":[],"text":1}`, false},
		{"free", `{"selected":[],"text":null}`, false},
		{"free", `{"selected":[],"text":"` + strings.Repeat("t", MaxAnswerText) + `"}`, true}, {"free", `{"selected":[],"text":"` + strings.Repeat("t", MaxAnswerText+1) + `"}`, false},
	} {
		_, err := CheckAnswer(json.RawMessage(controls[c.control]), json.RawMessage(c.answer))
		if (err == nil) != c.ok {
			t.Errorf("%s %.80s: %v, want %v", c.control, c.answer, err, c.ok)
		}
		if err != nil && codeOf(err) != fault.AnswerInvalid {
			t.Errorf("%s %.80s: code %s", c.control, c.answer, codeOf(err))
		}
	}
}

func TestDigestSeesWhatJSONSays(t *testing.T) {
	t.Parallel()
	digest := func(s string) string {
		d, err := Digest(json.RawMessage(s))
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	for _, same := range [][2]string{{`{"a":1,"b":[-0]}`, ` { "b" : [ 0.0 ] , "a" : 1e0 } `}, {`"\u00e9"`, `"é"`}, {`0.1`, `1e-1`}} {
		if digest(same[0]) != digest(same[1]) {
			t.Errorf("%s and %s have two digests", same[0], same[1])
		}
	}
	for _, other := range [][2]string{{`1`, `"1"`}, {`[1,2]`, `[2,1]`}, {`{"a":null}`, `{}`}, {`"a"`, `"A"`}} {
		if digest(other[0]) == digest(other[1]) {
			t.Errorf("%s and %s have one digest", other[0], other[1])
		}
	}
}

// Whatever is accepted stays so in its compact form, and what comes out can be read.
func FuzzContent(f *testing.F) {
	for _, s := range []string{`[]`, `[{"type":"text","text":"a\ud83d\ude00"}]`, ` [ {"type":"json","value":{"a":[1e3]}} ] `, `[{"type":"text","text":"\ud800"}]`, `{"type":1}`, "\"\\"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		b, err := Check("content", raw)
		if err != nil {
			if codeOf(err) == fault.Internal {
				t.Fatal(err)
			}
			return
		}
		again, err := Check("content", b)
		if err != nil || string(again) != string(b) || len(b) > MaxBytes {
			t.Fatalf("%q became %q, then %q (%v)", raw, b, again, err)
		}
		var items []struct {
			Type string
			Text *string
		}
		if err := json.Unmarshal(b, &items); err != nil || len(items) > MaxParts {
			t.Fatalf("%q: %d parts, %v", b, len(items), err)
		}
		if input, err := CheckInput("input", raw); err == nil && string(input) != string(b) {
			t.Fatalf("as input %q, as content %q", input, b)
		}
	})
}

// Whatever Question and answer come, the checks give a code of their own and agree with themselves.
func FuzzAnswer(f *testing.F) {
	f.Add([]byte(`{"prompt":[],"answer":{"type":"choice","options":[{"id":"a","label":"A","value":{"b":1}}],"allowText":true}}`), []byte(`{"selected":[{"id":"a","value":{"b":1.0}}],"text":"x"}`))
	f.Add([]byte(`{"prompt":[],"answer":{"type":"text"}}`), []byte(`"yes"`))
	f.Add([]byte(`{"prompt":[],"answer":{"type":"choice","options":[{"id":"a","label":"A","value":1}]}}`), []byte(`{"selected":[{"id":"a","value":1e999}]}`))
	f.Fuzz(func(t *testing.T, question, answer []byte) {
		q, err := CheckQuestion(question)
		if err != nil {
			if codeOf(err) == fault.Internal {
				t.Fatal(err)
			}
			return
		}
		b, err := CheckAnswer(q.Control, answer)
		if err != nil {
			if codeOf(err) != fault.AnswerInvalid {
				t.Fatalf("code %s: %v", codeOf(err), err)
			}
			return
		}
		if again, err := CheckAnswer(q.Control, b); err != nil || string(again) != string(b) || len(b) > MaxAnswer {
			t.Fatalf("%q became %q, then %q (%v)", answer, b, again, err)
		}
		if _, err := Digest(b); err != nil {
			t.Fatalf("an accepted answer has no digest: %v", err)
		}
	})
}
