package state

import "testing"

func TestTable(t *testing.T) {
	t.Parallel()
	door := Table[string]{"open": {"shut"}, "shut": {"open", "gone"}}
	if err := door.Check("door", "open", "shut"); err != nil {
		t.Fatal(err)
	}
	if err := door.Check("door", "open", "gone"); err == nil || err.Error() != "door: open cannot become gone" {
		t.Fatal(err)
	}
	if !door.Terminal("gone") || door.Terminal("shut") {
		t.Fatal("gone is the one terminal state")
	}
	want := "stateDiagram-v2\n  [*] --> open\n  open --> shut\n  shut --> open\n  shut --> gone\n  gone --> [*]\n"
	if got := door.Diagram("open"); got != want {
		t.Fatalf("diagram:\n%s", got)
	}
}
