package deployment

import (
	"encoding/base64"
	"strings"

	"helmr.dev/helmr/internal/fault"
)

// Page sizes of every list.
const (
	defaultLimit = 50
	maxLimit     = 100
)

// pageSize checks the limit of a list; 0 means the default.
func pageSize(limit int) (int, error) {
	if limit == 0 {
		return defaultLimit, nil
	}
	if limit < 1 || limit > maxLimit {
		return 0, fault.New(fault.BadRequest, "limit is %d; it must be 1 to %d", limit, maxLimit)
	}
	return limit, nil
}

// A cursor is opaque to callers: the name of its list, what the list is bound to and the last item given out.
const cursorSeparator = "\n"

func encodeCursor(list, bound, last string) string {
	return base64.RawURLEncoding.EncodeToString([]byte(list + cursorSeparator + bound + cursorSeparator + last))
}

// decodeCursor gives what a cursor of this list holds; an empty one gives empty parts.
func decodeCursor(list, cursor string) (bound, last string, err error) {
	if cursor == "" {
		return "", "", nil
	}
	raw, err := base64.RawURLEncoding.Strict().DecodeString(cursor)
	parts := strings.Split(string(raw), cursorSeparator)
	if err != nil || len(parts) != 3 || parts[0] != list {
		return "", "", badCursor()
	}
	return parts[1], parts[2], nil
}

func badCursor() error {
	return fault.New(fault.InvalidCursor, "cursor is not one that this list gave out; begin without it")
}

// cut drops what was read beyond limit to see whether more follows.
func cut[T any](items []T, limit int) (page []T, more bool) {
	if len(items) > limit {
		return items[:limit], true
	}
	return items, false
}
