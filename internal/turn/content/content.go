// Package content holds the rules of the values that people and Agents exchange: input, output, Questions and answers.
// All of it is pure: it reads JSON, says whether it is allowed and gives it in compact form. It knows no Turn and no
// database.
//
// The checks stand in a fixed order, the same as in the SDK, so that both give the same code for the same value.
package content

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"unicode/utf8"

	"helmr.dev/helmr/internal/fault"
)

// Limits of one content value, measured as compact JSON.
const (
	MaxBytes = 256 << 10
	MaxParts = 64
)

// CheckInput checks InputContent (text parts only) and gives it in compact form. field names it in errors.
// Codes: bad_request (missing), invalid_arguments, content_limit_exceeded, content_kind_unsupported.
func CheckInput(field string, raw json.RawMessage) (json.RawMessage, error) {
	return check(field, raw, false)
}

// Check checks Content (text and JSON parts) and gives it in compact form. field names it in errors.
func Check(field string, raw json.RawMessage) (json.RawMessage, error) {
	return check(field, raw, true)
}

func check(field string, raw json.RawMessage, allowJSON bool) (json.RawMessage, error) {
	if len(raw) == 0 {
		return nil, fault.New(fault.BadRequest, `%s is missing: give an array of parts such as [{"type":"text","text":"..."}]`, field)
	}
	b, err := compact(field, raw)
	if err != nil {
		return nil, err
	}
	if len(b) > MaxBytes {
		return nil, fault.New(fault.ContentLimitExceeded, "%s is %d bytes; at most %d are allowed", field, len(b), MaxBytes)
	}
	return b, checkParts(field, b, allowJSON)
}

// compact takes the white space out of raw. It must be JSON in UTF-8 that every reader can decode.
func compact(field string, raw json.RawMessage) (json.RawMessage, error) {
	if !utf8.Valid(raw) || !json.Valid(raw) {
		return nil, fault.New(fault.InvalidArguments, "%s is not valid JSON in UTF-8", field)
	}
	if loneSurrogate(raw) {
		return nil, fault.New(fault.InvalidArguments, "%s is not valid Unicode: it contains half of a surrogate pair", field)
	}
	var out bytes.Buffer
	if err := json.Compact(&out, raw); err != nil {
		return nil, fault.New(fault.InvalidArguments, "%s is not valid JSON", field)
	}
	return out.Bytes(), nil
}

// loneSurrogate tells whether valid JSON escapes half of a surrogate pair: text that no Unicode string can hold.
func loneSurrogate(b []byte) bool {
	high := false // the escape before was the first half of a pair
	for i := 0; i < len(b); i++ {
		unit, n := escape(b[i:])
		isHigh, isLow := unit >= 0xd800 && unit < 0xdc00, unit >= 0xdc00 && unit < 0xe000
		if high != isLow {
			return true
		}
		high = isHigh
		i += n - 1
	}
	return high
}

// escape gives the UTF-16 unit of the \u escape that b begins with and the length of what b begins with.
func escape(b []byte) (unit uint64, n int) {
	if b[0] != '\\' || len(b) < 2 {
		return 0, 1
	}
	if b[1] != 'u' || len(b) < 6 {
		return 0, 2
	}
	unit, err := strconv.ParseUint(string(b[2:6]), 16, 16)
	if err != nil {
		return 0, 6
	}
	return unit, 6
}

func checkParts(field string, b json.RawMessage, allowJSON bool) error {
	var items []json.RawMessage
	if b[0] != '[' || json.Unmarshal(b, &items) != nil {
		return fault.New(fault.InvalidArguments, "%s must be an array of parts", field)
	}
	if len(items) > MaxParts {
		return fault.New(fault.ContentLimitExceeded, "%s has %d parts; at most %d are allowed", field, len(items), MaxParts)
	}
	parts := make([]map[string]json.RawMessage, len(items))
	for i, item := range items {
		if item[0] != '{' || json.Unmarshal(item, &parts[i]) != nil {
			return fault.New(fault.InvalidArguments, "%s[%d] must be an object", field, i)
		}
	}
	kinds := make([]string, len(items))
	for i, p := range parts {
		if err := json.Unmarshal(p["type"], &kinds[i]); err != nil || (kinds[i] != "text" && (kinds[i] != "json" || !allowJSON)) {
			allowed := `"text"`
			if allowJSON {
				allowed = `"text" or "json"`
			}
			return fault.New(fault.ContentKindUnsupported, "%s[%d].type must be %s", field, i, allowed)
		}
	}
	for i, p := range parts {
		if err := checkPart(fmt.Sprintf("%s[%d]", field, i), kinds[i], p); err != nil {
			return err
		}
	}
	return nil
}

func checkPart(at, kind string, p map[string]json.RawMessage) error {
	want := "text"
	if kind == "json" {
		want = "value"
	}
	v, ok := p[want]
	if !ok || len(p) != 2 {
		return fault.New(fault.InvalidArguments, `%s must have exactly the fields "type" and %q`, at, want)
	}
	if want == "text" && v[0] != '"' {
		return fault.New(fault.InvalidArguments, "%s.text must be a string", at)
	}
	return nil
}
