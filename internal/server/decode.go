package server

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"unicode/utf8"

	"helmr.dev/helmr/internal/fault"
)

// decodeBody reads a JSON object into the struct that dst points at, strictly: names are case-sensitive, unknown and
// repeated names are refused, null is refused where the field is not a pointer, and a field without omitempty must be
// there. The tags minLength, maxLength and enum of a string field are checked; they are the ones that the OpenAPI
// document shows. A json.RawMessage field keeps its bytes as sent: its meaning is checked by a room. dst may share
// memory with data.
func decodeBody(data []byte, dst any) error {
	if !utf8.Valid(data) {
		return badField("", "The body is not valid UTF-8.")
	}
	if !json.Valid(data) {
		return syntaxError(data)
	}
	return decodeObject(data, reflect.ValueOf(dst).Elem(), "")
}

// syntaxError says where data stops being JSON.
func syntaxError(data []byte) error {
	var any json.RawMessage
	err := json.Unmarshal(data, &any)
	if e, ok := errors.AsType[*json.SyntaxError](err); ok {
		return badField("", "The body is not valid JSON: %s at byte %d.", e.Error(), e.Offset)
	}
	return badField("", "The body is not valid JSON.")
}

// badField makes the refusal of a field of the body; name "" means the body itself.
func badField(name, format string, args ...any) error {
	if name == "" {
		name = "body"
	}
	return fault.New(fault.BadRequest, format, args...).With("field", name)
}

// member is one field of a request type.
type member struct {
	name      string
	index     int
	required  bool
	minLength int
	maxLength int // 0: no limit of its own
	enum      []string
	room      bool // a room says what the string may hold, NUL included
}

// shapes caches the members of request types.
var shapes sync.Map // reflect.Type -> []member

func shapeOf(t reflect.Type) []member {
	if s, ok := shapes.Load(t); ok {
		return s.([]member)
	}
	var out []member
	for i := range t.NumField() {
		f := t.Field(i)
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == "-" || name == "" {
			continue
		}
		m := member{name: name, index: i, required: !strings.Contains(options, "omitempty")}
		m.minLength, _ = strconv.Atoi(f.Tag.Get("minLength"))
		m.maxLength, _ = strconv.Atoi(f.Tag.Get("maxLength"))
		m.room = f.Tag.Get("checked") == "room"
		if e := f.Tag.Get("enum"); e != "" {
			m.enum = strings.Split(e, ",")
		}
		out = append(out, m)
	}
	shapes.Store(t, out)
	return out
}

// decodeObject fills the struct v from data, which is valid JSON. at is the path of the object, "" for the body.
func decodeObject(data []byte, v reflect.Value, at string) error {
	data = bytes.TrimSpace(data)
	if data[0] != '{' {
		return badField(at, "%s must be a JSON object.", orBody(at))
	}
	shape := shapeOf(v.Type())
	seen := make([]bool, len(shape))
	err := eachMember(data, func(name string, value []byte) error {
		for i, m := range shape {
			if m.name != name {
				continue
			}
			if seen[i] {
				return badField(join(at, name), "%s is given twice.", join(at, name))
			}
			seen[i] = true
			return decodeValue(value, v.Field(m.index), m, join(at, name))
		}
		return badField(join(at, name), "%s is not a field of this request.", strconv.Quote(join(at, name)))
	})
	if err != nil {
		return err
	}
	for i, m := range shape {
		if m.required && !seen[i] {
			return badField(join(at, m.name), "%s is required.", join(at, m.name))
		}
	}
	return nil
}

func orBody(at string) string {
	if at == "" {
		return "The body"
	}
	return at
}

func join(at, name string) string {
	if at == "" {
		return name
	}
	return at + "." + name
}

var rawType = reflect.TypeFor[json.RawMessage]()

// decodeValue fills one field from the JSON of its value.
func decodeValue(data []byte, v reflect.Value, m member, at string) error {
	if v.Type() == rawType {
		v.SetBytes(data)
		return nil
	}
	if v.Kind() == reflect.Pointer {
		if string(data) == "null" {
			return nil
		}
		v.Set(reflect.New(v.Type().Elem()))
		v = v.Elem()
	}
	switch v.Kind() {
	case reflect.String:
		return decodeString(data, v, m, at)
	case reflect.Int, reflect.Int64:
		if err := json.Unmarshal(data, v.Addr().Interface()); err != nil || string(data) == "null" {
			return badField(at, "%s must be a whole number.", at)
		}
		return nil
	case reflect.Bool:
		if data[0] != 't' && data[0] != 'f' {
			return badField(at, "%s must be true or false.", at)
		}
		v.SetBool(data[0] == 't')
		return nil
	case reflect.Struct:
		return decodeObject(data, v, at)
	case reflect.Slice:
		return decodeArray(data, v, m, at)
	case reflect.Map:
		return decodeMap(data, v, m, at)
	}
	return fmt.Errorf("decode request: field %s has a type that requests cannot have: %s", at, v.Type())
}

