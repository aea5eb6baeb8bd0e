package proto

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"google.golang.org/protobuf/encoding/protowire"
	pb "google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// Version is the version of the protocol that this code speaks. It rises only when an older side could not go on.
const Version = 1

// Bounds of the channel. Both sides check them before they allocate or believe anything.
const (
	// MaxFrame is the longest frame in bytes, its length prefix not counted.
	MaxFrame = 32 << 20
	// MaxFields bounds the fields of a frame, those of the messages in it included.
	MaxFields = 1 << 18
	// MaxLine is the longest JSON line of the process channel in bytes, its line feed not counted.
	MaxLine = 20 << 20
	// MaxID is the longest id of a Session, Turn, Command or boot in bytes.
	MaxID = 128
	// MaxProcesses bounds the Session processes, and separately the Commands, that a guest keeps.
	MaxProcesses = 1024
	// MaxHelloTurns bounds the Turn ids that a Hello lists for one process.
	MaxHelloTurns = 64
	// MaxChunk is the longest piece of a log or of a Command's output in one message in bytes.
	MaxChunk = 32 << 10
	// MaxDetail is the longest text of a Reply or CommandExited in bytes.
	MaxDetail = 4 << 10
)

// prefix is the length in bytes of what stands before a frame.
const prefix = 4

// ErrFrameTooLarge is a frame above MaxFrame, in either direction.
var ErrFrameTooLarge = errors.New("frame is longer than 32 MiB")

// AppendFrame appends m with its length prefix to buf. On an error buf is returned as it was.
func AppendFrame(buf []byte, m pb.Message) ([]byte, error) {
	start := len(buf)
	out, err := pb.MarshalOptions{}.MarshalAppend(append(buf, 0, 0, 0, 0), m)
	if err != nil {
		return buf, fmt.Errorf("encode frame: %w", err)
	}
	n := len(out) - start - prefix
	if n > MaxFrame {
		return buf, fmt.Errorf("encode frame of %d bytes: %w", n, ErrFrameTooLarge)
	}
	binary.BigEndian.PutUint32(out[start:], uint32(n))
	return out, nil
}

// ReadFrame reads one frame into m. io.EOF means that the stream ended between two frames. Memory grows with what
// arrives, not with what the prefix claims.
func ReadFrame(r io.Reader, m pb.Message) error {
	var head [prefix]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		if errors.Is(err, io.EOF) {
			return io.EOF
		}
		return fmt.Errorf("read frame length: %w", err)
	}
	n := binary.BigEndian.Uint32(head[:])
	if n > MaxFrame {
		return fmt.Errorf("read frame of %d bytes: %w", n, ErrFrameTooLarge)
	}
	body, err := readGrowing(r, int(n))
	if err != nil {
		return fmt.Errorf("read frame of %d bytes: %w", n, err)
	}
	if left := countFields(body, m.ProtoReflect().Descriptor(), MaxFields); left < 0 {
		return fmt.Errorf("read frame of %d bytes: %w", n, invalid("more than %d fields", MaxFields))
	}
	if err := pb.Unmarshal(body, m); err != nil {
		return fmt.Errorf("decode frame: %w", err)
	}
	return nil
}

// countFields takes the fields of an encoded message, those of messages in it included, off what is left. Below zero
// there were too many: an empty one takes two bytes on the wire and a hundred in memory. What is no valid encoding is
// left to the decoder.
func countFields(b []byte, d protoreflect.MessageDescriptor, left int) int {
	for len(b) > 0 && left >= 0 {
		number, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			return left
		}
		b = b[n:]
		left--
		value := protowire.ConsumeFieldValue(number, kind, b)
		if value < 0 {
			return left
		}
		if f := d.Fields().ByNumber(number); kind == protowire.BytesType && f != nil {
			inner, _ := protowire.ConsumeBytes(b)
			switch {
			case f.Message() != nil:
				left = countFields(inner, f.Message(), left)
			case f.IsPacked():
				left -= len(inner)
			}
		}
		b = b[value:]
	}
	return left
}

// readGrowing reads exactly n bytes with a buffer that at most doubles over what has arrived.
func readGrowing(r io.Reader, n int) ([]byte, error) {
	const first = 64 << 10
	body := make([]byte, min(n, first))
	for have := 0; ; {
		got, err := io.ReadFull(r, body[have:])
		have += got
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return nil, err
		}
		if have == n {
			return body, nil
		}
		grown := make([]byte, min(n, 2*have))
		copy(grown, body)
		body = grown
	}
}
