package command

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"helmr.dev/helmr/client/api"
	"helmr.dev/helmr/internal/computer"
	"helmr.dev/helmr/internal/db"
	"helmr.dev/helmr/internal/fault"
	workerpb "helmr.dev/helmr/internal/worker/proto"
)

// Bounds of output.
const (
	// MaxRecord bounds one record, in bytes.
	MaxRecord = 256 << 10
	// maxPageBytes is where a page of output is closed, in bytes; it has one record at least.
	maxPageBytes = 4 << 20
	// maxCursor bounds a cursor, in characters.
	maxCursor = 4096
)

// streams are the streams of a Command as wire and database number them.
var streams = [3]string{1: "stdout", 2: "stderr"}

// StoreOutput keeps output that a Worker brings, each chunk once and in the order of its stream, and tells how far it has
// come. Chunks that are missing become a gap. A Command that takes no more output (it is none of the Computer, or released)
// is answered as if all were kept, so that the guest lets go of it. Error: lease_lost.
func (s *Service) StoreOutput(ctx context.Context, req *workerpb.StoreOutputRequest) (*workerpb.StoreOutputResponse, error) {
	for _, o := range req.GetOutput() {
		if err := checkOutput(o); err != nil {
			return nil, err
		}
	}
	var out *workerpb.StoreOutputResponse
	err := s.db.Write(ctx, func(tx *db.Tx) error {
		out = &workerpb.StoreOutputResponse{}
		c, err := computer.LockLease(tx, req.GetComputerId(), req.GetWorkerId(), req.GetEpoch())
		if err != nil {
			return err
		}
		if c.Purpose == computer.ForPreparation {
			tx.Signal(computer.PreparationsOf(c.EnvironmentID))
		}
		positions := map[string]*position{}
		var order []*position
		for _, o := range req.GetOutput() {
			p := positions[o.GetCommandId()]
			if p == nil {
				if p, err = readPosition(tx, o.GetCommandId(), req.GetComputerId()); err != nil {
					return err
				}
				positions[o.GetCommandId()] = p
				order = append(order, p)
			}
			if err := p.add(tx, o, db.Millis(s.now())); err != nil {
				return err
			}
		}
		for _, p := range order {
			if err := p.store(tx); err != nil {
				return err
			}
			out.Stored = append(out.Stored, &workerpb.StoredOutput{CommandId: p.id, StdoutThrough: p.through[1], StderrThrough: p.through[2]})
		}
		return nil
	})
	return out, err
}

func checkOutput(o *workerpb.Output) error {
	sum := 0
	for _, n := range o.GetLengths() {
		if n <= 0 {
			return fault.New(fault.BadRequest, "a chunk of %d bytes", n)
		}
		sum += int(n)
	}
	if (o.GetStream() != 1 && o.GetStream() != 2) || o.GetFirst() < 1 || sum != len(o.GetData()) || sum == 0 || sum > MaxRecord {
		return fault.New(fault.BadRequest, "output of %d bytes on stream %d from chunk %d is malformed", len(o.GetData()), o.GetStream(), o.GetFirst())
	}
	return nil
}

// position is how far the output of a Command is stored.
type position struct {
	id      string
	takes   bool     // more output
	through [3]int64 // by stream
	last    int64    // record
	stored  bool
}

func readPosition(tx *db.Tx, commandID, computerID string) (*position, error) {
	p := &position{id: commandID}
	var at string
	var open int
	_, err := tx.Get([]any{&at, &open, &p.through[1], &p.through[2], &p.last}, sqlLogPosition, commandID)
	if err != nil {
		return nil, fmt.Errorf("read output position: %w", err)
	}
	p.takes = at == computerID && open == 1
	return p, nil
}

