package arch

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"helmr.dev/helmr/internal/command"
	"helmr.dev/helmr/internal/computer"
	"helmr.dev/helmr/internal/preparation"
	"helmr.dev/helmr/internal/secret"
	"helmr.dev/helmr/internal/session"
	"helmr.dev/helmr/internal/turn"
)

var update = flag.Bool("update", false, "write docs/states.md from the tables of the rooms")

// TestStateDiagrams holds docs/states.md to the tables that the rooms decide by. `make generate` writes it.
func TestStateDiagrams(t *testing.T) {
	var b strings.Builder
	b.WriteString("# States\n\nWhat may follow what. These drawings are made from the tables by which the code decides (`make generate`); which event\n" +
		"takes which arrow stands in the doc comment of the room that owns the table.\n")
	draw := func(title, room, diagram string) {
		b.WriteString("\n## " + title + "\n\nOwned by `" + room + "`.\n\n```mermaid\n" + diagram + "```\n")
	}
	draw("Session", "internal/session", session.Statuses.Diagram(session.Open))
	draw("Session process", "internal/session", session.ProcessStatuses.Diagram(session.ProcessStarting))
	draw("Turn", "internal/turn", turn.Statuses.Diagram(turn.Queued))
	draw("Message", "internal/turn", turn.MessageStatuses().Diagram(turn.MessageAdmitted))
	draw("Question", "internal/turn", turn.QuestionStatuses.Diagram(turn.QuestionPending))
	draw("Residency of a Computer", "internal/computer", computer.Residencies.Diagram(computer.Cold))
	draw("Worker", "internal/computer", computer.WorkerStatuses.Diagram(computer.WorkerRegistering))
	draw("Secret", "internal/secret", secret.Statuses.Diagram(secret.Active))
	draw("Preparation", "internal/preparation", preparation.Statuses.Diagram(preparation.Queued))
	draw("Command", "internal/command", command.Statuses.Diagram(command.Pending))
	path := filepath.Join("..", "..", "docs", "states.md")
	if *update {
		if err := os.WriteFile(path, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(have) != b.String() {
		t.Error("docs/states.md is not what the tables say: run `make generate`")
	}
}
