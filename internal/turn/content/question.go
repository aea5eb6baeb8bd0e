package content

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"reflect"
	"slices"
	"unicode"
	"unicode/utf8"

	"helmr.dev/helmr/internal/fault"
)

// Limits of Questions and answers in bytes. Answers are measured as compact JSON, texts as UTF-8.
const (
	MaxOptions     = 100
	MaxOptionID    = 128
	MaxLabel       = 256
	MaxDescription = 2048
	MaxAnswer      = 64 << 10
	MaxAnswerText  = 8 << 10
	MaxResponseID  = 512
)

// Question is a checked Question. JSON is all of it; Prompt and Control are its halves. Each is compact.
type Question struct {
	JSON, Prompt, Control json.RawMessage
}

// CheckQuestion checks what an Agent asks: { prompt, answer }. The answer that its control allows at most must fit.
// Codes: invalid_arguments, content_limit_exceeded, content_kind_unsupported.
func CheckQuestion(raw json.RawMessage) (Question, error) {
	if len(raw) == 0 {
		return Question{}, fault.New(fault.InvalidArguments, "question is missing")
	}
	b, err := compact("question", raw)
	if err != nil {
		return Question{}, err
	}
	if len(b) > MaxBytes {
		return Question{}, fault.New(fault.ContentLimitExceeded, "question is %d bytes; at most %d are allowed", len(b), MaxBytes)
	}
	fields, err := object("question", b, []string{"prompt", "answer"}, []string{"prompt", "answer"})
	if err != nil {
		return Question{}, err
	}
	if err := checkParts("question.prompt", fields["prompt"], true); err != nil {
		return Question{}, err
	}
	c, err := parseControl(fields["answer"])
	if err != nil {
		return Question{}, err
	}
	if err := c.checkLargest(); err != nil {
		return Question{}, err
	}
	return Question{JSON: b, Prompt: fields["prompt"], Control: fields["answer"]}, nil
}

// object gives the members of an object that has no other than the allowed and all required ones.
func object(at string, raw json.RawMessage, allowed, required []string) (map[string]json.RawMessage, error) {
	var fields map[string]json.RawMessage
	if len(raw) == 0 || raw[0] != '{' || json.Unmarshal(raw, &fields) != nil {
		return nil, fault.New(fault.InvalidArguments, "%s must be an object", at)
	}
	for name := range fields {
		if !slices.Contains(allowed, name) {
			return nil, fault.New(fault.InvalidArguments, "%s has the unknown field %q", at, name)
		}
	}
	for _, name := range required {
		if fields[name] == nil {
			return nil, fault.New(fault.InvalidArguments, "%s.%s is missing", at, name)
		}
	}
	return fields, nil
}

// control is a checked answer control. A text control has no options.
type control struct {
	text                bool
	options             []option
	multiple, allowText bool
}

type option struct {
	id    string
	rawID json.RawMessage
	raw   json.RawMessage // the value as declared
	value any             // the value decoded, for comparison
}

func parseControl(raw json.RawMessage) (*control, error) {
	const at = "question.answer"
	fields, err := object(at, raw, []string{"type", "options", "multiple", "allowText"}, []string{"type"})
	if err != nil {
		return nil, err
	}
	var kind string
	_ = json.Unmarshal(fields["type"], &kind) // a type that is no string is none of the two
	switch {
	case kind == "text" && len(fields) == 1:
		return &control{text: true}, nil
	case kind == "text":
		return nil, fault.New(fault.InvalidArguments, `%s of type "text" has no field but type`, at)
	case kind != "choice":
		return nil, fault.New(fault.InvalidArguments, `%s.type must be "text" or "choice"`, at)
	}
	c := &control{}
	for name, flag := range map[string]*bool{"multiple": &c.multiple, "allowText": &c.allowText} {
		if v := fields[name]; v != nil && (v[0] == 'n' || json.Unmarshal(v, flag) != nil) {
			return nil, fault.New(fault.InvalidArguments, "%s.%s must be true or false", at, name)
		}
	}
	var options []json.RawMessage
	if v := fields["options"]; len(v) == 0 || v[0] != '[' || json.Unmarshal(v, &options) != nil || len(options) == 0 {
		return nil, fault.New(fault.InvalidArguments, "%s.options must be an array of at least one option", at)
	}
	if len(options) > MaxOptions {
		return nil, fault.New(fault.ContentLimitExceeded, "%s has %d options; at most %d are allowed", at, len(options), MaxOptions)
	}
	for _, o := range options {
		if err := c.add(o); err != nil {
			return nil, err
		}
	}
	return c, nil
}