// add keeps what is new in o.
func (p *position) add(tx *db.Tx, o *workerpb.Output, now int64) error {
	first, lengths, data := o.GetFirst(), o.GetLengths(), o.GetData()
	through := &p.through[o.GetStream()]
	last := first + int64(len(lengths)) - 1
	if !p.takes {
		*through = max(*through, last)
		return nil
	}
	for first <= *through && len(lengths) > 0 { // came before
		data = data[lengths[0]:]
		lengths = lengths[1:]
		first++
	}
	if len(lengths) == 0 {
		return nil
	}
	if first > *through+1 {
		if err := p.record(tx, o.GetStream(), *through+1, first-1, nil, now); err != nil {
			return err
		}
	}
	*through = last
	return p.record(tx, o.GetStream(), first, last, data, now)
}

func (p *position) record(tx *db.Tx, stream int32, first, last int64, data []byte, now int64) error {
	p.last++
	p.stored = true
	if err := tx.Do(sqlLogInsert, p.id, p.last, stream, first, last, data, now); err != nil {
		return fmt.Errorf("store output: %w", err)
	}
	return nil
}

func (p *position) store(tx *db.Tx) error {
	if !p.stored {
		return nil
	}
	if err := tx.Do(sqlLogAdvance, p.through[1], p.through[2], p.last, p.id); err != nil {
		return fmt.Errorf("store output position: %w", err)
	}
	tx.Signal(OutputTopic(p.id))
	return nil
}

// cursorOf reads the cursor of a log record: its number, 0 for the start.
func cursorOf(text string) (int64, error) {
	if text == "" {
		return 0, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if len(text) > maxCursor || err != nil || n < 0 || strconv.FormatInt(n, 10) != text {
		return 0, fault.New(fault.InvalidCursor, "a cursor of a Command's output is the cursor of one of its records, or the next_cursor of a page")
	}
	return n, nil
}

var errFull = errors.New("the page is full")

// Logs gives output of a Command after a cursor ("": from the start). done tells that the page reaches the end of an output
// that is closed or unavailable. Errors: computer_command_not_found, command_result_expired, invalid_cursor.
func (s *Service) Logs(ctx context.Context, environmentID, commandID, cursor string, limit int) (page api.CommandLogPage, done bool, err error) {
	after, err := cursorOf(cursor)
	if err != nil {
		return page, false, err
	}
	err = s.db.Read(ctx, func(tx *db.Tx) error {
		page = api.CommandLogPage{Logs: []api.CommandLogRecord{}}
		var last int64
		var gone *int64
		found, err := tx.Get([]any{&page.OutputState, &last, &gone}, sqlLogState, environmentID, commandID)
		switch {
		case err != nil:
			return fmt.Errorf("read output: %w", err)
		case !found:
			return notFound(commandID)
		case gone != nil:
			return expired(commandID)
		case after > last:
			return fault.New(fault.InvalidCursor, "the output of command %s has no record %d yet", commandID, after)
		}
		size, reached := 0, after
		err = tx.Query(func(sc func(...any) error) error {
			r, number, err := scanRecord(sc)
			if err != nil {
				return err
			}
			if size += len(r.Content); size > maxPageBytes && len(page.Logs) > 0 {
				return errFull
			}
			page.Logs = append(page.Logs, r)
			page.NextCursor, reached = r.Cursor, number
			return nil
		}, sqlLogs, commandID, after, limit)
		if err != nil && !errors.Is(err, errFull) {
			return fmt.Errorf("read output: %w", err)
		}
		done = page.OutputState != outputOpen && reached == last
		return nil
	})
	return page, done, err
}

func scanRecord(sc func(...any) error) (api.CommandLogRecord, int64, error) {
	var number, first, last, at int64
	var stream int
	var content []byte
	if err := sc(&number, &stream, &first, &last, &content, &at); err != nil {
		return api.CommandLogRecord{}, 0, err
	}
	r := api.CommandLogRecord{Cursor: strconv.FormatInt(number, 10), Kind: "output", Stream: streams[stream]}
	if content == nil {
		r.Kind, r.FromSequence, r.ThroughSequence = "gap", strconv.FormatInt(first, 10), strconv.FormatInt(last, 10)
		return r, number, nil
	}
	r.Content, r.ObservedAt = content, api.AtOpt(&at)
	return r, number, nil
}
