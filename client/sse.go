package client

import (
	"bufio"
	"bytes"
	"errors"
	"io"
)

// eventReader reads a server-sent event stream.
type eventReader struct {
	r     *bufio.Reader
	alive func()
	limit int
	// long and data are used again for each line and event.
	long, data []byte
}

// maxEvent bounds one line of a stream: the largest event holds a machine result of 16 MiB.
const maxEvent = 64 << 20

var errEventTooLarge = errors.New("an event is larger than this client takes")

func newEventReader(r io.Reader, alive func()) *eventReader {
	return &eventReader{r: bufio.NewReaderSize(r, 64<<10), alive: alive, limit: maxEvent}
}

// next gives the next event; comments only tell that the stream lives. data is valid until the next call.
func (e *eventReader) next() (name string, data []byte, err error) {
	has := false
	data = e.data[:0]
	for {
		line, err := e.line()
		if err != nil {
			return "", nil, err
		}
		e.alive()
		if len(line) == 0 {
			if has {
				return name, data, nil
			}
			name, data = "", e.data[:0]
			continue
		}
		field, value, _ := bytes.Cut(line, []byte(":"))
		value = bytes.TrimPrefix(value, []byte(" "))
		switch string(field) {
		case "event":
			name = string(value)
		case "data":
			if has {
				data = append(data, '\n')
			}
			data, has = append(data, value...), true
			e.data = data
		}
	}
}

// line gives one line without its end. It is valid until the next call.
func (e *eventReader) line() ([]byte, error) {
	part, err := e.r.ReadSlice('\n')
	if err == nil {
		return bytes.TrimRight(part, "\r\n"), nil
	}
	whole := e.long[:0]
	for errors.Is(err, bufio.ErrBufferFull) {
		whole = append(whole, part...)
		if len(whole) > e.limit {
			return nil, errEventTooLarge
		}
		part, err = e.r.ReadSlice('\n')
	}
	if err != nil {
		return nil, err
	}
	e.long = append(whole, part...)
	return bytes.TrimRight(e.long, "\r\n"), nil
}