func (c *control) add(raw json.RawMessage) error {
	const at = "an option of question.answer"
	fields, err := object(at, raw, []string{"id", "label", "value", "description"}, []string{"id", "label", "value"})
	if err != nil {
		return err
	}
	o := option{rawID: fields["id"], raw: fields["value"]}
	if o.id, err = shortText(at+": id", fields["id"], MaxOptionID); err != nil {
		return err
	}
	if o.id == "" {
		return fault.New(fault.InvalidArguments, "%s has an empty id", at)
	}
	if slices.ContainsFunc(c.options, func(have option) bool { return have.id == o.id }) {
		return fault.New(fault.InvalidArguments, "two options of question.answer have the id %q", o.id)
	}
	if _, err := shortText(at+": label", fields["label"], MaxLabel); err != nil {
		return err
	}
	if d := fields["description"]; d != nil {
		if _, err := shortText(at+": description", d, MaxDescription); err != nil {
			return err
		}
	}
	if o.value, err = decode(o.raw); err != nil {
		return fault.New(fault.InvalidArguments, "%s %q has a value with a number that is not finite", at, o.id)
	}
	c.options = append(c.options, o)
	return nil
}

func shortText(at string, raw json.RawMessage, most int) (string, error) {
	var s string
	if len(raw) == 0 || raw[0] != '"' || json.Unmarshal(raw, &s) != nil {
		return "", fault.New(fault.InvalidArguments, "%s must be a string", at)
	}
	if len(s) > most {
		return "", fault.New(fault.ContentLimitExceeded, "%s is %d bytes; at most %d are allowed", at, len(s), most)
	}
	return s, nil
}

// checkLargest refuses a choice whose largest possible answer passes the limit of answers. A custom text is counted as
// plain characters: one that needs escapes may still be too large when it is given.
func (c *control) checkLargest() error {
	if c.text {
		return nil
	}
	all, most := len(c.options)-1, 0
	for _, o := range c.options {
		size := len(`{"id":,"value":}`) + len(o.rawID) + len(o.raw)
		all += size
		most = max(most, size)
	}
	largest := len(`{"selected":[]}`) + most
	if c.multiple {
		largest = len(`{"selected":[]}`) + all
	}
	if c.allowText {
		largest += len(`,"text":""`) + MaxAnswerText
	}
	if largest > MaxAnswer {
		return fault.New(fault.ContentLimitExceeded, "question.answer allows an answer of %d bytes; at most %d are allowed: shorten the values of its options", largest, MaxAnswer)
	}
	return nil
}

// CheckAnswer checks an answer against the control of its Question, which CheckQuestion has checked before, and gives
// it in compact form. The code is answer_invalid.
func CheckAnswer(rawControl, answer json.RawMessage) (json.RawMessage, error) {
	c, err := parseControl(rawControl)
	if err != nil {
		return nil, err
	}
	if len(answer) == 0 {
		return nil, invalid("answer is missing")
	}
	b, err := compact("answer", answer)
	if err != nil {
		return nil, invalid("%s", fault.From(err).Message)
	}
	if len(b) > MaxAnswer {
		return nil, invalid("answer is %d bytes; at most %d are allowed", len(b), MaxAnswer)
	}
	if c.text {
		if b[0] != '"' {
			return nil, invalid("this Question takes a text: answer must be a JSON string")
		}
		return b, nil
	}
	return b, c.checkChoice(b)
}

func invalid(format string, args ...any) error {
	return fault.New(fault.AnswerInvalid, format, args...)
}