func decodeString(data []byte, v reflect.Value, m member, at string) error {
	if data[0] != '"' {
		return badField(at, "%s must be a string.", at)
	}
	var s string
	if err := json.Unmarshal(data, &s); err != nil {
		return badField(at, "%s must be a string.", at)
	}
	switch n := utf8.RuneCountInString(s); {
	case strings.ContainsRune(s, 0) && !m.room:
		return badField(at, "%s must not contain NUL.", at)
	case n < m.minLength && n == 0:
		return badField(at, "%s must not be empty; leave it out instead.", at)
	case n < m.minLength:
		return badField(at, "%s must have at least %d characters.", at, m.minLength)
	case m.maxLength > 0 && n > m.maxLength:
		return badField(at, "%s must have at most %d characters.", at, m.maxLength)
	}
	if m.enum != nil && !contains(m.enum, s) {
		return badField(at, "%s must be one of %s.", at, strings.Join(m.enum, ", "))
	}
	v.SetString(s)
	return nil
}

func decodeArray(data []byte, v reflect.Value, m member, at string) error {
	if data[0] != '[' {
		return badField(at, "%s must be an array.", at)
	}
	var items []json.RawMessage
	if err := json.Unmarshal(data, &items); err != nil {
		return badField(at, "%s must be an array.", at)
	}
	out := reflect.MakeSlice(v.Type(), len(items), len(items))
	for i, item := range items {
		if err := decodeValue(item, out.Index(i), m, at+"["+strconv.Itoa(i)+"]"); err != nil {
			return err
		}
	}
	v.Set(out)
	return nil
}

// decodeMap fills a map of strings from a JSON object with any names.
func decodeMap(data []byte, v reflect.Value, m member, at string) error {
	if data[0] != '{' {
		return badField(at, "%s must be a JSON object.", at)
	}
	out := reflect.MakeMap(v.Type())
	err := eachMember(data, func(name string, value []byte) error {
		key := reflect.ValueOf(name)
		if out.MapIndex(key).IsValid() {
			return badField(join(at, name), "%s is given twice.", join(at, name))
		}
		item := reflect.New(v.Type().Elem()).Elem()
		if err := decodeValue(value, item, m, join(at, name)); err != nil {
			return err
		}
		out.SetMapIndex(key, item)
		return nil
	})
	if err == nil {
		v.Set(out)
	}
	return err
}

func contains(list []string, s string) bool {
	for _, have := range list {
		if have == s {
			return true
		}
	}
	return false
}

// eachMember gives the members of a JSON object in the order sent. data must be a valid object without outer white space.
func eachMember(data []byte, fn func(name string, value []byte) error) error {
	i := skipSpace(data, 1)
	for data[i] != '}' {
		end := skipValue(data, i)
		name := string(data[i+1 : end-1])
		if strings.IndexByte(name, '\\') >= 0 {
			if err := json.Unmarshal(data[i:end], &name); err != nil {
				return badField("", "The body is not valid JSON.")
			}
		}
		i = skipSpace(data, skipSpace(data, end)+1) // over the colon
		end = skipValue(data, i)
		if err := fn(name, data[i:end:end]); err != nil {
			return err
		}
		if i = skipSpace(data, end); data[i] == ',' {
			i = skipSpace(data, i+1)
		}
	}
	return nil
}

func skipSpace(data []byte, i int) int {
	for data[i] == ' ' || data[i] == '\t' || data[i] == '\n' || data[i] == '\r' {
		i++
	}
	return i
}

// skipValue gives the index after the JSON value that begins at i of valid JSON.
func skipValue(data []byte, i int) int {
	depth := 0
	for {
		switch data[i] {
		case '"':
			for i++; data[i] != '"'; i++ {
				if data[i] == '\\' {
					i++
				}
			}
		case '{', '[':
			depth++
		case '}', ']':
			depth--
		case ' ', '\t', '\n', '\r', ',', ':':
		default: // number, true, false, null
			for i+1 < len(data) && strings.IndexByte(" \t\n\r,:]}", data[i+1]) < 0 {
				i++
			}
		}
		i++
		if depth == 0 {
			return i
		}
	}
}
