package id

import "testing"

func TestSpec_01_01_IDsAreCanonicalUUIDv7(t *testing.T) {
	t.Parallel()
	if s := New(); !Valid(s) {
		t.Fatalf("New() = %q is not valid", s)
	}
	for _, bad := range []string{"", "x", "0190B3F2-7C3A-7000-8000-000000000000", "{0190b3f2-7c3a-7000-8000-000000000000}",
		"0190b3f2-7c3a-4000-8000-000000000000", "0190b3f27c3a70008000000000000000"} {
		if Valid(bad) {
			t.Errorf("Valid(%q) = true", bad)
		}
	}
}

func TestSpec_01_02_DeclaredIDs(t *testing.T) {
	t.Parallel()
	for s, want := range map[string]bool{"reviewer": true, "A.b_c-1": true, "": false, "-a": false, "a b": false, "ä": false, ".a": false} {
		if Declared(s) != want {
			t.Errorf("Declared(%q) = %v, want %v", s, !want, want)
		}
	}
}