func (c *control) checkChoice(b json.RawMessage) error {
	fields, err := object("answer", b, []string{"selected", "text"}, []string{"selected"})
	if err != nil {
		return invalid("%s", fault.From(err).Message)
	}
	var selected []json.RawMessage
	if v := fields["selected"]; v[0] != '[' || json.Unmarshal(v, &selected) != nil {
		return invalid("answer.selected must be an array of { id, value }")
	}
	last := -1
	for _, raw := range selected {
		at, err := c.selection(raw)
		if err != nil {
			return err
		}
		if at <= last {
			return invalid("answer.selected must follow the order of the options, each at most once")
		}
		last = at
	}
	if len(selected) > 1 && !c.multiple {
		return invalid("answer.selected has %d entries; this Question takes one", len(selected))
	}
	text, err := c.customText(fields["text"])
	if err != nil {
		return err
	}
	if len(selected) == 0 && text == "" {
		return invalid("answer selects no option and gives no text")
	}
	return nil
}

// selection gives the place of the option that one entry selects.
func (c *control) selection(raw json.RawMessage) (int, error) {
	fields, err := object("an entry of answer.selected", raw, []string{"id", "value"}, []string{"id", "value"})
	if err != nil {
		return 0, invalid("%s", fault.From(err).Message)
	}
	var wanted string
	if fields["id"][0] != '"' || json.Unmarshal(fields["id"], &wanted) != nil {
		return 0, invalid("the id of an entry of answer.selected must be a string")
	}
	at := slices.IndexFunc(c.options, func(o option) bool { return o.id == wanted })
	if at < 0 {
		return 0, invalid("%q is not an option of this Question", wanted)
	}
	value, err := decode(fields["value"])
	if err != nil || !reflect.DeepEqual(value, c.options[at].value) {
		return 0, invalid("the value of %q is not the one that the option declares", wanted)
	}
	return at, nil
}

func (c *control) customText(raw json.RawMessage) (string, error) {
	if raw == nil {
		return "", nil
	}
	if !c.allowText {
		return "", invalid("this Question takes no text beside its options")
	}
	var text string
	if raw[0] != '"' || json.Unmarshal(raw, &text) != nil {
		return "", invalid("answer.text must be a string")
	}
	if len(text) > MaxAnswerText {
		return "", invalid("answer.text is %d bytes; at most %d are allowed", len(text), MaxAnswerText)
	}
	return text, nil
}

// CheckResponseID refuses a response_id that is blank, too long, not UTF-8 or holds NUL.
func CheckResponseID(s string) error {
	blank := true
	for _, r := range s {
		if r == 0 {
			return fault.New(fault.BadRequest, "response_id must not contain NUL")
		}
		blank = blank && unicode.IsSpace(r)
	}
	if blank || len(s) > MaxResponseID || !utf8.ValidString(s) {
		return fault.New(fault.BadRequest, "response_id must be 1 to %d bytes of UTF-8 that are not all white space", MaxResponseID)
	}
	return nil
}

// decode gives the value of JSON with numbers as IEEE doubles, which is how canonical JSON sees them.
func decode(raw json.RawMessage) (any, error) {
	var v any
	err := json.Unmarshal(raw, &v)
	return plain(v), err
}

// plain turns -0 into 0: canonical JSON has one zero.
func plain(v any) any {
	switch v := v.(type) {
	case float64:
		if v == 0 {
			return 0.0
		}
	case []any:
		for i := range v {
			v[i] = plain(v[i])
		}
	case map[string]any:
		for k := range v {
			v[k] = plain(v[k])
		}
	}
	return v
}

// Digest gives the SHA-256 of what JSON says, in hex: two texts have one digest exactly if their canonical forms are
// equal. It takes only JSON that a check of this package accepted.
func Digest(raw json.RawMessage) (string, error) {
	v, err := decode(raw)
	if err != nil {
		return "", fault.New(fault.InvalidArguments, "a number is not finite")
	}
	text, err := json.Marshal(v)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:]), nil
}
