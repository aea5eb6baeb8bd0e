package client_test

import (
	"bufio"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// channel is the fixture's side of the process channel.
type channel struct {
	w   *bufio.Writer
	seq int
}

func (c *channel) op(format string, a ...any) {
	c.seq++
	fmt.Fprintf(c.w, `{"seq":%d,`+format+"}\n", append([]any{c.seq}, a...)...)
}

// runFixture is a Session process. Modes:
//
//	echo          init_done, then one "heard" operation per line it gets; a turn also gets a turn_result
//	flood N       init_done, then N output operations of 100 bytes, then exit 7 without waiting
//	big N         one operation of N bytes, then echo
//	raw HEX       writes those bytes and then waits for the end of its channel
//	collect N     N operations, then exits with 0 if it gets the acks 1 to N in order, each once, else with 9
//	deaf          init_done, then never reads
//	die           init_done, one output, half a line, then SIGKILL of itself
func runFixture(mode string) {
	f := os.NewFile(3, "channel")
	c := &channel{w: bufio.NewWriter(f)}
	word, rest, _ := strings.Cut(mode, " ")
	n, _ := strconv.Atoi(rest)
	switch word {
	case "raw":
		text, _ := hex.DecodeString(rest)
		_, _ = f.Write(text)
	case "flood":
		c.op(`"type":"init_done"`)
		for i := range n {
			c.op(`"type":"output","turnId":"t","text":"%s%d"`, strings.Repeat("x", 100), i)
		}
		c.w.Flush()
		os.Exit(7)
	case "collect":
		go func() {
			for range n {
				c.op(`"type":"output","text":"x"`)
			}
			c.w.Flush()
		}()
		collect(f, n)
	case "big":
		c.op(`"type":"output","text":"%s"`, strings.Repeat("x", n-len(`{"seq":1,"type":"output","text":""}`)))
	case "die":
		c.op(`"type":"init_done"`)
		c.op(`"type":"output","text":"last"`)
		_, _ = c.w.WriteString(`{"seq":3,"ty`)
		c.w.Flush()
		fmt.Fprint(os.Stderr, "about to die")
		self, _ := os.FindProcess(os.Getpid())
		_ = self.Kill()
		time.Sleep(time.Hour)
	default:
		c.op(`"type":"init_done"`)
	}
	c.w.Flush()
	if word == "deaf" {
		time.Sleep(time.Hour) // select {} alone is a deadlock to the Go runtime
	}
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 32<<20)
	for lines.Scan() {
		if word == "raw" {
			continue
		}
		heard(c, lines.Bytes())
		c.w.Flush()
	}
}

func collect(f *os.File, n int) {
	lines := bufio.NewScanner(f)
	lines.Scan() // start
	for want := 1; want <= n && lines.Scan(); want++ {
		if got := lines.Text(); got != fmt.Sprintf(`{"type":"ack","seq":%d}`, want) {
			fmt.Fprintf(os.Stderr, "ack %d is %s", want, got)
			os.Exit(9)
		}
	}
	os.Exit(0)
}

// heard answers one line: acks, to keep their number finite, are counted by type only when a turn asks for it.
var acksHeard []string

func heard(c *channel, raw []byte) {
	var line struct {
		Type      string
		Seq       int64
		Turn      struct{ ID string }
		MessageID string
	}
	if err := json.Unmarshal(raw, &line); err != nil {
		panic(err)
	}
	switch line.Type {
	case "ack":
		acksHeard = append(acksHeard, strconv.FormatInt(line.Seq, 10))
	case "turn":
		c.op(`"type":"heard","text":"turn %s acks %s"`, line.Turn.ID, strings.Join(acksHeard, ","))
		c.op(`"type":"turn_result","turnId":"%s"`, line.Turn.ID)
	default:
		c.op(`"type":"heard","text":"%s %s"`, line.Type, line.MessageID)
	}
}
