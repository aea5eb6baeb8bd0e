package turn

import (
	"bytes"
	"encoding/json"
	"fmt"
	"unicode/utf8"

	"helmr.dev/helmr/internal/fault"
)

// part is one part of Content.
type part struct {
	Type  string          `json:"type"`
	Text  *string         `json:"text,omitempty"`
	Value json.RawMessage `json:"value,omitempty"`
}

// CheckInput checks InputContent (text parts only) and gives it in compact form. field names it in errors.
func CheckInput(field string, raw json.RawMessage) (json.RawMessage, error) {
	return checkContent(field, raw, false)
}

// CheckContent checks Content (text and JSON parts) and gives it in compact form. field names it in errors.
func CheckContent(field string, raw json.RawMessage) (json.RawMessage, error) {
	return checkContent(field, raw, true)
}

// checkContent takes the checks in their fixed order: JSON and Unicode, size, array, number of parts, objects, types,
// exact fields. The first that fails gives the code.
func checkContent(field string, raw json.RawMessage, allowJSON bool) (json.RawMessage, error) {
	if len(raw) == 0 {
		return nil, fault.New(fault.BadRequest, `%s is missing: give an array of parts such as [{"type":"text","text":"..."}]`, field)
	}
	if !utf8.Valid(raw) || !json.Valid(raw) {
		return nil, fault.New(fault.InvalidArguments, "%s is not valid JSON in UTF-8", field)
	}
	var compact bytes.Buffer
	if err := json.Compact(&compact, raw); err != nil {
		return nil, fault.New(fault.InvalidArguments, "%s is not valid JSON", field)
	}
	if compact.Len() > MaxContentBytes {
		return nil, fault.New(fault.ContentLimitExceeded, "%s is %d bytes; at most %d are allowed", field, compact.Len(), MaxContentBytes)
	}
	var items []json.RawMessage
	if b := compact.Bytes(); b[0] != '[' || json.Unmarshal(b, &items) != nil {
		return nil, fault.New(fault.InvalidArguments, "%s must be an array of parts", field)
	}
	if len(items) > MaxContentParts {
		return nil, fault.New(fault.ContentLimitExceeded, "%s has %d parts; at most %d are allowed", field, len(items), MaxContentParts)
	}
	for i, item := range items {
		if err := checkPart(fmt.Sprintf("%s[%d]", field, i), item, allowJSON); err != nil {
			return nil, err
		}
	}
	return compact.Bytes(), nil
}

func checkPart(field string, item json.RawMessage, allowJSON bool) error {
	var fields map[string]json.RawMessage
	if item[0] != '{' || json.Unmarshal(item, &fields) != nil {
		return fault.New(fault.InvalidArguments, "%s must be an object", field)
	}
	var p part
	if err := json.Unmarshal(fields["type"], &p.Type); err != nil || (p.Type != "text" && (p.Type != "json" || !allowJSON)) {
		allowed := `"text"`
		if allowJSON {
			allowed = `"text" or "json"`
		}
		return fault.New(fault.ContentKindUnsupported, "%s.type must be %s", field, allowed)
	}
	want := "text"
	if p.Type == "json" {
		want = "value"
	}
	v, ok := fields[want]
	if !ok || len(fields) != 2 {
		return fault.New(fault.InvalidArguments, `%s must have exactly the fields "type" and %q`, field, want)
	}
	if want == "text" && json.Unmarshal(v, &p.Text) != nil || want == "text" && p.Text == nil {
		return fault.New(fault.InvalidArguments, "%s.text must be a string", field)
	}
	return nil
}
