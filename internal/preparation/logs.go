package preparation

import (
	"context"
	"fmt"
	"strconv"

	"helmr.dev/helmr/client/api"
	"helmr.dev/helmr/internal/db"
	"helmr.dev/helmr/internal/fault"
)

// attemptBits is where a cursor of a log has the number of the attempt, above that of the record in its Command's output.
const attemptBits = 32

// States of a log, as of a Command's output.
const (
	logOpen   = "open"
	logClosed = "closed"
)

// Logs gives the log of a preparation, its attempts one after the other, after a cursor ("": from the start). done tells that
// the page reaches the end of it. What a lost attempt could not hand over is left out. Errors: not_found, invalid_cursor,
// command_result_expired.
func (s *Service) Logs(ctx context.Context, environmentID, preparationID, cursor string, limit int) (page api.CommandLogPage, done bool, err error) {
	after := int64(0)
	if cursor != "" {
		if after, err = strconv.ParseInt(cursor, 10, 64); err != nil || after < 0 {
			return page, false, badCursor()
		}
	}
	var over bool
	var commands []string
	err = s.db.Read(ctx, func(tx *db.Tx) error {
		p, err := get(tx, environmentID, preparationID)
		if err != nil {
			return err
		}
		over = !p.open()
		commands, err = tx.Column(sqlAttempts, preparationID)
		return err
	})
	if err != nil {
		return page, false, err
	}
	at := int(after >> attemptBits)
	if at >= max(len(commands), 1) {
		return page, false, badCursor()
	}
	page = api.CommandLogPage{Logs: []api.CommandLogRecord{}}
	ended := true
	for record := after & (1<<attemptBits - 1); at < len(commands); at, record = at+1, 0 {
		first := ""
		if record > 0 {
			first = strconv.FormatInt(record, 10)
		}
		if page, ended, err = s.commands.Logs(ctx, environmentID, commands[at], first, limit); err != nil {
			return page, false, err
		}
		if !ended || len(page.Logs) > 0 {
			break
		}
	}
	done = over && ended && at >= len(commands)-1
	page.OutputState = logOpen
	if over {
		page.OutputState = logClosed
	}
	return page, done, renumber(&page, at)
}

// renumber gives the cursors of one attempt's output their place in the whole log.
func renumber(page *api.CommandLogPage, at int) error {
	for i := range page.Logs {
		n, err := strconv.ParseInt(page.Logs[i].Cursor, 10, 64)
		if err != nil {
			return fmt.Errorf("read cursor: %w", err)
		}
		page.Logs[i].Cursor = strconv.FormatInt(int64(at)<<attemptBits|n, 10)
		page.NextCursor = page.Logs[i].Cursor
	}
	return nil
}

func badCursor() error {
	return fault.New(fault.InvalidCursor, "a cursor of a preparation's log is the cursor of one of its records, or the next_cursor of a page")
}
