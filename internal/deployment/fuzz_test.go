package deployment

import (
	"testing"

	"helmr.dev/helmr/internal/fault"
)

// FuzzCursor: a cursor is either one that was given out, and means the same again, or it is refused as invalid_cursor.
func FuzzCursor(f *testing.F) {
	f.Add(encodeCursor("agents", "d", "reviewer"))
	f.Add("")
	f.Add("~~~")
	f.Fuzz(func(t *testing.T, cursor string) {
		bound, last, err := decodeCursor("agents", cursor)
		if err != nil {
			if !fault.Is(err, fault.InvalidCursor) {
				t.Fatalf("cursor %q: %v", cursor, err)
			}
			return
		}
		if cursor == "" {
			return
		}
		b, l, err := decodeCursor("agents", encodeCursor("agents", bound, last))
		if err != nil || b != bound || l != last {
			t.Fatalf("cursor %q means %q, %q and then %q, %q (%v)", cursor, bound, last, b, l, err)
		}
	})
}
